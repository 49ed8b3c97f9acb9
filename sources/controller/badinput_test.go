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

	"github.com/armature-dev/armature/sources/api"
	"github.com/armature-dev/armature/sources/archive"
)

// Each bad input has a clear condition, publishes nothing and harms no other.
func TestBadInput(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	good := pack(t, map[string]string{"settings.yaml": settings})
	artifactAt := func(path string, data []byte, digest string) map[string]any {
		if data != nil {
			w.serve(path, data)
		}
		return map[string]any{"digest": digest, "path": path, "url": w.host.URL + path, "revision": "main@sha1:aaaa", "lastUpdateTime": "2026-11-22T20:00:00Z"}
	}
	packed := func(path string, files map[string]string) map[string]any {
		data := pack(t, files)
		return artifactAt(path, data, archive.Digest(data))
	}
	foreign := artifactAt("/x", nil, archive.Digest(good))
	foreign["url"] = "http://169.254.169.254/latest/meta-data"
	disguised := artifactAt("/x", nil, archive.Digest(good))
	disguised["url"] = "http://127.0.0.1@evil.example/x"
	file := artifactAt("/x", nil, archive.Digest(good))
	file["url"] = "file:///etc/passwd"
	links, zipped, gib := linked(t), zippedLinks(t), declaredGiB(t)
	for name, c := range map[string]struct {
		artifact     map[string]any
		set          func(*api.RenderedSource)
		reason, text string
	}{
		"declared-gib": {artifactAt("/declared-gib", nil, archive.Digest(good)), nil, "InvalidArchive", "1073741824 bytes"},
		"endless":      {artifactAt("/endless", nil, archive.Digest(good)), nil, "InvalidArchive", "larger than the limit"},
		"unpacked-gib": {artifactAt("/unpacked-gib", gib, archive.Digest(gib)), nil, "InvalidArchive", "1073741824 bytes"},
		"zip":          {artifactAt("/zip", zipped, archive.Digest(zipped)), nil, "InvalidArchive", "not gzipped"},
		"links":        {artifactAt("/links", links, archive.Digest(links)), nil, "InvalidArchive", "is a link"},
		"remote":       {packed("/remote", map[string]string{"kustomization.yaml": "resources: ['https://github.com/o/r']\n"}), nil, "RenderFailed", "remote base"},
		"cycle":        {packed("/cycle", map[string]string{"a/kustomization.yaml": "resources: [../b]\n", "b/kustomization.yaml": "resources: [../a]\n"}), at("a"), "RenderFailed", "its own base"},
		"digest":       {artifactAt("/digest", good, archive.Digest([]byte("other"))), nil, "InvalidArchive", "does not have the digest"},
		"not-there":    {artifactAt("/not-there", nil, archive.Digest(good)), nil, "FetchFailed", "404"},
		"redirect":     {artifactAt("/elsewhere", nil, archive.Digest(good)), nil, "FetchFailed", "redirect is not followed"},
		"foreign-host": {foreign, nil, "AccessDenied", "not fetched from this host"},
		"disguised":    {disguised, nil, "AccessDenied", "not fetched from this host"},
		"file":         {file, nil, "AccessDenied", "not fetched from this host"},
		"namespace":    {packed("/namespace", map[string]string{"settings.yaml": settings}), func(s *api.RenderedSource) { s.Spec.SourceRef.Namespace = "default" }, "AccessDenied", "another namespace"},
		"itself":       {packed("/itself", map[string]string{"settings.yaml": settings}), func(s *api.RenderedSource) { s.Spec.SourceRef.Kind = "ExternalArtifact" }, "CyclicSource", "itself → itself: a RenderedSource cannot render what it publishes"},
		"no-source":    {packed("/no-source", map[string]string{"settings.yaml": settings}), func(s *api.RenderedSource) { s.Spec.SourceRef.Name = "nobody" }, "SourceNotReady", "does not exist"},
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

// linked is an archive with a link.
func linked(t *testing.T) []byte {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	tarred := tar.NewWriter(zipped)
	for i := range 100 {
		if err := tarred.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: fmt.Sprint(i, ".yaml"), Linkname: "/var/run/secrets/kubernetes.io/serviceaccount/token"}); err != nil {
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
	if err := tar.NewWriter(zipped).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a.yaml", Size: 1 << 30, Mode: 0o644}); err != nil {
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
		return func(s *api.RenderedSource) { s.Spec.SourceRef = api.SourceReference{Kind: kind, Name: name} }
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
	for name, want := range map[string]string{"one": "one → two → one: ", "two": "two → one → two: "} {
		if message := w.fails(name, "CyclicSource"); !strings.HasPrefix(message, want) || !strings.Contains(message, "stays published") {
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
		if status, reason, message := w.condition("two", "Ready"); status != "True" || w.published("two")["digest"] == two["digest"] {
			return reason + ": " + message
		}
		return ""
	})
}
