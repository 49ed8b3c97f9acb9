package controller_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
)

// Namespaces whose Git servers take a question and never answer do not hold up the write-backs of
// another one.
func TestSilentServer(t *testing.T) {
	w := newWorld(t)
	var held atomic.Int32
	end := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		held.Add(1)
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(end) })
	source, apps := w.serveGit(""), w.serveGit("hunter2")
	apps.git("config", "http.receivepack", "true")
	apps.git("config", "receive.denyCurrentBranch", "ignore")
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	const others = 8
	for i := range others {
		name := fmt.Sprintf("%s-silent-%d", w.namespace, i)
		w.must(w.Client.Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		w.must(w.Client.Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "login",
				Annotations: hostsOfTests}, Type: corev1.SecretTypeBasicAuth,
				StringData: map[string]string{"username": "x", "password": "x"}}))
		w.must(w.Client.Create(t.Context(),
			&updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "apps"},
				Spec: updates.ImageUpdateSpec{
					Repository: silent.URL + "/x", Branch: "main",
					Credentials: updates.SecretReference{Name: "login"},
					Author:      &updates.Author{Name: "x", Email: "x@example.com"}}}))
		w.options.Namespaces = append(w.options.Namespaces, name)
	}
	w.login("apps-login", compose.PurposeGit, map[string]string{"token": "hunter2"})
	w.start()
	// All ImageUpdates name one branch. None of them may keep the others from it.
	w.within(15*time.Second, "all silent servers are asked at once", func() string {
		if n := held.Load(); n < others {
			return fmt.Sprintf("%d are", n)
		}
		return ""
	})
	keep := false
	w.create("weather", source.source("main"),
		func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })
	w.built(1, "1")
	w.must(w.Client.Create(t.Context(),
		&updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "apps"},
			Spec: updates.ImageUpdateSpec{
				Repository: apps.url, Branch: "main",
				Credentials: updates.SecretReference{Name: "apps-login"},
				Author:      &updates.Author{Name: "Armature", Email: "bot@example.com"}}}))
	began := time.Now()
	w.updated("apps", updates.ReasonUpToDate, "")
	t.Logf("written after %s beside %d silent servers", time.Since(began).Round(time.Millisecond), others)
}
