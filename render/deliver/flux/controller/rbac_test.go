package controller_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	"github.com/armature-dev/armature/render/deliver/flux/controller"
)

// The controller does all its work with the rights that are shipped, and is never
// forbidden anything, nor has it rights on Secrets.
func TestShippedRBAC(t *testing.T) {
	for _, mode := range []string{"cluster", "namespaced"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, shared.Get(t))
			own := w.namespace + "-system"
			w.must(w.Create(t.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}))
			w.grant("base/leader-role.yaml", own, own)
			w.grant(mode+"/role.yaml", w.namespace, own)
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
				if err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "app"},
					w.object("ExternalArtifact", "app")); client.IgnoreNotFound(err) != nil ||
					err == nil {
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

// grant applies a file of the shipped roles to a namespace, for the controller in the
// namespace own. without are resources that its rules leave out.
func (w *world) grant(file, namespace, own string, without ...string) {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "templates", "install",
		"sources", filepath.FromSlash(file)))
	w.must(err)
	if bytes.Contains(text, []byte("secrets")) || bytes.Contains(text, []byte(`"*"`)) {
		w.Errorf("%s grants too much", file)
	}
	for _, resource := range without {
		changed := regexp.MustCompile(`\b`+resource+`\b,? ?`).ReplaceAll(text, nil)
		if bytes.Equal(changed, text) {
			w.Fatalf("%s has no %s", file, resource)
		}
		text = bytes.ReplaceAll(changed, []byte("resources: []"), []byte("resources: [nothing]"))
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal(doc, o))
		if strings.HasPrefix(o.GetKind(), "Cluster") {
			o.SetName(o.GetName() + "-" + w.namespace) // the API server is shared
			if ref, ok := o.Object["roleRef"].(map[string]any); ok {
				ref["name"] = fmt.Sprint(ref["name"], "-", w.namespace)
			}
		} else {
			o.SetNamespace(namespace)
		}
		if subjects, ok := o.Object["subjects"].([]any); ok {
			subjects[0].(map[string]any)["namespace"] = own
		}
		w.must(w.Client.Create(w.Context(), o))
	}
}

// A namespace in which the controller has no rights, or not all of them, publishes
// nothing and says why as far as the rights go. It harms no other namespace, and is
// looked after as soon as it is granted.
func TestNamespaceWithoutRights(t *testing.T) {
	plane := shared.Get(t)
	w, none, blind, mute := newWorld(t, plane), newWorld(t, plane), newWorld(t, plane), newWorld(t, plane)
	own := w.namespace + "-system"
	w.must(w.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}))
	w.grant("base/leader-role.yaml", own, own)
	w.grant("namespaced/role.yaml", w.namespace, own)
	blind.grant("namespaced/role.yaml", blind.namespace, own, "gitrepositories")
	mute.grant("namespaced/role.yaml", mute.namespace, own, "externalartifacts/status")
	access, err := plane.ServiceAccount(t.Context(), own, "armature-sources")
	w.must(err)
	o := w.options()
	o.Namespace, o.LeaderElection = own, true
	o.Namespaces = []string{none.namespace, w.namespace, blind.namespace, mute.namespace}
	w.startAs(access.Config, o)
	for _, of := range []*world{none, w, blind, mute} {
		of.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
		of.rendered("app", "fleet", every("1s"))
	}
	w.ready("app", "aaaa")
	if message := blind.fails("app", "AccessDenied"); !strings.Contains(message,
		"may not list gitrepositories.source.toolkit.fluxcd.io in namespace "+blind.namespace) {
		t.Errorf("the message lacks the right: %s", message)
	}
	if message := mute.fails("app", "PublishFailed"); !strings.Contains(message, "forbidden") {
		t.Errorf("the message lacks the right: %s", message)
	}
	for _, of := range []*world{none, blind, mute} {
		if got := of.published("app"); got != nil {
			t.Errorf("namespace %s: it published %v", of.namespace, got)
		}
	}
	w.repository("fleet", "bbbb", map[string]string{"settings.yaml": configMap("settings", "b")})
	w.ready("app", "bbbb")

	none.grant("namespaced/role.yaml", none.namespace, own)
	none.ready("app", "aaaa")
	none.fetch(none.published("app"))
	w.repository("fleet", "cccc", map[string]string{"settings.yaml": configMap("settings", "c")})
	w.ready("app", "cccc")
	w.fetch(w.published("app"))
}

// A controller with rights in none of its namespaces ends, and does not look after all.
func TestNoNamespaceIsGranted(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	access, err := w.plane.ServiceAccount(t.Context(), w.namespace, "armature-sources")
	w.must(err)
	err = controller.Run(t.Context(), access.Config, w.options())
	if err == nil || !strings.Contains(err.Error(),
		"may not list renderedsources.armature.dev in namespace "+w.namespace) {
		t.Errorf("it ended with %v", err)
	}
}
