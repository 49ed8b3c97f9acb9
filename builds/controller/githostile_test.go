package controller_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/crypto/ssh/knownhosts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/source/gitremote"
)

// A Git server that accepts and never answers delays the builds of its namespace,
// which are more than the workers, and says so; another namespace's start.
func TestGitServerThatNeverAnswers(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	other := w.namespace + "-other"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	w.options.Namespaces = append(w.options.Namespaces, other)
	var asked atomic.Int32
	release := make(chan struct{})
	tarpit := httptest.NewServer(
		http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
			asked.Add(1)
			select {
			case <-release:
			case <-request.Context().Done():
			}
		}))
	t.Cleanup(tarpit.Close)
	t.Cleanup(func() { close(release) })
	w.start()
	const slow = 40
	for i := range slow {
		w.create(fmt.Sprintf("slow%d", i), func(b *api.AgentBuild) {
			b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision =
				fmt.Sprintf("%s/%d", tarpit.URL, i), "main"
		})
	}
	w.eventually("the server is asked", func() string {
		if asked.Load() == 0 {
			return "not yet"
		}
		return ""
	})
	for i := range 5 {
		name := fmt.Sprintf("quick%d", i)
		b := w.newBuild(name, r.source("main"))
		b.Namespace = other
		w.must(w.Client.Create(t.Context(), b))
		w.eventually(name+" runs", func() string {
			var list tektonv1.PipelineRunList
			w.must(w.List(t.Context(), &list, client.InNamespace(other)))
			if len(list.Items) != i+1 {
				return fmt.Sprintf("%d runs", len(list.Items))
			}
			return ""
		})
	}
	w.eventually("a slow build says what it waits for", func() string {
		b := w.build("slow7")
		if c := condition(b, api.ConditionReady); c.Reason != api.ReasonRetrying ||
			b.Status.ObservedGeneration != b.Generation {
			return c.Reason + " " + c.Message
		}
		return ""
	})
	if n := len(w.runs()); n != 0 {
		t.Errorf("%d builds of the slow server run", n)
	}
}

// What a Git server answers is read to a bound, whether it is an error or
// references without end.
func TestGitServerThatAnswersWithoutEnd(t *testing.T) {
	w := newWorld(t)
	var sent atomic.Int64
	endless := func(status int, kind, first, text string) string {
		server := httptest.NewServer(
			http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", kind)
				rw.WriteHeader(status)
				_, err := rw.Write([]byte(first))
				for n := 0; err == nil && sent.Load() < 1<<30; {
					n, err = rw.Write([]byte(text))
					sent.Add(int64(n))
				}
			}))
		t.Cleanup(server.Close)
		return server.URL
	}
	line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
	ref := line("0123456789012345678901234567890123456789 refs/heads/branch1\n")
	urls := map[string]string{
		"error": endless(http.StatusInternalServerError, "text/plain", "",
			strings.Repeat("x", 64<<10)),
		"references": endless(http.StatusOK, "application/x-git-upload-pack-advertisement",
			line("# service=git-upload-pack\n")+"0000"+
				line("0123456789012345678901234567890123456789 refs/heads/branch0\x00multi_ack\n"),
			strings.Repeat(ref, 1024)),
	}
	w.start()
	for name, url := range urls {
		w.create(name, func(b *api.AgentBuild) {
			b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = url+"/x", "main"
		})
	}
	w.eventually("the error is in status", func() string {
		if c := condition(w.build("error"), api.ConditionReady); c.Reason != api.ReasonRetrying ||
			!strings.Contains(c.Message, urls["error"]) {
			return c.Reason + " " + c.Message
		}
		return ""
	})
	got := w.phase("references", api.PhaseFailed)
	if c := condition(got, api.ConditionReady); c.Reason != api.ReasonRevisionNotFound ||
		!strings.Contains(c.Message, "too many references: the answer has more than 8 MiB") {
		t.Errorf("%s %s", c.Reason, c.Message)
	}
	if sent.Load() > 256<<20 {
		t.Errorf("%d MiB were taken", sent.Load()>>20)
	}
}

// An address that the operator does not allow is not connected to, neither at once
// nor after a redirect.
func TestGitServerAtAForbiddenAddress(t *testing.T) {
	w := newWorld(t)
	metadata := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("it was asked")
	}))
	t.Cleanup(metadata.Close)
	leads := httptest.NewServer(http.RedirectHandler(metadata.URL+
		"/latest/info/refs?service=git-upload-pack", http.StatusFound))
	t.Cleanup(leads.Close)
	forbidden := strings.TrimPrefix(metadata.URL, "http://")
	w.options.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == forbidden {
			return nil, gitremote.ErrForbiddenAddress
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	_, private := w.sshKey()
	host, _ := w.sshKey()
	w.must(w.Client.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "key",
			Annotations: map[string]string{"tekton.dev/git-0": forbidden}},
			Type: corev1.SecretTypeSSHAuth,
			Data: map[string][]byte{"ssh-privatekey": private,
				"known_hosts": []byte(knownhosts.Line([]string{forbidden}, host.PublicKey()))}}))
	w.start()
	for name, url := range map[string]string{"direct": metadata.URL, "redirected": leads.URL,
		"ssh": "ssh://git@" + forbidden} {
		w.create(name, func(b *api.AgentBuild) {
			b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = url+"/x", "main"
			if name == "ssh" {
				b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: "key"}
			}
		})
		if c := condition(w.phase(name, api.PhaseFailed),
			api.ConditionReady); c.Reason != api.ReasonInvalidBuild ||
			!strings.Contains(c.Message,
				"has an address that builds may not ask\n  hint: use another server, or let the "+
					"operator allow the network in --git-allow-network") {
			t.Errorf("%s: %s %s", name, c.Reason, c.Message)
		}
	}
}
