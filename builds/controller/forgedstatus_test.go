package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// writesBack is an ImageUpdate apps of the namespace, which writes the branch main of a repository.
func (w *world) writesBack(builds ...string) (apps *repository) {
	w.Helper()
	apps = w.serveGit("hunter2")
	apps.git("config", "http.receivepack", "true")
	apps.git("config", "receive.denyCurrentBranch", "ignore")
	w.login("apps-login", compose.PurposeGit, map[string]string{"token": "hunter2"})
	w.must(w.Client.Create(w.Context(),
		&updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "apps"},
			Spec: updates.ImageUpdateSpec{
				Repository: apps.url, Branch: "main", Builds: builds,
				Credentials: updates.SecretReference{Name: "apps-login"},
				Author:      &updates.Author{Name: "Armature", Email: "bot@example.com"}}}))
	return apps
}

// numbered waits for a run of a build.
func (w *world) numbered(build, number string) (run *tektonv1.PipelineRun) {
	w.Helper()
	w.eventually("build "+build+" has run "+number, func() string {
		for _, r := range w.runs() {
			if r.Annotations[keys.AnnotationBuild] == build &&
				r.Annotations[keys.AnnotationNumber] == number {
				run = &r
				return ""
			}
		}
		return "none"
	})
	return run
}

// attest the next run of a build with an image of its own, and give its digest and the attestation.
func (w *world) attest(s *shop, build, number string) (digest string, a api.Attestation) {
	w.Helper()
	if number != "1" {
		w.change(w.build(build), func(b *api.AgentBuild) {
			b.Annotations = map[string]string{api.RerunAnnotation(api.DefaultGroup): number}
		})
	}
	run := w.numbered(build, number)
	digest = s.push(w.TB, build+":v1")
	w.play(run, digest)
	w.eventually(build+" is attested", func() string {
		b := w.build(build)
		if b.Status.Phase != api.PhaseSucceeded ||
			!strings.HasSuffix(b.Status.BuiltImage, digest) || b.Status.Attestation == nil {
			return string(b.Status.Phase) + ": " + b.Status.Message
		}
		a = *b.Status.Attestation
		return ""
	})
	return digest, a
}

// forge the status of a build, as an administrator of the namespace can.
func (w *world) forge(build string, edit func(*api.AgentBuildStatus)) {
	w.Helper()
	b := w.build(build)
	before := b.DeepCopy()
	edit(&b.Status)
	w.must(w.Status().Patch(w.Context(), b, client.MergeFrom(before)))
}

// unattached pushes an image to which nothing is attached.
func (s *shop) unattached(t testing.TB, repository string) string {
	t.Helper()
	return s.host + "/" + repository + ":v1@" + s.push(t, repository+":evil")
}

