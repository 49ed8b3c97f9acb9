package apply_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// To wait is to wait until kstatus says that all objects are current.
func TestWait(t *testing.T) {
	w := newWorld(t)
	done := make(chan error, 1)
	var messages []string
	var lock sync.Mutex
	tell := func(s string) {
		lock.Lock()
		defer lock.Unlock()
		messages = append(messages, s)
	}
	go func() {
		_, err := w.Apply(t.Context(), w.Package, w.read(web, configMap("settings", "a")),
			apply.Options{Wait: true, Timeout: time.Minute, Tell: tell})
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
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager",
		`{"status":{"observedGeneration":1,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2,"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`, "status")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(messages) == 0 || !strings.Contains(strings.Join(messages, "\n"),
		"waiting: 1 of 2 healthy; Deployment "+w.Package.Namespace+"/web") {
		t.Errorf("got %q", messages)
	}
}

// A failure ends the wait at once and is named; so does the end of patience.
// What was applied stays applied.
func TestWaitFails(t *testing.T) {
	w := newWorld(t)
	_, err := w.Apply(t.Context(), w.Package, w.read(web),
		apply.Options{Wait: true, Timeout: time.Second})
	if err == nil || !strings.Contains(err.Error(),
		"not healthy after 1s: Deployment "+w.Package.Namespace+"/web: InProgress") {
		t.Errorf("error %v", err)
	}
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager",
		`{"status":{"observedGeneration":1,"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"no image"}]}}`, "status")
	_, err = w.Apply(t.Context(), w.Package, w.read(web),
		apply.Options{Wait: true, Timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "applied, but failed: Deployment") {
		t.Errorf("error %v", err)
	}
}

// What keeps the pods of a workload from running is named at once, and again when
// patience ends.
func TestWaitNamesReasons(t *testing.T) {
	w := newWorld(t)
	w.create("{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: NS}}")
	for name, status := range map[string]string{
		"a-pulls":    `{"phase":"Pending","containerStatuses":[{"name":"a","image":"a","imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":"ImagePullBackOff","message":"Back-off pulling image \"nginx:9\""}}}]}`,
		"b-crashes":  `{"phase":"Running","containerStatuses":[{"name":"a","image":"a","imageID":"","ready":false,"restartCount":4,"state":{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 40s"}},"lastState":{"terminated":{"exitCode":137,"reason":"OOMKilled"}}}]}`,
		"c-nowhere":  `{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/3 nodes are available"}]}`,
		"d-starts":   `{"phase":"Pending","containerStatuses":[{"name":"a","image":"a","imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":"ContainerCreating"}}}]}`,
		"elsewheres": `{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"not ours"}]}`,
	} {
		app := "web"
		if name == "elsewheres" {
			app = "other"
		}
		w.create(strings.Replace(pod(name, ""), "namespace: NS",
			"namespace: NS, labels: {app: "+app+"}", 1))
		w.patch("v1", "Pod", name, "kubelet", `{"status":`+status+`}`, "status")
	}
	var lock sync.Mutex
	reported := make(map[string]int)
	opt := apply.Options{Wait: true, Timeout: time.Second, Tell: func(s string) {
		lock.Lock()
		defer lock.Unlock()
		reported[s]++
	}}
	_, err := w.Apply(t.Context(), w.Package, w.read(web, configMap("settings", "a")), opt)
	for _, reason := range []string{
		`pod a-pulls: ImagePullBackOff: container a: Back-off pulling image "nginx:9"`,
		"pod b-crashes: CrashLoopBackOff: container a, exit code 137 (OOMKilled): back-off 40s",
		"pod c-nowhere: Unschedulable: 0/3 nodes are available",
	} {
		if n := reported["warning: Deployment "+w.Package.Namespace+"/web: "+reason]; n != 1 {
			t.Errorf("reported %d times: %q", n, reason)
		}
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("the error does not say %q:\n%v", reason, err)
		}
	}
	for s := range reported {
		if strings.Contains(s, "d-starts") || strings.Contains(s, "elsewheres") {
			t.Errorf("reported %q", s)
		}
	}
}
