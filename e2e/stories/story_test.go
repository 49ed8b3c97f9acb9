// Package stories shows what people do with Armature, on a real Kubernetes with
// a real Tekton, one story a file. `make e2e` runs them.
package stories

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/cluster"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/api/keys"
)

var _ = controlplane.Only

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // controller-runtime's client insists on one
	os.Exit(m.Run())
}

// story is the cluster that stories play on, and a namespace for one story.
type story struct {
	client.Client
	logs      *kubernetes.Clientset
	info      *cluster.Info
	namespace string
	platform  string // namespace of the controller that builds for it
}

// newStory creates a namespace for a story. Its labels are what people put on theirs, for instance
// the level of Pod Security; nil are those of Pod Security baseline, at which every shipped mode
// builds.
func newStory(t testing.TB, labels map[string]string) *story {
	t.Helper()
	path := os.Getenv("E2E_KUBECONFIG")
	if path == "" {
		t.Skip(
			"no cluster: `make e2e` starts one and runs the stories; E2E_KUBECONFIG names another")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	must(t, err)
	config.QPS, config.Burst = 100, 200

	s := &story{info: &cluster.Info{}, platform: "armature-system"}
	text, err := os.ReadFile(os.Getenv("E2E_INFO"))
	if err != nil {
		t.Fatalf("E2E_INFO is to name a file that describes the cluster, as cluster.Info does: %v", err)
	}
	must(t, json.Unmarshal(text, s.info))
	s.Client, err = buildtest.Client(config)
	must(t, err)
	s.logs, err = kubernetes.NewForConfig(config)
	must(t, err)

	if labels == nil {
		labels = map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "story-", Labels: labels}}
	must(t, s.Create(t.Context(), ns))
	s.namespace = ns.Name
	t.Cleanup(func() {
		if t.Failed() {
			s.tellWhatHappened(t)
		}
		if err := s.Delete(context.Background(), ns); err != nil {
			t.Error(err)
		}
	})
	return s
}

// apply makes what the manifests say, where ${namespace}, ${git}, ${registry} and
// the like are replaced by the story's own.
func (s *story) apply(t testing.TB, manifests string) {
	t.Helper()
	values := map[string]string{
		"namespace": s.namespace, "git": s.info.GitHTTP, "gitSSH": s.info.GitSSH,
		"registry": s.info.Registry, "privateRegistry": s.info.PrivateRegistry,
		"vulnerabilityDatabase": s.info.VulnerabilityDatabase,
	}
	manifests = os.Expand(manifests, func(name string) string {
		value, ok := values[name]
		if !ok {
			t.Fatalf("${%s} has no value", name)
		}
		return value
	})
	objects := readObjects(t, []byte(manifests))
	for _, object := range objects {
		object.SetNamespace(s.namespace)
	}
	s.applyObjects(t, objects)
}

func readObjects(t testing.TB, manifests []byte) []*unstructured.Unstructured {
	t.Helper()
	objects, err := ssautil.ReadObjects(bytes.NewReader(manifests))
	must(t, err)
	return objects
}

func (s *story) applyObjects(t testing.TB, objects []*unstructured.Unstructured) {
	t.Helper()
	poller := polling.NewStatusPoller(s.Client, s.RESTMapper(), polling.Options{})
	manager := ssa.NewResourceManager(s.Client, poller,
		ssa.Owner{Field: "story", Group: "story.armature.dev"})
	_, err := manager.ApplyAllStaged(t.Context(), objects, ssa.DefaultApplyOptions())
	must(t, err)
}

// armature runs the command, or kubectl does, and returns what it prints.
func armature(t testing.TB, args ...string) []byte { return run(t, nil, "armature", args...) }
func kubectl(t testing.TB, in []byte, args ...string) []byte {
	return run(t, in, "kubectl", args...)
}

func run(t testing.TB, in []byte, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.Getenv("E2E_KUBECONFIG"))
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, &problems)
	}
	return out
}

// installed makes sure that the controller runs for the whole cluster.
func (s *story) installed(t testing.TB) {
	t.Helper()
	theInstallation.Lock()
	defer theInstallation.Unlock()
	if !theInstallation.there {
		s.install(t, "armature-system", "--scope=cluster")
		theInstallation.there = true
	}
}

