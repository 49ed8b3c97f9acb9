package console_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"knative.dev/pkg/apis"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	buildclient "github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/functions/api/keys"
)

// The rights of somebody who reads builds and what their isolated runs print.
var (
	gets   = rule("agent.kagenti.dev", "agentbuilds", "get", "list")
	doors  = rule("agent.kagenti.dev", "agentbuilds/log", "get")
	reader = []rbacv1.PolicyRule{gets, doors}
)

// attested makes a build whose status says that its run is the platform's.
func (y *yard) attested(namespace, run string) *api.AgentBuild {
	y.Helper()
	text, err := os.ReadFile("../../examples/builds/weather.yaml")
	y.must(err)
	found, err := manifest.Builds("weather.yaml", text, api.DefaultGroup)
	y.must(err)
	b := found[0].AgentBuild
	b.Namespace = namespace
	y.must(y.client.Create(y.Context(), b))
	y.TB.Cleanup(func() { y.must(client.IgnoreNotFound(y.client.Delete(context.Background(), b))) })
	y.status(b, func(s *api.AgentBuildStatus) {
		s.Phase, s.PipelineRunNamespace, s.PipelineRunName, s.RunNumber, s.LastBuildTime =
			api.PhaseBuilding, platform, run, 1, new(metav1.NewTime(now))
	})
	return b
}

