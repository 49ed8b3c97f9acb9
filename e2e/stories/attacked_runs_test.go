package stories

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// attested orders a build of an attested mode, whose tests are a command.
func (s *story) attested(t *testing.T, mode, name, tests string) {
	t.Helper()
	s.apply(t, strings.NewReplacer("MODE", mode, "NAME", name, "TESTS", tests).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: MODE
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "TESTS"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`))
}

// gated waits until the story opens the gate, so that a run is under way while it is attacked.
const gated = "until wget -q -O /dev/null " +
	"http://${registry}/v2/${namespace}/gate/manifests/open; do sleep 1; done"

// other image, which nobody built, and its digest.
func (s *story) other(t *testing.T) (v1.Image, string) {
	t.Helper()
	_, digest, _ := strings.Cut(s.info.Images["busybox"], "@")
	image, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+digest))
	must(t, err)
	return image, digest
}

// A tenant with every right in its own namespace attacks its attested builds and those of
// another one. All that the runs consist of is out of its reach. A run of its own with all that a
// real one says does not count, nor does what it writes into the status of a build, nor what its
// namespace has of the names that runs use. What it pushes to the build's tag meanwhile is not
// signed. More builds than it may run at once wait, and the other's build goes on.
func TestAttackedRuns(t *testing.T) {
	t.Parallel()
	s, other := newStory(t, nil), newStory(t, nil)
	s.installed(t)
	s.attestKey(t)
	for _, team := range []*story{s, other} {
		team.push(t, "testdata/hello", "public/"+team.namespace+".git")
	}
	limit := `{"metadata": {"annotations": {"` + keys.AnnotationMaxRunning + `": "2"}}}`
	must(t,
		s.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}},
			client.RawPatch("application/merge-patch+json", []byte(limit))))
	image, busybox := s.other(t)
	mode := s.briefProd(t)
	tenant := s.asTenant(t)
	tenant.apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: `+compose.BuildAccount+`}
imagePullSecrets: [{name: none}]
---
apiVersion: v1
kind: LimitRange
metadata: {name: tiny}
spec: {limits: [{type: Container, max: {memory: 1Mi}}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: pipeline-template-`+mode+`}
data: {template.yaml: "steps: []"}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
`)
	repository := func(build string) string {
		return s.info.HostRegistry + "/" + s.namespace + "/" + build
	}
	tenant.attested(t, mode, "weather", gated)
	run := s.runOf(t, "weather")
	tenant.attested(t, mode, "moved", gated)
	s.runOf(t, "moved")
	tenant.attested(t, mode, "waiting", gated)
	other.attested(t, mode, "weather", "true")
	theirs := other.runOf(t, "weather")

	tenant.outOfReach(t, s.testing(t, run), run, other)
	forged := tenant.forge(t, run, theirs.Name, busybox)
	must(t, remote.Write(reference(t, repository("weather")+":forged"), image))
	status, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase":                api.PhaseSucceeded,
		"builtImage":           s.info.Registry + "/" + s.namespace + "/weather@" + busybox,
		"pipelineRunNamespace": s.namespace, "pipelineRunName": forged.Name,
		"pipelineRunUID": forged.UID,
	}})
	must(t, err)
	weather := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "weather"}}
	must(t, tenant.Status().Patch(t.Context(), weather,
		client.RawPatch("application/merge-patch+json", status)))

	// The other tenant's build ends while all of this one's wait.
	if a := other.succeeded(t, "weather").Status.Attestation; a == nil || a.RunUID != theirs.UID {
		t.Errorf("the other tenant's build is attested as %+v", a)
	}
	if waiting := s.phaseOf(t, "waiting"); waiting != api.PhasePending {
		t.Errorf("the third build is %q, and two may run", waiting)
	}
	over := make(chan struct{})
	go func() { // until the build has ended
		for ; ; time.Sleep(200 * time.Millisecond) {
			select {
			case <-over:
				return
			default:
				_ = remote.Write(reference(t, repository("moved")+":v1"), image)
			}
		}
	}()
	must(t, remote.Write(reference(t, repository("gate")+":open"), image))
	moved := s.finished(t, "moved")
	close(over)
	if c := meta.FindStatusCondition(moved.Status.Conditions,
		api.ConditionAttested); moved.Status.Phase != api.PhaseFailed || c == nil ||
		c.Reason != api.ReasonImageMismatch || moved.Status.BuiltImage != "" {
		t.Errorf("moved: phase %s, image %q, condition %+v", moved.Status.Phase,
			moved.Status.BuiltImage, c)
	}
	s.unsigned(t, repository("moved"), busybox)

	build := s.succeeded(t, "weather")
	_, digest, _ := strings.Cut(build.Status.BuiltImage, "@")
	if a := build.Status.Attestation; a == nil || a.RunUID != run.UID || digest == busybox ||
		build.RunKey() != client.ObjectKeyFromObject(run) {
		t.Errorf("weather: run %s, image %s, attested as %+v", build.RunKey(), build.Status.BuiltImage, a)
	}
	// its signature, its provenance and the verdict of its tests
	if n := s.bundles(t, repository("weather"), digest); n != 3 {
		t.Errorf("weather has %d bundles, want 3", n)
	}
	if n := s.bundles(t, repository("weather"), busybox); n != 0 {
		t.Errorf("what was forged has %d bundles", n)
	}
	s.succeeded(t, "waiting")
}

