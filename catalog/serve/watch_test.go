package serve_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/serve"
	"github.com/armature-dev/armature/catalog/store/database"
)

// stuck is the connection of a caller who reads nothing: a write ends at its deadline, if it has
// one.
type stuck struct {
	*httptest.ResponseRecorder
	ctx      context.Context
	deadline time.Time
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	s.deadline = at
	return nil
}

func (s *stuck) Write([]byte) (int, error) {
	if s.deadline.IsZero() {
		<-s.ctx.Done()
	}
	return 0, os.ErrDeadlineExceeded
}

func (s *stuck) WriteString(text string) (int, error) { return s.Write([]byte(text)) }

type everything struct{}

func (everything) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string,
	error) {
	return authorizer.DecisionAllow, "", nil
}

// A watch whose caller reads nothing ends, and leaves its place to others.
func TestStuckWatch(t *testing.T) {
	s, err := database.Open(t.Context(), filepath.Join(t.TempDir(), "catalog.db"))
	if err != nil {
		t.Fatal(err)
	}
	anna := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "anna"}}, true, nil
	})
	server := serve.Server{Store: s, Access: access.New(anna, everything{})}
	ctx, cancel := context.WithCancel(t.Context())
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/watch", nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w := &stuck{ResponseRecorder: httptest.NewRecorder(), ctx: ctx}
		server.Handler().ServeHTTP(w, request)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the watch goes on")
	}
	cancel()
	<-ended
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
