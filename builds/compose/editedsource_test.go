package compose_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/source/archive"
)

// pipelineRun plays a run: volumes are folders, and containers are run one by one by
// the composed commands and scripts.
type pipelineRun struct {
	*testing.T
	out     *compose.Output
	shared  string            // the volume that tasks share
	env     []string          // of each container
	results map[string]string // by their reference
	own     map[string]string // the source of each task
}

func (r *pipelineRun) task(name string) tektonv1.PipelineTask {
	r.Helper()
	for _, task := range r.out.Pipeline.Spec.Tasks {
		if task.Name == name {
			return task
		}
	}
	r.Fatalf("no task is named %s", name)
	return tektonv1.PipelineTask{}
}

// run the containers of a task, without those that it skips; the error is that of the
// first one that fails, with what it printed.
func (r *pipelineRun) run(task string, skip ...string) error {
	r.Helper()
	ordered := r.task(task)
	var pairs []string
	if r.own[task] == "" {
		r.own[task] = r.TempDir()
	}
	for _, w := range ordered.TaskSpec.Workspaces {
		at := ""
		for _, b := range ordered.Workspaces {
			if b.Name == w.Name {
				at = map[string]string{"own-source": r.own[task],
					"shared-workspace": r.shared}[b.Workspace]
			}
		}
		pairs = append(pairs, "$(workspaces."+w.Name+".path)", at)
	}
	values := map[string]string{}
	for _, p := range ordered.TaskSpec.Params {
		if p.Default != nil {
			values[p.Name] = p.Default.StringVal
		}
	}
	for _, p := range ordered.Params {
		value := p.Value.StringVal
		for _, given := range r.out.Run.Spec.Params {
			value = strings.ReplaceAll(value, "$(params."+given.Name+")", given.Value.StringVal)
		}
		for reference, result := range r.results {
			value = strings.ReplaceAll(value, reference, result)
		}
		values[p.Name] = value
	}
	for name, value := range values {
		pairs = append(pairs, "$(params."+name+")", value)
	}
	fill := strings.NewReplacer(pairs...).Replace
	// all containers are started before the first does its work
	for _, step := range ordered.TaskSpec.Steps {
		if dir := fill(step.WorkingDir); dir != "" {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				r.Fatal(err)
			}
		}
	}
	for _, step := range ordered.TaskSpec.Steps {
		if slices.Contains(skip, step.Name) {
			continue
		}
		if err := r.container(task, step, fill); err != nil {
			return fmt.Errorf("%s/%s: %w", task, step.Name, err)
		}
	}
	return nil
}

func (r *pipelineRun) container(task string, step tektonv1.Step, fill func(string) string) error {
	r.Helper()
	result := func(name, value string) { r.results["$(tasks."+task+".results."+name+")"] = value }
	script := step.Script
	switch {
	case len(step.Command) > 1: // a shell with its script
		script = step.Command[2]
	case len(step.Command) > 0 && step.Args[0] == "base-images":
		return nil // reads what the client left for it, and no source
	case len(step.Command) > 0:
		flags := flag.NewFlagSet(step.Args[0], flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		from, to, digest := flags.String("from", "", ""), flags.String("to", "", ""),
			flags.String("digest", "", "")
		keep, _ := flags.Bool("keep-git", false, ""), flags.String("digest-file", "", "")
		var args []string
		for _, arg := range step.Args[1:] {
			args = append(args, fill(arg))
		}
		if err := flags.Parse(args); err != nil {
			return err
		}
		if step.Args[0] == "unpack-source" {
			return archive.Unpack{From: *from, To: *to, Digest: *digest}.Run()
		}
		packed, err := archive.Pack{From: *from, To: *to, KeepGit: *keep}.Run()
		result("source-digest", packed)
		return err
	}
	before := "set --"
	for _, arg := range step.Args {
		if !strings.Contains(arg, "[*]") {
			before += " " + arg
		}
	}
	if dir := fill(step.WorkingDir); dir != "" {
		before += "\ncd '" + dir + "'"
	}
	env := slices.Clone(r.env)
	for _, e := range step.Env {
		env = append(env, e.Name+"="+fill(e.Value))
	}
	results, printed, err := runScript(r.T, before+"\n"+script,
		append(env, "RECORD="+r.TempDir())...)
	for name, value := range results {
		result(name, value)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, printed)
	}
	return nil
}

// preprod is the text of its template.
func preprod(t *testing.T) string {
	t.Helper()
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	return library.ConfigMaps["pipeline-template-preprod"].Data[templates.TemplateKeyYAML]
}

