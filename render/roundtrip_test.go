package render_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// share counts how many workloads the scanner was not certain of.
type share struct{ documents, workloads, rewritten int }

func (s *share) add(r render.Result) {
	if finding.Failed(r.Findings) {
		return
	}
	s.documents += r.Stats.Documents
	s.workloads += r.Stats.Workloads
	s.rewritten += r.Stats.Rewritten
}

func (s share) String() string {
	return fmt.Sprintf(
		"%d documents, %d workloads injected, %d (%.1f %%) with the fallback to kyaml",
		s.documents, s.workloads, s.rewritten,
		100*float64(s.rewritten)/float64(max(s.workloads, 1)))
}

func config(t testing.TB, spec string) *api.RenderConfig {
	t.Helper()
	c, findings := render.ReadConfig(
		[]byte("apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nmetadata: {name: c}\nspec: "+
			spec+"\n"), "armature.yaml")
	if finding.Failed(findings) {
		t.Fatal(findings)
	}
	return c
}

// small leaves most components out, where it does not matter what is injected.
const small = `{profile: kagenti, trace: {enabled: true}, identity: {inbound: {port: 18080}}, components: {spiffe-helper: {enabled: false}, client-registration: {enabled: false}, envoy-proxy: {enabled: false}}}`

// cloudy adds a variable and more mounts to the author's containers.
const cloudy = `{profile: kagenti, trace: {enabled: true}, identity: {inbound: {port: 18080}, clientRegistration: {aws: {roleArn: "arn:aws:iam::1:role/r", region: eu}}}, components: {envoy-proxy: {enabled: false}}}`

// TestGeneratedManifests is acceptance 3 over files of many tastes.
func TestGeneratedManifests(t *testing.T) {
	t.Parallel()
	seeds := 400
	if testing.Short() {
		seeds = 150
	}
	configs := []*api.RenderConfig{config(t, small),
		config(t,
			`{profile: kagenti, trace: {enabled: true}, rollout: hash, components: {client-registration: {enabled: false}, envoy-proxy: {enabled: false}}}`), config(t, cloudy), config(t, `{profile: kagenti, trace: {enabled: true}}`)}
	var s share
	for seed := range uint64(seeds) {
		c := configs[seed%uint64(len(configs))]
		file, optedIn := manifest(seed)
		if _, err := decode3([]byte(file)); err != nil {
			t.Fatalf("seed %d: the generator made no YAML: %v\n%s", seed, err, file)
		}
		result, problem := checkRender(t, []byte(file), c)
		if problem != "" {
			t.Errorf("seed %d: %s\ninput:\n%s", seed, problem, file)
		}
		if finding.Failed(result.Findings) {
			t.Errorf("seed %d: %v\n%s", seed, result.Findings, file)
			continue
		}
		if result.Stats.Workloads != optedIn {
			t.Errorf("seed %d: %d workloads opted in, %d were injected\n%s", seed, optedIn,
				result.Stats.Workloads, file)
		}
		s.add(result)
	}
	t.Logf("generated: %v", s)
}

// realModules ship manifests that other people wrote. Those that nothing has
// downloaded yet are skipped, saying so.
var realModules = []string{
	"github.com/tektoncd/pipeline", "github.com/argoproj/argo-cd/v3", "sigs.k8s.io/kustomize/kyaml",
	"sigs.k8s.io/kustomize/api", "sigs.k8s.io/controller-runtime", "k8s.io/api", "k8s.io/kubectl",
	"github.com/google/cadvisor", "github.com/moby/buildkit", "github.com/google/trillian",
}