// isolate makes what the controller, Tekton and a kubelet leave of an isolated run: a step that
// prints a text, in a pod. It is in the platform's namespace, unless somebody made it elsewhere.
func (y *yard) isolate(b *api.AgentBuild, namespace, name, text string) (pod string) {
	y.Helper()
	if _, err := y.kube.CoreV1().Namespaces().Create(y.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: platform}},
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		y.Fatal(err)
	}
	about := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{compose.LabelManagedBy: compose.ManagedBy,
				keys.LabelBuild: b.Name, keys.AnnotationBuildUID: string(b.UID)},
			Annotations: map[string]string{keys.AnnotationBuild: b.Name,
				keys.AnnotationBuildNamespace: b.Namespace, keys.AnnotationBuildUID: string(b.UID),
				keys.AnnotationNumber: "1"}}
	}
	run := &tektonv1.PipelineRun{ObjectMeta: about(name),
		Spec: tektonv1.PipelineRunSpec{PipelineRef: &tektonv1.PipelineRef{Name: "none"}}}
	task := &tektonv1.TaskRun{ObjectMeta: about(name + "-build"),
		Spec: tektonv1.TaskRunSpec{TaskRef: &tektonv1.TaskRef{Name: "none"}}}
	maps.Copy(task.Labels, map[string]string{"tekton.dev/pipelineRun": name,
		"tekton.dev/pipelineTask": "buildkit-build"})
	pod = name + "-build-pod"
	node := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod},
		Spec: corev1.PodSpec{NodeName: "fleet",
			Containers: []corev1.Container{{Name: "step-build", Image: "x"}}}}
	for _, o := range []client.Object{run, task, node} {
		y.must(y.client.Create(y.Context(), o))
		y.TB.Cleanup(func() {
			y.must(client.IgnoreNotFound(y.client.Delete(context.Background(), o,
				client.GracePeriodSeconds(0))))
		})
	}
	run.Status.ChildReferences = []tektonv1.ChildStatusReference{{Name: task.Name,
		PipelineTaskName: "buildkit-build"}}
	run.Status.PipelineSpec = &tektonv1.PipelineSpec{
		Tasks: []tektonv1.PipelineTask{{Name: "buildkit-build"}}}
	task.Status.PodName, task.Status.StartTime = pod, new(metav1.NewTime(now))
	task.Status.Conditions = append(task.Status.Conditions,
		apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionUnknown, Reason: "Running"})
	task.Status.Steps = []tektonv1.StepState{{Name: "build", Container: "step-build",
		ContainerState: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	y.must(y.client.Status().Update(y.Context(), run))
	y.must(y.client.Status().Update(y.Context(), task))
	furnished.Kubelet.Log(pod, "step-build", text)
	return pod
}

// at is where the door has a build's run, or a log of it.
func at(b *api.AgentBuild, pod string) string {
	if pod != "" {
		pod = "/" + pod + "/step-build"
	}
	return buildclient.DoorPath(b.Namespace, b.Name) + pod + "?uid=" + string(b.UID)
}

// answers waits for the answer to a request, whose caller's rights were just granted.
func (y *yard) answers(token, path string, want int) (body string) {
	y.Helper()
	got := 0
	y.eventually(fmt.Sprintf("%s is answered %d", path, want),
		func() bool { got, _, body = y.get(token, path); return got == want })
	return body
}

// programOf somebody reads builds as commands do, through the door where it has to.
func (y *yard) programOf(token string) *buildclient.Client {
	y.Helper()
	cfg := rest.AnonymousClientConfig(shared.Get(y).Admin.Config)
	cfg.BearerToken = token
	c, err := buildclient.Connect(cfg, y.ns, api.DefaultGroup)
	y.must(err)
	file := filepath.Join(y.TempDir(), "token")
	y.must(os.WriteFile(file, []byte(token), 0o600))
	console, err := ask.Catalog{Address: y.url, TokenFile: file}.Connect(func(string) {})
	y.must(err)
	c.Door = func() (buildclient.Door, error) { return console.Open, nil }
	return c
}

// Whoever may get agentbuilds/log of a build reads its isolated run, on the page and by commands,
// without a right where the run is.
func TestDoor(t *testing.T) {
	y := newYard(t)
	b := y.attested(y.ns, "weather-1")
	pod := y.isolate(b, platform, "weather-1", "first\n\x1b[31msecond\n")
	token := y.tokenFor(reader, y.ns)
	var run buildclient.Run
	y.must(json.Unmarshal([]byte(y.answers(token, at(b, ""), http.StatusOK)), &run))
	if run.Namespace != platform || run.Name != "weather-1" || len(run.Tasks) != 1 ||
		run.Tasks[0].Name != "buildkit-build" || run.Tasks[0].Pod != pod ||
		run.Tasks[0].Steps[0].State != "Running" {
		t.Errorf("%+v", run)
	}
	page := "/builds/" + y.ns + "/weather"
	y.shows(token, page, "first", "second", "buildkit-build", "Runs that are kept")
	if status, _, file := y.get(token, page+"/log/buildkit-build/build"); status != http.StatusOK ||
		!strings.Contains(file, "second\n") {
		t.Errorf("as a file: %d %s", status, file)
	}
	c := y.programOf(token)
	for _, o := range []struct {
		options buildclient.LogOptions
		want    string
	}{
		{buildclient.LogOptions{Tail: -1},
			"[buildkit-build/build] first\n[buildkit-build/build] \\x1b[31msecond\n"},
		{buildclient.LogOptions{Tail: 1}, "[buildkit-build/build] \\x1b[31msecond\n"},
	} {
		var out, errs bytes.Buffer
		o.options.Out, o.options.Err = &out, &errs
		if err := c.Logs(t.Context(), "weather", o.options); err != nil || out.String() != o.want ||
			errs.Len() > 0 {
			t.Errorf("%v: %q %q", err, out.String(), errs.String())
		}
	}
	if tasks, err := c.Tasks(t.Context(), b); err != nil || len(tasks) != 1 ||
		tasks[0].State != "Running" {
		t.Errorf("tasks %v: %v", tasks, err)
	}
	// It is followed to its end, which the build has, too.
	end := furnished.Kubelet.Hold(pod, "step-build")
	var out, errs bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- c.Logs(t.Context(), "weather",
			buildclient.LogOptions{Out: &out, Err: &errs, Follow: true, Tail: -1})
	}()
	time.Sleep(2 * time.Second)
	y.status(b, func(s *api.AgentBuildStatus) {
		s.Phase, s.LastRunPhase, s.ObservedGeneration =
			api.PhaseSucceeded, api.PhaseSucceeded, b.Generation
	})
	select {
	case err := <-done:
		t.Fatalf("it is over before the step is: %v", err)
	case <-time.After(3 * time.Second):
	}
	end()
	if err := <-done; err != nil || strings.Count(out.String(), "first\n") != 1 {
		t.Errorf("followed: %v %q %q", err, out.String(), errs.String())
	}
}