// preprodRun is a run of a template like preprod's, with BuildKit, whose tests run a
// command, after its source was cloned. What buildctl is sent is in the folder sent.
func preprodRun(t *testing.T, template, command string) (r *pipelineRun, sent string) {
	t.Helper()
	build := withSpec(
		fmt.Sprintf("  mode: own\n  builder: buildkit\n  pipeline: {parameters: [{name: "+
			"TEST_COMMAND, value: %q}]}\n", command))
	build = bytes.Replace(build, []byte("  buildOutput:"),
		[]byte("    sourceSubfolder: agents/weather\n  buildOutput:"), 1)
	out, err := plan(t, build,
		fstest.MapFS{"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
			template)}, compose.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	sent = t.TempDir()
	bin := stubBuildctl(t, "sha256:"+strings.Repeat("0a", 32), "{}", `case "$arg" in
    --local=context=*) cp -R -P "${arg#--local=context=}/." "$SENT" ;;
    --output=*) dest=${arg##*dest=}; mkdir -p "$dest"; : > "$dest/index.json" ;;
  esac`)
	r = &pipelineRun{T: t, out: out, shared: t.TempDir(), results: map[string]string{},
		own: map[string]string{},
		env: []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "SENT=" + sent}}
	r.own["github-clone"] = t.TempDir()
	source := r.own["github-clone"]
	for _, w := range r.task("github-clone").Workspaces {
		if w.Name == "source" && w.Workspace == "shared-workspace" {
			source = r.shared
		}
	}
	for name, content := range cloned {
		r.put(source, "agents/weather/"+name, content)
	}
	if err := r.run("github-clone", "clone"); err != nil {
		t.Fatal(err)
	}
	return r, sent
}

// cloned is what the commit has in the folder agents/weather.
var cloned = map[string]string{"Dockerfile": "FROM good\n", "src/main.go": "package main\n",
	"test.sh": "exit 0\n"}

func (r *pipelineRun) put(dir, name, content string) {
	r.Helper()
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		r.Fatal(err)
	}
}

// files of a folder with their content, and links with their target.
func (r *pipelineRun) files(dir string) map[string]string {
	r.Helper()
	have := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if entry.Type() == os.ModeSymlink {
			have[name], err = os.Readlink(file)
			return err
		}
		data, err := os.ReadFile(file)
		have[name] = string(data)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return have
}

const edits = "echo FROM evil > Dockerfile; rm -rf src; ln -s /etc src; echo x > new"

