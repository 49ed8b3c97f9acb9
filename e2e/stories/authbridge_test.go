package stories

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A namespace that enforces Pod Security restricted runs agents of the profile authbridge, in both
// modes that do not intercept traffic. SPIRE issues an identity for each, and only with it the
// proxy exchanges the token of the agent's user for one that the agent's tool accepts. A proxy that
// does not know a key of its configuration ends.
func TestAuthBridge(t *testing.T) {
	t.Parallel()
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	if len(s.info.SPIREServer) == 0 {
		t.Skip("it needs SPIRE in the cluster, and E2E_INFO names no command for its server")
	}
	modes := []string{"proxy-sidecar", "lite"}
	for _, mode := range modes {
		entry := s.spire(t, "entry", "create", "-parentID", s.info.SPIREAgent, "-spiffeID",
			s.spiffeID(mode), "-selector", "k8s:ns:"+s.namespace, "-selector", "k8s:sa:"+mode)
		_, rest, _ := strings.Cut(string(entry), "Entry ID")
		id := strings.Fields(rest)[1]
		t.Cleanup(func() { s.spire(t, "entry", "delete", "-entryID", id) })
		s.applyObjects(t, s.authBridge(t, mode, mode))
	}
	const misspelt = "misspelt"
	broken := s.authBridge(t, misspelt, "lite")
	for _, object := range broken {
		if text, found, _ := unstructured.NestedString(object.Object, "data", "config.yaml"); found {
			must(t, unstructured.SetNestedField(object.Object,
				strings.Replace(text, "token_url:", "token_uri:", 1), "data", "config.yaml"))
		}
	}
	s.applyObjects(t, broken)
	must(t, s.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "spire-bundle"},
		Data: map[string]string{
			"bundle.json": string(s.spire(t, "bundle", "show", "-format", "spiffe"))},
	}))
	s.peers(t, "peers.yaml", "")

	s.running(t, "peers")
	for _, mode := range modes {
		s.running(t, mode)
		s.peers(t, "user.yaml", mode)
		got, err := s.through(t, mode, "/healthz")
		if want := "the agent listens on 8001\n"; err != nil || got != want {
			t.Errorf("%s: the agent's healthz answers %q, %v; want %q", mode, got, err, want)
		}
		if got, err := s.through(t, mode, "/ask"); !refused(err) {
			t.Errorf("%s: a request without a token gets %q, %v; want status 401", mode, got, err)
		}
	}
	for _, mode := range modes {
		s.says(t, "user-"+mode, "alice by "+s.spiffeID(mode)+"\nrefused")
	}
	eventually(t, 3*time.Minute, "the proxy refuses the key that it does not know",
		func(ctx context.Context) error {
			var pods corev1.PodList
			if err := s.List(ctx, &pods, client.InNamespace(s.namespace),
				client.MatchingLabels{"app": misspelt}); err != nil {
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

// spiffeID is that of a ServiceAccount of the story's namespace.
func (s *story) spiffeID(account string) string {
	return "spiffe://example.com/ns/" + s.namespace + "/sa/" + account
}

// spire manages the SPIRE server.
func (s *story) spire(t *testing.T, args ...string) []byte {
	t.Helper()
	command := append(slices.Clone(s.info.SPIREServer), args...)
	return run(t, nil, command[0], command[1:]...)
}

// authBridge is what `armature render` makes of testdata/authbridge in a mode, with
// name instead of agent.
func (s *story) authBridge(t *testing.T, name, mode string) []*unstructured.Unstructured {
	t.Helper()
	folder := s.copied(t, "authbridge", "agent.yaml", "armature.yaml")
	for _, old := range []string{"name: agent}", "app: agent}", "  name: agent\n  labels",
		"serviceAccountName: agent\n"} {
		rewrite(t, folder, "agent.yaml", old, strings.Replace(old, "agent", name, 1))
	}
	rewrite(t, folder, "armature.yaml", "profile: authbridge\n",
		"profile: authbridge\n  authbridge: {mode: "+mode+"}\n")
	return s.rendered(t, folder)
}

// peers applies a file that says NAMESPACE for the story's, and AGENT for agent.
func (s *story) peers(t *testing.T, file, agent string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.copied(t, "authbridge", file), file))
	must(t, err)
	text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("NAMESPACE"), []byte(s.namespace)),
		[]byte("AGENT"), []byte(agent))
	objects, err := ssautil.ReadObjects(bytes.NewReader(text))
	must(t, err)
	for _, object := range objects {
		object.SetNamespace(s.namespace)
	}
	s.applyObjects(t, objects)
}

// through is the answer of a Service, asked by way of the API server.
func (s *story) through(t *testing.T, service, path string) (string, error) {
	t.Helper()
	text, err := s.logs.CoreV1().Services(s.namespace).ProxyGet("http", service, "80", path,
		nil).DoRaw(t.Context())
	return string(text), err
}

// refused reports whether an answer has the status 401.
func refused(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && status.Status().Code == http.StatusUnauthorized
}