// Who may not read the logs of a build learns nothing from the door, whatever they name or write.
func TestDoorIsClosed(t *testing.T) {
	y := newYard(t)
	other := y.ns + "-other"
	y.namespace(other)
	b := y.attested(y.ns, "weather-1")
	pod := y.isolate(b, platform, "weather-1", "for the team alone\n")
	theirs := y.attested(other, "weather-2")
	y.isolate(theirs, platform, "weather-2", "for others alone\n")
	team := y.tokenFor(reader, y.ns)
	y.answers(team, at(b, ""), http.StatusOK)

	// Every right in the namespace but the one, and the one in another namespace.
	most := y.tokenFor(append([]rbacv1.PolicyRule{rule("agent.kagenti.dev", "agentbuilds", "*"),
		rule("agent.kagenti.dev", "agentbuilds/status", "*"), logs}, runs...), y.ns)
	stranger := y.tokenFor(reader, other)
	y.answers(stranger, at(theirs, ""), http.StatusOK)
	y.shows(most, "/builds/"+y.ns+"/weather", "You may not read its run",
		"You may not read the logs in "+y.ns)
	for who, token := range map[string]string{"without the right": most,
		"with the right elsewhere": stranger} {
		for _, path := range []string{at(b, ""), at(b, pod), at(b, "none"),
			"/builds/" + y.ns + "/weather/log/buildkit-build/build",
			buildclient.DoorPath(b.Namespace, b.Name),
			strings.ReplaceAll(at(b, ""), "/weather/", "/none/")} {
			status, _, body := y.get(token, path)
			if want := http.StatusForbidden; status != want &&
				!(who == "with the right elsewhere" && strings.HasPrefix(path, "/builds/") &&
					status == http.StatusNotFound) || strings.Contains(body, "team alone") ||
				strings.Contains(body, "weather-1") {
				t.Errorf("%s, %s: %d %s", who, path, status, body)
			}
		}
	}
	for _, path := range []string{at(b, ""), at(b, pod)} {
		if status, header, body := y.get("", path); status != http.StatusUnauthorized ||
			header.Get("WWW-Authenticate") == "" || !strings.Contains(body, `"error"`) {
			t.Errorf("nobody, %s: %d %s", path, status, body)
		}
	}
	// With a build of their own they reach neither another's run nor another's pod.
	elsewhere := strings.Replace(at(theirs, ""), string(theirs.UID), string(b.UID), 1)
	for _, path := range []string{elsewhere, buildclient.DoorPath(theirs.Namespace, theirs.Name),
		at(theirs, pod), at(theirs, "..%2f..%2fpods%2f"+pod)} {
		if status, _, body := y.get(stranger, path); status != http.StatusNotFound ||
			strings.Contains(body, "team alone") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	// Nor by what they write into its status, or by a run of their own that says it is of this
	// build.
	forge := func(b *api.AgentBuild, namespace string) {
		t.Helper()
		y.status(b, func(s *api.AgentBuildStatus) {
			s.PipelineRunNamespace, s.PipelineRunName =
				namespace, "weather-1"
		})
	}
	y.isolate(theirs, other, "weather-3", "forged\n")
	for _, namespace := range []string{platform, y.ns, other} {
		forge(theirs, namespace)
		if body := y.answers(stranger, at(theirs, ""), http.StatusOK); !strings.Contains(body,
			`"weather-2"`) {
			t.Errorf("status names %s/weather-1: %s", namespace, body)
		}
		page := y.shows(stranger, "/builds/"+other+"/weather", "for others alone")
		if strings.Contains(page, "team alone") || strings.Contains(page, "forged") {
			t.Errorf("the page shows another's log, where status names %s", namespace)
		}
	}
	if status, _, body := y.get(stranger,
		at(theirs, "weather-3-build-pod")); status != http.StatusNotFound ||
		strings.Contains(body, "Zm9yZ2Vk") {
		t.Errorf("a run of their own: %d %s", status, body)
	}

	// A build that is created again under its name has nothing of the one before.
	old := b.DeepCopy()
	y.must(y.client.Delete(t.Context(), b))
	fresh := y.attested(y.ns, "weather-1")
	body := y.answers(team, at(fresh, ""), http.StatusOK)
	if strings.Contains(body, "weather-1") {
		t.Errorf("the run of the build before: %s", body)
	}
	for _, path := range []string{at(old, ""), at(old, pod), at(fresh, pod)} {
		if status, _, body := y.get(team, path); status != http.StatusNotFound ||
			strings.Contains(body, "team alone") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	y.hides(team, "/builds/"+y.ns+"/weather", "team alone", "Runs that are kept")
}

// A log that is followed shows that it is open, ends with the build that it is of, and takes one of
// a few places.
func TestDoorHasLimits(t *testing.T) {
	y := newYard(t)
	b := y.attested(y.ns, "weather-1")
	pod := y.isolate(b, platform, "weather-1", "one\n")
	defer furnished.Kubelet.Hold(pod, "step-build")()
	token := y.tokenFor(reader, y.ns)
	y.answers(token, at(b, ""), http.StatusOK)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow := func() *http.Response {
		t.Helper()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet,
			y.url+at(b, pod)+"&follow=true", nil)
		y.must(err)
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		y.must(err)
		return answer
	}
	first := follow()
	defer first.Body.Close()
	lines := bufio.NewScanner(first.Body)
	for _, want := range []string{`"b25lCg=="`, `""`, `""`} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%d %q, want %q", first.StatusCode, lines.Text(), want)
		}
	}
	const most = 20
	for range most - 1 {
		answer := follow()
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%d", answer.StatusCode)
		}
	}
	more := follow()
	defer more.Body.Close()
	if more.StatusCode != http.StatusTooManyRequests || more.Header.Get("Retry-After") == "" {
		t.Errorf("log %d: %d", most+1, more.StatusCode)
	}
	y.must(y.client.Delete(t.Context(), b))
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if last == "null" {
		t.Error("the log of a build that is gone seems to be whole")
	}
}

