package stories

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// A tenant, with the rights of one, attacks the runs of attested builds: it takes one's
// place, edits another, and makes a TaskRun before Tekton does. Somebody who may create pods
// puts links into what BuildKit built. Each of these builds fails with a condition or at the
// step that refuses it, and nothing is signed. What the API server or Tekton refuses
// changes nothing: that run goes on, and is attested once. All but the one of BuildKit are
// builds with kaniko, which waits for the tests.
func TestAttackedRuns(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.attestKey(t)
	tenant := s.asTenant(t)
	repository := func(build string) string { return s.info.HostRegistry + "/" + s.namespace + "/" + build }
	_, busybox, _ := strings.Cut(s.info.Images["busybox"], "@")
	other, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+busybox))
	must(t, err)
	mode := s.briefProd(t)
	names := []string{"planted", "replaced", "edited", "relinked", "resisting"}
	for _, name := range names {
		builder := "kaniko"
		if name == "relinked" {
			builder = "buildkit"
		}
		must(t, remote.Write(reference(t, repository(name)+":v1"), other))
		// Tests wait for the story, so that the run is under way while it is attacked.
		tenant.apply(t, strings.NewReplacer("MODE", mode, "NAME", name, "BUILDER", builder).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: MODE
  builder: BUILDER
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "until wget -q -O /dev/null http://${registry}/v2/${namespace}/gate/manifests/open; do sleep 1; done"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`))
	}
	tenant.plant(t, tenant.runOf(t, "planted"), s.info.Images["busybox"], s.info.Registry+"/"+s.namespace+"/planted:v1", busybox)
	replaced := tenant.replace(t, tenant.runOf(t, "replaced"), s.info.Images["busybox"], busybox)
	edited := tenant.runOf(t, "edited")
	before := edited.DeepCopy()
	edited.Annotations[keys.AnnotationCommit] = strings.Repeat("b", 40)
	must(t, tenant.Patch(t.Context(), edited, client.MergeFrom(before)))

	foreign := func(name, reason string) {
		t.Helper()
		build := s.refused(t, name)
		if c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionReady); c.Reason != reason || build.Status.BuiltImage != "" || build.Status.Attestation != nil {
			t.Errorf("%s: image %q, condition %+v, want reason %s", name, build.Status.BuiltImage, c, reason)
		}
	}
	foreign("edited", api.ReasonRunForeign)
	must(t, tenant.Delete(t.Context(), edited))
	foreign("replaced", api.ReasonRunDeleted)

	run := tenant.runOf(t, "resisting")
	tenant.inVain(t, run)
	s.unsigned(t, repository("resisting"), busybox)
	s.relink(t, tenant.runOf(t, "relinked"), s.info.Images["busybox"])
	must(t, remote.Write(reference(t, repository("gate")+":open"), other))

	build := s.succeeded(t, "resisting")
	_, digest, _ := strings.Cut(build.Status.BuiltImage, "@")
	if c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionAttested); c == nil || c.Status != metav1.ConditionTrue || build.Status.Attestation == nil || build.Status.Attestation.RunUID != run.UID {
		t.Errorf("the run that resisted is not attested: %+v, %+v", c, build.Status.Attestation)
	}
	if n := s.bundles(t, repository("resisting"), digest); n != 3 { // its signature, its provenance and the verdict of its tests
		t.Errorf("the run that resisted has %d bundles, want 3", n)
	}

	relinked := s.finished(t, "relinked")
	s.failed(t, relinked, "push", "push")
	if tail := logTail(relinked); !strings.Contains(tail, "is not a regular file") || relinked.Status.BuiltImage != "" || relinked.Status.Attestation != nil {
		t.Errorf("relinked: image %q, attestation %+v, and the last log lines are:\n%s", relinked.Status.BuiltImage, relinked.Status.Attestation, tail)
	}
	if now := digestOf(t, repository("relinked")+":v1"); now != busybox {
		t.Errorf("relinked: the tag is %s, want %s", now, busybox)
	}

	planted := s.finished(t, "planted")
	c := meta.FindStatusCondition(planted.Status.Conditions, api.ConditionAttested)
	if planted.Status.Phase != api.PhaseFailed || c == nil || c.Status != metav1.ConditionFalse || c.Reason != api.ReasonNotAsOrdered || !strings.Contains(c.Message, "kaniko-build") {
		t.Errorf("planted: phase %s, condition %+v", planted.Status.Phase, c)
	}
	eventually(t, 10*time.Minute, "the run that took another's place succeeds", func(ctx context.Context) error {
		var copied tektonv1.PipelineRun
		if err := s.Get(ctx, replaced, &copied); err != nil || copied.IsSuccessful() {
			return err
		}
		return fmt.Errorf("it is %+v", copied.Status.Conditions)
	})
	foreign("replaced", api.ReasonRunDeleted)
	foreign("planted", api.ReasonNotAsOrdered)
	for _, name := range names[:4] {
		s.unsigned(t, repository(name), busybox, digestOf(t, repository(name)+":v1"))
	}
}

// plant a TaskRun under the name that Tekton would give to the one that builds: it reports
// an image that the tenant has pushed to the build's tag.
func (s *story) plant(t *testing.T, run *tektonv1.PipelineRun, program, image, digest string) {
	t.Helper()
	// Tekton makes the volume of a run when it has no TaskRun yet.
	eventually(t, 5*time.Minute, "the run clones", func(ctx context.Context) error {
		return s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: run.Name + "-github-clone"}, &tektonv1.TaskRun{})
	})
	labels := map[string]string{"tekton.dev/pipelineTask": "kaniko-build", "tekton.dev/memberOf": "tasks", "tekton.dev/pipelineRun": run.Name, "tekton.dev/pipelineRunUID": string(run.UID)}
	for key, value := range run.Labels {
		labels[key] = value
	}
	must(t, s.Create(t.Context(), &tektonv1.TaskRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: run.Name + "-kaniko-build", Labels: labels, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "tekton.dev/v1", Kind: "PipelineRun", Name: run.Name, UID: run.UID, Controller: new(true)}}},
		Spec: tektonv1.TaskRunSpec{TaskSpec: &tektonv1.TaskSpec{
			Results: []tektonv1.TaskResult{{Name: "IMAGE_URL"}, {Name: "IMAGE_DIGEST"}},
			Steps:   []tektonv1.Step{forgery(program, map[string]string{"IMAGE_URL": image, "IMAGE_DIGEST": digest})},
		}},
	}))
}

// relink puts links in the place of all that a run's BuildKit left for push, from a pod that
// mounts the run's volume.
func (s *story) relink(t *testing.T, run *tektonv1.PipelineRun, program string) {
	t.Helper()
	task := &tektonv1.TaskRun{}
	eventually(t, 10*time.Minute, "BuildKit leaves an image", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: run.Name + "-buildkit-build"}, task); err != nil || task.IsSuccessful() {
			return err
		}
		return fmt.Errorf("it is %+v", task.Status.Conditions)
	})
	at := slices.IndexFunc(task.Spec.Workspaces, func(w tektonv1.WorkspaceBinding) bool { return w.PersistentVolumeClaim != nil })
	if at < 0 {
		t.Fatalf("BuildKit has no volume among %+v", task.Spec.Workspaces)
	}
	const script = `set -eu; cd /volume/.armature-layout/blobs/sha256; for blob in *; do ln -s /etc/passwd /volume/link; mv -f /volume/link "$blob"; done`
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "relink"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "agent", Image: program, Command: []string{"sh", "-c", script},
				VolumeMounts: []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}}}},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: task.Spec.Workspaces[at].PersistentVolumeClaim}}},
		},
	}
	must(t, s.Create(t.Context(), pod))
	eventually(t, 5*time.Minute, "the links are made", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil || pod.Status.Phase == corev1.PodSucceeded {
			return err
		}
		return fmt.Errorf("the pod is %s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
	})
}

// replace a run by one of the same name, labels, annotations and owner, whose pipeline
// reports another image.
func (s *story) replace(t *testing.T, run *tektonv1.PipelineRun, program, digest string) client.ObjectKey {
	t.Helper()
	copied := &tektonv1.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name, Labels: run.Labels, Annotations: run.Annotations, OwnerReferences: run.OwnerReferences},
		Spec: tektonv1.PipelineRunSpec{PipelineSpec: &tektonv1.PipelineSpec{
			Tasks: []tektonv1.PipelineTask{{Name: "kaniko-build", TaskSpec: &tektonv1.EmbeddedTask{TaskSpec: tektonv1.TaskSpec{
				Results: []tektonv1.TaskResult{{Name: "IMAGE_DIGEST"}}, Steps: []tektonv1.Step{forgery(program, map[string]string{"IMAGE_DIGEST": digest})},
			}}}},
			Results: []tektonv1.PipelineResult{{Name: "IMAGE_DIGEST", Value: *tektonv1.NewStructuredValues("$(tasks.kaniko-build.results.IMAGE_DIGEST)")}},
		}},
	}
	must(t, s.Delete(t.Context(), run))
	eventually(t, 5*time.Minute, "the name of the run is free", func(ctx context.Context) error { return s.Create(ctx, copied.DeepCopy()) })
	return client.ObjectKeyFromObject(run)
}

// forgery is a step that reports what it likes.
func forgery(program string, results map[string]string) tektonv1.Step {
	script := "#!/bin/sh\n"
	for name, value := range results {
		script += fmt.Sprintf("printf %%s '%s' > $(results.%s.path)\n", value, name)
	}
	return tektonv1.Step{Name: "build-and-push", Image: program, Script: script}
}

// inVain tries what the API server and Tekton refuse to a tenant while a run goes on, and
// what has no effect.
func (s *story) inVain(t *testing.T, run *tektonv1.PipelineRun) {
	t.Helper()
	task := &tektonv1.TaskRun{}
	eventually(t, 10*time.Minute, "the tests run", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: run.Name + "-tests"}, task); err != nil {
			return err
		}
		if task.Status.PodName == "" {
			return fmt.Errorf("they have no pod")
		}
		return nil
	})
	pod, build := &corev1.Pod{}, &api.AgentBuild{}
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: task.Status.PodName}, pod))
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "resisting"}, build))

	for what, edit := range map[string]func(*tektonv1.PipelineRunSpec){
		"a command": func(spec *tektonv1.PipelineRunSpec) {
			spec.PipelineSpec.Tasks[0].TaskSpec.Steps[0].Command = []string{"true"}
		},
		"a parameter":       func(spec *tektonv1.PipelineRunSpec) { spec.Params[0].Value = *tektonv1.NewStructuredValues("other") },
		"a ServiceAccount":  func(spec *tektonv1.PipelineRunSpec) { spec.TaskRunTemplate.ServiceAccountName = "tenant" },
		"the list of tasks": func(spec *tektonv1.PipelineRunSpec) { spec.PipelineSpec.Tasks = spec.PipelineSpec.Tasks[1:] },
	} {
		before := &tektonv1.PipelineRun{}
		must(t, s.Get(t.Context(), client.ObjectKeyFromObject(run), before))
		changed := before.DeepCopy()
		edit(&changed.Spec)
		if err := s.Patch(t.Context(), changed, client.MergeFrom(before)); err == nil || !strings.Contains(err.Error(), "PipelineRun has started") {
			t.Errorf("%s of the run is changed: %v", what, err)
		}
	}
	changed := task.DeepCopy()
	changed.Spec.TaskSpec.Steps[0].Command = []string{"true"}
	if err := s.Patch(t.Context(), changed, client.MergeFrom(task)); err == nil || !strings.Contains(err.Error(), "TaskRun has started") {
		t.Errorf("the command of a TaskRun is changed: %v", err)
	}

	status := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"results": [{"name": "IMAGE_DIGEST", "type": "string", "value": "`+forgedDigest+`"}]}}`))
	image := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"builtImage": "elsewhere.example/x@`+forgedDigest+`"}}`))
	phase := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"phase": "Succeeded"}}`))
	secret := &corev1.Secret{}
	for what, attempt := range map[string]error{
		"the status of the run":         s.Status().Patch(t.Context(), run.DeepCopy(), status),
		"the status of a TaskRun":       s.Status().Patch(t.Context(), task.DeepCopy(), status),
		"the status of the build":       s.Status().Patch(t.Context(), build.DeepCopy(), image),
		"the status of a pod":           s.Status().Patch(t.Context(), pod.DeepCopy(), phase),
		"a pod":                         s.Patch(t.Context(), pod.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"activeDeadlineSeconds": 1}}`))),
		"a pod's container to debug":    s.SubResource("ephemeralcontainers").Update(t.Context(), pod.DeepCopy()),
		"a pod of its own":              s.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "own"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "b"}}}}),
		"the key that signs":            s.Get(t.Context(), client.ObjectKey{Namespace: "armature-system", Name: "armature-attest-key"}, secret),
		"the key of the runs' proofs":   s.Get(t.Context(), client.ObjectKey{Namespace: "armature-system", Name: "armature-run-key"}, secret),
		"a template of the platform's":  s.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "armature-system", Name: "pipeline-template-own"}}),
		"a build in another namespace":  s.Create(t.Context(), &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own"}}),
		"what builds in another's name": s.Create(t.Context(), &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "armature-system", Name: "own"}}),
	} {
		if !apierrors.IsForbidden(attempt) {
			t.Errorf("%s is not out of the tenant's reach: %v", what, attempt)
		}
	}

	// Chains would take this for its own; the controller does not read it.
	signed := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"annotations": {"chains.tekton.dev/signed": "true"}}}`))
	must(t, s.Patch(t.Context(), run.DeepCopy(), signed))
}