// theInstallation for the whole cluster is what stories share; those that do not
// run beside others may take it away.
var theInstallation struct {
	sync.Mutex
	there bool
}

// install puts the controller into a namespace as users do: with the shipped
// manifests and RBAC, and the image that was just built.
func (s *story) install(t testing.TB, namespace string, mode ...string) {
	t.Helper()
	s.applyObjects(t, s.installation(t, namespace, mode...))
	s.available(t, namespace, "armature-controller")
}

// available waits until a Deployment of a controller runs as it is.
func (s *story) available(t testing.TB, namespace, name string) {
	t.Helper()
	eventually(t, 5*time.Minute, name+" is available", func(ctx context.Context) error {
		var controller appsv1.Deployment
		if err := s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name},
			&controller); err != nil {
			return err
		}
		if status := controller.Status; status.ObservedGeneration != controller.Generation ||
			status.UpdatedReplicas != status.Replicas ||
			status.AvailableReplicas != status.Replicas || status.Replicas == 0 {
			return fmt.Errorf("%d of %d replicas are available", status.AvailableReplicas,
				status.Replicas)
		}
		return nil
	})
}

// installation is what `armature install` prints.
func (s *story) installation(t testing.TB, namespace string,
	mode ...string) []*unstructured.Unstructured {
	t.Helper()
	return readObjects(t, armature(t, s.installArguments(t, namespace, mode...)...))
}

// installArguments are those of armature, with the image from the tree and the
// cluster's addresses.
func (s *story) installArguments(t testing.TB, namespace string, mode ...string) []string {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.yaml")
	must(t,
		os.WriteFile(values, fmt.Appendf(nil, "plainHTTPHosts: [%q, %q]\n",
			strings.TrimPrefix(s.info.GitHTTP, "http://"), forgeAddress(s.info)), 0o600))
	return append([]string{"install", "--namespace=" + namespace, "--values=" + values,
		"--image=" + s.info.Images["armature-controller"], "--image-mirror=" + s.info.Mirror}, mode...)
}

// secret makes one.
func (s *story) secret(t testing.TB, name string, kind corev1.SecretType, data map[string]string) {
	t.Helper()
	host, _, _ := strings.Cut(forgeAddress(s.info), ":") // all servers are on the node
	must(t, s.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name,
			Annotations: map[string]string{"tekton.dev/git-0": host}}, Type: kind, StringData: data,
	}))
}

// registryLogin is a Docker config.json with the login of the private registry.
func (s *story) registryLogin(t testing.TB) string {
	t.Helper()
	login, err := json.Marshal(map[string]any{"auths": map[string]any{
		s.info.PrivateRegistry: map[string]string{"username": s.info.RegistryUser,
			"password": s.info.RegistryPassword},
	}})
	must(t, err)
	return string(login)
}

// finished waits for the end of a build, good or bad.
func (s *story) finished(t testing.TB, name string) *api.AgentBuild {
	t.Helper()
	build := &api.AgentBuild{}
	eventually(t, 20*time.Minute, "build "+name+" ends", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, build); err != nil {
			return err
		}
		if build.Status.CompletionTime == nil || !build.Over() { // or it is tried again
			return fmt.Errorf("it is %q: %s", build.Status.Phase, build.Status.Message)
		}
		return nil
	})
	return build
}

// succeeded is finished for a build that has to succeed.
func (s *story) succeeded(t testing.TB, name string) *api.AgentBuild {
	t.Helper()
	build := s.finished(t, name)
	if build.Status.Phase != api.PhaseSucceeded {
		t.Fatalf("build %s ended %s: %s\n%s", name, build.Status.Phase, build.Status.Message,
			logTail(build))
	}
	return build
}

// failed says how, for a build that has to fail without an image, at that step.
func (s *story) failed(t testing.TB, build *api.AgentBuild, task, step string) *api.FailureDetails {
	t.Helper()
	if build.Status.Phase != api.PhaseFailed || build.Status.BuiltImage != "" {
		t.Fatalf("build %s ended %s with image %q, want it failed without one", build.Name,
			build.Status.Phase, build.Status.BuiltImage)
	}
	details := build.Status.FailureDetails
	if details == nil || details.Task != task || details.Step != step || details.ExitCode == nil ||
		*details.ExitCode == 0 {
		t.Fatalf("the failure of build %s is described as %+v, want step %s of task %s", build.Name,
			details, step, task)
	}
	return details
}