// Whatever an administrator of the namespace writes into the status of an attested build, no commit
// has anything but what the platform attested of that build.
func TestForgedStatusIsNotWritten(t *testing.T) {
	for _, keyless := range []bool{false, true} {
		t.Run(map[bool]string{false: "key", true: "identity"}[keyless], func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			if keyless {
				w.keyless()
			}
			w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
			w.start()
			// no run is left that status could be read of
			sold := func(b *api.AgentBuild) { s.sold(b); b.Spec.CleanupAfterBuild = nil }
			w.create("weather", sold)
			w.create("traffic", sold)
			oldest, oldAttestation := w.attest(s, "weather", "1")
			foreign, foreignAttestation := w.attest(s, "traffic", "1")
			time.Sleep(1100 * time.Millisecond) // times of runs are in seconds
			digest, attestation := w.attest(s, "weather", "2")
			honest := w.build("weather").Status
			w.eventually("no run is left", func() string {
				if n := len(w.runs()); n > 0 {
					return fmt.Sprintf("%d runs", n)
				}
				return ""
			})

			// The source is that of the statement. While the registry does not answer, nothing is
			// written.
			w.forge("weather", func(s *api.AgentBuildStatus) {
				s.Source.Git.CommitSHA = strings.Repeat("f", 40)
			})
			s.fails.Store(1 << 40)
			apps := w.writesBack("weather", "plain")
			w.updated("apps", updates.ReasonFailed, "503")
			if n := apps.git("rev-list", "--count", "main"); n != "1" {
				t.Fatalf("%s commits", n)
			}
			s.fails.Store(0)
			w.updated("apps", updates.ReasonUpToDate, "")
			message := apps.git("log", "-1", "--format=%B", "main")
			for _, want := range []string{"Armature-Attestation: " + attestation.ProvenanceDigest,
				"Armature-Source: https://github.com/org/weather.git@" + sha} {
				if !strings.Contains(message, want) {
					t.Errorf("%s is not in\n%s", want, message)
				}
			}
			if lock := apps.git("show", "main:armature.lock"); !strings.Contains(lock, digest) ||
				!strings.Contains(lock, sha) {
				t.Error(lock)
			}

			s.copy(t, "traffic@"+foreign, "weather")
			head := apps.git("rev-parse", "main")
			claim := func(image string, a api.Attestation) func(*api.AgentBuildStatus) {
				return func(s *api.AgentBuildStatus) {
					s.BuiltImage, s.Attestation = image, &a
					s.Attestation.Image = image
				}
			}
			ours, evil, bare :=
				s.host+"/weather:v1@", s.unattached(t, "weather"), s.unattached(t, "weather")
			for _, attack := range []struct {
				what, image, reason, says string
				edit                      func(*api.AgentBuildStatus)
			}{
				{"an image that nobody attested", evil, updates.ReasonNotAttested,
					"the registry has no attestation of", claim(evil, attestation)},
				{"an attestation that does not exist", bare, updates.ReasonNotAttested,
					"the registry has no attestation of",
					claim(bare, api.Attestation{RunUID: "1", BuilderID: prodBuilder, Level: 3,
						Provenance: ours + digest, ProvenanceDigest: digest})},
				{"no attestation at all", evil, updates.ReasonNotAttested,
					"the registry has no attestation of",
					func(s *api.AgentBuildStatus) { s.BuiltImage, s.Attestation = evil, nil }},
				{"another build's attestation", ours + foreign, updates.ReasonNotAttested,
					"as that of AgentBuild " + w.namespace + "/traffic",
					claim(ours+foreign, foreignAttestation)},
				{"another build's image", s.host + "/traffic:v1@" + foreign,
					updates.ReasonNotAttested, "spec.buildOutput names " + s.host + "/weather:v1",
					claim(s.host+"/traffic:v1@"+foreign, foreignAttestation)},
				{"an older attestation of the same build", ours + oldest, updates.ReasonHeldBack,
					"the image in the lock was built after it", claim(ours+oldest, oldAttestation)},
			} {
				w.forge("weather", attack.edit)
				u := w.updated("apps", attack.reason, attack.says)
				if b := w.build("weather"); b.Status.BuiltImage != attack.image ||
					len(u.Status.Held) != 1 || u.Status.Held[0].Image != attack.image {
					t.Errorf("%s: status %s, held %+v", attack.what, b.Status.BuiltImage, u.Status.Held)
				}
				if ready := u.Status.Conditions[0]; !strings.Contains(ready.Message, "hint: ") ||
					ready.Status != metav1.ConditionFalse {
					t.Errorf("%s: %+v", attack.what, ready)
				}
				if now := apps.git("rev-parse", "main"); now != head {
					t.Fatalf("%s: %s", attack.what, apps.git("show", "main"))
				}
				w.forge("weather", func(s *api.AgentBuildStatus) {
					s.BuiltImage, s.Attestation =
						honest.BuiltImage, honest.Attestation
				})
				w.updated("apps", updates.ReasonUpToDate, "")
			}

			// A build of a mode that is not attested is written, and called that, whatever it
			// claims.
			w.create("plain")
			w.succeed(w.numbered("plain", "1"))
			plain := w.phase("plain", api.PhaseSucceeded).Status.BuiltImage
			w.forge("plain", claim(plain, attestation))
			w.eventually("the image is in the lock", func() string {
				if lock := apps.git("show", "main:armature.lock"); !strings.Contains(lock, plain) {
					return lock
				}
				return ""
			})
			if message := apps.git("log", "-1", "--format=%B",
				"main"); !strings.Contains(message, "Armature-Attestation: unattested") ||
				strings.Contains(message, attestation.ProvenanceDigest) {
				t.Error(message)
			}
			w.forge("plain", claim(ours+digest, attestation))
			w.updated("apps", updates.ReasonNotAttested,
				"spec.buildOutput names registry.local:5000/plain:v1")
		})
	}
}

// copy an image with all that refers to it into another repository.
func (s *shop) copy(t testing.TB, from, repository string) {
	t.Helper()
	image := s.ref(t, from).(name.Digest)
	index, err := remote.Referrers(image, s.options()...)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digests := []string{image.DigestStr()}
	for _, d := range manifest.Manifests {
		digests = append(digests, d.Digest.String())
	}
	for _, digest := range digests {
		one, err := remote.Image(image.Context().Digest(digest), s.options()...)
		if err == nil {
			err = remote.Write(s.ref(t, repository+"@"+digest), one, s.options()...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// An AgentBuild that is made again under its name has nothing of the one before.
func TestStatusOfARecreatedBuildIsNotWritten(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	w.start()
	w.create("weather", s.sold)
	_, _ = w.attest(s, "weather", "1")
	before := w.build("weather")
	w.must(w.Client.Delete(t.Context(), before))
	w.eventually("it is gone", func() string {
		if err := w.Get(t.Context(), client.ObjectKeyFromObject(before),
			&api.AgentBuild{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
	w.create("weather", s.sold, func(b *api.AgentBuild) { b.Spec.Cancel = true })
	w.phase("weather", api.PhaseCancelled)
	w.forge("weather", func(s *api.AgentBuildStatus) {
		generation := s.ObservedGeneration
		*s = before.Status
		s.ObservedGeneration = generation
	})
	apps := w.writesBack()
	w.updated("apps", updates.ReasonNotAttested,
		"another AgentBuild of this name, with the UID "+string(before.UID))
	if n := apps.git("rev-list", "--count", "main"); n != "1" {
		t.Errorf("%s commits", n)
	}
}
