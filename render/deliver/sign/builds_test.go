package sign_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/render/deliver/sign"
)

const (
	builderID = "https://armature.dev/builder/prod"
	commit    = "0123456789012345678901234567890123456789"
	template  = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	template2 = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// build is a provenance that the policy of builds accepts, unless a test changes it.
func build(change func(map[string]any)) map[string]any {
	source := map[string]any{"uri": "git+https://git.example/team1/weather.git@refs/heads/main",
		"digest": map[string]any{"gitCommit": commit},
		"annotations": map[string]any{"armature_repository": "https://git.example/team1/weather",
			"armature_ref": "refs/heads/main"}}
	predicate := map[string]any{
		"buildDefinition": map[string]any{
			"buildType":          "https://armature.dev/agent-build/v1",
			"externalParameters": map[string]any{"source": source},
			"internalParameters": map[string]any{
				"template": map[string]any{"configMap": "armature-system/pipeline-template-prod",
					"digest": template}},
			"resolvedDependencies": []any{source,
				map[string]any{"uri": "git+https://git.example/lib",
					"digest": map[string]any{"gitCommit": commit}}},
		},
		"runDetails": map[string]any{
			"builder": map[string]any{"id": builderID},
			"metadata": map[string]any{
				"finishedOn": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)},
		},
	}
	if change != nil {
		change(predicate)
	}
	return predicate
}

func scan(scores ...string) map[string]any {
	var severity []any
	for _, s := range scores {
		severity = append(severity, map[string]any{"method": "nvd", "score": s})
	}
	return map[string]any{"scanner": map[string]any{"uri": "https://scanner.example",
		"result": []any{map[string]any{"id": "CVE-2026-1", "severity": severity}}},
		"metadata": map[string]any{"scanFinishedOn": "2026-01-01T00:00:00Z"}}
}

// builds is a policy that makes every demand.
func builds(key string) sign.Policy {
	p := local(key)
	p.Builds = &sign.Builds{
		Builders: []sign.TrustedBuilder{{ID: builderID, Level: 3},
			{ID: "https://armature.dev/builder/custom", Level: 1}}, MinimumLevel: 2,
		Sources: []sign.Source{{Repository: "https://git.example/team1/weather",
			Branches: []string{"main", "release"}}},
		Templates: []string{template2, template},
		MaxAge:    &metav1.Duration{Duration: 2 * time.Hour}, SBOM: true, MaxSeverity: "medium",
	}
	return p
}

// attest signs the artifact, and statements about it by their types.
func (f *fixture) attest(key string, statements map[string]any) {
	f.Helper()
	session, err := signer(key).Open(f.Context())
	if err == nil {
		_, err = session.Sign(f.Context(), f.artifact)
	}
	if err != nil {
		f.Fatal(err)
	}
	for kind, predicate := range statements {
		if _, err := session.Attest(f.Context(), f.artifact, kind, predicate); err != nil {
			f.Fatal(err)
		}
	}
}

const (
	sbomType = "https://spdx.dev/Document"
	vulnType = "https://in-toto.io/attestation/vulns/v0.2"
)

func good() map[string]any {
	return map[string]any{sign.PredicateType: build(nil),
		sbomType: map[string]any{"spdxVersion": "SPDX-2.3"}, vulnType: scan("LOW", "5.5")}
}

// A build that satisfies a policy, and each single change of the policy.
func TestBuildPolicy(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	_, other := f.key("other")
	f.attest(private, good())
	v, err := sign.Verify(t.Context(), f.artifact, builds(public))
	if err != nil || v.Level == nil || *v.Level != 3 ||
		v.Provenance.RunDetails.Builder.ID != builderID {
		t.Fatalf("%+v %v", v, err)
	}
	for _, c := range []struct {
		change func(*sign.Policy)
		why    string
	}{
		{func(p *sign.Policy) { p.Keys = []string{other} }, "signature: "},
		{func(p *sign.Policy) { p.Builds.Builders[0].ID = "https://armature.dev/builder/dev" },
			`the builder "` + builderID + `" is none of the policy's`},
		{func(p *sign.Policy) { p.Builds.Builders[0].Level = 1; p.Builds.Builders[1].Level = 3 },
			"has level 1, and the policy demands 2"},
		{func(p *sign.Policy) { p.Builds.Sources[0].Repository += "s" },
			"https://git.example/team1/weather was built, which is none of the policy's sources"},
		{func(p *sign.Policy) { p.Builds.Sources[0].Repository = "https://git.example/lib" },
			"none of the policy's sources"},
		{func(p *sign.Policy) { p.Builds.Sources[0].Branches = []string{"release"} },
			"demands a branch of release"},
		{func(p *sign.Policy) { p.Builds.Templates = []string{template2} },
			"the template armature-system/pipeline-template-prod of digest " + template +
				" was used"},
		{func(p *sign.Policy) { p.Builds.MaxAge.Duration = time.Minute },
			"the policy's maxAge is 1m0s"},
		{func(p *sign.Policy) { p.Builds.MaxSeverity = "low" },
			"CVE-2026-1 is rated medium, and the policy accepts low"},
	} {
		p := builds(public)
		c.change(&p)
		f.refused(p, c.why)
	}
}

