package console

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
)

// unreachable is a store whose sessions cannot be read.
type unreachable struct{ store.Store }

func (unreachable) FindSession(context.Context, string, time.Time) (store.Session, error) {
	return store.Session{}, errors.New("dial tcp db.internal:5432: connection refused")
}

// A caller whose session cannot be read hears when to come back, and not where the store is.
func TestStreamWithoutSessions(t *testing.T) {
	s := unreachable{store.NewMemory()}
	c := &Console{Store: s, Access: access.Access{Login: &access.Login{Store: s}}}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/events?page=/", nil)
	request.AddCookie(&http.Cookie{Name: "armature-session", Value: "secret"})
	answer := httptest.NewRecorder()
	c.Handler().ServeHTTP(answer, request)
	if answer.Code != http.StatusServiceUnavailable ||
		strings.Contains(answer.Body.String(), "db.internal") {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
}
