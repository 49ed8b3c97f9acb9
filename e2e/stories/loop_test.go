package stories

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/e2e/cluster"
	"github.com/armature-dev/armature/e2e/gitea"
)

// held is how long nothing may propose an image that a person took back.
var held = flag.Duration("held", 30*time.Second,
	"how long TestFromPushToPod watches that a reverted image stays reverted")

// loop is a story on a forge, with the repository of a package, which CI renders and applies.
type loop struct {
	*story
	forge   *gitea.Server
	outside string // the forge's address on the machine's network
	owner   string // token of who owns the repositories
	apps    string // a clone of the package's repository
	allowed string // who signs its commits
	began   time.Time
}

// A push becomes a running pod and nobody types a command in between: the forge's webhook, the
// run, the attested digest, which the policy accepts, the signed commit, without which the
// forge refuses a push, and then what CI does: render and apply. A revert brings the old image
// back and stays; what is newer goes on. A status that somebody wrote changes nothing.
func TestFromPushToPod(t *testing.T) {
	t.Parallel()
	l := &loop{story: newStory(t, nil), apps: t.TempDir()}
	if l.info.Process == 0 {
		t.Skip("the forge runs in the network of the cluster that make e2e starts")
	}
	l.installed(t)
	public := l.attestKey(t)
	policy, err := os.ReadFile(public)
	must(t, err)
	l.startForge(t)
	l.pushForge(t, "testdata/hello", "hello")
	l.startApps(t)
	l.secret(t, "hook", corev1.SecretTypeOpaque, map[string]string{"token": "a token of the story"})
	mode := l.briefProd(t)
	must(t,
		l.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "images"},
				Data: map[string]string{
					"cosign.pub": string(policy),
					"policy.yaml": strings.Replace(`apiVersion: armature.dev/v1alpha1
kind: VerifyPolicy
metadata: {name: images}
spec:
  keys: [cosign.pub]
  insecureIgnoreTlog: true
  builds: {builders: [{id: "BUILDER", level: 3}], minimumLevel: 3, sources: [{repository: "`+l.forge.URL+`/owner/hello", branches: [main]}]}
`, "BUILDER", attest.BuilderID(mode), 1)}}))
	l.apply(t, strings.NewReplacer("MODE", mode, "FORGE", l.forge.URL).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: MODE
  source: {sourceRepository: "FORGE/owner/hello", sourceRevision: main}
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
  repository: "FORGE/owner/apps"
  branch: main
  interval: 10s
  author: {name: Armature, email: bot@example.com}
  credentials: {name: apps}
  signingKey: {name: signing}
  verify: {name: images}
`))
	first := l.rolledOut(t, "")

	l.pushHello(t, "echo second >/dev/null")
	second := l.rolledOut(t, first)
	l.revert(t)
	l.runs(t, first)

	// Nothing proposes it again, for as long as the branch is looked at a few times.
	head := git(t, l.apps, "rev-parse", "HEAD")
	u := l.updated(t, updates.ReasonHeldBack)
	checked := u.Status.LastChecked.Time
	eventually(t, 5*time.Minute+*held, "the branch was looked at for a while",
		func(ctx context.Context) error {
			if u := l.updated(t, updates.ReasonHeldBack); u.Status.LastChecked.Sub(checked) < *held {
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
	l.forgedStatus(t)
}

// forgedStatus writes into the status of the build, as an admin of its namespace may, that the run
// has built and attested another image: nothing is committed.
func (l *loop) forgedStatus(t *testing.T) {
	t.Helper()
	image, digest := l.other(t)
	must(t, remote.Write(reference(t, l.info.HostRegistry+"/"+l.namespace+"/hello:v1"), image))
	git(t, l.apps, "pull", "--quiet")
	head, forged :=
		git(t, l.apps, "rev-parse", "HEAD"), l.info.Registry+"/"+l.namespace+"/hello:v1@"+digest
	build := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "hello"}}
	must(t,
		l.asTenant(t).Status().Patch(t.Context(), build,
			client.RawPatch("application/merge-patch+json",
				[]byte(`{"status": {"builtImage": "`+forged+`", "attestation": {"image": "`+forged+
					`"}}}`))))
	for began := time.Now(); time.Since(began) < *held; time.Sleep(time.Second) {
		git(t, l.apps, "pull", "--quiet")
		if now := git(t, l.apps, "rev-parse", "HEAD"); now != head {
			t.Fatalf("a forged status went from commit %s to %s:\n%s", head, now,
				git(t, l.apps, "show", now))
		}
	}
}