// Each single change of what is attested is refused.
func TestBuilds(t *testing.T) {
	part := func(predicate map[string]any, path ...string) map[string]any {
		for _, key := range path {
			predicate = predicate[key].(map[string]any)
		}
		return predicate
	}
	keys := setup(t)
	private, public := keys.key("ours")
	other, _ := keys.key("other")
	for name, c := range map[string]struct {
		change func(map[string]any)
		why    string
	}{
		"no provenance": {func(all map[string]any) { delete(all, sign.PredicateType) },
			"provenance: "},
		"no SBOM": {func(all map[string]any) { delete(all, sbomType) },
			"bill of materials: "},
		"no scan": {func(all map[string]any) { delete(all, vulnType) },
			"vulnerabilities: "},
		"a high one": {func(all map[string]any) { all[vulnType] = scan("high") },
			"is rated high"},
		"a score of 9.8": {func(all map[string]any) { all[vulnType] = scan("9.8") },
			"is rated critical"},
		"a word that nobody": {func(all map[string]any) { all[vulnType] = scan("meh") },
			"is rated critical"},
		"not rated": {func(all map[string]any) { all[vulnType] = scan() },
			"is rated critical"},
		"no scanner": {func(all map[string]any) { all[vulnType] = map[string]any{} },
			"does not name its scanner"},
		"another builder": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "runDetails", "builder")["id"] = builderID + "/"
			})
		}, "is none of the policy's"},
		"a weaker builder": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "runDetails", "builder")["id"] = "https://armature.dev/builder/custom"
			})
		}, "has level 1, and the policy demands 2"},
		"another repository": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition", "externalParameters",
					"source")["annotations"] = map[string]any{
					"armature_repository": "https://git.example/team2/weather",
					"armature_ref":        "refs/heads/main"}
			})
		}, "https://git.example/team2/weather was built, which is none of the policy's sources"},
		"another branch": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition", "externalParameters",
					"source")["annotations"] = map[string]any{
					"armature_repository": "https://git.example/team1/weather",
					"armature_ref":        "refs/heads/feature"}
			})
		}, `"refs/heads/feature" of https://git.example/team1/weather was built`},
		"a tag": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition", "externalParameters",
					"source")["annotations"] = map[string]any{
					"armature_repository": "https://git.example/team1/weather",
					"armature_ref":        "refs/tags/main"}
			})
		}, `"refs/tags/main" of`},
		"no branch": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition", "externalParameters",
					"source")["annotations"] = map[string]any{
					"armature_repository": "https://git.example/team1/weather", "armature_ref": ""}
			})
		}, "demands a branch of main, release"},
		"no commit": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition", "externalParameters",
					"source")["digest"] = map[string]any{"gitCommit": "main"}
			})
		}, "does not say which commit"},
		"two sources": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				delete(part(p, "buildDefinition", "externalParameters"), "source")
			})
		}, "several dependencies with a commit"},
		"another template": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition", "internalParameters",
					"template")["digest"] = strings.Replace(template, "a", "c", 1)
			})
		}, "which is none of the policy's"},
		"no template": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				delete(part(p, "buildDefinition"), "internalParameters")
			})
		}, "does not say which template"},
		"a template of no digest": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				delete(part(p, "buildDefinition", "internalParameters", "template"), "digest")
			})
		}, "does not say which template"},
		"a template in another shape": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition")["internalParameters"] = template
			})
		}, "does not say which template"},
		"another build type": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "buildDefinition")["buildType"] = "https://elsewhere.example/v1"
			})
		}, "does not say which template"},
		"no time": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				delete(part(p, "runDetails"), "metadata")
			})
		}, "does not say when the build finished"},
		"long ago": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "runDetails", "metadata")["finishedOn"] = "2020-01-01T00:00:00Z"
			})
		}, "the build finished on 2020-01-01T00:00:00Z"},
		"in the future": {func(all map[string]any) {
			all[sign.PredicateType] = build(func(p map[string]any) {
				part(p, "runDetails", "metadata")["finishedOn"] = "2099-01-01T00:00:00Z"
			})
		}, "in the future"},
		"not a provenance": {func(all map[string]any) { all[sign.PredicateType] = []string{"x"} },
			"provenance: "},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			all := good()
			c.change(all)
			f.attest(private, all)
			f.refused(builds(public), c.why)
			// An attestation of somebody else changes nothing.
			f.attest(other, good())
			f.refused(builds(public), c.why)
		})
	}
}

