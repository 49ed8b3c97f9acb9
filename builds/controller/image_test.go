package controller_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller"
)

// pod makes one of the controller in the namespace of all controllers.
func (w *world) pod(name string, containers ...corev1.Container) {
	w.Helper()
	for i := range containers {
		containers[i].SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	}
	w.must(w.Client.Create(w.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name},
		Spec: corev1.PodSpec{Containers: containers, SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}},
	}))
}

// A step that asks for the controller's image gets that of the controller's pod, and
// no other step does.
func TestStepsTakeTheControllersImage(t *testing.T) {
	const image = "registry.local/platform/controller@sha256:" +
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	w := newWorld(t)
	w.options.Pod = "of-" + w.namespace
	w.options.Settings.ImageMirror = "mirror.local/hub"
	w.pod(w.options.Pod, corev1.Container{Name: "injected", Image: "proxy"},
		corev1.Container{Name: "controller", Image: image})
	w.start()
	w.create("weather", func(b *api.AgentBuild) { b.Spec.Mode = "dev" })
	images := map[string]string{}
	for _, task := range w.run(1).Spec.PipelineSpec.Tasks {
		for _, step := range task.TaskSpec.Steps {
			images[step.Name] = step.Image
		}
	}
	for step, got := range images {
		want := "mirror.local/hub/"
		switch step {
		case "push", "base-images":
			want = image
		case "create":
			want = "$(params.BUILDER_IMAGE)"
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("step %s runs %s", step, got)
		}
	}
	if images["push"] == "" {
		t.Errorf("no step is push: %v", images)
	}
}

// A controller that cannot know its image does not start, and says why.
func TestUnknownControllerImage(t *testing.T) {
	w := newWorld(t)
	w.pod("other-"+w.namespace,
		corev1.Container{Name: "manager", Image: "registry.local/controller:v1"})
	for pod, want := range map[string]string{"none-" + w.namespace: "not found",
		"other-" + w.namespace: `has no container "controller"`} {
		w.options.Pod = pod
		ctx, cancel := context.WithCancel(t.Context())
		err := controller.Run(ctx, w.config, w.options)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "POD_NAME") {
			t.Errorf("pod %s: %v", pod, err)
		}
	}
}
