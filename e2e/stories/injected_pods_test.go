package stories

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A platform has an admission policy that puts a sidecar beside the containers of each pod with
// a label. A tenant cannot give that label to a build of an attested mode. It gives it to the
// run instead, and Tekton copies it to the pods: with a sidecar beside the steps nothing is
// attested, and the build beside it, whose pods nobody labels, is.
func TestInjectedPods(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.attestKey(t)
	s.injects(t)
	tenant := s.asTenant(t)
	mode := s.briefProd(t)
	names := []string{"labelled", "injected", "untouched"}
	for _, name := range names {
		labels := ""
		if name == "labelled" {
			labels = "labels: {sidecar.example/inject: please}"
		}
		tenant.apply(t, strings.NewReplacer("MODE", mode, "NAME", name, "LABELS", labels).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  LABELS
  mode: MODE
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "true"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`))
	}
	run := tenant.runOf(t, "injected")
	before := run.DeepCopy()
	run.Labels["sidecar.example/inject"] = "please"
	must(t, tenant.Patch(t.Context(), run, client.MergeFrom(before)))

	for name, want := range map[string][2]string{
		"labelled": {api.ReasonLocked, "spec.labels[sidecar.example/inject]"},
		"injected": {api.ReasonNotAsOrdered, "init container proxy that nothing orders"},
	} {
		build := s.refused(t, name)
		c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionReady)
		if c == nil || c.Reason != want[0] || !strings.Contains(c.Message, want[1]) || build.Status.BuiltImage != "" || build.Status.Attestation != nil {
			t.Errorf("%s: image %q, attestation %+v, condition %+v, want %s with %q", name, build.Status.BuiltImage, build.Status.Attestation, c, want[0], want[1])
		}
		s.unsigned(t, s.info.HostRegistry+"/"+s.namespace+"/"+name)
	}
	if build := s.succeeded(t, "untouched"); build.Status.Attestation == nil {
		t.Errorf("the build whose pods nobody labels is not attested: %+v", build.Status)
	}
}

// injects makes the admission policy, until the story ends, and waits until it counts. It
// spares pods without init containers: Tekton also copies a run's labels to the affinity
// assistant, without whose pod the run would never start.
func (s *story) injects(t *testing.T) {
	t.Helper()
	objects := readObjects(t, []byte(strings.NewReplacer("NAMESPACE", s.namespace, "IMAGE", s.info.Images["busybox"]).Replace(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: inject-NAMESPACE}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  matchConditions:
  - {name: asked, expression: "has(object.metadata.labels) && 'sidecar.example/inject' in object.metadata.labels && has(object.spec.initContainers)"}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >
        [JSONPatch{op: "add", path: "/spec/initContainers/-",
        value: Object.spec.initContainers{name: "proxy", image: "IMAGE", restartPolicy: "Always",
        command: ["sh", "-c", "trap exit TERM; while :; do sleep 1; done"]}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: inject-NAMESPACE}
spec: {policyName: inject-NAMESPACE}
`)))
	for _, o := range objects {
		must(t, s.Create(t.Context(), o))
		t.Cleanup(func() {
			if err := s.Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, time.Minute, "the admission policy counts", func(ctx context.Context) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "asks", Labels: map[string]string{"sidecar.example/inject": "please"}},
			Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "first", Image: "busybox"}}, Containers: []corev1.Container{{Name: "one", Image: "busybox"}}}}
		if err := s.Create(ctx, pod, client.DryRunAll); err != nil {
			return err
		}
		if len(pod.Spec.InitContainers) != 2 {
			return errors.New("a pod with the label has no sidecar")
		}
		return nil
	})
}