// The provenance of another artifact of the repository, attached to this one, is
// refused, as is a signature without attestations and attestations without one.
func TestBuildOfAnother(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	f.attest(private, good())
	from := f.artifact
	f.artifact = f.push("another")
	f.attest(private, nil)
	f.refused(builds(public), "provenance: ")
	f.steal(from)
	f.refused(builds(public), "digest")

	f.artifact = f.push("third")
	session, err := signer(private).Open(t.Context())
	if err == nil {
		_, err = session.Attest(t.Context(), f.artifact, sign.PredicateType, build(nil))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.refused(builds(public), "no signatures found")
}

// Of the only dependency with a commit the source is known as well.
func TestSourceOfDependencies(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	all := good()
	all[sign.PredicateType] = build(func(p map[string]any) {
		definition := p["buildDefinition"].(map[string]any)
		definition["externalParameters"] = map[string]any{"workflow": "x"}
		definition["resolvedDependencies"] = definition["resolvedDependencies"].([]any)[:1]
	})
	f.attest(private, all)
	if _, err := sign.Verify(t.Context(), f.artifact, builds(public)); err != nil {
		t.Error(err)
	}
	p := builds(public)
	p.Builds.Sources[0].Repository = "HTTPS://Git.example/team1/weather.git/"
	if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
		t.Errorf("the same repository, written otherwise: %v", err)
	}
	p.Builds.Sources[0].Repository = "https://git.example/Team1/weather"
	f.refused(p, "none of the policy's sources")
}

// Empty demands, and demands that nothing can meet, are errors of the policy.
func TestBuildPolicyFile(t *testing.T) {
	for text, why := range map[string]string{
		`{}`:                     "names no builder",
		`{builders: [{id: ""}]}`: "builders[0] needs an id",
		`{builders: [{id: "https://armature.dev/local"}]}`: "builders[0" +
			"]: https://armature.dev/local is anybody's own machine",
		`{builders: [{id: a, level: 4}]}`:                                        "not a build level",
		`{builders: [{id: a}], minimumLevel: 2}`:                                 "none of the builders has that level",
		`{builders: [{id: a}], minimumLevel: -1}`:                                "not a build level",
		`{builders: [{id: a}], sources: [{}]}`:                                   "sources[0] needs a repository",
		`{builders: [{id: a}], sources: [{repository: host/r, branches: [""]}]}`: "empty name",
		`{builders: [{id: a}], sources: [{repository: "https://host/a@refs/../b"}]}`: "builds." +
			"sources[0].repository has an '@' in its path",
		`{builders: [{id: a}], maxAge: -1h}`: "use a positive duration",
		`{builders: [{id: a}], maxSeverity: bad}`: "use one " +
			"of none, low, medium, high",
		`{builders: [{id: a}], maxSeverity: critical}`: "use one of none, low, medium, high",
		`{builders: [{id: a}], templates: [""]}`:       `templates[0] "" is not a digest`,
		`{builders: [{id: a}], templates: [prod]}`:     `templates[0] "prod" is not a digest`,
		`{builders: [{id: a}], templates: ["` + template +
			`", sha256:AA]}`: `templates[1] "sha256:AA" is not a digest`,
		`{builders: [{id: a}], template: x}`: `spec.builds.template: no such field`,
		`{builders: [{id: a, levels: 3}]}`:   `did you mean level?`,
	} {
		if _, err := policy(t, "spec: {keys: [a.pub], builds: "+text+"}\n"); err == nil ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", text, err, why)
		}
	}
	p, err := policy(t,
		"spec: {keys: [a.pub], builds: {builders: [{id: a, level: 3}], minimumLevel: 3, sources: "+
			"[{repository: host/r}], maxAge: 720h, sbom: true, maxSeverity: none}}\n")
	if err != nil || p.Builds.MaxAge.Duration != 720*time.Hour || !p.Builds.SBOM {
		text, _ := json.Marshal(p)
		t.Errorf("%s %v", text, err)
	}
}