// TestRealManifests is acceptance 3 over what ships in Go modules: every
// workload is opted in by a label, and every file rendered.
func TestRealManifests(t *testing.T) {
	t.Parallel()
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := config(t, small)
	var all share
	refused, seen := 0, make(map[string]bool)
	for _, module := range realModules {
		versions, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(cache)),
			filepath.FromSlash(module)+"@*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(versions) == 0 {
			t.Logf("SKIPPED: %s is not in the module cache", module)
			continue
		}
		var s share
		slices.Sort(versions)
		root := versions[len(versions)-1]
		err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() ||
				filepath.Ext(path) != ".yaml" && filepath.Ext(path) != ".yml" {
				return err
			}
			src, err := os.ReadFile(path)
			if err != nil || seen[string(src)] ||
				len(src) > 256<<10 && (testing.Short() || filepath.Base(path) != "install.yaml") {
				return err
			}
			seen[string(src)] = true
			if testing.Short() && len(seen)%4 != 0 {
				return nil
			}
			src, added := optIn(distinct(src))
			if added == 0 {
				return nil
			}
			result, problem := checkRender(t, src, c)
			if problem != "" {
				t.Errorf("%s: %s", strings.TrimPrefix(path, root), problem)
			}
			switch {
			case finding.Failed(result.Findings):
				refused++
				t.Logf("%s: refused: %v", strings.TrimPrefix(path, root), firstError(result.Findings))
			case result.Stats.Workloads < added:
				t.Errorf("%s: %d workloads opted in, %d were injected",
					strings.TrimPrefix(path, root), added, result.Stats.Workloads)
			}
			s.add(result)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v", filepath.Base(root), s)
		all.documents, all.workloads, all.rewritten =
			all.documents+s.documents, all.workloads+s.workloads, all.rewritten+s.rewritten
	}
	t.Logf("real: %v; %d files refused", all, refused)
}

func firstError(findings []finding.Finding) finding.Finding {
	return findings[slices.IndexFunc(findings,
		func(f finding.Finding) bool { return f.Severity == finding.Error })]
}

// distinct numbers the names, which are all equal in the API's own test data.
func distinct(src []byte) []byte {
	n := 0
	return regexp.MustCompile(`\bnameValue\b`).ReplaceAllFunc(src, func([]byte) []byte {
		n++
		return fmt.Appendf(nil, "name-value-%d", n)
	})
}

// optIn labels the workloads of a file by adding lines, as an author would.
func optIn(src []byte) (labelled []byte, added int) {
	for d := range krm.Documents(src) {
		labelled = append(labelled, src[d.Lead:d.Start]...)
		text := src[d.Start:d.End]
		if more, ok := optInDocument(text); ok && workload(text) && workload(more) {
			text = more
			added++
		}
		labelled = append(labelled, text...)
	}
	return labelled, added
}

func workload(text []byte) bool {
	documents, err := decode3(text)
	if err != nil || len(documents) != 1 {
		return false
	}
	m, ok := documents[0].(map[string]any)
	if !ok || m["apiVersion"] == nil || m["kind"] == nil ||
		strings.HasSuffix(fmt.Sprint(m["kind"]), "List") {
		return false
	}
	_, ok = referenceTemplate(m)
	return ok && child(m, "metadata") != nil
}

func optInDocument(text []byte) ([]byte, bool) {
	eol := "\n"
	if bytes.Contains(text, []byte("\r\n")) {
		eol = "\r\n"
	}
	var b bytes.Buffer
	inMetadata, done, indent := false, false, ""
	lines := slices.Collect(bytes.Lines(text))
	for i, line := range lines {
		b.Write(line)
		bare := strings.TrimRight(string(line), " \r\n")
		switch {
		case done:
		case bare == "metadata:":
			inMetadata = true
			indent = indentation(lines[i+1:])
			if !bytes.Contains(text, []byte("\n"+indent+"labels:")) {
				b.WriteString(indent + "labels:" + eol + indent + "  kagenti.io/inject: enabled" + eol)
				done = true
			}
		case inMetadata && bare == indent+"labels:":
			b.WriteString(indentation(lines[i+1:]) + "kagenti.io/inject: enabled" + eol)
			done = true
		}
	}
	return b.Bytes(), done
}

func indentation(lines [][]byte) string {
	for _, line := range lines {
		if text := bytes.TrimLeft(line, " "); len(bytes.TrimSpace(text)) > 0 && text[0] != '#' {
			return string(line[:len(line)-len(text)])
		}
	}
	return ""
}