// startForge starts Gitea in the network of the cluster, on the address of its node, and lets
// the programs of this machine reach it.
func (l *loop) startForge(t *testing.T) {
	t.Helper()
	bot, person := l.sshKey(t, "bot"), l.sshKey(t, "person")
	l.allowed = filepath.Join(t.TempDir(), "allowed")
	must(t, os.WriteFile(l.allowed, []byte("bot@example.com "+bot+"\n"), 0o600))
	dial := dialIn(l.info.Process)
	l.forge = gitea.Start(t,
		gitea.Options{Address: forgeAddress(l.info),
			Command: []string{"nsenter", "--target", fmt.Sprint(l.info.Process), "--net"},
			Dial:    dial, TrustedKeys: []string{bot, person}})
	l.owner = l.forge.User("owner")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	l.outside = listener.Addr().String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			go func() {
				defer client.Close()
				server, err := dial(context.Background(), "tcp", forgeAddress(l.info))
				if err != nil {
					return // which git says
				}
				defer server.Close()
				go func() { _, _ = io.Copy(server, client) }()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	service := &corev1.Service{}
	must(t, l.Get(t.Context(), client.ObjectKey{Namespace: l.platform, Name: "armature-webhooks"},
		service))
	for _, name := range []string{"hello", "apps"} {
		l.forge.Must(l.owner, http.MethodPost, "/user/repos",
			map[string]any{"name": name, "private": name == "apps", "default_branch": "main"}, nil)
	}
	l.forge.Must(l.owner, http.MethodPost, "/repos/owner/hello/hooks",
		map[string]any{"type": "gitea", "active": true, "events": []string{"push"},
			"config": map[string]string{
				"url": fmt.Sprintf("http://%s:%d/hook/%s/hook", service.Spec.ClusterIP,
					service.Spec.Ports[0].Port, l.namespace),
				"secret": "a token of the story", "content_type": "json"}}, nil)
}

// forgeAddress is that of the node, with a port of the forge's own.
func forgeAddress(info *cluster.Info) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(info.GitHTTP, "http://"), ":")
	return host + ":3411"
}

// dialIn opens connections in the network of a process.
func dialIn(process int) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // the thread ends with the goroutine, and its network with it
			var file *os.File
			if file, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", process)); err != nil {
				return
			}
			defer file.Close()
			if err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err == nil {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			}
		}()
		<-done
		return conn, err
	}
}

// sshKey writes a key into a Secret and a file of its name, and returns the public key.
func (l *loop) sshKey(t *testing.T, name string) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	must(t, err)
	key, err := ssh.NewPublicKey(public)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(l.apps, "..", name), pem.EncodeToMemory(block), 0o600))
	if name == "bot" {
		must(t,
			l.Create(t.Context(),
				&corev1.Secret{
					StringData: map[string]string{"identity": string(pem.EncodeToMemory(block))},
					ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "signing",
						Labels: map[string]string{"armature.dev/credentials": "signing"}}}))
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// remote is a repository of the owner, for git on this machine.
func (l *loop) remote(name string) string {
	return "http://owner:" + l.owner + "@" + l.outside + "/owner/" + name + ".git"
}

// pushForge commits the files of a folder to main of a repository.
func (l *loop) pushForge(t *testing.T, folder, repository string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(folder)))
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	git(t, dir, "add", "--all", ".")
	git(t, dir, "-c", "user.name=story", "-c", "user.email=story@example.com", "commit", "--quiet",
		"--message=A change")
	git(t, dir, "push", "--quiet", l.remote(repository), "main")
}

