package controller_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
)

// Each bad input has a clear condition, publishes nothing and harms no other.
func TestBadInput(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	good := pack(t, map[string]string{"settings.yaml": settings})
	artifactAt := func(name string, data []byte, digest string) map[string]any {
		path := w.path("GitRepository", name, name)
		if data != nil {
			w.serve(path, data)
		}
		return map[string]any{"digest": digest, "path": path, "url": w.host.URL + path,
			"revision": "main@sha1:aaaa", "lastUpdateTime": "2026-11-22T20:00:00Z"}
	}
	packed := func(name string, files map[string]string) map[string]any {
		data := pack(t, files)
		return artifactAt(name, data, archive.Digest(data))
	}
	foreign := artifactAt("x", nil, archive.Digest(good))
	foreign["url"] = "http://169.254.169.254/latest/meta-data"
	disguised := artifactAt("x", nil, archive.Digest(good))
	disguised["url"] = "http://127.0.0.1@evil.example/x"
	file := artifactAt("x", nil, archive.Digest(good))
	file["url"] = "file:///etc/passwd"
	links, zipped, gib := linked(t), zippedLinks(t), declaredGiB(t)
	for name, c := range map[string]struct {
		artifact     map[string]any
		set          func(*api.RenderedSource)
		reason, text string
	}{
		"declared-gib": {artifactAt("declared-gib", nil, archive.Digest(good)), nil,
			"InvalidArchive", "1073741824 bytes"},
		"endless": {artifactAt("endless", nil, archive.Digest(good)), nil, "InvalidArchive",
			"larger than the limit"},
		"unpacked-gib": {artifactAt("unpacked-gib", gib, archive.Digest(gib)), nil,
			"InvalidArchive", "1073741824 bytes"},
		"zip": {artifactAt("zip", zipped, archive.Digest(zipped)), nil, "InvalidArchive",
			"not gzipped"},
		"links": {artifactAt("links", links, archive.Digest(links)), nil, "InvalidArchive",
			"is a link"},
		"remote": {packed("remote",
			map[string]string{"kustomization.yaml": "resources: ['https://github.com/o/r']\n"}),
			nil, "RenderFailed", "remote base"},
		"cycle": {packed("cycle",
			map[string]string{"a/kustomization.yaml": "resources: [../b]\n",
				"b/kustomization.yaml": "resources: [../a]\n"}), at("a"), "RenderFailed",
			"its own base"},
		"digest": {artifactAt("digest", good, archive.Digest([]byte("other"))), nil,
			"InvalidArchive", "does not have the digest"},
		"not-there": {artifactAt("not-there", nil, archive.Digest(good)), nil, "FetchFailed",
			"404"},
		"redirect": {artifactAt("redirect", nil, archive.Digest(good)), nil, "FetchFailed",
			"redirect is not followed"},
		"foreign-host": {foreign, nil, "AccessDenied", "not fetched from this host"},
		"disguised":    {disguised, nil, "AccessDenied", "not fetched from this host"},
		"file":         {file, nil, "AccessDenied", "not the address of an archive of this source"},
		"namespace": {packed("namespace", map[string]string{"settings.yaml": settings}),
			func(s *api.RenderedSource) { s.Spec.SourceRef.Namespace = "default" }, "AccessDenied",
			"another namespace"},
		"itself": {packed("itself", map[string]string{"settings.yaml": settings}),
			func(s *api.RenderedSource) { s.Spec.SourceRef.Kind = "ExternalArtifact" },
			"CyclicSource", "itself → itself: a RenderedSource cannot render what it publishes"},
		"no-source": {packed("no-source", map[string]string{"settings.yaml": settings}),
			func(s *api.RenderedSource) { s.Spec.SourceRef.Name = "nobody" }, "SourceNotReady",
			"does not exist"},
	} {
		w.artifact(name, c.artifact)
		if c.set == nil {
			c.set = at("")
		}
		w.rendered(name, name, c.set)
		defer func() {
			if message := w.fails(name, c.reason); !strings.Contains(message, c.text) {
				t.Errorf("%s: message lacks %q: %s", name, c.text, message)
			}
			if got := w.published(name); got != nil {
				t.Errorf("%s published %v", name, got)
			}
		}()
	}
	w.repository("good", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("good", "good")
	w.ready("good", "aaaa")
}

// Who may patch the status of a source reads no archive but those of that source, however
// the URL is spelled, and learns no digest.
func TestForeignArchives(t *testing.T) {
	w, victim := newWorld(t, shared.Get(t)), newWorld(t, shared.Get(t))
	w.start()
	victim.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	secret := pack(t, map[string]string{"settings.yaml": configMap("settings", "secret")})
	file := victim.path("GitRepository", "fleet", "aaaa.tar.gz")
	victim.serve(file, secret)
	own, host := "/gitrepository/"+w.namespace, victim.host.URL
	spellings := map[string]string{
		"foreign": host + file,
		"dots":    host + own + "/NAME/../.." + strings.TrimPrefix(file, "/gitrepository"),
		"encoded-dots": host + own + "/NAME/%2e%2e/%2e%2e" +
			strings.TrimPrefix(file, "/gitrepository"),
		"encoded-slash": host + own + "/NAME/..%2f..%2f" + victim.namespace +
			"%2ffleet%2faaaa.tar.gz",
		"twice-encoded": host + own + "/NAME/%252e%252e%252ffleet",
		"backslash":     host + own + `/NAME/..\..\` + victim.namespace,
		"empty-segment": host + own + "//NAME/a.tar.gz",
		"folder":        host + own + "/NAME/",
		"deeper":        host + own + "/NAME/a/b.tar.gz",
		"dot-file":      host + own + "/NAME/..",
		"other-source":  host + own + "/good/aaaa.tar.gz",
		"other-kind":    host + "/bucket/" + w.namespace + "/NAME/a.tar.gz",
		"upper-case":    host + "/GitRepository/" + w.namespace + "/NAME/a.tar.gz",
		"query":         host + own + "/NAME/a.tar.gz?path=" + file,
		"fragment":      host + own + "/NAME/a.tar.gz#" + file,
		"user": strings.Replace(host, "http://", "http://user@", 1) + own +
			"/NAME/a.tar.gz",
		"other-host":  "http://evil.example" + own + "/NAME/a.tar.gz",
		"no-scheme":   strings.TrimPrefix(host, "http:") + own + "/NAME/a.tar.gz",
		"control":     host + own + "/NAME/a\n.tar.gz",
		"longer-name": host + own + "/NAME%2ehidden/a.tar.gz",
	}
	digests := []string{archive.Digest(secret), archive.Digest([]byte("a guess"))}
	for name, url := range spellings {
		for i, digest := range digests {
			name := fmt.Sprint(name, "-", i)
			w.artifact(name, map[string]any{"digest": digest, "path": "x",
				"url": strings.ReplaceAll(url, "NAME", name), "revision": "main@sha1:aaaa",
				"lastUpdateTime": "2026-11-22T20:00:00Z"})
			w.rendered(name, name)
		}
	}
	for name := range spellings {
		for i := range digests {
			name := fmt.Sprint(name, "-", i)
			message := w.fails(name, "AccessDenied")
			if strings.Contains(message, "secret") ||
				strings.Contains(message, archive.Digest(secret)) {
				t.Errorf("%s: the message gives the archive away: %s", name, message)
			}
			if got := w.published(name); got != nil {
				t.Errorf("%s published %v", name, got)
			}
		}
	}
	if n := victim.requests.Load(); n > 0 {
		t.Errorf("%d requests were made for archives of others", n)
	}

	// The archive of the source itself is compared, and the message has no digest of it.
	w.repository("own", "aaaa", map[string]string{"settings.yaml": settings})
	path := w.path("GitRepository", "own", "bbbb.tar.gz")
	w.serve(path, secret)
	w.artifact("own", map[string]any{"digest": digests[1], "path": path, "url": w.host.URL + path,
		"revision": "main@sha1:bbbb", "lastUpdateTime": "2026-11-22T20:00:00Z"})
	w.rendered("own", "own")
	if message := w.fails("own", "InvalidArchive"); strings.Contains(message,
		strings.TrimPrefix(digests[0], "sha256:")) {
		t.Errorf("the message has the digest of what was fetched: %s", message)
	}
}

// linked is an archive with a link.
func linked(t *testing.T) []byte {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	tarred := tar.NewWriter(zipped)
	for i := range 100 {
		if err := tarred.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink,
			Name:     fmt.Sprint(i, ".yaml"),
			Linkname: "/var/run/secrets/kubernetes.io/serviceaccount/token"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tarred.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// zippedLinks is a zip with links.
func zippedLinks(t *testing.T) []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for i := range 100 {
		h := &zip.FileHeader{Name: fmt.Sprint(i, ".yaml")}
		h.SetMode(fs.ModeSymlink | 0o777)
		f, err := w.CreateHeader(h)
		if err == nil {
			_, err = f.Write([]byte("/var/run/secrets/kubernetes.io/serviceaccount/token"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// declaredGiB is a small archive whose only file has 1 GiB, as its header says.
func declaredGiB(t *testing.T) []byte {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	if err := tar.NewWriter(zipped).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a.yaml",
		Size: 1 << 30, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := zipped.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// RenderedSources that begin to render each other stop: each render of one would be a
// new revision for the other. What they published stays, and others of the namespace go on.
func TestCyclicSources(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("one", "fleet", every("1s"))
	w.ready("one", "aaaa")
	of := func(kind, name string) func(*api.RenderedSource) {
		return func(s *api.RenderedSource) {
			s.Spec.SourceRef = api.SourceReference{Kind: kind, Name: name}
		}
	}
	w.rendered("two", "", every("1s"), of("ExternalArtifact", "one"))
	w.eventually("two renders one", func() string {
		if status, reason, message := w.condition("two", "Ready"); status != "True" {
			return reason + ": " + message
		}
		return ""
	})
	one, two := w.published("one"), w.published("two")

	w.change("one", of("ExternalArtifact", "two"))
	for name, want := range map[string]string{"one": "one → two → one: ",
		"two": "two → one → two: "} {
		if message := w.fails(name, "CyclicSource"); !strings.HasPrefix(message, want) ||
			!strings.Contains(message, "stays published") {
			t.Errorf("the message of %s lacks %q: %s", name, want, message)
		}
	}
	if diff := cmp.Diff([]any{one, two}, []any{w.published("one"), w.published("two")}); diff != "" {
		t.Errorf("what was published has changed: %s", diff)
	}
	w.rendered("beside", "fleet")
	w.ready("beside", "aaaa")
	w.rendered("behind", "", of("ExternalArtifact", "two")) // a cycle that it is not part of
	w.eventually("a render of what is still published", func() string {
		if status, reason, message := w.condition("behind", "Ready"); status != "True" {
			return reason + ": " + message
		}
		return ""
	})

	w.change("one", of("GitRepository", "fleet"))
	w.repository("fleet", "bbbb", map[string]string{"settings.yaml": configMap("settings", "b")})
	w.ready("one", "bbbb")
	w.eventually("two goes on", func() string {
		if status, reason, message := w.condition("two", "Ready"); status != "True" ||
			w.published("two")["digest"] == two["digest"] {
			return reason + ": " + message
		}
		return ""
	})
}
