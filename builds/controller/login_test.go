package controller_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// A Secret is a login only when its type or its label says so: else whoever may
// write a build could have any Secret of the namespace sent to a host of theirs.
func TestSecretThatIsNoLogin(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("right-token")
	w.options.Settings.PlainHTTPHosts = []string{strings.Split(strings.TrimPrefix(r.url, "http://"),
		"/")[0]}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "database",
		Annotations: hostsOfTests},
		StringData: map[string]string{"password": "right-token", "config.json": "{}"}}
	w.must(w.Client.Create(t.Context(), secret))
	w.start()
	// The one asks a Git server, the other only mounts.
	for name, revision := range map[string]string{"branch": "main", "commit": sha} {
		w.create(name, r.source(revision), func(b *api.AgentBuild) {
			b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: "database"}
			b.Spec.BuildOutput.ImageRepoCredentials = &corev1.LocalObjectReference{Name: "database"}
		})
		c := condition(w.phase(name, api.PhaseFailed), api.ConditionReady)
		if c.Reason != api.ReasonSecretPurpose {
			t.Errorf("%s: reason %s", name, c.Reason)
		}
		for _, want := range []string{
			`Secret "database" is of type Opaque, and not marked as a login for git`,
			"kubernetes.io/basic-auth or kubernetes.io/ssh-auth, or label it " +
				"armature.dev/credentials=git",
			"not marked as a login for registry",
			"kubernetes.io/dockerconfigjson, or label it armature.dev/credentials=registry"} {
			if !strings.Contains(c.Message, want) {
				t.Errorf("%s: %q is not in:\n%s", name, want, c.Message)
			}
		}
	}
	if n := len(w.runs()); n != 0 {
		t.Fatalf("%d runs", n)
	}
	// One label is for one purpose.
	secret.Labels = map[string]string{keys.LabelCredentials: "git"}
	w.must(w.Update(t.Context(), secret))
	w.change(w.build("branch"), func(b *api.AgentBuild) {
		b.Spec.BuildOutput.ImageRepoCredentials = nil
	})
	w.run(1)
	w.change(w.build("commit"), func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"touched": "1"}
	})
	w.eventually("the registry's label is asked for", func() string {
		if c := condition(w.build("commit"), api.ConditionReady); strings.Contains(c.Message,
			"login for git") || !strings.Contains(c.Message, "login for registry") {
			return c.Message
		}
		return ""
	})
}

