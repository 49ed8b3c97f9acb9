package controller_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/deliver/flux/controller"
)

func every(interval string) func(*api.RenderedSource) {
	return func(s *api.RenderedSource) { s.Spec.Interval = interval }
}

func at(path string) func(*api.RenderedSource) {
	return func(s *api.RenderedSource) { s.Spec.Path = path }
}

// What is published is what RFC-0012 asks for, it follows the source, and nothing
// is written while nothing changes.
func TestPublish(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	w.repository("fleet", "aaaa",
		map[string]string{"app/settings.yaml": settings, "other/x.yaml": configMap("other", "x")})
	w.rendered("app", "fleet", at("app"), every("1s"))
	s := w.ready("app", "aaaa")
	first := w.published("app")
	if diff := cmp.Diff(map[string][]byte{"settings.yaml": []byte(settings)},
		w.fetch(first)); diff != "" {
		t.Errorf("the archive: %s", diff)
	}
	if want := "main@sha1:aaaa+" + first["digest"].(string); first["revision"] != want ||
		s.Status.Artifact.Revision != want || s.Status.Artifact.Objects != 1 {
		t.Errorf("revision %v and status %+v, want %s", first["revision"], s.Status.Artifact, want)
	}
	if metadata, _, _ := unstructured.NestedString(first, "metadata",
		"org.opencontainers.image.revision"); metadata != "main@sha1:aaaa" {
		t.Errorf("the origin's revision is %q", metadata)
	}
	o := w.object("ExternalArtifact", "app")
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	if !metav1.IsControlledBy(o, s) {
		t.Errorf("owners %v, want the RenderedSource", o.GetOwnerReferences())
	}
	if kind, _, _ := unstructured.NestedString(o.Object, "spec", "sourceRef",
		"kind"); kind != "RenderedSource" {
		t.Errorf("sourceRef %v", o.Object["spec"])
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	if len(conditions) != 1 || conditions[0].(map[string]any)["type"] != "Ready" ||
		conditions[0].(map[string]any)["status"] != "True" {
		t.Errorf("conditions of the ExternalArtifact: %v", conditions)
	}
	if s.Status.ObservedGeneration != s.Generation || len(s.Status.Conditions) != 1 {
		t.Errorf("status %+v", s.Status)
	}

	time.Sleep(2500 * time.Millisecond) // two intervals, in which nothing may happen
	if after := w.get("app"); after.ResourceVersion != s.ResourceVersion {
		t.Errorf("the RenderedSource was written while nothing changed:\n%s", cmp.Diff(s, after))
	}
	again := w.object("ExternalArtifact", "app")
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(o), again))
	if again.GetResourceVersion() != o.GetResourceVersion() {
		t.Errorf("the ExternalArtifact was written while nothing changed:\n%s",
			cmp.Diff(o.Object, again.Object))
	}

	// Somebody edits it: what is declared comes back.
	w.must(unstructured.SetNestedField(again.Object, "http://evil.example/x.tar.gz", "status",
		"artifact", "url"))
	w.must(w.Status().Update(t.Context(), again))
	w.eventually("the address is corrected", func() string {
		return cmp.Diff(first, w.published("app"))
	})

	// A request is handled once, and the same bytes stay the same revision.
	s = w.get("app")
	s.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
	w.must(w.Update(t.Context(), s))
	w.eventually("the request is handled", func() string {
		return strings.TrimPrefix("now", w.get("app").Status.LastHandledReconcileAt)
	})
	if diff := cmp.Diff(first, w.published("app")); diff != "" {
		t.Errorf("the same render was published again: %s", diff)
	}

	// A commit that leaves the folder as it was, then one that changes it.
	w.repository("fleet", "bbbb",
		map[string]string{"app/settings.yaml": settings, "other/x.yaml": configMap("other", "y")})
	w.ready("app", "bbbb")
	if second := w.published("app"); second["digest"] != first["digest"] ||
		second["revision"] == first["revision"] {
		t.Errorf("after another commit with the same render: %v", second)
	}
	w.repository("fleet", "cccc",
		map[string]string{"app/settings.yaml": configMap("settings", "changed")})
	w.ready("app", "cccc")
	if files := w.fetch(w.published("app")); !strings.Contains(string(files["settings.yaml"]),
		"changed") {
		t.Errorf("after a change: %s", files)
	}
}