// The shipped role is what the console needs where isolated runs are, if it may do nothing else
// there.
func TestDoorWithShippedRole(t *testing.T) {
	admin := newYard(t)
	b := admin.attested(admin.ns, "weather-1")
	pod := admin.isolate(b, platform, "weather-1", "one\n")
	text, err := os.ReadFile("../../templates/install/isolated/role.yaml")
	admin.must(err)
	var shipped rbacv1.Role
	for _, document := range strings.Split(string(text), "\n---\n") {
		var role rbacv1.Role
		if admin.must(yaml.Unmarshal([]byte(document), &role)); role.Kind == "Role" &&
			role.Name == "armature-catalog-builds" {
			shipped = role
		}
	}
	account, err := shared.Get(t).ServiceAccount(t.Context(), "default", "console-"+admin.ns)
	admin.must(err)
	subject := rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "console-" + admin.ns}
	admin.grant(subject, subject.Name,
		[]rbacv1.PolicyRule{rule("agent.kagenti.dev", "agentbuilds", "list", "watch")}, admin.ns)
	admin.grant(subject, subject.Name, shipped.Rules, platform)
	y := &yard{world: newWorldAs(t, "", account.Config, admin.ns), client: furnished.Client, ns: admin.ns}
	token := y.tokenFor(reader, y.ns)
	if body := y.answers(token, at(b, ""), http.StatusOK); !strings.Contains(body, pod) {
		t.Errorf("the run: %s", body)
	}
	if body := y.answers(token, at(b, pod), http.StatusOK); body != "\"b25lCg==\"\nnull\n" {
		t.Errorf("the log: %q", body)
	}
}