// startApps makes the repository of the package, the login for it and the key of its commits.
func (l *loop) startApps(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(l.apps, "agent.yaml"),
		[]byte(`apiVersion: agent.kagenti.dev/v1alpha1
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
	for key, value := range map[string]string{"user.name": "story",
		"user.email": "story@example.com", "gpg.format": "ssh",
		"user.signingkey": filepath.Join(filepath.Dir(l.apps), "person"), "commit.gpgsign": "true"} {
		git(t, l.apps, "config", key, value)
	}
	git(t, l.apps, "add", "--all", ".")
	git(t, l.apps, "commit", "--quiet", "--message=An agent")
	git(t, l.apps, "remote", "add", "origin", l.remote("apps"))
	git(t, l.apps, "push", "--quiet", "--set-upstream", "origin", "main")
	l.secret(t, "apps", corev1.SecretTypeBasicAuth,
		map[string]string{"username": "owner", "password": l.owner})
	// From now on nothing gets into the branch that is not signed.
	l.forge.Must(l.owner, http.MethodPost, "/repos/owner/apps/branch_protections",
		map[string]any{"rule_name": "main", "enable_push": true, "require_signed_commits": true}, nil)
	unsigned := t.TempDir()
	git(t, unsigned, "clone", "--quiet", l.remote("apps"), ".")
	git(t, unsigned, "-c", "user.name=story", "-c", "user.email=story@example.com", "-c",
		"commit.gpgsign=false", "commit", "--quiet", "--allow-empty", "--message=Not signed")
	push := exec.Command("git", "push", "--quiet", "origin", "main")
	push.Dir = unsigned
	if out, err := push.CombinedOutput(); err == nil {
		t.Errorf("the forge takes a commit that is not signed: %s", out)
	}
	l.began = time.Now()
}

// pushHello pushes a change of the agent. The forge sends the webhook.
func (l *loop) pushHello(t *testing.T, line string) {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "clone", "--quiet", l.remote("hello"), ".")
	file := filepath.Join(dir, "agent.sh")
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, append([]byte(line+"\n"), text...), 0o600))
	git(t, dir, "-c", "user.name=story", "-c", "user.email=story@example.com", "commit", "--quiet",
		"--all", "--message=A change")
	l.began = time.Now()
	git(t, dir, "push", "--quiet", "origin", "main")
}

// rolledOut waits for a commit with another image than before, plays CI, and returns the image that
// runs. It logs the time of each stage, and run.sh prints them.
func (l *loop) rolledOut(t *testing.T, before string) (image string) {
	t.Helper()
	stages := fmt.Sprintf("from the push on, other than %q:", before)
	stage := func(name string) {
		stages += fmt.Sprintf("\n  %6.1f s  %s", time.Since(l.began).Seconds(), name)
	}
	build := &api.AgentBuild{}
	run := build.Status.PipelineRunName
	eventually(t, 20*time.Minute, "a new image is built", func(ctx context.Context) error {
		must(t, l.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: "hello"}, build))
		if s := build.Status; s.PipelineRunName != run && s.Phase == api.PhaseBuilding {
			run = s.PipelineRunName
			stage("run " + run)
		}
		// or the controller has not heard of the template yet
		if s := build.Status; s.Phase == api.PhaseFailed && s.PipelineRunName != "" {
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
		if ready := meta.FindStatusCondition(u.Status.Conditions,
			updates.ConditionReady); ready != nil &&
			(ready.Reason == updates.ReasonInvalid || ready.Reason == updates.ReasonRefused) {
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
	if message := git(t, l.apps, "log", "-1",
		"--format=%B"); !strings.Contains(message, "Armature-Attestation: sha256:") ||
		!strings.Contains(message, "Armature-Run: "+build.Status.PipelineRunName) {
		t.Errorf("the message of the commit:\n%s", message)
	}
	l.runs(t, image)
	stage("the pod runs it")
	t.Log(stages)
	if name := os.Getenv("E2E_FIGURES"); name != "" {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		must(t, err)
		_, err = fmt.Fprintf(f, "%s, %s\n", t.Name(), stages)
		must(t, err)
		must(t, f.Close())
	}
	return image
}

// runs does what CI does with the branch as it is, and waits for the pod.
func (l *loop) runs(t *testing.T, image string) {
	t.Helper()
	armature(t, "apply", l.apps, "--name=hello", "--namespace="+l.namespace, "--timeout=5m", "--yes")
	eventually(t, 5*time.Minute, "the pod runs "+image, func(ctx context.Context) error {
		var pods corev1.PodList
		must(t, l.List(ctx, &pods, client.InNamespace(l.namespace),
			client.HasLabels{"app.kubernetes.io/name"}))
		var seen []string
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp == nil && pod.Labels["app.kubernetes.io/name"] == "hello" &&
				ready(pod) {
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
	eventually(t, 5*time.Minute, "the ImageUpdate becomes "+reason,
		func(ctx context.Context) error {
			must(t, l.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: "apps"}, u))
			if ready := meta.FindStatusCondition(u.Status.Conditions,
				updates.ConditionReady); ready == nil || ready.Reason != reason {
				return fmt.Errorf("%+v", ready)
			}
			return nil
		})
	return u
}
