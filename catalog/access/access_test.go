package access_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/catalog/serve"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
)

// reviewer is a Kubernetes that knows every token and lets each caller list in
// namespaces alone. It answers when several questions are there at once.
type reviewer struct {
	together  int
	mu        sync.Mutex
	now, most int
	asked     int
	enough    chan struct{}
}

func (v *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews" {
		review := authenticationv1.TokenReview{
			Status: authenticationv1.TokenReviewStatus{Authenticated: true,
				User: authenticationv1.UserInfo{Username: "anna"}}}
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
		_ = json.NewEncoder(w).Encode(review)
		return
	}
	var review authorizationv1.SubjectAccessReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if review.Status.Allowed = review.Spec.ResourceAttributes.Namespace != ""; review.Status.Allowed {
		v.wait()
	}
	_ = json.NewEncoder(w).Encode(review)
}

func (v *reviewer) wait() {
	v.mu.Lock()
	v.asked++
	v.now++
	if v.most = max(v.most, v.now); v.most == v.together {
		close(v.enough)
		v.together = -1
	}
	v.mu.Unlock()
	select {
	case <-v.enough:
	case <-time.After(30 * time.Second): // one after the other, then
	}
	v.mu.Lock()
	v.now--
	v.mu.Unlock()
}

// What a caller may list is asked for at once, with a bound, and not again soon.
func TestRightsAreAskedForTogether(t *testing.T) {
	kubernetes := &reviewer{together: 8, enough: make(chan struct{})}
	api := httptest.NewServer(kubernetes)
	t.Cleanup(api.Close)
	s, err := database.Open(t.Context(), filepath.Join(t.TempDir(), "catalog.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	const namespaces = 40
	for i := range namespaces {
		key := store.Key{Resource: "agentcards.kagenti.io", Namespace: fmt.Sprintf("team-%02d", i),
			Name: "weather"}
		if _, err := s.Put(t.Context(),
			store.Entry{Key: key, UID: key.Namespace, Type: store.Agent}, true); err != nil {
			t.Fatal(err)
		}
	}
	guard, err := serve.Kubernetes(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	handler := (&serve.Server{Store: s, Access: guard}).Handler()
	for range 2 {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/entries", nil)
		request.Header.Set("Authorization", "Bearer token")
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		var list store.EntryList
		if err := json.Unmarshal(answer.Body.Bytes(), &list); err != nil ||
			len(list.Items) != namespaces {
			t.Fatalf("%d %d entries, want %d: %v %s", answer.Code, len(list.Items), namespaces, err,
				answer.Body)
		}
	}
	kubernetes.mu.Lock()
	defer kubernetes.mu.Unlock()
	if kubernetes.most < 8 || kubernetes.most > 16 {
		t.Errorf("%d questions at once, want 8 to 16", kubernetes.most)
	}
	if kubernetes.asked != namespaces {
		t.Errorf("%d questions, want %d", kubernetes.asked, namespaces)
	}
}
