package controller_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/crypto/ssh"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// updated waits until the ImageUpdate has a reason, and returns it.
func (w *world) updated(name, reason, says string) *updates.ImageUpdate {
	w.Helper()
	u := &updates.ImageUpdate{}
	w.eventually(name+" becomes "+reason, func() string {
		w.must(w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, u))
		ready := meta.FindStatusCondition(u.Status.Conditions, updates.ConditionReady)
		if ready == nil || ready.Reason != reason || u.Status.ObservedGeneration != u.Generation ||
			!strings.Contains(ready.Message, says) {
			return fmt.Sprintf("%+v", ready)
		}
		return ""
	})
	return u
}

// built ends the next run of a build with a digest of one digit.
func (w *world) built(n int, digit string) {
	w.Helper()
	run := w.run(n)
	w.finish(run, corev1.ConditionTrue, "Completed", "done", func(s *tektonv1.PipelineRunStatus) {
		s.Results = []tektonv1.PipelineRunResult{
			{Name: "kaniko-build-IMAGE_URL",
				Value: *tektonv1.NewStructuredValues(run.Annotations[keys.AnnotationImage])},
			{Name: "kaniko-build-IMAGE_DIGEST",
				Value: *tektonv1.NewStructuredValues("sha256:" + strings.Repeat(digit, 64))},
			{Name: "CHAINS-GIT_COMMIT",
				Value: *tektonv1.NewStructuredValues(run.Annotations[keys.AnnotationCommit])},
		}
	})
}

// From a finished run to a signed commit, with nobody in between: a revert stays, the next
// image goes on, and a Secret that is not meant for it is not used.
func TestImageUpdate(t *testing.T) {
	w := newWorld(t)
	source, apps := w.serveGit(""), w.serveGit("hunter2")
	apps.git("config", "http.receivepack", "true")
	apps.git("config", "receive.denyCurrentBranch", "ignore")
	signer, private := w.sshKey()
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	w.start()
	keep := false
	b := w.create("weather", source.source("main"),
		func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })
	w.built(1, "1")
	w.phase("weather", api.PhaseSucceeded)

	u := &updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "apps"},
		Spec: updates.ImageUpdateSpec{
			Repository: apps.url, Branch: "main",
			Credentials: updates.SecretReference{Name: "apps"},
			SigningKey:  &updates.SecretReference{Name: "key"},
			Author:      &updates.Author{Name: "Armature", Email: "bot@example.com"}}}
	w.must(w.Client.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "apps"},
			StringData: map[string]string{"token": "hunter2"}}))
	w.login("key", compose.PurposeSigning, map[string]string{"identity": string(private)})
	for _, wrong := range []func(*updates.ImageUpdateSpec){func(s *updates.ImageUpdateSpec) {
		s.Via = "api"
	}, func(s *updates.ImageUpdateSpec) { s.Author = nil }} {
		refused := u.DeepCopy()
		wrong(&refused.Spec)
		if err := w.Client.Create(t.Context(), refused); err == nil ||
			!strings.Contains(err.Error(), "via: api has neither author nor signingKey") {
			t.Errorf("%+v: %v", refused.Spec, err)
		}
	}
	w.must(w.Client.Create(t.Context(), u))
	w.updated("apps", updates.ReasonInvalid,
		"Secret "+w.namespace+
			"/apps is not marked for this\n  hint: use one of type kubernetes.io/basic-auth or "+
			"kubernetes.io/ssh-auth, or label it armature.dev/credentials=git")
	if head := apps.git("rev-list", "--count", "main"); head != "1" {
		t.Errorf("%s commits without a login", head)
	}
	w.login("apps-login", compose.PurposeGit, map[string]string{"token": "hunter2"})
	w.edit(u, func() { u.Spec.Credentials.Name = "apps-login" })

	first := w.updated("apps", updates.ReasonUpToDate, "")
	if head := apps.git("rev-parse", "main"); head != first.Status.Commit {
		t.Errorf("main is at %s, status has %s", head, first.Status.Commit)
	}
	allowed := filepath.Join(t.TempDir(), "allowed")
	w.must(os.WriteFile(allowed, append([]byte("bot@example.com "),
		ssh.MarshalAuthorizedKey(signer.PublicKey())...), 0o600))
	apps.git("-c", "gpg.ssh.allowedSignersFile="+allowed, "verify-commit", "main")
	if message := apps.git("log", "-1", "--format=%B", "main"); !strings.Contains(message,
		"Armature-Attestation: unattested") {
		t.Error(message)
	}
	lock := apps.git("show", "main:armature.lock")
	if !strings.Contains(lock, "sha256:"+strings.Repeat("1", 64)) ||
		!strings.Contains(lock, "commit: "+source.git("rev-parse", "main")) {
		t.Errorf("%s", lock)
	}

	source.commit("second")
	w.change(b, func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"agent.kagenti.dev/rerun": "1"}
	})
	w.built(2, "2")
	inLock := func(digit string) {
		t.Helper()
		w.eventually("the image is in the lock", func() string {
			if lock := apps.git("show", "main:armature.lock"); !strings.Contains(lock,
				strings.Repeat(digit, 64)) {
				return lock
			}
			return ""
		})
	}
	inLock("2")
	apps.git("reset", "-q", "--hard", "main")
	apps.git("revert", "--no-edit", "HEAD")
	reverted := apps.git("rev-parse", "main")
	w.edit(u, func() { u.Spec.Interval = "10s" })
	held := w.updated("apps", updates.ReasonHeldBack,
		"commit "+reverted[:12]+" removed it from the lock")
	if len(held.Status.Held) != 1 || held.Status.Held[0].Build != "weather" ||
		apps.git("rev-parse", "main") != reverted {
		t.Errorf("%+v", held.Status)
	}
	source.commit("third")
	w.change(b, func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"agent.kagenti.dev/rerun": "2"}
	})
	w.built(3, "3")
	inLock("3")
	w.updated("apps", updates.ReasonUpToDate, "")
	if n := apps.git("rev-list", "--count", "main"); n != "5" {
		t.Errorf("%s commits", n)
	}

	// A rule of the server is reported, and a pull request needs a forge.
	hook := filepath.Join(apps.dir, ".git", "hooks", "pre-receive")
	w.must(os.WriteFile(hook, []byte("#!/bin/sh\necho 'GH006: Protected branch' >&2\nexit 1\n"), 0o755))
	source.commit("fourth")
	w.change(b, func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"agent.kagenti.dev/rerun": "3"}
	})
	w.built(4, "4")
	w.updated("apps", updates.ReasonRefused, "GH006: Protected branch")
	w.edit(u, func() { u.Spec.Policy = "pullRequest" })
	w.updated("apps", updates.ReasonInvalid, "spec.forge: name the kind of server")
	w.edit(u, func() { u.Spec.Branch, u.Spec.Policy = "nowhere", "push" })
	w.updated("apps", updates.ReasonInvalid, "the repository has no such branch: nowhere")
	w.edit(u, func() { u.Spec.Suspend = true })
	w.updated("apps", updates.ReasonSuspended, "")
}

// edit an object against its newest version.
func (w *world) edit(u *updates.ImageUpdate, edit func()) {
	w.Helper()
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(u), u))
	before := u.DeepCopy()
	edit()
	w.must(w.Patch(w.Context(), u, client.MergeFrom(before)))
}
