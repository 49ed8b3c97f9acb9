package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A package that is laid out like a bare repository, as a pull request may bring it, runs
// nothing, whatever its configuration says. Commands that read revisions refuse it, and name
// the entry that makes it one.
func TestHostileClone(t *testing.T) {
	a := buildArmature(t)
	root := t.TempDir()
	ran, home, top := filepath.Join(root, "ran"), filepath.Join(root, "home"), filepath.Join(root, "top")
	folder := filepath.Join(top, "apps", "weather")
	for _, at := range []string{home, filepath.Join(folder, "objects"),
		filepath.Join(folder, "refs")} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := `"touch ` + ran + `; false"`
	writeFile(t, filepath.Join(folder, "web.yaml"),
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: team1}\n")
	git(t, root, "init", "-q", "-b", "main", top)
	git(t, top, "remote", "add", "origin", "https://gitea.invalid/team/apps.git")
	git(t, top, "add", "-A")
	git(t, top, "commit", "-q", "-m", "first")
	writeFile(t, filepath.Join(folder, "HEAD"), strings.Repeat("1", 40)+"\n")
	writeFile(t, filepath.Join(folder, "objects", "keep"), "")
	writeFile(t, filepath.Join(folder, "refs", "keep"), "")
	writeFile(t, filepath.Join(folder, "config"), `[core]
	repositoryformatversion = 1
	worktree = .
	sshCommand = `+program+`
	fsmonitor = `+program+`
[extensions]
	partialClone = origin
[remote "origin"]
	url = ssh://git@gitea.invalid/team/apps
	promisor = true
[credential]
	helper = "!touch `+ran+`; false"
`)
	git(t, top, "add", "-A")
	git(t, top, "commit", "-q", "-m", "second")

	env := append(a.env, "HOME="+home, "GIT_CONFIG_GLOBAL="+filepath.Join(home, "none"),
		"GIT_CONFIG_NOSYSTEM=1", "GITEA_TOKEN=secret",
		"PATH="+filepath.Dir(a.file)+string(filepath.ListSeparator)+searched)
	run := func(in string, words ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Dir, cmd.Env = in, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, _ := run(folder, "git", "rev-parse", "--verify",
		"HEAD^{commit}"); os.Remove(ran) != nil {
		t.Fatalf("git itself no longer obeys the package, and the test shows nothing: %s", out)
	}
	summary := filepath.Join(root, "summary")
	script, err := filepath.Abs(filepath.Join("..", "..", "templates", "ci", "check.sh"))
	if err != nil {
		t.Fatal(err)
	}
	refused := [][]string{
		{"diff", ".", "--against", "HEAD"},
		{"diff", ".", "--against", "HEAD~1", "--to", "HEAD"},
		{"report", ".", "--pull-request", "7", "--against", "HEAD", "--forge", "gitea"},
		{"hydrate", ".", "--branch", "environments/prod"},
		{"pin-builds", ".", "--branch", "main"},
		{"pin-builds", ".", "--pull-request", "main", "--forge", "gitea"},
		{"artifact", "push", ".", "oci://127.0.0.1:1/apps/weather:v1"},
	}
	for _, words := range refused {
		path := slices.Index(words, ".")
		for in, at := range map[string]string{folder: ".", top: "apps/weather"} {
			words[path] = at
			out, err := run(in, append([]string{a.file}, words...)...)
			if err == nil ||
				!strings.Contains(out,
					filepath.Join("apps", "weather", "HEAD")+
						": the folder has HEAD, objects and refs") {
				t.Errorf("armature %s in %s: %v\n%s", strings.Join(words, " "), in, err, out)
			}
		}
	}
	for _, words := range [][]string{{"lint", "."}, {"verify", "."},
		{"render", ".", "-d", filepath.Join(root, "out")}} {
		if out, err := run(folder, append([]string{a.file}, words...)...); err != nil {
			t.Errorf("armature %s: %v\n%s", strings.Join(words, " "), err, out)
		}
	}
	env = append(env, "ARMATURE_PATH=apps/weather", "ARMATURE_RENDERED=apps/weather",
		"ARMATURE_AGAINST=HEAD", "GITHUB_STEP_SUMMARY="+summary)
	if out, err := run(top, "bash", script); err == nil ||
		!strings.Contains(out, filepath.Join("apps", "weather", "HEAD")) {
		t.Errorf("the script of the action: %v\n%s", err, out)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program of the package ran")
	}
}

// A hook that lies in the working tree does not run either, where the clone was set up to
// have its hooks there.
func TestHydrateRunsNoHook(t *testing.T) {
	a := buildArmature(t)
	root := t.TempDir()
	top, ran := filepath.Join(root, "top"), filepath.Join(root, "ran")
	folder := filepath.Join(top, "apps", "weather")
	for _, at := range []string{folder, filepath.Join(top, "hooks")} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(folder, "web.yaml"),
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: team1}\n")
	for _, hook := range []string{"reference-transaction", "post-index-change", "pre-push"} {
		at := filepath.Join(top, "hooks", hook)
		writeFile(t, at, "#!/bin/sh\ntouch "+ran+"\n")
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	git(t, root, "init", "-q", "-b", "main", top)
	git(t, top, "remote", "add", "origin", "https://gitea.invalid/team/apps.git")
	git(t, top, "add", "-A")
	git(t, top, "commit", "-q", "-m", "first")
	git(t, top, "config", "core.hooksPath", "hooks")
	a.env = append(a.env, "GIT_CONFIG_GLOBAL="+filepath.Join(root, "none"), "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@example.com")
	a.run(t, 0, "hydrate", folder, "--branch", "environments/prod")
	if _, err := os.Stat(ran); err == nil {
		t.Error("a hook of the working tree ran")
	}
}