// A package that does not render keeps what was published and says where it is
// wrong; another package of the same commit goes on.
func TestKeepsLastGood(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	w.repository("fleet", "aaaa",
		map[string]string{"app/settings.yaml": settings, "other/x.yaml": configMap("other", "x")})
	w.rendered("app", "fleet", at("app"))
	w.rendered("other", "fleet", at("other"))
	w.ready("app", "aaaa")
	first := w.published("app")
	w.repository("fleet", "bbbb", map[string]string{"app/settings.yaml": settings + "  broken: [\n",
		"other/x.yaml": configMap("other", "y")})
	message := w.fails("app", "RenderFailed")
	if !strings.Contains(message, "app/settings.yaml:") ||
		!strings.Contains(message, "main@sha1:aaaa stays published") {
		t.Errorf("the message has no place: %s", message)
	}
	if status, _, _ := w.condition("app", "Stalled"); status != "True" {
		t.Errorf("Stalled is %q", status)
	}
	w.eventually("an event says so", func() string {
		var events eventsv1.EventList
		w.must(w.List(t.Context(), &events, client.InNamespace(w.namespace)))
		notes := ""
		for _, e := range events.Items {
			if e.Regarding.Kind == "RenderedSource" && e.Reason == "RenderFailed" &&
				strings.Contains(e.Note, "app/settings.yaml:") {
				return ""
			}
			notes += e.Reason + ": " + e.Note + "\n"
		}
		return "events: " + notes
	})
	if diff := cmp.Diff(first, w.published("app")); diff != "" {
		t.Errorf("the last good artifact is gone: %s", diff)
	}
	w.fetch(first)
	w.ready("other", "bbbb")

	w.repository("fleet", "cccc", map[string]string{"app/README.md": "all manifests are gone\n",
		"other/x.yaml": configMap("other", "y")})
	w.eventually("an empty render is refused", func() string {
		if _, _, message := w.condition("app", "Ready"); !strings.Contains(message,
			"no Kubernetes object is left") {
			return message
		}
		return ""
	})
	if diff := cmp.Diff(first, w.published("app")); diff != "" {
		t.Errorf("the last good artifact is gone: %s", diff)
	}
	w.repository("fleet", "dddd", map[string]string{"app/settings.yaml": settings})
	w.ready("app", "dddd")
	if status, _, _ := w.condition("app", "Stalled"); status != "" {
		t.Errorf("Stalled is still %q", status)
	}
}

// Archives that are changed or lost on the disk are rendered again, also after a
// restart with an empty disk.
func TestStorageIsVerified(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	stop := w.start()
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("app", "fleet", every("1s"))
	s := w.ready("app", "aaaa")
	file := filepath.Join(w.dir, filepath.FromSlash(w.published("app")["path"].(string)))
	whole, err := os.ReadFile(file)
	w.must(err)
	for what, change := range map[string]func() error{
		"tampered": func() error {
			return os.WriteFile(file, append([]byte("x"), whole[1:]...), 0o600)
		},
		"cut": func() error { return os.Truncate(file, 10) },
		"longer": func() error {
			return os.WriteFile(file, append(bytes.Clone(whole), 'x'), 0o600)
		},
		"lost": func() error { return os.Remove(file) },
	} {
		w.must(change())
		w.eventually("what was "+what+" is repaired", func() string {
			data, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(data, whole) {
				return fmt.Sprintf("%d bytes, %v", len(data), err)
			}
			return ""
		})
	}
	stop()
	w.must(os.RemoveAll(filepath.Join(w.dir, "externalartifact")))
	w.start()
	w.eventually("another process publishes again", func() string {
		if after := w.get("app").Status.Artifact; after.URL == s.Status.Artifact.URL ||
			after.Digest != s.Status.Artifact.Digest {
			return fmt.Sprintf("status %+v", after)
		}
		if got := w.published("app")["url"]; got != w.get("app").Status.Artifact.URL {
			return fmt.Sprint("the ExternalArtifact has ", got)
		}
		return ""
	})
	w.fetch(w.published("app"))
}

