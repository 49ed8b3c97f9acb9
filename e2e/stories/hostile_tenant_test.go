package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A tenant asks for another namespace's steps, for steps that are too large to parse, and
// for commits of a Git server that never answers, 500 times. It learns nothing, and
// another tenant's build goes on.
func TestHostileTenant(t *testing.T) {
	t.Parallel()
	s, other := newStory(t, nil), newStory(t, nil)
	s.installed(t)
	other.push(t, "testdata/hello", "public/"+other.namespace+".git")
	other.apply(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: payroll}
data: {password: hunter2}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other-step}
data: {task-spec.yaml: "steps: [{name: say, image: docker.io/library/busybox:1.37.0, command: [echo]}]"}
`)
	// The pod accepts connections and says nothing.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "silent"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "silent", Image: s.info.Images["busybox"],
			Command: []string{"nc", "-lk", "-p", "8080", "-e", "sleep", "600"},
		}}}}
	must(t, s.Create(t.Context(), pod))
	eventually(t, 5*time.Minute, "the silent Git server runs", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})

	tenant := s.asTenant(t)
	build := func(name, source, pipeline string) {
		tenant.apply(t,
			strings.NewReplacer("NAME", name, "SOURCE", source, "PIPELINE", pipeline).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec: {mode: custom, source: SOURCE, buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}, pipeline: PIPELINE}
`))
	}
	known := `{sourceRepository: "${git}/public/x.git", sourceRevision: "0123456789abcdef0123456789abcdef01234567"}`
	messages := map[string]bool{}
	for _, step := range []string{"payroll", "other-step", "no-such-step"} {
		build(step, known, "{namespace: "+other.namespace+", steps: [{name: only, configMap: "+step+"}]}")
		ready := meta.FindStatusCondition(s.refused(t, step).Status.Conditions, api.ConditionReady)
		if ready == nil || ready.Reason != api.ReasonStepNotFound {
			t.Fatalf("%s: %+v", step, ready)
		}
		messages[strings.ReplaceAll(ready.Message, step, "NAME")] = true
	}
	if len(messages) != 1 {
		t.Errorf("the messages tell which ConfigMaps exist: %v", messages)
	}
	for i := range 8 {
		tree := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace,
			Name: fmt.Sprint("tree", i)},
			Data: map[string]string{"task-spec.yaml": "steps: [" + strings.Repeat("{},", 330000) + "]"}}
		must(t, tenant.Create(t.Context(), tree))
		build(tree.Name, known, "{steps: [{name: only, configMap: "+tree.Name+"}]}")
	}
	for i := range 8 {
		name := fmt.Sprint("tree", i)
		eventually(t, 5*time.Minute, name+" is refused", func(context.Context) error {
			// The controller may hear of the build before it hears of the ConfigMap.
			if ready := meta.FindStatusCondition(s.refused(t, name).Status.Conditions,
				api.ConditionReady); ready.Reason != api.ReasonInvalidStep {
				return fmt.Errorf("%+v", ready)
			}
			return nil
		})
	}
	silent := func(name string) string {
		return fmt.Sprintf(`{sourceRepository: "http://%s:8080/%s", sourceRevision: main}`,
			pod.Status.PodIP, name)
	}
	for i := range 4 {
		build(fmt.Sprint("asks", i), silent(fmt.Sprint("asks", i)),
			"{steps: [{name: only, configMap: github-clone-step}]}")
	}
	for i := range 500 {
		asks := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "asks3"}}
		patch := fmt.Sprintf(`{"spec":{"source":{"sourceRevision":"branch%d"}}}`, i)
		must(t, tenant.Patch(t.Context(), asks,
			client.RawPatch("application/merge-patch+json", []byte(patch))))
	}
	other.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: weather}
spec:
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: weather, imageTag: v1}
`)
	other.succeeded(t, "weather")
	var runs tektonv1.PipelineRunList
	must(t, s.List(t.Context(), &runs, client.InNamespace(s.namespace)))
	for _, run := range runs.Items {
		t.Errorf("run %s was started", run.Name)
	}
}
