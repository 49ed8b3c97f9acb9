package stories

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	updates "github.com/armature-dev/armature/builds/imageupdate/api"
)

// loop is a story with the repository of a package, which CI renders and applies.
type loop struct {
	*story
	apps    string // a clone of the package's repository
	allowed string // who signs its commits
	began   time.Time
}

// A push becomes a running pod and nobody types a command in between: the webhook, the run,
// the attested digest, which the policy accepts, the signed commit, and then what CI does:
// render and apply. A revert brings the old image back and stays; what is newer goes on.
func TestFromPushToPod(t *testing.T) {
	t.Parallel()
	l := &loop{story: newStory(t, nil), apps: t.TempDir()}
	l.installed(t)
	public, _ := l.attestKey(t)
	policy, err := os.ReadFile(public)
	must(t, err)
	l.push(t, "testdata/hello", "public/"+l.namespace+".git")
	l.startApps(t)
	l.secret(t, "hook", corev1.SecretTypeOpaque, map[string]string{"token": "a token of the story"})
	mode := l.briefProd(t)
	must(t, l.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "images"}, Data: map[string]string{
		"cosign.pub": string(policy), "policy.yaml": strings.Replace(`apiVersion: armature.dev/v1alpha1
kind: VerifyPolicy
metadata: {name: images}
spec:
  keys: [cosign.pub]
  insecureIgnoreTlog: true
  builds: {builders: [{id: "BUILDER", level: 2}], minimumLevel: 2, sources: [{repository: "`+l.info.GitHTTP+"/public/"+l.namespace+`", branches: [main]}]}
`, "BUILDER", attest.BuilderID(mode), 1)}}))
	l.apply(t, strings.ReplaceAll(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: MODE
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  trigger: {poll: 1h, webhook: {name: hook}}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "grep -q sleep agent.sh"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1}
---
apiVersion: armature.dev/v1alpha1
kind: ImageUpdate
metadata: {name: apps}
spec:
  repository: "${git}/private/${namespace}-apps.git"
  branch: main
  interval: 10s
  author: {name: Armature, email: bot@example.com}
  credentials: {name: apps}
  signingKey: {name: signing}
  verify: {name: images}
`, "MODE", mode))
	first := l.rolledOut(t, "")

	l.pushHello(t, "echo second >/dev/null")
	second := l.rolledOut(t, first)
	l.revert(t)
	l.runs(t, first)

	// Nothing proposes it again, for as long as the branch is looked at a few times.
	head := git(t, l.apps, "rev-parse", "HEAD")
	u := l.updated(t, updates.ReasonHeldBack)
	checked := u.Status.LastChecked.Time
	eventually(t, 5*time.Minute, "the branch was looked at twice more", func(ctx context.Context) error {
		if u := l.updated(t, updates.ReasonHeldBack); u.Status.LastChecked.Sub(checked) < 20*time.Second {
			return fmt.Errorf("last at %s", u.Status.LastChecked)
		}
		return nil
	})
	git(t, l.apps, "pull", "--quiet")
	if now := git(t, l.apps, "rev-parse", "HEAD"); now != head {
		t.Errorf("after the revert the branch went from %s to %s", head, now)
	}

	l.pushHello(t, "echo third >/dev/null")
	l.rolledOut(t, second)
}

// startApps makes the repository of the package, the login for it and the key of its commits.
func (l *loop) startApps(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(l.apps, "agent.yaml"), []byte(`apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata:
  name: hello
  namespace: `+l.namespace+`
spec:
  imageSource:
    buildRef: {name: hello}
  podTemplateSpec:
    metadata:
      labels: {kagenti.io/inject: disabled}
    spec:
      containers: [{name: agent}]
`), 0o600))
	git(t, l.apps, "init", "--quiet", "--initial-branch=main")
	l.pushed(t, l.apps, "private/"+l.namespace+"-apps.git")
	url := strings.Replace(l.info.HostGitHTTP, "http://", "http://story:"+l.info.GitToken+"@", 1)
	git(t, l.apps, "remote", "add", "origin", url+"/private/"+l.namespace+"-apps.git")
	git(t, l.apps, "fetch", "--quiet", "origin")
	git(t, l.apps, "branch", "--quiet", "--set-upstream-to=origin/main")
	git(t, l.apps, "config", "user.name", "story")
	git(t, l.apps, "config", "user.email", "story@example.com")
	git(t, l.apps, "config", "commit.gpgsign", "false")
	l.secret(t, "apps", corev1.SecretTypeBasicAuth, map[string]string{"username": "armature", "password": l.info.GitToken})

	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	must(t, err)
	key, err := ssh.NewPublicKey(public)
	must(t, err)
	l.allowed = filepath.Join(t.TempDir(), "allowed")
	must(t, os.WriteFile(l.allowed, append([]byte("bot@example.com "), ssh.MarshalAuthorizedKey(key)...), 0o600))
	must(t, l.Create(t.Context(), &corev1.Secret{StringData: map[string]string{"identity": string(pem.EncodeToMemory(block))},
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "signing", Labels: map[string]string{"armature.dev/credentials": "signing"}}}))
	l.began = time.Now()
}

// pushHello pushes a change of the agent, and sends the webhook as GitHub would, through the
// API server's way to the Service.
func (l *loop) pushHello(t *testing.T, line string) {
	t.Helper()
	dir := t.TempDir()
	url := strings.Replace(l.info.HostGitHTTP, "http://", "http://story:"+l.info.GitToken+"@", 1)
	git(t, dir, "clone", "--quiet", url+"/public/"+l.namespace+".git", ".")
	file := filepath.Join(dir, "agent.sh")
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, append([]byte(line+"\n"), text...), 0o600))
	l.began = time.Now()
	l.pushed(t, dir, "public/"+l.namespace+".git")
	body := []byte(`{"ref":"refs/heads/main","after":"0000000000000000000000000000000000000000"}`)
	mac := hmac.New(sha256.New, []byte("a token of the story"))
	mac.Write(body)
	err = l.logs.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/armature-system/services/armature-webhooks:webhooks/proxy/hook/"+l.namespace+"/hook").
		SetHeader("X-GitHub-Event", "push").SetHeader("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil))).Body(body).Do(t.Context()).Error()
	must(t, err)
}

// rolledOut waits for a commit with another image than before, plays CI, and gives the image
// that runs. It logs the time of each stage.
func (l *loop) rolledOut(t *testing.T, before string) (image string) {
	t.Helper()
	stages := fmt.Sprintf("from the push on, other than %q:", before)
	stage := func(name string) { stages += fmt.Sprintf("\n  %6.1f s  %s", time.Since(l.began).Seconds(), name) }
	build := &api.AgentBuild{}
	run := build.Status.PipelineRunName
	eventually(t, 20*time.Minute, "a new image is built", func(ctx context.Context) error {
		must(t, l.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: "hello"}, build))
		if s := build.Status; s.PipelineRunName != run && s.Phase == api.PhaseBuilding {
			run = s.PipelineRunName
			stage("run " + run)
		}
		if s := build.Status; s.Phase == api.PhaseFailed {
			t.Fatalf("build hello: %s\n%s", s.Message, logTail(build))
		}
		if s := build.Status; s.Phase != api.PhaseSucceeded || s.BuiltImage == before {
			return fmt.Errorf("phase %s, image %s", s.Phase, s.BuiltImage)
		}
		return nil
	})
	image = build.Status.BuiltImage
	stage("attested " + image)
	eventually(t, 5*time.Minute, "the image is in the lock", func(ctx context.Context) error {
		u := &updates.ImageUpdate{}
		must(t, l.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: "apps"}, u))
		if ready := meta.FindStatusCondition(u.Status.Conditions, updates.ConditionReady); ready != nil && (ready.Reason == updates.ReasonInvalid || ready.Reason == updates.ReasonRefused) {
			t.Fatalf("the ImageUpdate: %s", ready.Message)
		}
		git(t, l.apps, "pull", "--quiet")
		lock, err := os.ReadFile(filepath.Join(l.apps, "armature.lock"))
		if err == nil && !strings.Contains(string(lock), image) {
			err = fmt.Errorf("%s", lock)
		}
		return err
	})
	stage("signed commit")
	git(t, l.apps, "-c", "gpg.ssh.allowedSignersFile="+l.allowed, "verify-commit", "HEAD")
	if message := git(t, l.apps, "log", "-1", "--format=%B"); !strings.Contains(message, "Armature-Attestation: sha256:") || !strings.Contains(message, "Armature-Run: "+build.Status.PipelineRunName) {
		t.Errorf("the message of the commit:\n%s", message)
	}
	l.runs(t, image)
	stage("the pod runs it")
	t.Log(stages)
	return image
}

// runs does what CI does with the branch as it is, and waits for the pod.
func (l *loop) runs(t *testing.T, image string) {
	t.Helper()
	armature(t, "apply", l.apps, "--name=hello", "--namespace="+l.namespace, "--wait", "--timeout=5m", "--yes")
	eventually(t, 5*time.Minute, "the pod runs "+image, func(ctx context.Context) error {
		var pods corev1.PodList
		must(t, l.List(ctx, &pods, client.InNamespace(l.namespace), client.HasLabels{"app.kubernetes.io/name"}))
		var seen []string
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp == nil && pod.Labels["app.kubernetes.io/name"] == "hello" && ready(pod) {
				seen = append(seen, pod.Spec.Containers[0].Image)
			}
		}
		if len(seen) != 1 || seen[0] != image {
			return fmt.Errorf("%q run", seen)
		}
		return nil
	})
}

// revert the last commit of the package, as a person does.
func (l *loop) revert(t *testing.T) {
	t.Helper()
	git(t, l.apps, "revert", "--no-edit", "HEAD")
	git(t, l.apps, "push", "--quiet", "origin", "main")
}

// updated waits until the ImageUpdate has a reason.
func (l *loop) updated(t *testing.T, reason string) *updates.ImageUpdate {
	t.Helper()
	u := &updates.ImageUpdate{}
	eventually(t, 5*time.Minute, "the ImageUpdate becomes "+reason, func(ctx context.Context) error {
		must(t, l.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: "apps"}, u))
		if ready := meta.FindStatusCondition(u.Status.Conditions, updates.ConditionReady); ready == nil || ready.Reason != reason {
			return fmt.Errorf("%+v", ready)
		}
		return nil
	})
	return u
}