// A policy can demand that the builder's platform verified the commit, and who builds
// cannot claim that by a parameter.
func TestVerifiedSources(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	// made is what an AgentBuild of a commit has as provenance.
	made := func(annotations any) map[string]any {
		return build(func(p map[string]any) {
			definition := p["buildDefinition"].(map[string]any)
			definition["externalParameters"] = map[string]any{"agentBuild": map[string]any{}}
			source := map[string]any{"uri": "git+https://git.example/team1/weather.git",
				"digest": map[string]any{"gitCommit": commit}}
			source["annotations"] = annotations
			definition["resolvedDependencies"] = []any{source}
		})
	}
	signed := map[string]any{"sourceRefs": []any{"refs/tags/v1", "refs/heads/main"},
		"armature_repository": "https://git.example/team1/weather",
		"armature_policy":     "armature-system/release", "armature_policyDigest": template,
		"armature_signer": "alice"}
	plain := map[string]any{"armature_repository": "https://git.example/team1/weather.git"}
	without := func(key string) map[string]any {
		out := maps.Clone(signed)
		delete(out, key)
		return out
	}
	parameter := build(func(p map[string]any) {
		definition := p["buildDefinition"].(map[string]any)
		source := definition["externalParameters"].(map[string]any)["source"].(map[string]any)
		source["annotations"] = signed
	})
	foreign := made(signed)
	foreign["buildDefinition"].(map[string]any)["buildType"] = "https://elsewhere.example/v1"
	for name, c := range map[string]struct {
		predicate any
		verified  string
		branches  []string
		why       string // "" where it is accepted
	}{
		"signed":             {made(signed), "signed", []string{"main"}, ""},
		"signed, any branch": {made(signed), "signed", nil, ""},
		"reachable": {made(without("armature_signer")), "reachable", []string{"main"},
			""},
		"signed is reachable": {made(signed), "reachable", []string{"release", "main"}, ""},
		"not demanded":        {made(plain), "", nil, ""},
		"unsigned": {made(without("armature_signer")), "signed", nil,
			"was verified without a signature"},
		"another branch": {made(signed), "signed", []string{"release"},
			`"refs/tags/v1 refs/heads/main" of https://git.example/team1/weather was built, and the policy demands a branch of release`},
		"not verified": {made(plain), "reachable", nil, "does not say that the commit"},
		"no ref": {made(without("sourceRefs")), "reachable", nil,
			"does not say that the commit"},
		"no policy": {made(without("armature_policy")), "reachable", nil,
			"does not say that the commit"},
		"no digest": {made(without("armature_policyDigest")), "reachable", nil,
			"does not say that the commit"},
		"another shape":         {made("yes"), "reachable", nil, "is of a release that joined"},
		"by a parameter":        {parameter, "reachable", nil, "does not say that the commit"},
		"of another build type": {foreign, "reachable", nil, "does not say that the commit"},
		"not demanded by branch": {made(signed), "", []string{"main"},
			`"" of https://git.example/team1/weather was built`},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.attest(private, map[string]any{sign.PredicateType: c.predicate})
			p := local(public)
			p.Builds = &sign.Builds{Builders: []sign.TrustedBuilder{{ID: builderID, Level: 2}},
				Sources: []sign.Source{{Repository: "https://git.example/team1/weather",
					Branches: c.branches, Verified: c.verified}}}
			if c.why != "" {
				f.refused(p, c.why)
				return
			}
			if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
				t.Error(err)
			}
		})
	}
	p := builds(public)
	p.Builds.Sources[0].Verified = "yes"
	if err := p.Check(); err == nil || !strings.Contains(err.Error(),
		`builds.sources[0].verified "yes": use reachable or signed`) {
		t.Errorf("error %v", err)
	}
}