// A deleted RenderedSource takes its ExternalArtifact and archives along; a
// suspended one publishes nothing new.
func TestSuspendAndDelete(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("app", "fleet", every("1s"))
	s := w.ready("app", "aaaa")
	s.Spec.Suspend = true
	w.must(w.Update(t.Context(), s))
	w.rendered("beside", "fleet")
	w.ready("beside", "aaaa")
	w.repository("fleet", "bbbb", map[string]string{"settings.yaml": configMap("settings", "b")})
	w.ready("beside", "bbbb")
	if got := w.get("app").Status.Artifact.OriginRevision; got != "main@sha1:aaaa" {
		t.Errorf("suspended, it published %s", got)
	}
	w.must(w.Delete(t.Context(), s))
	w.eventually("it is gone", func() string {
		err := w.Get(t.Context(), client.ObjectKeyFromObject(s), s)
		if err == nil || client.IgnoreNotFound(err) != nil {
			return fmt.Sprint(err)
		}
		return ""
	})
	if got := w.published("app"); got != nil {
		t.Errorf("the ExternalArtifact is still there: %v", got)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "externalartifact", w.namespace,
		"app")); !os.IsNotExist(err) {
		t.Errorf("its archives: %v", err)
	}
	w.fetch(w.published("beside"))
}

// An ExternalArtifact that another controller publishes is left alone.
func TestForeignArtifact(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	foreign := w.object("ExternalArtifact", "app")
	w.must(w.Create(t.Context(), foreign))
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("app", "fleet")
	w.fails("app", "NameConflict")
	w.must(w.Delete(t.Context(), w.get("app")))
	w.eventually("the RenderedSource is gone", func() string {
		err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "app"},
			&api.RenderedSource{})
		if err == nil || client.IgnoreNotFound(err) != nil {
			return fmt.Sprint(err)
		}
		return ""
	})
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
	if foreign.GetDeletionTimestamp() != nil || len(foreign.GetOwnerReferences()) > 0 {
		t.Errorf("the other controller's object was changed: %v", foreign.Object)
	}
}

// The API server refuses what cannot work, and says how to fix it.
func TestValidation(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	for text, set := range map[string]func(*api.RenderedSource){
		"leave out the leading / and ..": at("../x"),
		"must be a folder inside":        at("/etc"),
		"a file inside the source": func(s *api.RenderedSource) {
			s.Spec.Config = "a/../../b"
		},
		"at least one second": every("0s"),
		"Unsupported value": func(s *api.RenderedSource) {
			s.Spec.SourceRef.Kind = "HelmChart"
		},
	} {
		s := &api.RenderedSource{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "app"}}
		s.Spec.SourceRef = api.SourceReference{Kind: "GitRepository", Name: "fleet"}
		set(s)
		if err := w.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", s.Spec, err, text)
		}
	}
	w.rendered("app", "fleet", at("a..b/c"))
	if got := w.get("app").Spec.Interval; got != "10m" {
		t.Errorf("the default of interval is %q", got)
	}
}

// Where Flux's kinds are missing nothing runs; it begins when they come.
func TestKindsThatComeLater(t *testing.T) {
	plane := controlplane.Start(t)
	w := newWorld(t, plane)
	w.start()
	folders, err := crdFolders()
	w.must(err)
	w.must(plane.InstallCRDs(folders...))
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("app", "fleet")
	w.ready("app", "aaaa")
	w.repository("fleet", "bbbb", map[string]string{"settings.yaml": configMap("settings", "b")})
	w.ready("app", "bbbb")
}

