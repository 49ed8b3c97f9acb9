package sign_test

import (
	"testing"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// Repository and ref are compared each by itself: nothing in a repository's URL is taken for a
// ref, and a text that joins the two is compared as a whole or refused.
func TestSources(t *testing.T) {
	f := setup(t)
	private, public := f.key("ours")
	const agentBuild, elsewhere = "https://armature.dev/agent-build/v1",
		"https://elsewhere.example/v1"
	digest := map[string]any{"gitCommit": commit}
	made := func(kind, uri string, annotations map[string]any) map[string]any {
		return build(func(p map[string]any) {
			definition := p["buildDefinition"].(map[string]any)
			definition["buildType"], definition["externalParameters"] = kind, map[string]any{}
			source := map[string]any{"uri": uri, "digest": digest}
			if annotations != nil {
				source["annotations"] = annotations
			}
			definition["resolvedDependencies"] = []any{source}
		})
	}
	workflowOf := func(kind, repository, ref string) map[string]any {
		p := made(kind, "git+https://git.example/team2/weather@refs/heads/other", nil)
		p["buildDefinition"].(map[string]any)["externalParameters"] = map[string]any{
			"workflow": map[string]any{"repository": repository, "ref": ref, "path": "x"}}
		return p
	}
	workflow := func(repository, ref string) map[string]any {
		return workflowOf("https://actions.github.io/buildtypes/workflow/v1", repository, ref)
	}
	apart := func(repository, ref string) map[string]any {
		return map[string]any{"armature_repository": repository, "armature_ref": ref}
	}
	const ours = "https://git.example/team1/weather"
	for name, c := range map[string]struct {
		predicate map[string]any
		branches  []string
		why       string // "" where it is accepted
	}{
		"apart": {made(agentBuild, "git+x",
			apart(ours+".git", "refs/heads/main")), []string{"main"}, ""},
		"apart, any branch": {made(agentBuild, "git+x", apart(ours, "")), nil, ""},
		"dot segments in a joined text": {made(agentBuild,
			"git+"+ours+"@refs/../../team2/weather", nil), nil,
			"is of a release that joined repository and ref"},
		"dot segments with a branch": {made(agentBuild,
			"git+"+ours+"@refs/../../team2/weather@refs/heads/main", nil), []string{"main"},
			"is of a release that joined repository and ref"},
		"a joined text of an older one": {made(agentBuild, "git+"+ours+"@refs/heads/main", nil),
			[]string{"main"}, "build the image again"},
		"dot segments in the field": {made(agentBuild, "git+x",
			apart(ours+"/../../team1/weather", "refs/heads/main")), nil, "no canonical form"},
		"a repository with a ref": {made(agentBuild, "git+x",
			apart(ours+"@refs/heads/main", "")), []string{"main"}, "no canonical form"},
		"not as it is cloned": {made(agentBuild, "git+x",
			apart("git.example/team1/weather", "refs/heads/main")), nil, "no canonical form"},
		"another repository": {made(agentBuild, "git+"+ours,
			apart("https://git.example/team2/weather", "")), nil, "none of the policy's sources"},
		"another branch": {made(agentBuild, "git+"+ours+"@refs/heads/main",
			apart(ours, "refs/heads/other")), []string{"main"}, `"refs/heads/other" of`},
		"a field in another shape": {made(agentBuild, "git+"+ours,
			map[string]any{"armature_repository": []any{ours}}), nil,
			"is of a release that joined"},
		"fields of another builder": {made(elsewhere,
			"git+https://git.example/team2/weather", apart(ours, "refs/heads/main")), nil,
			"none of the policy's sources"},
		"a workflow": {workflow(ours, "refs/heads/main"), []string{"main"},
			""},
		"a workflow on another branch": {workflow(ours, "refs/heads/other"), []string{"main"},
			`"refs/heads/other" of`},
		"a workflow of another repository": {workflow("https://git.example/team2/weather",
			"refs/heads/main"), nil, "none of the policy's sources"},
		"a workflow of dot segments": {workflow(ours+"/../weather", "refs/heads/main"), nil,
			"none of the policy's sources"},
		"a workflow by another builder": {workflowOf(elsewhere, ours, "refs/heads/main"),
			[]string{"main"}, "none of the policy's sources"},
		"a plain text": {made(elsewhere, "git+"+ours+".git", nil), nil, ""},
		"a joined text with the branch": {made(elsewhere, "git+"+ours+".git@refs/heads/main",
			nil), []string{"release", "main"}, ""},
		"a joined text, any branch": {made(elsewhere, "git+"+ours+"@refs/heads/main", nil),
			nil, "name the branches"},
		"a joined text of dot segments": {made(elsewhere,
			"git+"+ours+"@refs/../../team2/weather", nil), nil, "name the branches"},
		"dot segments before the branch": {made(elsewhere,
			"git+"+ours+"@refs/../../team2/weather@refs/heads/main", nil), []string{"main"},
			"demands a branch of main"},
		"a longer name": {made(elsewhere, "git+"+ours+"-evil@refs/heads/main",
			nil), []string{"main"}, "none of the policy's sources"},
	} {
		t.Run(name, func(t *testing.T) {
			all := good()
			all[sign.PredicateType] = c.predicate
			f.artifact = f.push(name)
			f.attest(private, all)
			p := builds(public)
			p.Builds.Templates = nil
			p.Builds.Sources = []sign.Source{{Repository: ours, Branches: c.branches}}
			if c.why != "" {
				f.refused(p, c.why)
			} else if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
				t.Error(err)
			}
		})
	}
}