// testing waits for the tests of a run, and returns their pod.
func (s *story) testing(t *testing.T, run *tektonv1.PipelineRun) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	eventually(t, 10*time.Minute, "the tests run", func(ctx context.Context) error {
		return s.Get(ctx, client.ObjectKey{Namespace: run.Namespace, Name: run.Name + "-tests-pod"}, pod)
	})
	return pod
}

func (s *story) phaseOf(t *testing.T, build string) api.Phase {
	t.Helper()
	var b api.AgentBuild
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: build}, &b))
	return b.Status.Phase
}

// outOfReach tries to read and change what a run consists of, what signs it, and another
// tenant's objects: the API server refuses all of it.
func (s *story) outOfReach(t *testing.T, pod *corev1.Pod, run *tektonv1.PipelineRun, other *story) {
	t.Helper()
	ctx, builds := t.Context(), metav1.ObjectMeta{Namespace: run.Namespace, Name: "own"}
	patch := func(text string) client.Patch {
		return client.RawPatch("application/merge-patch+json", []byte(text))
	}
	label := patch(`{"metadata": {"labels": {"sidecar.example/inject": "please"}}}`)
	result := patch(
		`{"status": {"results": [{"name": "IMAGE_DIGEST", "type": "string", "value": "` +
			forgedDigest + `"}]}}`)
	task := &tektonv1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace,
		Name: run.Name + "-tests"}}
	pods := s.logs.CoreV1().Pods(run.Namespace)
	_, token := s.logs.CoreV1().ServiceAccounts(run.Namespace).CreateToken(ctx,
		compose.BuildAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	_, log := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	exec :=
		s.logs.CoreV1().RESTClient().Post().Namespace(run.Namespace).Resource("pods").Name(
			pod.Name).SubResource("exec").Param("command", "true").Param("stdout", "true").Do(ctx).Error()
	for what, attempt := range map[string]error{
		"reading the run": s.Get(ctx, client.ObjectKeyFromObject(run),
			&tektonv1.PipelineRun{}),
		"a label of the run":      s.Patch(ctx, run.DeepCopy(), label),
		"the status of the run":   s.Status().Patch(ctx, run.DeepCopy(), result),
		"deleting the run":        s.Delete(ctx, run.DeepCopy()),
		"a run beside it":         s.Create(ctx, &tektonv1.PipelineRun{ObjectMeta: builds}),
		"a TaskRun of it":         s.Create(ctx, &tektonv1.TaskRun{ObjectMeta: builds}),
		"the status of a TaskRun": s.Status().Patch(ctx, task.DeepCopy(), result),
		"deleting a TaskRun":      s.Delete(ctx, task.DeepCopy()),
		"a pod beside its pods":   s.Create(ctx, &corev1.Pod{ObjectMeta: builds}),
		"a label of a pod":        s.Patch(ctx, pod.DeepCopy(), label),
		"the status of a pod": s.Status().Patch(ctx, pod.DeepCopy(),
			patch(`{"status": {"phase": "Succeeded"}}`)),
		"a container to debug a pod": s.SubResource("ephemeralcontainers").Update(ctx,
			pod.DeepCopy()),
		"exec in a pod":    exec,
		"the log of a pod": log,
		"its volumes": s.List(ctx, &corev1.PersistentVolumeClaimList{},
			client.InNamespace(run.Namespace)),
		"the copies of Secrets": s.List(ctx, &corev1.SecretList{},
			client.InNamespace(run.Namespace)),
		"a Secret of a copy's name": s.Create(ctx, &corev1.Secret{ObjectMeta: builds}),
		"its ServiceAccount":        s.Create(ctx, &corev1.ServiceAccount{ObjectMeta: builds}),
		"a token of its account":    token,
		"a quota":                   s.Create(ctx, &corev1.ResourceQuota{ObjectMeta: builds}),
		"a policy for its network": s.Create(ctx,
			&networkingv1.NetworkPolicy{ObjectMeta: builds}),
		"the namespace": s.Delete(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: run.Namespace}}),
		"the key that signs": s.Get(ctx, client.ObjectKey{Namespace: s.platform,
			Name: "armature-attest-key"}, &corev1.Secret{}),
		"a template of the platform's": s.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.platform, Name: "own"}}),
		"the build of another tenant": s.Delete(ctx,
			&api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: other.namespace,
				Name: "weather"}}),
		"a Secret of another tenant": s.List(ctx, &corev1.SecretList{},
			client.InNamespace(other.namespace)),
	} {
		if !apierrors.IsForbidden(attempt) {
			t.Errorf("%s is not out of the tenant's reach: %v", what, attempt)
		}
	}
}