// The file server serves archives by their full name, and nothing else.
func TestFileServer(t *testing.T) {
	dir := t.TempDir()
	store, err := controller.OpenStore(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("0", 64)+".tar.gz"), []byte("secret"),
		0o644); err != nil {
		t.Fatal(err)
	}
	data := []byte("archive")
	digest := archive.Digest(data)
	if err := store.Put("team", "app", digest, data); err != nil {
		t.Fatal(err)
	}
	hash := strings.TrimPrefix(digest, "sha256:")
	for path, want := range map[string]int{
		"/externalartifact/team/app/" + hash + ".tar.gz":                    200,
		"/externalartifact/team/app/" + strings.Repeat("0", 64) + ".tar.gz": 404,
		"/externalartifact/team/app/":                                       404,
		"/externalartifact/team":                                            404,
		"/":                                                                 404,
		"/externalartifact/../../" + strings.Repeat("0", 64) + ".tar.gz":              404,
		"/externalartifact/%2e%2e/%2e%2e/" + strings.Repeat("0", 64) + ".tar.gz":      404,
		"/externalartifact/team/app/..%2f..%2f" + strings.Repeat("0", 64) + ".tar.gz": 404,
		"/externalartifact/team/app/" + hash + ".tar.gz.part":                         404,
	} {
		r, err := http.NewRequest(http.MethodGet, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer := newRecorder()
		store.ServeHTTP(answer, r)
		if answer.status != want || want == 200 && answer.body.String() != "archive" ||
			strings.Contains(answer.body.String(), "secret") {
			t.Errorf("%s is answered %d %q, want %d", path, answer.status, answer.body.String(), want)
		}
	}
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodDelete} {
		r, err := http.NewRequest(method, "/externalartifact/team/app/"+hash+".tar.gz",
			strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		answer := newRecorder()
		store.ServeHTTP(answer, r)
		if answer.status != http.StatusMethodNotAllowed {
			t.Errorf("%s is answered %d", method, answer.status)
		}
	}
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newRecorder() *recorder {
	return &recorder{header: http.Header{}, status: 200}
}
func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// Of the archives of an object the published one and the one before it are kept,
// that one for a while.
func TestCollect(t *testing.T) {
	dir := t.TempDir()
	store, err := controller.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	begun := time.Now().Add(-time.Hour)
	var digests []string
	folder := filepath.Join(dir, "externalartifact", "team", "app")
	for i := range 4 {
		data := []byte{byte(i)}
		digest := archive.Digest(data)
		digests = append(digests, digest)
		if err := store.Put("team", "app", digest, data); err != nil {
			t.Fatal(err)
		}
		when := begun.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(filepath.Join(folder, strings.TrimPrefix(digest, "sha256:")+".tar.gz"),
			when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "x.tar.gz.part"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	holds := func() (out string) {
		for i, d := range digests {
			if store.Holds("team", "app", d, 1) {
				out += fmt.Sprint(i)
			}
		}
		return out
	}
	for _, c := range []struct {
		after time.Duration
		want  string
	}{{5 * time.Minute, "23"}, {20 * time.Minute, "3"}} {
		if err := store.Collect("team", "app", digests[3], begun.Add(c.after),
			10*time.Minute); err != nil {
			t.Fatal(err)
		}
		if got := holds(); got != c.want {
			t.Errorf("after %s archives %s are left, want %s", c.after, got, c.want)
		}
	}
	if err := store.Sweep(func(string, string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("after the sweep: %v", err)
	}
}

// Whenever the process is killed, each archive with its final name is whole, and
// the one that the ExternalArtifact names is there.
func TestKilled(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	large := strings.Repeat("# a long comment, so that writing takes a moment\n", 20_000)
	commit := func(i int) {
		w.repository("fleet", fmt.Sprint("c", i),
			map[string]string{"settings.yaml": configMap("settings", fmt.Sprint("v", i)) + large})
	}
	commit(0)
	w.rendered("app", "fleet", every("1s"))
	_, kill := w.process()
	w.ready("app", "c0")
	begun := time.Now()
	commit(100)
	w.ready("app", "c100")
	took := time.Since(begun)
	moments := map[string]int{}
	for i := 1; i <= 16; i++ {
		commit(i)
		moment := rand.N(took * 3 / 2)
		time.Sleep(moment)
		kill()
		published := w.published("app")
		if before, _, _ := strings.Cut(published["revision"].(string),
			"+"); before == fmt.Sprint("main@sha1:c", i) {
			moments["after"]++
		} else {
			moments["before"]++
		}
		named := filepath.Join(w.dir, filepath.FromSlash(published["path"].(string)))
		data, err := os.ReadFile(named)
		if err != nil || archive.Check(data, published["digest"].(string)) != nil {
			t.Fatalf("killed after %s, the published archive is not whole: %v", moment, err)
		}
		w.must(filepath.WalkDir(w.dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".tar.gz") {
				return err
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return archive.Check(data, "sha256:"+strings.TrimSuffix(filepath.Base(file), ".tar.gz"))
		}))
		_, kill = w.process()
		w.ready("app", fmt.Sprint("c", i))
	}
	kill()
	t.Logf("a replacement takes %s; killed before and after it was published: %v", took, moments)
}
