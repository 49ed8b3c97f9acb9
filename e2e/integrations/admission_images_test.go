package integrations

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
)

// The policy that docs/hosts.md prints refuses Pods with any image that has no digest, in
// the namespaces that it is bound to.
func TestAdmissionOfImages(t *testing.T) {
	page, err := os.ReadFile("../../docs/hosts.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page),
		"```yaml\napiVersion: admissionregistration.k8s.io/v1\n")
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatal("docs/hosts.md prints no policy")
	}
	plane := controlplane.Start(t)
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decoded(t, []byte("apiVersion: admissionregistration.k8s.io/v1\n"+text)) {
		if err := c.Create(t.Context(), o,
			client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
			t.Fatalf("%s: %v", o.GetKind(), err)
		}
	}
	for name, labels := range map[string]map[string]string{"agents": {"kagenti-enabled": "true"},
		"others": nil} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if err := c.Create(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}
		if err := c.Create(t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	digest := "registry.example/weather:v1@sha256:" + strings.Repeat("0123", 16)
	pod := func(namespace string, edit func(*corev1.PodSpec)) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			GenerateName: "weather-"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: digest}}}}
		edit(&p.Spec)
		return c.Create(t.Context(), p, client.DryRunAll)
	}
	agent := func(image string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.Containers[0].Image = image }
	}
	// The policy takes a moment to be enforced.
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := pod("agents", agent("weather:v1"))
		if err != nil && strings.Contains(err.Error(),
			`images without a digest: weather:v1: run "armature pin"`) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("an image without a digest: %v", err)
		}
	}
	beside := corev1.Container{Name: "beside", Image: "tool:v1"}
	for what, c := range map[string]struct {
		namespace string
		edit      func(*corev1.PodSpec)
		refused   bool
	}{
		"digests":                {"agents", agent(digest), false},
		"another namespace":      {"others", agent("weather:v1"), false},
		"a digest that is short": {"agents", agent("weather@sha256:0123"), true},
		"a digest in the middle": {"agents", agent(digest + ":v1"), true},
		"a second container": {"agents",
			func(s *corev1.PodSpec) { s.Containers = append(s.Containers, beside) }, true},
		"an init container": {"agents",
			func(s *corev1.PodSpec) { s.InitContainers = append(s.InitContainers, beside) }, true},
		"an image as a volume": {"agents", func(s *corev1.PodSpec) {
			s.Volumes = append(s.Volumes,
				corev1.Volume{Name: "v",
					VolumeSource: corev1.VolumeSource{
						Image: &corev1.ImageVolumeSource{Reference: "data:v1"}}})
		}, true},
	} {
		err := pod(c.namespace, c.edit)
		if refused := err != nil && strings.Contains(fmt.Sprint(err),
			"images-by-digest"); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v, want it refused: %t", what, err, c.refused)
		}
	}
}
