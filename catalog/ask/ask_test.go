package ask

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api/kagent"
)

// secrets is an API server whose Secrets have a token.
type secrets struct{ client.Reader }

func (secrets) Get(_ context.Context, _ client.ObjectKey, o client.Object,
	_ ...client.GetOption) error {
	o.(*corev1.Secret).Data = map[string][]byte{"token": []byte("s3cret")}
	return nil
}

// A value that comes from a Secret is kept out of the catalog, also where the reference does not
// name its type: a CRD without the enumeration accepts that.
func TestSecretWithoutType(t *testing.T) {
	for _, kind := range []string{"Secret", ""} {
		s := &kagent.RemoteMCPServer{}
		s.Spec.URL = "http://tools.team1"
		s.Spec.HeadersFrom = []kagent.ValueRef{{Name: "X-Token",
			ValueFrom: kagent.ValueSource{Type: kind, Name: "tools", Key: "token"}}}
		at, err := RemoteEndpoint(t.Context(), secrets{}, s)
		if err != nil || !slices.Contains(at.Secrets, "s3cret") {
			t.Errorf("%q: %v %v", kind, at.Secrets, err)
		}
	}
}

// A failure says what is wrong with the answer or the address, and not that the network failed.
func TestGetFailures(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/again", http.StatusFound)
	}))
	t.Cleanup(server.Close)
	for path, want := range map[string]string{"/": "it redirects too often",
		"/%zz": "its URL cannot be read"} {
		memory := NewBudget().Share("team1")
		_, err := Get(t.Context(), Transport((&net.Dialer{}).DialContext, nil, ""),
			server.URL+path, 1<<20, memory, &atomic.Int64{})
		if got := FailureOf(err).Reason; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		memory.Release()
	}
}
