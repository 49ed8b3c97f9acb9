package controller_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/sources/controller"
)

// The controller does all its work with the rights that are shipped, and is never
// forbidden anything, nor has it rights on Secrets.
func TestShippedRBAC(t *testing.T) {
	for _, mode := range []string{"cluster", "namespaced"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, shared.Get(t))
			own := w.namespace + "-system"
			w.must(w.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}))
			folder := filepath.Join("..", "..", "templates", "install", "sources")
			for file, namespace := range map[string]string{filepath.Join("base", "leader-role.yaml"): own, filepath.Join(mode, "role.yaml"): w.namespace} {
				text, err := os.ReadFile(filepath.Join(folder, file))
				w.must(err)
				if bytes.Contains(text, []byte("secrets")) || bytes.Contains(text, []byte(`"*"`)) {
					t.Errorf("%s grants too much", file)
				}
				for _, doc := range bytes.Split(text, []byte("\n---\n")) {
					o := &unstructured.Unstructured{}
					w.must(yaml.Unmarshal(doc, o))
					if strings.HasPrefix(o.GetKind(), "Cluster") {
						o.SetName(o.GetName() + "-" + w.namespace) // the API server is shared
						if ref, ok := o.Object["roleRef"].(map[string]any); ok {
							ref["name"] = ref["name"].(string) + "-" + w.namespace
						}
					} else {
						o.SetNamespace(namespace)
					}
					if subjects, ok := o.Object["subjects"].([]any); ok {
						subjects[0].(map[string]any)["namespace"] = own
					}
					w.must(w.Create(t.Context(), o))
				}
			}
			access, err := w.plane.ServiceAccount(t.Context(), own, "armature-sources")
			w.must(err)
			forbidden := &controlplane.Forbidden{}
			access.Config.Wrap(forbidden.Wrap)
			o := w.options()
			o.Namespace, o.LeaderElection, o.Log = own, true, logr.Discard()
			if mode == "cluster" {
				o.Namespaces = nil
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- controller.Run(ctx, access.Config, o) }()
			w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
			w.registry(nil).policy("policy")
			w.rendered("app", "fleet", images("policy"))
			w.ready("app", "aaaa")
			// Somebody takes the ExternalArtifact away, and edits it.
			w.must(w.Delete(t.Context(), w.object("ExternalArtifact", "app")))
			w.eventually("it is published again", func() string {
				if w.published("app") == nil {
					return "there is no ExternalArtifact"
				}
				return ""
			})
			w.must(w.Delete(t.Context(), w.get("app")))
			w.eventually("it is gone", func() string {
				if err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "app"}, w.object("ExternalArtifact", "app")); client.IgnoreNotFound(err) != nil || err == nil {
					return "the ExternalArtifact is still there"
				}
				return ""
			})
			time.Sleep(300 * time.Millisecond) // the last events leave
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if got := forbidden.All(); len(got) > 0 {
				t.Errorf("forbidden: %s", strings.Join(got, "\n"))
			}
		})
	}
}
