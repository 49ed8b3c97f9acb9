// Package ci runs what pull requests are checked with: the steps of action.yml and
// the jobs of templates/ci/gitlab.yml, beside real Git.
package ci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/programs"
)

// root is the absolute path of the repository; bin holds armature.
var root, bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if root, err = filepath.Abs("../.."); err != nil {
		panic(err)
	}
	if bin, err = os.MkdirTemp("", "ci-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(bin)
	// In place of a cosign that this machine may have, and releases here have no signature
	// that it would accept. Package e2e/release has the real ones.
	if err := os.WriteFile(filepath.Join(bin, "cosign"), []byte("#!/bin/sh\nexit 0\n"),
		0o755); err != nil {
		panic(err)
	}
	os.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if err := programs.Build(bin, "cmd/armature"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// shell runs a script with these variables and with PATH and HOME, and returns all that it prints.
func shell(t *testing.T, dir string, env map[string]string, name string,
	args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	home := t.TempDir()
	// Without it, a go command leaves a child that still writes counters into HOME
	// while the test removes it.
	write(t, filepath.Join(home, ".config/go/telemetry/mode"), "off")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1"}
	for key, value := range env { // the last of two that are the same wins
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := shell(t, dir, nil, "git",
		append([]string{"-c", "user.name=dev", "-c", "user.email=dev@example.com"}, args...)...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// armature runs the program that was built.
func armature(t *testing.T, dir string, args ...string) {
	t.Helper()
	if out, err := shell(t, dir, nil, filepath.Join(bin, "armature"), args...); err != nil {
		t.Fatalf("armature %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// replace changes a file of a checkout.
func replace(t *testing.T, file, old, new string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(text, []byte(old)) {
		t.Fatalf("%s: %v, or it lacks %q", file, err, old)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte(old), []byte(new)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pullRequest is a repository whose branch main holds an agent, and what was rendered
// from it. change edits a branch of it. What comes back is a checkout of that branch,
// without history as CI makes it, and the commit of main.
func pullRequest(t *testing.T, change func(dir string)) (checkout, base string) {
	t.Helper()
	origin := t.TempDir()
	if err := os.CopyFS(filepath.Join(origin, "apps"),
		os.DirFS(filepath.Join(root, "examples", "weather-agent"))); err != nil {
		t.Fatal(err)
	}
	armature(t, origin, "render", "apps", "-d", "rendered")
	git(t, origin, "init", "--quiet", "--initial-branch=main")
	git(t, origin, "add", ".")
	git(t, origin, "commit", "--quiet", "--message=First")
	base = git(t, origin, "rev-parse", "HEAD")
	git(t, origin, "switch", "--quiet", "--create=change")
	change(origin)
	git(t, origin, "commit", "--quiet", "--all", "--allow-empty", "--message=Change")
	checkout = t.TempDir()
	git(t, checkout, "clone", "--quiet", "--depth=1", "--branch=change", "file://"+origin, ".")
	return checkout, base
}

// release is the archive of a release, whose size does not matter here: it has a script that
// is armature.
var release = sync.OnceValues(func() ([]byte, error) {
	program := []byte("#!/bin/sh\nexec " + filepath.Join(bin, "armature") + ` "$@"` + "\n")
	var archive bytes.Buffer
	zip, err := gzip.NewWriterLevel(&archive, gzip.NoCompression)
	if err != nil {
		return nil, err
	}
	files := tar.NewWriter(zip)
	if err := files.WriteHeader(&tar.Header{Name: "armature", Mode: 0o755,
		Size: int64(len(program))}); err != nil {
		return nil, err
	}
	_, err = files.Write(program)
	err = errors.Join(err, files.Close(), zip.Close())
	return archive.Bytes(), err
})

// releases serves v0.2.0 as GitHub does, with the armature that was built. Its
// checksums are those of the archive with sum at its end.
func releases(t *testing.T, sum string) string {
	t.Helper()
	archive, err := release()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("armature_0.2.0_%s_%s.tar.gz", runtime.GOOS, runtime.GOARCH)
	checksums := fmt.Sprintf("%x  %s\n%x  other.tar.gz\n",
		sha256.Sum256(append(slices.Clip(archive), sum...)), name, sha256.Sum256(nil))
	const at = "/armature-dev/armature/releases/download/v0.2.0/"
	mux := http.NewServeMux()
	mux.HandleFunc(at+"checksums.txt", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, checksums)
	})
	mux.HandleFunc(at+"checksums.txt.sigstore.json",
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
	mux.HandleFunc(at+name, func(w http.ResponseWriter, _ *http.Request) { w.Write(archive) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// expression is one of GitHub's.
var expression = regexp.MustCompile(`\$\{\{ (.*?) \}\}`)

// action runs the steps of action.yml in a checkout, and returns what they print and what they add
// to the summary of the job. The first step that fails is the last.
func action(t *testing.T, checkout, server string,
	inputs map[string]string) (out, summary string, err error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Inputs map[string]struct{ Default string }
		Runs   struct {
			Using string
			Steps []struct {
				Name, Shell, Run string
				Env              map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"github.server_url": server,
		"github.event.pull_request.base.sha": "", "github.action_ref": "v0.2.0"}
	expand := func(text string) string {
		return expression.ReplaceAllStringFunc(text, func(e string) string {
			for _, name := range strings.Split(expression.FindStringSubmatch(e)[1], " || ") {
				value, ok := values[name]
				if !ok {
					t.Fatalf("action.yml: no value for %s", name)
				}
				if value != "" {
					return value
				}
			}
			return ""
		})
	}
	for name, input := range a.Inputs {
		values["inputs."+name] = expand(input.Default)
	}
	for name, value := range inputs {
		if _, ok := a.Inputs[name]; !ok {
			t.Fatalf("action.yml has no input %s", name)
		}
		values["inputs."+name] = value
	}
	if a.Runs.Using != "composite" || len(a.Runs.Steps) != 2 {
		t.Fatalf("action.yml: %+v", a.Runs)
	}
	runner := t.TempDir()
	env := map[string]string{
		"GITHUB_ACTION_PATH": root, "RUNNER_TEMP": runner,
		"GITHUB_PATH":         filepath.Join(runner, "path"),
		"GITHUB_STEP_SUMMARY": filepath.Join(runner, "summary"),
	}
	for _, step := range a.Runs.Steps {
		script := filepath.Join(runner, "step.sh")
		if err := os.WriteFile(script, []byte(expand(step.Run)), 0o644); err != nil {
			t.Fatal(err)
		}
		variables := map[string]string{}
		for key, value := range env {
			variables[key] = value
		}
		for key, value := range step.Env {
			variables[key] = expand(value)
		}
		if added, err := os.ReadFile(env["GITHUB_PATH"]); err == nil {
			variables["PATH"] = strings.TrimSpace(string(added)) + ":" + os.Getenv("PATH")
		}
		var printed string
		printed, err = shell(t, checkout, variables, step.Shell, "--noprofile", "--norc", "-e",
			"-o", "pipefail", script)
		out += printed
		if err != nil {
			break
		}
	}
	written, readErr := os.ReadFile(env["GITHUB_STEP_SUMMARY"])
	if readErr != nil && !os.IsNotExist(readErr) {
		t.Fatal(readErr)
	}
	return out, string(written), err
}

// The action passes a pull request that is as it should be, and says in the summary
// what it changes.
func TestAction(t *testing.T) {
	checkout, base := pullRequest(t, func(dir string) {
		replace(t, filepath.Join(dir, "apps", "deployment.yaml"), "weather-agent:v1", "weather-agent:v2")
		armature(t, dir, "render", "apps", "-d", "rendered")
	})
	out, summary, err := action(t, checkout, releases(t, ""),
		map[string]string{"path": "apps", "rendered": "rendered", "against": base})
	if err != nil || strings.Contains(out, "::error") ||
		!strings.Contains(out, "cosign verified the signature of v0.2.0") {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(out,
		"::notice file=apps/deployment.yaml,line=1,title=inject/new-account::") {
		t.Errorf("the finding of lint is not an annotation:\n%s", out)
	}
	for _, want := range []string{"weather-agent:v1", "weather-agent:v2", "Deployment"} {
		if !strings.Contains(summary, want) {
			t.Errorf("the summary lacks %s:\n%s", want, summary)
		}
	}
}

// The action fails a pull request, with an annotation where the fault is.
func TestActionRefuses(t *testing.T) {
	server := releases(t, "")
	for name, c := range map[string]struct {
		change   func(dir string)
		rendered string
		want     string
	}{
		"rendered manifests are out of date": {func(dir string) {
			replace(t, filepath.Join(dir, "apps", "deployment.yaml"), "weather-agent:v1",
				"weather-agent:v2")
		}, "rendered",
			"::error file=rendered/deployment.yaml,line=1,title=render/outdated::it differs from " +
				"a new render of apps"},
		"rendered manifests were edited": {func(dir string) {
			replace(t, filepath.Join(dir, "rendered", "deployment.yaml"), "weather-agent:v1",
				"weather-agent:v2")
		}, "rendered", "::error file=rendered/deployment.yaml,line=1,title=render/outdated::"},
		"a file that lint and render refuse": {func(dir string) {
			replace(t, filepath.Join(dir, "apps", "deployment.yaml"), "containerPort: 8081",
				"containerPort: 80810")
		}, "rendered", "::error file=apps/deployment.yaml,line=28,title=inject/unreadable-port::"},
		"rendering in place was forgotten": {func(string) {}, "apps",
			"::error file=apps/deployment.yaml,line="},
	} {
		t.Run(name, func(t *testing.T) {
			checkout, base := pullRequest(t, c.change)
			out, _, err := action(t, checkout, server,
				map[string]string{"path": "apps", "rendered": c.rendered, "against": base})
			if err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v, want a failure with %q\n%s", err, c.want, out)
			}
		})
	}
}

// Of a release, only what its checksums name is run.
func TestInstallChecksums(t *testing.T) {
	for name, c := range map[string]struct{ server, version, want string }{
		"another checksum": {releases(t, "x"), "v0.2.0", "another checksum"},
		"no such release":  {releases(t, ""), "v9.9.9", "404"},
		"a branch":         {releases(t, ""), "main", "name a release"},
	} {
		checkout := t.TempDir()
		out, _, err := action(t, checkout, c.server, map[string]string{"version": c.version})
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v, want a failure with %q\n%s", name, err, c.want, out)
		}
	}
}

// job runs the script of a job of gitlab.yml in a checkout.
func job(t *testing.T, name, checkout string, variables map[string]string) (string, error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "templates", "ci", "gitlab.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var jobs map[string]struct {
		Extends string
		Script  []string
	}
	if err := yaml.Unmarshal(text, &jobs); err != nil {
		t.Fatal(err)
	}
	if jobs[name].Extends != ".armature" || len(jobs[name].Script) == 0 {
		t.Fatalf("gitlab.yml: job %s is %+v", name, jobs[name])
	}
	env := map[string]string{"PATH": bin + ":" + os.Getenv("PATH")}
	for key, value := range variables {
		env[key] = value
	}
	return shell(t, checkout, env, "sh", "-e", "-c", strings.Join(jobs[name].Script, "\n"))
}

// quality reads a Code Quality report as GitLab does.
func quality(t *testing.T, file string) (rules []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct {
		Description string
		Name        string `json:"check_name"`
		Fingerprint string
		Severity    string
		Location    struct {
			Path  string
			Lines struct{ Begin int }
		}
	}
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatalf("%s: %v\n%s", file, err, text)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if e.Description == "" || e.Location.Path == "" || e.Location.Lines.Begin < 1 ||
			len(e.Fingerprint) != 64 || seen[e.Fingerprint] ||
			!slices.Contains([]string{"info", "minor", "major", "critical", "blocker"}, e.Severity) {
			t.Errorf("%s: GitLab does not take %+v", file, e)
		}
		seen[e.Fingerprint] = true
		rules = append(rules, fmt.Sprintf("%s %s:%d %s", e.Severity, e.Location.Path,
			e.Location.Lines.Begin, e.Name))
	}
	return rules
}

// The jobs for GitLab pass a merge request that is as it should be.
func TestGitLab(t *testing.T) {
	checkout, _ := pullRequest(t, func(dir string) {
		replace(t, filepath.Join(dir, "apps", "deployment.yaml"), "weather-agent:v1", "weather-agent:v2")
		armature(t, dir, "render", "apps", "-d", "rendered")
	})
	git(t, checkout, "fetch", "--quiet", "--unshallow", "origin", "main") // GIT_DEPTH: "0"
	variables := map[string]string{"ARMATURE_PATH": "apps", "ARMATURE_RENDERED": "rendered",
		"CI_MERGE_REQUEST_DIFF_BASE_SHA": git(t, checkout, "rev-parse", "FETCH_HEAD")}
	for _, name := range []string{"armature-verify", "armature-lint", "armature-diff"} {
		if out, err := job(t, name, checkout, variables); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	if rules := quality(t, filepath.Join(checkout, "lint.json")); !slices.Contains(rules,
		"info apps/deployment.yaml:1 inject/new-account") {
		t.Errorf("lint.json: %q", rules)
	}
	if rules := quality(t, filepath.Join(checkout, "verify.json")); !slices.Equal(rules,
		[]string{"info apps/deployment.yaml:1 inject/new-account"}) {
		t.Errorf("verify.json: %q", rules)
	}
	if text, err := os.ReadFile(filepath.Join(checkout, "armature-diff.md")); err != nil ||
		!strings.Contains(string(text), "weather-agent:v2") {
		t.Errorf("armature-diff.md: %v\n%s", err, text)
	}
}

// The jobs for GitLab fail a merge request, with an entry where the fault is.
func TestGitLabRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change                     func(dir string)
		job, rendered, file, entry string
	}{
		"rendered manifests are out of date": {func(dir string) {
			replace(t, filepath.Join(dir, "apps", "deployment.yaml"), "weather-agent:v1",
				"weather-agent:v2")
		}, "armature-verify", "rendered", "verify.json",
			"critical rendered/deployment.yaml:1 render/outdated"},
		"a file that lint refuses": {func(dir string) {
			replace(t, filepath.Join(dir, "apps", "deployment.yaml"), "containerPort: 8081",
				"containerPort: 80810")
		}, "armature-lint", "rendered", "lint.json",
			"critical apps/deployment.yaml:28 inject/unreadable-port"},
		"rendering in place was forgotten": {func(string) {}, "armature-verify", "apps",
			"verify.json", "critical apps/deployment.yaml:1 render/outdated"},
	} {
		t.Run(name, func(t *testing.T) {
			checkout, _ := pullRequest(t, c.change)
			out, err := job(t, c.job, checkout,
				map[string]string{"ARMATURE_PATH": "apps", "ARMATURE_RENDERED": c.rendered})
			if err == nil {
				t.Fatalf("the job passes\n%s", out)
			}
			if c.file != "" {
				out = strings.Join(quality(t, filepath.Join(checkout, c.file)), "\n")
			}
			if !strings.Contains(out, c.entry) {
				t.Errorf("no %q in\n%s", c.entry, out)
			}
		})
	}
}
