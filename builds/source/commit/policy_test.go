package commit_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/source/commit"
	"github.com/armature-dev/armature/functions/multi"
)

// policy of a text below spec.source, with files beside it.
func policy(t *testing.T, source string, files ...string) *commit.Policy {
	t.Helper()
	p, err := parse(source, files...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func parse(source string, files ...string) (*commit.Policy, error) {
	return commit.ParsePolicy(policyFiles(source, files...))
}

func policyFiles(source string, files ...string) map[string][]byte {
	all := map[string][]byte{
		commit.PolicyKey: []byte("apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\n" +
			"metadata: {name: source}\nspec:\n  source: " + source + "\n")}
	for i := 0; i < len(files); i += 2 {
		all[files[i]] = []byte(files[i+1])
	}
	return all
}

const someKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func TestParsePolicy(t *testing.T) {
	for _, test := range []struct {
		name, source string
		files        []string
		want         string // of the error; "" for none
	}{
		{name: "branch", source: "{branches: [main]}"},
		{name: "signers", source: "{tags: ['v*'], allowedSigners: [a]}",
			files: []string{"a",
				"# people\n\na@b,c@d namespaces=\"git,file\",valid-after=\"20260101\" " + someKey +
					" comment\n\"with space\" " + someKey}},
		{name: "nothing", source: "{}", want: "names neither a branch nor a tag"},
		{name: "null", source: "null", want: "names neither a branch nor a tag"},
		{name: "signers alone", source: "{allowedSigners: [a]}",
			files: []string{"a", "a " + someKey}, want: "names neither a branch nor a tag"},
		{name: "unknown field", source: "{branches: [main], identities: []}",
			want: `unknown field "identities"`},
		{name: "images too", source: "{branches: [main]}\n  keys: [cosign.pub]",
			want: `unknown field "keys"`},
		{name: "bad pattern", source: "{branches: ['[']}", want: `"[" is not a name or a pattern`},
		{name: "empty pattern", source: "{tags: ['']}", want: `"" is not a name or a pattern`},
		{name: "full ref", source: "{branches: [refs/heads/main]}",
			want: "is not a name or a pattern: write it as in main"},
		{name: "many", source: "{tags: [" + strings.Repeat("a, ", 101) + "]}",
			want: "more than 100 branches and tags"},
		{name: "long", source: "{tags: [v" + strings.Repeat("*a", 128) + "]}",
			want: "has more than 256 bytes: shorten it"},
		{name: "no signers", source: "{branches: [main], allowedSigners: []}",
			want: "is an empty list"},
		{name: "missing file", source: "{branches: [main], allowedSigners: [b]}",
			files: []string{"a", ""},
			want:  `"b" is not beside the policy, which has a, policy.yaml`},
		{name: "nobody", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "# none\n"}, want: "a: it allows no key to sign commits"},
		{name: "files only", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "a@b namespaces=\"file\" " + someKey},
			want:  "it allows no key to sign commits"},
		{name: "authority", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "a@b cert-authority " + someKey},
			want:  "line 1: certificates of SSH (cert-authority) are not supported"},
		{name: "unknown option", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "\na@b restrict " + someKey},
			want:  `line 2: the option "restrict" is unknown`},
		{name: "namespace pattern", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "a@b namespaces=\"g*\" " + someKey},
			want:  "patterns are not supported"},
		{name: "no time", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "a@b valid-before=\"soon\" " + someKey}, want: "is not a time"},
		{name: "wrong time", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "a@b valid-before=\"20261301\" " + someKey},
			want:  "month out of range"},
		{name: "no key", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", "a@b"}, want: "line 1: it has no key"},
		{name: "no principals", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", someKey}, want: "line 1: it has no key"},
		{name: "open quote", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", `"a@b ` + someKey}, want: "a quote is not closed"},
		{name: "long", source: "{branches: [main], allowedSigners: [a]}",
			files: []string{"a", strings.Repeat("a", 300) + " " + someKey},
			want:  "more than 256 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := parse(test.source, test.files...)
			switch {
			case test.want == "" && err != nil:
				t.Fatal(err)
			case test.want == "":
				if p.DemandsSignature() != (len(test.files) > 0) {
					t.Errorf("%+v", p)
				}
			case err == nil || !strings.Contains(err.Error(), test.want):
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	if _, err := commit.ParsePolicy(map[string][]byte{"a": nil}); err == nil ||
		!strings.Contains(err.Error(), "no key policy.yaml") {
		t.Errorf("without a policy: %v", err)
	}
	other := []byte(
		"apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nspec: {source: {branches: [main]}}")
	if _, err := commit.ParsePolicy(map[string][]byte{commit.PolicyKey: other}); err == nil ||
		!strings.Contains(err.Error(), "is not a policy") {
		t.Errorf("another kind: %v", err)
	}
}

// The digest is of the files too, so that status says which keys counted.
func TestPolicyDigest(t *testing.T) {
	a := commit.Digest(policyFiles("{branches: [main], allowedSigners: [a]}", "a", "a@b "+someKey))
	b := commit.Digest(policyFiles("{branches: [main], allowedSigners: [a]}", "a", "c@d "+someKey))
	if a == b || !strings.HasPrefix(a, "sha256:") {
		t.Errorf("policies with other signers have the digests %s and %s", a, b)
	}
}

func TestCovers(t *testing.T) {
	p := policy(t, "{branches: [main, 'release/*'], tags: ['v[0-9].?']}")
	for ref, want := range map[string]bool{
		"refs/heads/main": true, "refs/heads/release/1": true, "refs/heads/release/1/x": false,
		"refs/heads/release": false, "refs/heads/mainly": false, "refs/tags/v1.0": true,
		"refs/tags/main": false, "refs/heads/v1.0": false, "refs/tags/v1.0^{}": false,
		"refs/pull/1/head": false, "refs/pull/main": false, "HEAD": false, "main": false,
		"refs/remotes/origin/main": false, "refs/heads/": false,
	} {
		if got := p.Covers(ref); got != want {
			t.Errorf("%s: %v", ref, got)
		}
	}
}

// The example's policy is one.
func TestExample(t *testing.T) {
	data, err := os.ReadFile("../../../examples/builds/verified-source.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(string(data), "\n---\n")
	var cm corev1.ConfigMap
	var build api.AgentBuild
	if err := multi.Errors(yaml.UnmarshalStrict([]byte(first), &cm),
		yaml.UnmarshalStrict([]byte(second), &build)); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for name, text := range cm.Data {
		files[name] = []byte(text)
	}
	p, err := commit.ParsePolicy(files)
	if err != nil || !p.DemandsSignature() || !p.Covers("refs/tags/v1.0") ||
		build.Spec.Source.Verify == nil || build.Spec.Source.Verify.Name != cm.Name {
		t.Errorf("%+v, error %v, verify %+v", p, err, build.Spec.Source.Verify)
	}
}