// A login is sent over https and ssh, and over http to the hosts alone that the
// operator names.
func TestLoginOverPlainHTTP(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("right-token")
	behind, err := url.Parse(r.url)
	w.must(err)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind.Host})
	var sent atomic.Int32
	front := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			if request.Header.Get("Authorization") != "" {
				sent.Add(1)
			}
			proxy.ServeHTTP(rw, request)
		}))
	t.Cleanup(front.Close)
	w.must(w.Client.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "login",
			Annotations: hostsOfTests}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{"username": "robot", "password": "right-token"}}))
	stop := w.start()
	login := func(b *api.AgentBuild) {
		b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: "login"}
	}
	address := front.URL + "/agent.git/.git"
	w.create("branch", func(b *api.AgentBuild) {
		b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = address, "main"
	}, login)
	w.create("commit", func(b *api.AgentBuild) { b.Spec.Source.SourceRepository = address }, login)
	w.create("step", login, func(b *api.AgentBuild) {
		b.Spec.Source.SourceRepository = "https://127.0.0.1:1/x"
		b.Spec.Pipeline = &api.PipelineSpec{
			Steps: []api.Step{{Name: "github-clone",
				Parameters: []api.Parameter{{Name: "repo-clone-url", Value: &address}}}}}
	})
	for _, name := range []string{"branch", "commit", "step"} {
		got := w.phase(name, api.PhaseFailed)
		if c := condition(got, api.ConditionReady); c.Reason != api.ReasonInsecureSource ||
			!strings.Contains(c.Message,
				"hint: use https or ssh, or let the operator name the host in --plain-http-hosts") {
			t.Errorf("%s: %s %s", name, c.Reason, c.Message)
		}
	}
	// A trigger asks the server without a run.
	w.create("trigger", login, func(b *api.AgentBuild) {
		b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = address, "main"
		b.Spec.Trigger = &api.SourceTrigger{PullRequest: &api.PullRequestTrigger{}} // asks at once
		b.Spec.Report = &api.Report{Kind: "gitea",
			Credentials: corev1.LocalObjectReference{Name: "login"}}
	})
	w.never("the login is sent", func() string {
		if n := sent.Load(); n != 0 {
			return fmt.Sprintf("%d times", n)
		}
		return ""
	})
	if len(w.runs()) != 0 {
		t.Errorf("%d runs", len(w.runs()))
	}
	w.must(w.Client.Delete(t.Context(), w.build("trigger")))
	stop()
	w.options.Settings.PlainHTTPHosts = []string{strings.TrimPrefix(front.URL, "http://")}
	w.start()
	w.eventually("the builds from a host that is named run", func() string {
		if n := len(w.runs()); n != 3 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	if sent.Load() == 0 {
		t.Error("the login was never sent, so that this test shows nothing")
	}
}

// Whoever may write a build names a Secret and a host: the Secret goes to the hosts alone that it
// names itself, whichever part of the controller sends it, and no run is given it for others.
func TestLoginOfAnotherHost(t *testing.T) {
	w := newWorld(t)
	var sent atomic.Int32
	front := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			if request.Header.Get("Authorization")+request.Header.Get("Private-Token") != "" {
				sent.Add(1)
			}
			rw.WriteHeader(http.StatusUnauthorized)
		}))
	t.Cleanup(front.Close)
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	for name, annotations := range map[string]map[string]string{"none": nil,
		"other": {"tekton.dev/git-0": "https://git.example"}} {
		w.must(w.Client.Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name,
				Annotations: annotations}, Type: corev1.SecretTypeBasicAuth,
				StringData: map[string]string{"username": "robot", "password": "right-token"}}))
	}
	w.start()
	for _, secret := range []string{"none", "other"} {
		login := func(b *api.AgentBuild) {
			b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: secret}
		}
		address := front.URL + "/agent.git"
		from := func(revision string) func(*api.AgentBuild) {
			return func(b *api.AgentBuild) {
				b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = address, revision
			}
		}
		w.create("branch-"+secret, from("main"), login)
		w.create("commit-"+secret, from(sha), login)
		w.create("step-"+secret, login, func(b *api.AgentBuild) {
			b.Spec.Source.SourceRepository = "https://git.example/x"
			b.Spec.Pipeline = &api.PipelineSpec{
				Steps: []api.Step{{Name: "github-clone",
					Parameters: []api.Parameter{{Name: "repo-clone-url", Value: &address}}}}}
		})
		w.create("trigger-"+secret, from("main"), login, func(b *api.AgentBuild) {
			// asks at once
			b.Spec.Trigger = &api.SourceTrigger{PullRequest: &api.PullRequestTrigger{}}
			b.Spec.Report = &api.Report{Kind: "gitea",
				Credentials: corev1.LocalObjectReference{Name: secret}}
		})
		w.create("report-"+secret, from("main"), func(b *api.AgentBuild) {
			b.Spec.Trigger = &api.SourceTrigger{PullRequest: &api.PullRequestTrigger{}}
			b.Spec.Report = &api.Report{Kind: "gitea",
				Credentials: corev1.LocalObjectReference{Name: secret}}
		})
		host := strings.TrimPrefix(front.URL, "http://")
		for _, name := range []string{"branch-", "commit-", "step-"} {
			c := condition(w.phase(name+secret, api.PhaseFailed), api.ConditionReady)
			if c.Reason != api.ReasonSecretPurpose ||
				!strings.Contains(c.Message, "Secret "+secret) ||
				!strings.Contains(c.Message, host) ||
				!strings.Contains(c.Message, "tekton.dev/git-0=https://") {
				t.Errorf("%s%s: %s %s", name, secret, c.Reason, c.Message)
			}
		}
		update := &updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
			Name: "apps-" + secret}, Spec: updates.ImageUpdateSpec{
			Repository: address, Branch: "main", Credentials: updates.SecretReference{Name: secret},
			Author: &updates.Author{Name: "Armature", Email: "bot@example.com"}}}
		w.must(w.Client.Create(t.Context(), update))
		w.updated(update.Name, updates.ReasonInvalid, host)
	}
	w.never("the login is sent", func() string {
		if n, runs := sent.Load(), len(w.runs()); n != 0 || runs != 0 {
			return fmt.Sprintf("%d times, %d runs", n, runs)
		}
		return ""
	})
}
