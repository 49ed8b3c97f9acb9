package compose_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// stepContainer is one container of a shipped step.
func stepContainer(t *testing.T, configMap, container string) tektonv1.Step {
	t.Helper()
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	step, err := templates.ReadStep(library.ConfigMaps[configMap])
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range step.Task.Steps {
		if s.Name == container {
			return s
		}
	}
	t.Fatalf("%s has no step %s", configMap, container)
	return tektonv1.Step{}
}

// runScript runs a step's script as its container would, with the results in a folder, and returns
// the results and all that was printed.
func runScript(t *testing.T, script string,
	env ...string) (results map[string]string, printed string, err error) {
	t.Helper()
	return runScriptAs(t, nil, script, env...)
}

// runScriptAs another user; nil is who runs the test.
func runScriptAs(t *testing.T, as *syscall.Credential, script string,
	env ...string) (results map[string]string, printed string, err error) {
	t.Helper()
	shell := []string{"sh"}
	if busybox, err := exec.LookPath("busybox"); err == nil { // the shell of the steps' images
		shell = []string{busybox, "sh"}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "script.sh")
	text := resultPath.ReplaceAllString(script, filepath.Join(dir, "result-$1"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], file)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	give(t, as, dir, file)
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: as}
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	results = map[string]string{}
	files, globErr := filepath.Glob(filepath.Join(dir, "result-*"))
	if globErr != nil {
		t.Fatal(globErr)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		results[strings.TrimPrefix(filepath.Base(f), "result-")] = string(data)
	}
	return results, string(out), err
}

