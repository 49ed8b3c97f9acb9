package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/page"
)

// deliveryTest is an API server, a registry, and the program with its own folder.
type deliveryTest struct {
	*armature
	client.Client
	registry, dir string
}

func deliver(t *testing.T) *deliveryTest {
	ctrl.SetLogger(logr.Discard())
	c, kubeconfig := fresh(t, "team1", "team2", "keys")
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	d := &deliveryTest{buildArmature(t), c, strings.TrimPrefix(server.URL, "http://"), t.TempDir()}
	d.env = append(environ, "KUBECONFIG="+kubeconfig)
	return d
}

// elsewhere is another machine with another API server, new and with one
// namespace. The program and the registry are all that it shares with d.
func (d *deliveryTest) elsewhere(t *testing.T, namespace string) *deliveryTest {
	c, kubeconfig := fresh(t, namespace)
	dir := t.TempDir()
	env := append(environ, "KUBECONFIG="+kubeconfig, "HOME="+dir, "DOCKER_CONFIG="+dir)
	return &deliveryTest{&armature{d.file, env}, c, d.registry, dir}
}

// fresh starts an API server with our CRDs and some namespaces, and returns a client of it and its
// kubeconfig file.
func fresh(t *testing.T, namespaces ...string) (client.Client, string) {
	t.Helper()
	plane := controlplane.Start(t)
	if err := plane.InstallCRDs(filepath.Join("..", "..", "templates", "crds")); err != nil {
		t.Fatal(err)
	}
	c, err := buildtest.Client(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range namespaces {
		if err := c.Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	return c, plane.Admin.Kubeconfig
}

func (d *deliveryTest) write(t *testing.T, file, text string) string {
	t.Helper()
	file = filepath.Join(d.dir, file)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const settings = `apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  namespace: team1
data:
  greeting: hello
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: agent
  namespace: team1
`

// A package that was pushed and signed with a key in a Secret of one cluster is
// pulled, verified and applied on another machine, in another cluster: all that
// is known there are the reference and the public key.
func TestApplyFromRegistry(t *testing.T) {
	author := deliver(t)
	pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) {
		return []byte("a password"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "keys", Name: "signing"},
		Data: map[string][]byte{"cosign.key": pair.PrivateBytes, "cosign.pub": pair.PublicBytes,
			"cosign.password": []byte("a password")}}
	if err := author.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	author.write(t, "app/settings.yaml", settings)
	ref := "oci://" + author.registry + "/fleet/agents:v1"
	author.run(t, 0, "artifact", "push", filepath.Join(author.dir, "app"), ref, "--source", "s",
		"--revision", "r", "--sign", "--key", "k8s://keys/signing", "--tlog-upload=false")
	author.run(t, 0, "artifact", "verify", ref, "--key", "k8s://keys/signing", "--insecure-ignore-tlog")

	other := author.elsewhere(t, "team1")
	if _, errs := other.run(t, 1, "artifact", "verify", ref, "--key", "k8s://keys/signing",
		"--insecure-ignore-tlog"); !strings.Contains(errs, "not found") {
		t.Errorf("the author's cluster is known there: %s", errs)
	}
	other.write(t, "cosign.pub", string(pair.PublicBytes))
	policy := other.write(t, "policy.yaml",
		"apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nmetadata: {name: p}\n"+
			"spec: {keys: [cosign.pub], provenance: true, insecureIgnoreTlog: true}\n")
	pulled := filepath.Join(other.dir, "pulled")
	other.run(t, 0, "artifact", "verify", ref, "--verify-policy", policy)
	other.run(t, 0, "artifact", "pull", ref, pulled, "--verify-policy", policy)
	if text, err := os.ReadFile(filepath.Join(pulled, "settings.yaml")); err != nil ||
		string(text) != settings {
		t.Errorf("pulled: %s %v", text, err)
	}
	other.run(t, 0, "apply", ref, "-n", "team1", "--verify-policy", policy)
	greets := func(where *deliveryTest) string {
		var applied corev1.ConfigMap
		if err := where.Get(t.Context(), client.ObjectKey{Namespace: "team1", Name: "settings"},
			&applied); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return applied.Data["greeting"]
	}
	if greets(other) != "hello" || greets(author) != "" {
		t.Errorf("the package greets with %q there and %q here", greets(other), greets(author))
	}
	if out, _ := other.run(t, 0, "status", "--packages", "agents", "-n",
		"team1"); !strings.Contains(out, "settings") {
		t.Errorf("inventory: %s", out)
	}
	// What was pulled is the same package.
	if _, errs := other.run(t, 0, "apply", pulled, "--rendered", "--name", "agents", "-n",
		"team1"); !strings.Contains(errs, "unchanged") {
		t.Errorf("apply of the pulled folder: %s", errs)
	}

	// The next version is not signed: what is there stays.
	author.write(t, "app/settings.yaml", strings.ReplaceAll(settings, "hello", "good-bye"))
	author.run(t, 0, "artifact", "push", filepath.Join(author.dir, "app"), ref, "--source", "s",
		"--revision", "r2")
	if _, errs := other.run(t, 1, "apply", ref, "-n", "team1", "--verify-policy",
		policy); !strings.Contains(errs, "no signatures found") {
		t.Errorf("apply of an unsigned package: %s", errs)
	}
	if greets(other) != "hello" {
		t.Errorf("an unsigned package was applied: %q", greets(other))
	}
}

// The images of finished AgentBuilds are in the lock, by digest.
func TestPinFromBuilds(t *testing.T) {
	d := deliver(t)
	digest := "sha256:" + strings.Repeat("01", 32)
	for _, b := range []struct{ namespace, name, image string }{
		{"team1", "weather", "registry.example/weather:v1@" + digest},
		{"team1", "unfinished", ""},
		{"team2", "other", "registry.example/other:v1@" + digest},
	} {
		made := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: b.name},
			Spec: api.AgentBuildSpec{
				Source: api.SourceSpec{SourceRepository: "git.example/" + b.name},
				BuildOutput: &api.BuildOutput{Image: b.name, ImageTag: "v1",
					ImageRegistry: "registry.example"},
			}}
		if err := d.Create(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		made.Status = api.AgentBuildStatus{Phase: api.PhaseSucceeded, BuiltImage: b.image}
		if err := d.Status().Update(t.Context(), made); err != nil {
			t.Fatal(err)
		}
	}
	d.write(t, "app/settings.yaml", settings)
	lock := filepath.Join(d.dir, "app", "armature.lock")
	d.run(t, 0, "pin-builds", filepath.Join(d.dir, "app"), "-n", "team1")
	text, err := os.ReadFile(lock)
	if err != nil ||
		!strings.Contains(string(text), "image: registry.example/weather:v1@"+digest) ||
		strings.Contains(string(text), "other") || strings.Contains(string(text), "unfinished") {
		t.Errorf("%s %v", text, err)
	}
	// Those of another namespace come beside them.
	d.run(t, 0, "pin-builds", filepath.Join(d.dir, "app"), "-n", "team2")
	if both, err := os.ReadFile(lock); err != nil ||
		!strings.Contains(string(both), "registry.example/weather:v1@") ||
		!strings.Contains(string(both), "registry.example/other:v1@") {
		t.Errorf("%s %v", both, err)
	}
	if err := os.WriteFile(lock, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _ := d.run(t, 0, "pin", filepath.Join(d.dir, "app"), "--check", "-o",
		"json"); !strings.Contains(out, `"changes": []`) {
		t.Errorf("no changes: %s", out)
	}
	// Without the cluster the builds stay as they are.
	d.run(t, 0, "pin", filepath.Join(d.dir, "app"))
	if again, err := os.ReadFile(lock); err != nil || string(again) != string(text) {
		t.Errorf("%s %v", again, err)
	}
	if out, _ := d.run(t, 1, "pin-builds", filepath.Join(d.dir, "app"), "-A",
		"--check"); !strings.Contains(out, "build team2/other") {
		t.Errorf("check: %s", out)
	}
}

// What a build made gets into the lock only if the policy accepts how it was built.
func TestPinFromBuildsDemandsAttestations(t *testing.T) {
	d := deliver(t)
	pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) {
		return []byte("a password"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	key := d.write(t, "cosign.key", string(pair.PrivateBytes))
	d.write(t, "cosign.pub", string(pair.PublicBytes))
	policy := d.write(t, "policy.yaml", `apiVersion: armature.dev/v1alpha1
kind: VerifyPolicy
metadata: {name: production}
spec:
  keys: [cosign.pub]
  insecureIgnoreTlog: true
  builds:
    builders: [{id: "https://builder.example/prod", level: 3}]
    sources: [{repository: "https://git.example/team1/weather", branches: [main]}]
`)
	folder := filepath.Dir(d.write(t, "app/settings.yaml", settings))
	for i, c := range []struct{ team, why string }{
		{"", "none of the attestations is of type https://slsa.dev/provenance/v1"},
		{"team2",
			"https://git.example/team2/weather was built, which is none of the policy's sources"},
		{"team1", ""},
	} {
		made, err := random.Image(16, 1)
		if err != nil {
			t.Fatal(err)
		}
		hash, err := made.Digest()
		if err != nil {
			t.Fatal(err)
		}
		image, err := name.NewDigest(fmt.Sprintf("%s/weather@%s", d.registry, hash))
		if err == nil {
			err = remote.Write(image, made)
		}
		if err != nil {
			t.Fatal(err)
		}
		build := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"}}
		if i == 0 {
			build.Spec = api.AgentBuildSpec{
				Source: api.SourceSpec{SourceRepository: "git.example/weather"},
				BuildOutput: &api.BuildOutput{Image: "weather", ImageTag: "v1",
					ImageRegistry: d.registry}}
			err = d.Create(t.Context(), build)
		} else {
			err = d.Get(t.Context(), client.ObjectKeyFromObject(build), build)
		}
		if err != nil {
			t.Fatal(err)
		}
		build.Status = api.AgentBuildStatus{Phase: api.PhaseSucceeded, BuiltImage: image.String()}
		if err := d.Status().Update(t.Context(), build); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, errs := d.run(t, 1, "pin-builds", folder, "-n", "team1", "--verify-policy",
				policy); !strings.Contains(errs, "no signatures found") {
				t.Errorf("an image that nobody signed: %s", errs)
			}
		}
		if err := attestBuild(image, key, "a password", c.team); err != nil {
			t.Fatal(err)
		}
		status := 1
		if c.why == "" {
			status = 0
		}
		_, errs := d.run(t, status, "pin-builds", folder, "-n", "team1", "--verify-policy", policy)
		if !strings.Contains(errs, c.why) {
			t.Errorf("team %q: %s", c.team, errs)
		}
		if _, err := os.Stat(filepath.Join(folder, "armature.lock")); (err == nil) != (c.why == "") {
			t.Errorf("team %q: the lock: %v", c.team, err)
		}
		if c.why != "" {
			continue
		}
		// The policy accepts the image, and not that it is what status says it is.
		build.Status.Attestation = &api.Attestation{Image: image.String(), Level: 3}
		if err := d.Status().Update(t.Context(), build); err != nil {
			t.Fatal(err)
		}
		if _, errs := d.run(t, 1, "pin-builds", folder, "-n", "team1", "--verify-policy",
			policy); !strings.Contains(errs,
			"the platform attested the image as that of something that is not an AgentBuild") {
			t.Errorf("a claim of status: %s", errs)
		}
	}
}

// gitea answers as much of Gitea's API as pull requests need, and serves a bare repository.
type gitea struct {
	sync.Mutex
	pulls []map[string]any
}

func (g *gitea) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.Lock()
	defer g.Unlock()
	if r.Header.Get("Authorization") != "token secret" {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	var answer any
	switch body := map[string]any{}; r.Method {
	case http.MethodGet:
		found := []map[string]any{}
		for _, p := range g.pulls {
			if r.URL.Query().Get("state") == "all" && r.URL.Query().Get("page") == "1" {
				found = append(found, p)
			}
		}
		answer = found
	default:
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var pull map[string]any
		if r.Method == http.MethodPost {
			pull = map[string]any{"number": len(g.pulls) + 1, "state": "open",
				"html_url": "http://forge.example/1", "merged": false,
				"user": map[string]any{"login": "bot"},
				"head": map[string]any{"ref": body["head"], "repo_id": 1},
				"base": map[string]any{"ref": body["base"], "repo_id": 1}}
			g.pulls = append(g.pulls, pull)
		} else {
			pull = g.pulls[len(g.pulls)-1]
		}
		pull["title"], pull["body"], answer = body["title"], body["body"], pull
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// The images of finished builds become a commit of the remote's branch, or a pull request
// that is kept up to date, and what a person refused is not written again.
func TestPinCommits(t *testing.T) {
	d := deliver(t)
	d.env = append(d.env, "GIT_CONFIG_GLOBAL="+d.dir+"/none", "GIT_CONFIG_NOSYSTEM=1",
		"GITEA_TOKEN=secret")
	git := func(folder string, args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", folder}, args...)...)
		cmd.Env = d.env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	bare := filepath.Join(d.dir, "srv", "team", "apps.git")
	git(d.dir, "init", "-q", "--bare", "-b", "main", bare)
	git(bare, "config", "http.receivepack", "true")
	forge := &gitea{}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/user", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"id": 1, "login": "bot"}`)
	})
	mux.Handle("/api/v1/repos/team/apps/pulls", forge)
	mux.Handle("/api/v1/repos/team/apps/pulls/", forge)
	mux.Handle("/", &cgi.Handler{Path: git(bare, "--exec-path") + "/git-http-backend",
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(d.dir, "srv"), "GIT_HTTP_EXPORT_ALL=1",
			"REMOTE_USER=bot", "GIT_CONFIG_GLOBAL=" + d.dir + "/none"}})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	work := filepath.Join(d.dir, "work")
	git(d.dir, "clone", "-q", server.URL+"/team/apps.git", work)
	git(work, "config", "user.name", "Ada")
	git(work, "config", "user.email", "ada@example.com")
	apps := filepath.Dir(d.write(t, "work/apps/settings.yaml", settings))
	git(work, "add", "-A")
	git(work, "commit", "-qm", "Apps")
	git(work, "push", "-q", "origin", "main")

	image := func(digit string) string {
		return "registry.example/weather:v1@sha256:" + strings.Repeat(digit, 64)
	}
	build := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"},
		Spec: api.AgentBuildSpec{
			Source: api.SourceSpec{SourceRepository: server.URL + "/team/apps"},
			BuildOutput: &api.BuildOutput{Image: "weather", ImageTag: "v1",
				ImageRegistry: "registry.example"}}}
	if err := d.Create(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	finish := func(digit string) {
		t.Helper()
		now := metav1.Now()
		build.Status = api.AgentBuildStatus{Phase: api.PhaseSucceeded, BuiltImage: image(digit),
			ObservedGeneration: build.Generation, CompletionTime: &now,
			PipelineRunName: "weather-1",
			Source: &api.SourceStatus{
				Git: api.GitStatus{CommitSHA: git(bare, "rev-parse", "main")}},
			Conditions: []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue,
				Reason: api.ReasonSucceeded, LastTransitionTime: now}}}
		if err := d.Status().Update(t.Context(), build); err != nil {
			t.Fatal(err)
		}
	}
	pinned := func(status int, words ...string) (string, string) {
		t.Helper()
		return d.run(t, status, append([]string{"pin-builds", apps, "-n", "team1"}, words...)...)
	}
	finish("1")
	out, errs := pinned(0, "--branch", "main")
	if !strings.Contains(out, "build team1/weather\n  + "+image("1")) ||
		!strings.Contains(errs, "main: pushed ") ||
		!strings.Contains(errs,
			"armature: unattested, by the status of the AgentBuild alone: team1/weather\n") {
		t.Errorf("%s%s", out, errs)
	}
	if message := git(bare, "log", "-1", "--format=%B", "main"); !strings.Contains(message,
		"\nArmature-Attestation: unattested") {
		t.Error(message)
	}
	build.Status.BuiltImage = "registry.evil/weather:v1@sha256:" + strings.Repeat("9", 64)
	if err := d.Status().Update(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	if _, errs := pinned(1, "--branch", "main"); !strings.Contains(errs,
		"status.builtImage is an image of registry.evil/weather, and spec.buildOutput names "+
			"registry.example/weather:v1") {
		t.Error(errs)
	}
	finish("1")
	if status := git(work, "status", "--porcelain"); status != "" {
		t.Errorf("the working tree: %s", status)
	}
	if _, errs := pinned(0, "--branch", "main"); !strings.Contains(errs,
		"main: apps/armature.lock is up to date with 1 finished build") {
		t.Error(errs)
	}
	git(work, "pull", "-q")
	git(work, "revert", "--no-edit", "HEAD")
	git(work, "push", "-q")
	if out, errs := pinned(0, "--branch", "main", "-o", "json"); !strings.Contains(errs,
		"build team1/weather is held back: commit ") || !strings.Contains(out, `"why": "commit `) {
		t.Errorf("%s%s", out, errs)
	}
	pinned(0, "--branch", "main", "--accept", "sha256:"+strings.Repeat("1", 64))

	proposed := []string{"--pull-request", "main", "--forge", "gitea"}
	finish("2")
	if _, errs := pinned(0, proposed...); !strings.Contains(errs, "armature/pin/apps: pushed ") ||
		!strings.Contains(errs, "the pull request http://forge.example/1 was opened") {
		t.Error(errs)
	}
	finish("3")
	if _, errs := pinned(0, proposed...); !strings.Contains(errs, "armature/pin/apps: pushed ") ||
		!strings.Contains(errs, "the pull request http://forge.example/1 is open") {
		t.Error(errs)
	}
	if _, errs := pinned(0, proposed...); !strings.Contains(errs, "has 1 image already") {
		t.Error(errs)
	}
	if n := len(forge.pulls); n != 1 ||
		!strings.Contains(fmt.Sprint(forge.pulls[0]["body"]), "sha256:"+strings.Repeat("3", 64)) {
		t.Errorf("%d pull requests: %v", n, forge.pulls)
	}
	forge.pulls[0]["state"] = "closed"
	if _, errs := pinned(0, proposed...); !strings.Contains(errs,
		"a pull request with it was closed without a merge") || len(forge.pulls) != 1 {
		t.Error(errs)
	}
	// A login in the URL is used, and no error repeats it.
	git(work, "remote", "set-url", "origin",
		strings.Replace(server.URL, "://", "://hunter2:hunter2@", 1)+"/team/apps.git")
	if _, errs := pinned(0, "--branch", "main"); strings.Contains(errs, "hunter2") {
		t.Error(errs)
	}
	for _, login := range []string{"hunter2", "hunter2:hunter2"} {
		git(work, "remote", "set-url", "origin", "http://"+login+"@127.0.0.1:1/team/apps.git")
		if _, errs := pinned(1, "--branch", "main"); strings.Contains(errs, "hunter2") ||
			!strings.Contains(errs, "127.0.0.1:1") {
			t.Error(errs)
		}
	}
	git(work, "remote", "set-url", "origin", server.URL+"/team/apps.git")
	for flags, want := range map[string]string{
		"--signing-key x":                   "require --branch or --pull-request",
		"--branch main --check":             "--check compares the working tree",
		"--branch main --accept sha256:1":   "use a digest",
		"--branch ../x":                     "is not a valid branch",
		"--branch nowhere":                  "the repository has no such branch: nowhere",
		"--pull-request main --branch main": "cannot merge a branch into itself",
	} {
		status := 2
		if strings.Contains(flags, "/x") || strings.Contains(flags, "nowhere") ||
			strings.Contains(flags, "main --branch") {
			status = 1
		}
		if _, errs := pinned(status, strings.Fields(flags)...); !strings.Contains(errs, want) {
			t.Errorf("%s: %s", flags, errs)
		}
	}
}

// status of a name follows the agent from its commit to its pods, and says where that stands
// still.
func TestStatusChain(t *testing.T) {
	d := deliver(t)
	image := func(digit string) string {
		return "registry.example/weather:v1@sha256:" + strings.Repeat(digit, 64)
	}
	file := d.write(t, "app/weather.yaml", strings.ReplaceAll(`apiVersion: apps/v1
kind: Deployment
metadata: {name: weather, namespace: team1, labels: {kagenti.io/inject: enabled}}
spec:
  selector: {matchLabels: {app: weather}}
  template:
    metadata: {labels: {app: weather}}
    spec:
      containers: [{name: web, image: "IMAGE"}]
`, "IMAGE", image("1")))
	d.run(t, 0, "apply", filepath.Dir(file), "-n", "team1", "--name", "apps", "--timeout", "0")
	if out, _ := d.run(t, 3, "status", "weather", "-n", "team1"); strings.Contains(out, "from build") {
		t.Errorf("without a build: %s", out)
	}
	now := metav1.Now()
	build := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "forecast"},
		Spec: api.AgentBuildSpec{
			Source: api.SourceSpec{SourceRepository: "git.example/weather"},
			BuildOutput: &api.BuildOutput{Image: "weather", ImageTag: "v1",
				ImageRegistry: "registry.example"}}}
	if err := d.Create(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	build.Status = api.AgentBuildStatus{Phase: api.PhaseSucceeded, BuiltImage: image("2"),
		PipelineRunName: "forecast-2", CompletionTime: &now,
		Source: &api.SourceStatus{Git: api.GitStatus{CommitSHA: strings.Repeat("c", 40),
			Ref: "refs/heads/main"}}}
	if err := d.Status().Update(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	out, _ := d.run(t, 3, "status", "weather", "-n", "team1")
	for _, want := range []string{"from build forecast to Deployment/weather\n",
		"commit        Done      " + strings.Repeat("c", 40) + " refs/heads/main\n",
		"image         Done      " + image("2") + "\n", "attestation   Done      unattested\n",
		"workload      Waiting   Deployment/weather of package apps\n",
		"it stops at workload: it has " + image("1") +
			"\n  hint: render and apply the branch; put the image into the lock first: armature " +
			"pin-builds PATH -n team1\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if out, _ := d.run(t, 3, "status", "weather", "-n", "team1", "-o",
		"json"); !strings.Contains(out, `"chains": [`) ||
		!strings.Contains(out, `"workload": "Deployment/weather"`) {
		t.Error(out)
	}
	if out, _ := d.run(t, 3, "status", "-n", "team1"); strings.Contains(out, "from build") {
		t.Errorf("without a name: %s", out)
	}
	build.Status.Attestation = &api.Attestation{Image: image("2"), Level: 3,
		ProvenanceDigest: "sha256:" + strings.Repeat("5", 64)}
	build.Status.Conditions = []metav1.Condition{{Type: api.ConditionAttested,
		Status: metav1.ConditionTrue, Reason: "Attested", LastTransitionTime: now}}
	if err := d.Status().Update(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	update := &updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "apps"},
		Spec: updates.ImageUpdateSpec{Repository: "https://git.example/apps", Branch: "main",
			Via: "api", Credentials: updates.SecretReference{Name: "forge"}}}
	if err := d.Create(t.Context(), update); err != nil {
		t.Fatal(err)
	}
	update.Status = updates.ImageUpdateStatus{Commit: "5b12e85009e7",
		Held: []updates.HeldImage{{Build: "forecast", Image: image("2"),
			Why: "commit 5b12e85009e7 removed it from the lock"}}}
	if err := d.Status().Update(t.Context(), update); err != nil {
		t.Fatal(err)
	}
	out, _ = d.run(t, 3, "status", "weather", "-n", "team1")
	page.Shown(t, "docs/status.md", "armature status weather -n team1", out)
}