// What tests, another step or another pod do to the source changes nothing of what is
// built: the client of BuildKit sends what was cloned.
func TestEditedSourceChangesNothing(t *testing.T) {
	r, sent := preprodRun(t, preprod(t), edits)
	if err := r.run("tests"); err != nil {
		t.Fatal(err)
	}
	if edited := r.files(r.own["tests"]); edited["agents/weather/Dockerfile"] != "FROM evil\n" ||
		edited["agents/weather/src"] != "/etc" {
		t.Fatalf("the tests did not edit their source: %v", edited)
	}
	// With the volume mounted, another pod writes files of the source's names to it.
	for name := range cloned {
		r.put(r.shared, "agents/weather/"+name, "evil")
	}
	if err := r.run("buildkit-build"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cloned, r.files(sent)); diff != "" {
		t.Errorf("what is built (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(r.shared, ".armature-layout", "index.json")); err != nil {
		t.Errorf("the layout is not in the volume where push looks for it: %v", err)
	}
	if got := r.results["$(tasks.buildkit-build.results.layout-digest)"]; got !=
		"sha256:"+strings.Repeat("0a", 32) {
		t.Errorf("the digest of the layout is %q", got)
	}
}

// Steps without sourceFrom share the source as before: what one edits, the next one has.
func TestSharedSource(t *testing.T) {
	r, sent := preprodRun(t, strings.ReplaceAll(preprod(t), "    sourceFrom: pack-source\n", ""), edits)
	if err := r.run("tests"); err != nil {
		t.Fatal(err)
	}
	if err := r.run("buildkit-build"); err != nil {
		t.Fatal(err)
	}
	if got := r.files(sent); got["Dockerfile"] != "FROM evil\n" || got["new"] != "x\n" ||
		got["src"] != "/etc" {
		t.Errorf("built is %v", got)
	}
}

// A packed source that was replaced, by one of another source too, is not built.
func TestReplacedSourceIsNotBuilt(t *testing.T) {
	for what, replace := range map[string]func(r *pipelineRun, file string) error{
		"another source": func(r *pipelineRun, _ string) error {
			evil := r.TempDir()
			r.put(evil, "Dockerfile", "FROM evil")
			_, err := archive.Pack{From: evil, To: r.shared}.Run()
			return err
		},
		"a link": func(r *pipelineRun, file string) error {
			if err := os.Rename(file, file+".1"); err != nil {
				return err
			}
			return os.Symlink(file+".1", file)
		},
		"nothing": func(_ *pipelineRun, file string) error { return os.Remove(file) },
	} {
		t.Run(what, func(t *testing.T) {
			r, sent := preprodRun(t, preprod(t), "true")
			if err := replace(r, filepath.Join(r.shared, archive.FileName)); err != nil {
				t.Fatal(err)
			}
			err := r.run("buildkit-build")
			if err == nil || !strings.HasPrefix(err.Error(), "buildkit-build/unpack-source: ") {
				t.Errorf("the error is %v, want one of unpack-source", err)
			}
			if got := r.files(sent); len(got) > 0 {
				t.Errorf("built is %v", got)
			}
		})
	}
}

// The SBOM that is attached, and whose digest is reported, is the one that was made.
func TestReplacedSBOM(t *testing.T) {
	made, source := t.TempDir(), t.TempDir()
	for _, before := range []func() error{
		func() error { return nil },
		func() error {
			return os.WriteFile(filepath.Join(source, "sbom.spdx.json"), []byte("old"), 0o600)
		},
		func() error { return os.Symlink("/etc/passwd", filepath.Join(source, "sbom.spdx.json")) },
		func() error {
			return os.MkdirAll(filepath.Join(source, "sbom.spdx.json", "folder"), 0o700)
		},
	} {
		if err := os.RemoveAll(filepath.Join(source, "sbom.spdx.json")); err != nil {
			t.Fatal(err)
		}
		if err := before(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(made, "sbom.spdx.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		results, printed, err := runScript(t,
			"cd '"+made+"'\n"+stepContainer(t, "sbom-step", "digest").Script, "PLATFORM=",
			"SOURCE="+source)
		if err != nil {
			t.Fatalf("%v: %s", err, printed)
		}
		digest := results["SBOM_DIGEST"]
		if digest != "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" {
			t.Errorf("the digest is %q", digest)
		}
		take := func(digest string) (string, error) {
			dir := t.TempDir()
			_, _, err := runScript(t,
				"cd '"+dir+"'\n"+stepContainer(t, "sbom-attach-step", "take").Script, "PLATFORM=",
				"SOURCE="+source, "SBOM_DIGEST="+digest)
			taken, _ := os.ReadFile(filepath.Join(dir, "sbom.spdx.json"))
			return string(taken), err
		}
		if taken, err := take(digest); err != nil || taken != "{}" {
			t.Errorf("taken is %q: %v", taken, err)
		}
		if err := os.WriteFile(filepath.Join(source, "sbom.spdx.json"), []byte("{ }"),
			0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := take(digest); err == nil {
			t.Error("another SBOM is taken")
		}
		if taken, err := take(""); err != nil || taken != "{ }" { // as in pipelines of users
			t.Errorf("without a digest %q is taken: %v", taken, err)
		}
	}
}

// The SBOMs of two platforms are handed on beside each other, each by its digest.
func TestSBOMsOfPlatforms(t *testing.T) {
	source, digests := t.TempDir(), map[string]string{}
	for platform, document := range map[string]string{"linux/amd64": `{"of": "amd64"}`,
		"linux/arm/v7": `{"of": "arm"}`} {
		made := t.TempDir()
		if err := os.WriteFile(filepath.Join(made, "sbom.spdx.json"), []byte(document),
			0o600); err != nil {
			t.Fatal(err)
		}
		results, printed, err := runScript(t,
			"cd '"+made+"'\n"+stepContainer(t, "sbom-step", "digest").Script, "SOURCE="+source,
			"PLATFORM="+platform)
		if err != nil {
			t.Fatalf("%v: %s", err, printed)
		}
		digests[platform] = results["SBOM_DIGEST"]
	}
	take := func(platform, digest string) (string, error) {
		dir := t.TempDir()
		_, _, err := runScript(t,
			"cd '"+dir+"'\n"+stepContainer(t, "sbom-attach-step", "take").Script, "SOURCE="+source,
			"SBOM_DIGEST="+digest, "PLATFORM="+platform)
		taken, _ := os.ReadFile(filepath.Join(dir, "sbom.spdx.json"))
		return string(taken), err
	}
	if taken, err := take("linux/arm/v7", digests["linux/arm/v7"]); err != nil ||
		taken != `{"of": "arm"}` {
		t.Errorf("taken is %q: %v", taken, err)
	}
	if _, err := take("linux/amd64", digests["linux/arm/v7"]); err == nil {
		t.Error("the SBOM of another platform is taken")
	}
	if _, err := take("linux/../../x", ""); err == nil {
		t.Error("a platform that leads out is taken")
	}
}
