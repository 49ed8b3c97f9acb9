package stories

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A namespace that enforces Pod Security restricted runs agents of the profile
// authbridge, in both modes that do not intercept traffic. The proxy reads its
// configuration, has the agent's port, and forwards what needs no token to where the
// agent listens now. With a key that it does not know it ends.
func TestAuthBridge(t *testing.T) {
	t.Parallel()
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	var driver storagev1.CSIDriver
	if err := s.Get(t.Context(), client.ObjectKey{Name: "csi.spiffe.io"}, &driver); err != nil {
		t.Skipf("agents need SPIFFE's CSI driver in the cluster: %v", err)
	}
	modes := []string{"proxy-sidecar", "lite"}
	for _, mode := range modes {
		s.applyObjects(t, s.authBridge(t, mode, mode))
	}
	const misspelt = "misspelt"
	broken := s.authBridge(t, misspelt, "lite")
	for _, object := range broken {
		if text, found, _ := unstructured.NestedString(object.Object, "data", "config.yaml"); found {
			must(t, unstructured.SetNestedField(object.Object, strings.Replace(text, "token_url:", "token_uri:", 1), "data", "config.yaml"))
		}
	}
	s.applyObjects(t, broken)

	for _, mode := range modes {
		s.running(t, mode)
		got, err := s.through(t, mode, "/healthz")
		if want := "the agent listens on 8001\n"; err != nil || got != want {
			t.Errorf("%s: the agent's healthz answers %q, %v; want %q", mode, got, err, want)
		}
		if got, err := s.through(t, mode, "/"); !refused(err) {
			t.Errorf("%s: a request without a token gets %q, %v; want status 401", mode, got, err)
		}
	}
	eventually(t, 3*time.Minute, "the proxy refuses the key that it does not know", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := s.List(ctx, &pods, client.InNamespace(s.namespace), client.MatchingLabels{"app": misspelt}); err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("it has %d pods", len(pods.Items))
		}
		text, err := s.log(ctx, pods.Items[0].Name, "authbridge-proxy")
		if err == nil && !strings.Contains(text, `unknown field "token_uri"`) {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
}

// authBridge is what `armature render` makes of testdata/authbridge in a mode, with
// name instead of agent.
func (s *story) authBridge(t *testing.T, name, mode string) []*unstructured.Unstructured {
	t.Helper()
	folder := s.copied(t, "authbridge", "agent.yaml", "armature.yaml")
	rewrite(t, folder, "agent.yaml", "name: agent}", "name: "+name+"}")
	rewrite(t, folder, "agent.yaml", "app: agent}", "app: "+name+"}")
	rewrite(t, folder, "agent.yaml", "  name: agent\n  labels", "  name: "+name+"\n  labels")
	rewrite(t, folder, "agent.yaml", "serviceAccountName: agent", "serviceAccountName: "+name)
	rewrite(t, folder, "armature.yaml", "profile: authbridge\n", "profile: authbridge\n  authbridge: {mode: "+mode+"}\n")
	return s.rendered(t, folder)
}

// through is the answer of a Service, asked by way of the API server.
func (s *story) through(t *testing.T, service, path string) (string, error) {
	t.Helper()
	text, err := s.logs.CoreV1().Services(s.namespace).ProxyGet("http", service, "80", path, nil).DoRaw(t.Context())
	return string(text), err
}

// refused reports whether an answer has the status 401.
func refused(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && status.Status().Code == http.StatusUnauthorized
}
