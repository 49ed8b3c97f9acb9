package access_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/catalog/access"
)

// deadlines records the time until which a request is read.
type deadlines struct {
	*httptest.ResponseRecorder
	read time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = at
	return nil
}

// A caller who sends the body of a request slowly, before anybody knows who it is, does not keep the
// connection. A stream, which has no body, has no end.
func TestSlowBodies(t *testing.T) {
	handler := access.Harden("", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for method, bounded := range map[string]bool{http.MethodPost: true, http.MethodGet: false} {
		request := httptest.NewRequestWithContext(t.Context(), method, "/login", nil)
		if bounded {
			request = httptest.NewRequestWithContext(t.Context(), method, "/login",
				strings.NewReader("token=x"))
		} else {
			request.Body = http.NoBody
		}
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		handler.ServeHTTP(w, request)
		if left := time.Until(w.read); bounded != (left > 0 && left <= time.Minute) {
			t.Errorf("%s: the request is read for %s", method, left)
		}
	}
}
