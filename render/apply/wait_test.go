package apply_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/armature-dev/armature/render/apply"
)

// To wait is to wait until kstatus says that all objects are current.
func TestWait(t *testing.T) {
	w := newWorld(t)
	done := make(chan error, 1)
	var told []string
	var lock sync.Mutex
	tell := func(s string) {
		lock.Lock()
		defer lock.Unlock()
		told = append(told, s)
	}
	go func() {
		_, err := w.Apply(t.Context(), w.Package, w.read(web, configMap("settings", "a")), apply.Options{Wait: true, Timeout: time.Minute, Tell: tell})
		done <- err
	}()
	w.eventually(func() string {
		if w.get("apps/v1", "Deployment", "web") == nil {
			return "no Deployment"
		}
		return ""
	})
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(time.Second):
	}
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager", `{"status":{"observedGeneration":1,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2,"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`, "status")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(told) == 0 || !strings.Contains(strings.Join(told, "\n"), "waiting: 1 of 2 healthy; Deployment "+w.Package.Namespace+"/web") {
		t.Errorf("told %q", told)
	}
}

// A failure ends the wait at once and is named; so does the end of patience.
// What was applied stays applied.
func TestWaitFails(t *testing.T) {
	w := newWorld(t)
	_, err := w.Apply(t.Context(), w.Package, w.read(web), apply.Options{Wait: true, Timeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "not healthy after 1s: Deployment "+w.Package.Namespace+"/web: InProgress") {
		t.Errorf("error %v", err)
	}
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager", `{"status":{"observedGeneration":1,"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"no image"}]}}`, "status")
	_, err = w.Apply(t.Context(), w.Package, w.read(web), apply.Options{Wait: true, Timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "applied, but failed: Deployment") {
		t.Errorf("error %v", err)
	}
}