func logTail(build *api.AgentBuild) string {
	if build.Status.FailureDetails == nil {
		return ""
	}
	return strings.Join(build.Status.FailureDetails.LogTail, "\n")
}

// log is what a container in the story's namespace has written so far.
func (s *story) log(ctx context.Context, pod, container string) (string, error) {
	return s.logIn(ctx, s.namespace, pod, container)
}

func (s *story) logIn(ctx context.Context, namespace, pod, container string) (string, error) {
	text, err := s.logs.CoreV1().Pods(namespace).GetLogs(pod,
		&corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	return string(text), err
}

// says waits until the container agent of a pod has written just that.
func (s *story) says(t testing.TB, pod, want string) {
	t.Helper()
	eventually(t, 5*time.Minute, fmt.Sprintf("pod %s says %q", pod, want),
		func(ctx context.Context) error {
			text, err := s.log(ctx, pod, "agent")
			if err == nil && strings.TrimSpace(text) != want {
				err = fmt.Errorf("it says %q", text)
			}
			return err
		})
}

// buildNamespace is where runs of attested modes are.
const buildNamespace = "armature-builds"

// isolated runs of the story's builds.
func (s *story) isolated(ctx context.Context) (runs []tektonv1.PipelineRun, err error) {
	var all tektonv1.PipelineRunList
	err = s.List(ctx, &all, client.InNamespace(buildNamespace))
	for _, run := range all.Items {
		if run.Annotations[keys.AnnotationBuildNamespace] == s.namespace {
			runs = append(runs, run)
		}
	}
	return runs, err
}

// tellWhatHappened is for the reader of a failed test.
func (s *story) tellWhatHappened(t testing.TB) {
	tell := func(namespace string, args ...string) {
		args = append([]string{"--kubeconfig", os.Getenv("E2E_KUBECONFIG"), "--namespace",
			namespace}, args...)
		out, _ := exec.Command("kubectl", args...).CombinedOutput()
		t.Logf("%s\n%s", strings.Join(args[3:], " "), out)
	}
	tell(s.namespace, "get", "agentbuilds,pipelineruns,taskruns,pods", "--ignore-not-found")
	tell(s.namespace, "get", "events", "--sort-by=.lastTimestamp")
	places := [][]string{{s.namespace, "--selector=tekton.dev/pipelineRun"}}
	runs, err := s.isolated(context.Background())
	if err != nil {
		t.Log(err)
	}
	for _, run := range runs {
		places = append(places,
			[]string{run.Namespace, "--selector=tekton.dev/pipelineRun=" + run.Name})
		tell(run.Namespace, "get", "taskruns,pods", places[len(places)-1][1])
	}
	for _, place := range places {
		tell(place[0], "logs", place[1], "--all-containers", "--prefix", "--tail=15", "--ignore-errors")
	}
}

// eventually waits until do returns no error.
func eventually(t testing.TB, limit time.Duration, what string, do func(context.Context) error) {
	t.Helper()
	last := fmt.Errorf("it was not looked at")
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, limit, true,
		func(ctx context.Context) (bool, error) {
			last = do(ctx)
			return last == nil, nil
		})
	if err != nil {
		t.Fatalf("not within %s: %s: %v", limit, what, last)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// push makes a repository on the cluster's Git server, of the files in folder,
// and returns the commit. What it held before is gone.
func (s *story) push(t testing.TB, folder, repository string) (commit string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(folder)))
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	return s.pushed(t, dir, repository)
}

// pushed commits what is in the folder of a repository, sends it to the cluster's Git
// server, and returns the commit.
func (s *story) pushed(t testing.TB, dir, repository string) (commit string) {
	t.Helper()
	url := strings.Replace(s.info.HostGitHTTP, "http://", "http://story:"+s.info.GitToken+"@", 1)
	git(t, dir, "add", "--all", ".")
	git(t, dir, "-c", "user.name=story", "-c", "user.email=story@example.com", "commit", "--quiet",
		"--message=A change")
	git(t, dir, "push", "--quiet", "--force", url+"/"+repository, "main")
	return git(t, dir, "rev-parse", "HEAD")
}

// git runs it in a folder, and returns what it prints.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out))
}