// forge a run in the tenant's namespace, with the name of another tenant's run and with all that
// one of its own says, which has succeeded and reports a digest.
func (s *story) forge(t *testing.T, run *tektonv1.PipelineRun,
	name, digest string) *tektonv1.PipelineRun {
	t.Helper()
	build := &api.AgentBuild{}
	must(t,
		s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace,
			Name: run.Annotations[keys.AnnotationBuild]}, build))
	forged := &tektonv1.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name,
			Labels: maps.Clone(run.Labels), Annotations: maps.Clone(run.Annotations),
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: api.GroupVersion(api.DefaultGroup).String(), Kind: api.Kind,
					Name: build.Name, UID: build.UID, Controller: new(true)}}},
		Spec: *run.Spec.DeepCopy(),
	}
	must(t, s.Create(t.Context(), forged))
	eventually(t, time.Minute, "the forged run has succeeded", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(forged), forged); err != nil {
			return err
		}
		before := forged.DeepCopy()
		now := metav1.Now()
		forged.Status.StartTime, forged.Status.CompletionTime = &now, &now
		forged.Status.MarkSucceeded("Succeeded", "all is well")
		forged.Status.Results = []tektonv1.PipelineRunResult{{Name: "IMAGE_DIGEST",
			Value: *tektonv1.NewStructuredValues(digest)}}
		if err := s.Status().Patch(ctx, forged, client.MergeFrom(before)); err != nil {
			return err
		}
		if !forged.IsSuccessful() {
			return fmt.Errorf("it is %+v", forged.Status.Conditions)
		}
		return nil
	})
	return forged
}

// A tenant strips the finalizers of its builds and deletes its namespace in the middle of an
// attested build, and the namespace is created again, with a build of the same name. The run of
// the one before goes without an attestation, and the new build has a run of its own.
func TestRecreatedNamespace(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.attestKey(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	mode := s.briefProd(t)
	tenant := s.asTenant(t)
	tenant.attested(t, mode, "weather", gated)
	first := s.runOf(t, "weather")
	s.testing(t, first)

	namespace := &corev1.Namespace{}
	must(t, s.Get(t.Context(), client.ObjectKey{Name: s.namespace}, namespace))
	build := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "weather"}}
	must(t,
		tenant.Patch(t.Context(), build, client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata": {"finalizers": null}}`))))
	must(t, tenant.Delete(t.Context(), build))
	must(t, tenant.Delete(t.Context(), namespace.DeepCopy()))
	eventually(t, 5*time.Minute, "the namespace is gone", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(namespace),
			&corev1.Namespace{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	must(t,
		s.Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace,
				Labels: namespace.Labels}}))
	s.attested(t, mode, "weather", "true")
	second := s.succeeded(t, "weather")
	if a := second.Status.Attestation; a == nil || a.RunUID == first.UID ||
		a.RunUID != second.Status.PipelineRunUID {
		t.Errorf("the run before was %s, and the build is attested as %+v", first.UID, a)
	}
	eventually(t, 2*time.Minute, "the first run is gone", func(ctx context.Context) error {
		runs, err := s.isolated(ctx)
		if err != nil || len(runs) != 1 || runs[0].UID != second.Status.PipelineRunUID {
			return fmt.Errorf("%d runs: %v", len(runs), err)
		}
		return nil
	})
}