// stubBuildctl puts a program buildctl into a folder, which it returns: it reports a digest of a
// build, and prints a record of it. The shell commands run for each argument $arg of a build.
func stubBuildctl(t *testing.T, digest, record, commands string) string {
	t.Helper()
	bin := t.TempDir()
	stub := `#!/bin/sh
case "$1 $2" in
  "debug histories") case "$4" in *'.Ref "ref0of1the2build"'*) printf '\n'"$(cat "$0.name")"'\n\n' ;; esac; exit 0 ;;
  "debug get") [ "$3" != "$(cat "$0.name")" ] || cat "$0.record"; exit 0 ;;
esac
[ "$1" = build ] || exit 0
for arg in "$@"; do
  ` + commands + `
  case "$arg" in
    --metadata-file=*) printf '{\n  "containerimage.config.digest": "sha256:%s",\n  "containerimage.digest": "%s"\n}' ` + strings.Repeat("1b", 32) + " " + digest + ` > "${arg#*=}" ;;
    --ref-file=*) printf ref0of1the2build > "${arg#*=}" ;;
  esac
done
`
	name := ""
	if record != "" {
		name = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(record)))
	}
	for file, text := range map[string]string{"buildctl": stub, "buildctl.name": name,
		"buildctl.record": record} {
		if err := os.WriteFile(filepath.Join(bin, file), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// give files to a user; nil leaves them.
func give(t *testing.T, to *syscall.Credential, files ...string) {
	t.Helper()
	for _, f := range files {
		if to == nil {
			break
		}
		if err := os.Chown(f, int(to.Uid), int(to.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}

var resultPath = regexp.MustCompile(`\$\(results\.([A-Za-z_-]+)\.path\)`)

// No parameter becomes a part of a script, where it would be code: scripts read
// their environment.
func TestScriptsReadTheirEnvironment(t *testing.T) {
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	scripts := 0
	for _, name := range library.Names("") {
		if _, is := library.ConfigMaps[name].Data[templates.StepKey]; !is {
			continue
		}
		step, err := templates.ReadStep(library.ConfigMaps[name])
		if err != nil {
			t.Fatal(err)
		}
		all := step.Task.Steps
		for _, s := range step.Task.Sidecars {
			all = append(all, tektonv1.Step{Name: s.Name, Script: s.Script, Env: s.Env})
		}
		for _, s := range all {
			if s.Script == "" {
				continue
			}
			scripts++
			if left := resultPath.ReplaceAllString(s.Script,
				""); regexp.MustCompile(`\$\((params|workspaces|context|tasks)[.\[]`).MatchString(left) {
				t.Errorf("%s, step %s: a variable of Tekton's is in the script:\n%s", name, s.Name, left)
			}
			for _, line := range strings.Split(s.Script, "\n") {
				for _, e := range s.Env {
					if unquoted(line, e.Name) {
						t.Errorf("%s, step %s: $%s is not quoted in: %s", name, s.Name, e.Name, line)
					}
				}
			}
		}
	}
	if scripts < 8 {
		t.Fatalf("only %d scripts were found", scripts)
	}
}

// unquoted reports whether a line of shell uses a variable where the shell would
// split it: outside of double quotes, and not as the whole of an assignment.
func unquoted(line, variable string) bool {
	for _, at := range regexp.MustCompile(`\$\{?`+variable+`\b`).FindAllStringIndex(line, -1) {
		before := line[:at[0]]
		if strings.Count(before, `"`)%2 == 0 && !strings.HasSuffix(before, `"`) &&
			!regexp.MustCompile(`^\s*\w+=$`).MatchString(before) {
			return true
		}
	}
	return false
}

// A digest, a commit or an image that is none is refused before a later step,
// whose environment holds a password, gets it as an argument.
func TestResultsAreCheckedBeforeUse(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	commit := strings.Repeat("0a", 20)
	const image = "registry.local:5000/team/weather:v1"
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	users := 0
	for _, name := range library.Names("") {
		if _, is := library.ConfigMaps[name].Data[templates.StepKey]; !is {
			continue
		}
		step, err := templates.ReadStep(library.ConfigMaps[name])
		if err != nil {
			t.Fatal(err)
		}
		if !takesDigest(step.Task) {
			continue
		}
		users++
		first := step.Task.Steps[0]
		t.Run(name, func(t *testing.T) {
			for _, e := range first.Env {
				if e.ValueFrom != nil {
					t.Errorf("the step that checks holds a secret in %s", e.Name)
				}
			}
			run := func(image, digest, commit string) error {
				_, printed, err := runScript(t, first.Script, "IMAGE="+image, "DIGEST="+digest,
					"COMMIT="+commit, "URL=https://host/x", "RUN=a/b",
					"OUT="+filepath.Join(t.TempDir(), "out"))
				if err != nil && strings.Contains(printed, "COSIGN_PASSWORD") {
					t.Errorf("what was refused is repeated: %s", printed)
				}
				return err
			}
			if err := run(image, digest, commit); err != nil {
				t.Fatalf("what is right is refused: %v", err)
			}
			for _, bad := range []string{"", "sha256:", "$(COSIGN_PASSWORD)", digest[:70],
				digest + "0", strings.ToUpper(digest), "sha512:" + digest[7:],
				digest + "\n$(COSIGN_PASSWORD)", digest[7:]} {
				if run(image, bad, commit) == nil {
					t.Errorf("the digest %q is accepted", bad)
				}
			}
			for _, bad := range []string{"", "$(COSIGN_PASSWORD)", "--key=x", "a b",
				image + "@" + digest, "a\nb"} {
				if run(bad, digest, commit) == nil {
					t.Errorf("the image %q is accepted", bad)
				}
			}
		})
	}
	if users < 6 {
		t.Fatalf("only %d steps take a digest", users)
	}
}

func takesDigest(task tektonv1.TaskSpec) bool {
	for _, p := range task.Params {
		if p.Name == "image-digest" {
			return true
		}
	}
	return false
}

// The name of a Dockerfile is one name, whatever it holds.
func TestDockerfileNameIsOneName(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"Dockerfile", "a b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := stepContainer(t, "check-dockerfile-step", "check-dockerfile").Script
	for file, want := range map[string]string{"": "Dockerfile", "a b": "a b", "*": "",
		"x Dockerfile": ""} {
		results, printed, err := runScript(t, script, "SOURCE="+dir, "FOLDER=.", "WANTED="+file)
		if results["dockerfile-name"] != want || (err == nil) != (want != "") {
			t.Errorf("%q: found %q, %v: %s", file, results["dockerfile-name"], err, printed)
		}
	}
}
