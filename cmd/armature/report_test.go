package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// pullRequest is one on a Gitea, with its comments and the statuses of its commit.
type pullRequest struct {
	*testing.T
	sync.Mutex
	statuses []map[string]any
	comments []map[string]any
	changed  int // requests that change something
	// head of the pull request, as the server shows it.
	head func() string
}

func (p *pullRequest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.Lock()
	defer p.Unlock()
	if r.Header.Get("Authorization") != "token secret" {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	in := map[string]any{}
	if r.Method != http.MethodGet {
		p.changed++
		_ = json.NewDecoder(r.Body).Decode(&in)
	}
	head := p.head()
	var answer any = in
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1/repos/team/apps/"); path {
	case "/api/v1/user":
		answer = map[string]any{"id": 3}
	case "pulls/7":
		answer = map[string]any{"number": 7, "state": "open", "html_url": "https://forge/7",
			"head": map[string]any{"ref": "change", "sha": head, "repo_id": 1},
			"base": map[string]any{"ref": "main", "repo_id": 1}}
	case "commits/" + head + "/status":
		answer = map[string]any{"statuses": p.statuses}
	case "statuses/" + head:
		in["status"] = in["state"]
		p.statuses = []map[string]any{in}
	case "issues/7/comments":
		if r.Method == http.MethodGet {
			answer = p.comments
			break
		}
		in["id"], in["user"] = 1, map[string]any{"id": 3}
		p.comments = append(p.comments, in)
	case "issues/comments/1":
		if p.comments = nil; r.Method == http.MethodPatch {
			in["id"], in["user"] = 1, map[string]any{"id": 3}
			p.comments = []map[string]any{in}
		}
	default:
		p.Errorf("%s %s", r.Method, r.URL)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// The pull request shows what lint finds and what the change means, once, and nothing where
// there is nothing to know.
func TestReport(t *testing.T) {
	a := offline()
	p := &pullRequest{T: t}
	server := httptest.NewServer(p)
	defer server.Close()
	dir := t.TempDir()
	a.env = append(a.env, "GIT_CONFIG_GLOBAL="+dir+"/none", "GIT_CONFIG_NOSYSTEM=1", "GITEA_TOKEN=secret")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git",
			append([]string{"-C", dir, "-c", "user.name=Ada", "-c", "user.email=ada@example.com"},
				args...)...)
		cmd.Env = a.env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	p.head = func() string { return git("rev-parse", "HEAD") }
	file := filepath.Join(dir, "apps", "web.yaml")
	write := func(image, rest string) { // and commit
		t.Helper()
		defer func() {
			git("add", "-A")
			git("commit", "-q", "--allow-empty", "-m", "a change")
			p.statuses = nil
		}()
		text := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: team1}\n" +
			"spec:\n  selector: {matchLabels: {app: web}}\n  template:\n" +
			"    metadata: {labels: {app: web}}\n    spec:\n      containers:\n" +
			"      - {name: web, image: \"" + image + "\"" + rest + "}\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	first, second := "registry.example/web@sha256:"+strings.Repeat("1", 64),
		"registry.example/web@sha256:"+strings.Repeat("2", 64)
	git("init", "-q", "-b", "main")
	git("remote", "add", "origin", server.URL+"/team/apps.git")
	write(first, "")
	git("checkout", "-q", "-b", "change")

	report := func(want int, more ...string) string {
		t.Helper()
		_, errs := a.run(t, want,
			append([]string{"report", filepath.Join(dir, "apps"), "--pull-request", "7",
				"--against", "main", "--forge", "gitea"}, more...)...)
		if strings.Contains(errs, "secret") {
			t.Errorf("the token is in %s", errs)
		}
		return errs
	}
	has := func(status string, texts ...string) {
		t.Helper()
		if len(p.statuses) != 1 || p.statuses[0]["state"] != status ||
			p.statuses[0]["context"] != "armature/package/apps" {
			t.Errorf("%v, want %s", p.statuses, status)
		}
		if len(texts) == 0 && len(p.comments) > 0 || len(texts) > 0 && len(p.comments) != 1 {
			t.Fatalf("%d comments: %v", len(p.comments), p.comments)
		}
		for _, text := range texts {
			if body := fmt.Sprint(p.comments[0]["body"]); !strings.Contains(body, text) {
				t.Errorf("%q is not in\n%s", text, body)
			}
		}
	}
	report(0)
	has("success")
	report(0, "--always")
	has("success", "### Package `apps`", "nothing changes")
	write(second, "")
	if errs := report(0); !strings.Contains(errs,
		"https://forge/7: 0 errors, 0 warnings; workloads: 1 rolling") {
		t.Error(errs)
	}
	has("success", "**rolls**", "image `~ web: "+first+" => "+second+"`")
	before := p.changed
	report(0)
	if p.changed != before {
		t.Errorf("%d requests change what is there", p.changed-before)
	}
	write(second, ", ports: [{containerPort: 80}]}\n      - {name: two, image: \""+first+
		"\", ports: [{containerPort: 80}]")
	report(1)
	has("failure", "1 error", "| error | `apps/web.yaml:11: Deployment team1/web`")
	write(first, "")
	report(0)
	has("success")

	// What is not committed, and a commit that was pushed since, were not looked at.
	before = p.changed
	refuses := func(want string) {
		t.Helper()
		if errs := report(1); !strings.Contains(errs, want) || !strings.Contains(errs, "hint: ") ||
			p.changed != before {
			t.Errorf("%d requests change something: %s", p.changed-before, errs)
		}
	}
	looked := p.head()
	p.head = func() string { return strings.Repeat("b", 40) }
	refuses("pull request 7 is at commit bbbbbbbbbbbb, but " + looked[:12] + " is checked out")
	p.head = func() string { return looked }
	for name, text := range map[string]string{"apps/web.yaml": "changed",
		"apps/ignored.yaml": "kind: x\n", ".gitignore": "*ignored*\n",
		"apps/new.yaml": "kind: x\n"} {
		was, err := os.ReadFile(filepath.Join(dir, name))
		isNew := err != nil
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if name == ".gitignore" { // outside of the package, and not tracked
			report(0)
		} else {
			refuses(name + " differs from commit " + looked[:12])
		}
		if isNew {
			err = os.Remove(filepath.Join(dir, name))
		} else {
			err = os.WriteFile(filepath.Join(dir, name), was, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range [][]string{{"--pull-request", "x"}, {"--against", ""}, {"--forge", ""}} {
		report(2, wrong...)
	}
	a.env = append(a.env, "GITEA_TOKEN=other")
	if errs := report(1); !strings.Contains(errs, "the credential is not accepted") {
		t.Error(errs)
	}
}
