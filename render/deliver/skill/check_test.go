package skill

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/skills"
)

// shelf is a registry with images of skills.
type shelf struct {
	*testing.T
	host string
}

func newShelf(t *testing.T) shelf {
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	return shelf{t, strings.TrimPrefix(server.URL, "http://")}
}

// push stores an image or an index, and returns its reference by digest.
func (s shelf) push(image remote.Taggable) name.Digest {
	s.Helper()
	tag, err := name.NewTag(s.host + "/skills/pdf-processing:v1")
	if err != nil {
		s.Fatal(err)
	}
	if index, ok := image.(v1.ImageIndex); ok {
		err = remote.WriteIndex(tag, index)
	} else {
		err = remote.Write(tag, image.(v1.Image))
	}
	if err != nil {
		s.Fatal(err)
	}
	found, err := remote.Get(tag)
	if err != nil {
		s.Fatal(err)
	}
	return tag.Context().Digest(found.Digest.String())
}

// entry is a file of a layer; content is behind its header.
type entry struct {
	tar.Header
	content string
}

func plain(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: int64(len(content))}, content}
}

func layerOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := multi.Errors(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func imageOf(t *testing.T, mediaType types.MediaType, layers ...[]byte) v1.Image {
	t.Helper()
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON)
	for _, layer := range layers {
		var err error
		if image, err = mutate.AppendLayers(image, static.NewLayer(layer, mediaType)); err != nil {
			t.Fatal(err)
		}
	}
	return image
}

// TestCheck: what push makes passes, also as others build it: with folders, names that begin
// with ./, by Docker, and as an index of platforms with an attestation.
func TestCheck(t *testing.T) {
	s := newShelf(t)
	dir := folder(t, map[string]string{Manifest: valid, "scripts/run.sh": "#!/bin/sh\n",
		"references/a/b.md": "b"})
	ours, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := ours.Image()
	if err != nil {
		t.Fatal(err)
	}
	theirs := imageOf(t, types.DockerLayer,
		layerOf(t, entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}},
			plain("./"+Manifest, strings.ReplaceAll(valid, "\n", "\r\n")),
			entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./assets/", Mode: 0o2755}},
			plain("./assets/a", "a")))
	attestation := imageOf(t, "application/vnd.in-toto+json", []byte("{}"))
	platforms := func(images ...v1.Image) (index v1.ImageIndex) {
		index = empty.Index
		for _, image := range images {
			index = mutate.AppendManifests(index,
				mutate.IndexAddendum{Add: image,
					Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux",
						Architecture: "arm64"}}})
		}
		return mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: attestation,
				Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown",
					Architecture: "unknown"}}})
	}
	for what, image := range map[string]remote.Taggable{"pushed": pushed, "of Docker": theirs,
		"index": platforms(pushed, theirs)} {
		if found, err := Check(t.Context(), s.push(image), "pdf-processing", nil); err != nil ||
			found.License != "Apache-2.0" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Check(t.Context(), s.push(pushed), "pdf", nil); err == nil ||
		!strings.Contains(err.Error(), `the name "pdf-processing" is not the folder's, "pdf"`) {
		t.Error(err)
	}
	link := imageOf(t, types.OCILayer, layerOf(t, plain(Manifest, valid),
		entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"}}))
	if _, err := Check(t.Context(), s.push(platforms(pushed, link)), "", nil); err == nil ||
		!strings.Contains(err.Error(), "is a link") {
		t.Errorf("a link on one platform: %v", err)
	}
	if _, err := Check(t.Context(), s.push(platforms()), "", nil); err == nil ||
		!strings.Contains(err.Error(), "without images") {
		t.Errorf("an index of attestations: %v", err)
	}
}

// TestHostile: images that are refused, with the image, what is wrong and the remedy.
func TestHostile(t *testing.T) {
	s := newShelf(t)
	skill := plain(Manifest, valid)
	head := func(text string) []byte { return layerOf(t, plain(Manifest, text)) }
	of := func(h tar.Header) []byte { return layerOf(t, skill, entry{Header: h}) }
	var files, folders []entry
	for i := range maxFiles {
		files = append(files, plain(fmt.Sprintf("f%d", i), ""))
	}
	for i := range 2*maxFiles + 1 {
		folders = append(folders,
			entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("d%d/", i)}})
	}
	big := strings.Repeat("a", maxFile)
	for name, c := range map[string]struct {
		want   string
		layers [][]byte
	}{
		"symlink out": {`"out" is a link`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeSymlink, Name: "out",
				Linkname: "../../etc/passwd"})}},
		"symlink absolute": {`"out" is a link`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeSymlink, Name: "out",
				Linkname: "/etc/passwd"})}},
		"symlink inside": {`"in" is a link`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeSymlink, Name: "in", Linkname: Manifest})}},
		"hard link": {`"out" is a link`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeLink, Name: "out",
				Linkname: "../../etc/passwd"})}},
		"SKILL.md a link": {`"SKILL.md" is a link`,
			[][]byte{layerOf(t,
				entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: Manifest,
					Linkname: "/etc/passwd"}})}},
		"device": {`"null" is neither file nor folder`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1,
				Devminor: 3})}},
		"block device": {`"sda" is neither file nor folder`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8})}},
		"pipe": {`"pipe" is neither file nor folder`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"})}},
		"set-uid": {`"su" is set-uid or set-gid`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o4755})}},
		"set-gid": {`"su" is set-uid or set-gid`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o2755})}},
		"capabilities": {`"run" has the extended attribute "security.capability"`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeReg, Name: "run", Mode: 0o755,
				PAXRecords: map[string]string{
					"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00"}})}},
		"overlay": {`"a/" has the extended attribute "trusted.overlay.opaque"`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeDir, Name: "a/",
				PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}})}},
		"overlay of a user": {`"a" has the extended attribute "user.overlay.redirect"`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeReg, Name: "a",
				PAXRecords: map[string]string{
					"LIBARCHIVE.xattr.user.overlay.redirect": "L2V0Yw"}})}},
		"for all files": {"has the extended attribute",
			[][]byte{of(tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header",
				PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}})}},
		"parent": {`"../a" leads out of it`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeReg, Name: "../a"})}},
		"parent in between": {`"a/../../b" leads out of it`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeReg, Name: "a/../../b"})}},
		"absolute": {`"/etc/cron.d/a" leads out of it`,
			[][]byte{of(tar.Header{Typeflag: tar.TypeReg, Name: "/etc/cron.d/a"})}},
		"twice": {`it has "SKILL.md" twice`, [][]byte{layerOf(t, skill, skill)}},
		"whiteout": {"start with .wh",
			[][]byte{layerOf(t, skill, plain("a/.wh..wh..opq", ""))}},
		"whiteout folder": {"start with .wh", [][]byte{layerOf(t, skill, plain(".wh.a/b", ""))}},
		"hidden characters": {"control characters",
			[][]byte{layerOf(t, skill, plain("a\u202eb", ""))}},
		"backslash": {"characters that a path may not have",
			[][]byte{layerOf(t, skill, plain(`..\a`, ""))}},
		"many files": {"more than 1000 files",
			[][]byte{layerOf(t, append(files, skill)...)}},
		"many folders": {"more than 2000 files and folders",
			[][]byte{layerOf(t, append(folders, skill)...)}},
		"large file": {"larger than the limit",
			[][]byte{layerOf(t, skill, plain("big", big+"a"))}},
		"large together": {"larger than the limit",
			[][]byte{layerOf(t, skill, plain("a", big), plain("b", big), plain("c", big),
				plain("d", big))}},
		"two layers":  {"it has 2 layers", [][]byte{head(valid), layerOf(t, plain("a", ""))}},
		"no layer":    {"it has 0 layers", nil},
		"not gzipped": {"it is not gzipped", [][]byte{[]byte("plain")}},
		"cut off":     {"the archive is refused", [][]byte{head(valid)[:60]}},
		"no SKILL.md": {"it has no SKILL.md at its root",
			[][]byte{layerOf(t, plain("pdf/"+Manifest, valid))}},
		"no front matter": {"no front matter", [][]byte{head("# Steps\n")}},
		"bad name": {`the name "PDF-Processing"`,
			[][]byte{head("---\nname: PDF-Processing\ndescription: a\n---\n")}},
		"no description": {"the description has 1 to 1,024",
			[][]byte{head("---\nname: pdf\n---\n")}},
		"unknown field": {"unknown field",
			[][]byte{head("---\nname: pdf\ndescription: a\nhooks: [x]\n---\n")}},
		"metadata": {"its front matter",
			[][]byte{head("---\nname: pdf\ndescription: a\nmetadata: {a: {b: c}}\n---\n")}},
		"aliases": {"its front matter",
			[][]byte{head("---\nname: pdf\ndescription: a\nmetadata: &a\n  a: *a\n---\n")}},
		"large SKILL.md": {"more than 1048576 bytes",
			[][]byte{head(valid + strings.Repeat("a", maxHead))}},
	} {
		ref := s.push(imageOf(t, types.OCILayer, c.layers...))
		_, err := Check(t.Context(), ref, "", nil)
		for _, want := range []string{c.want, ref.String(), "hint: publish its folder"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q, got %v", name, want, err)
			}
		}
	}
	for mediaType, want := range map[types.MediaType]string{types.OCILayerZStd: "zstd",
		types.DockerForeignLayer: "foreign", "application/vnd.example": "vnd.example"} {
		_, err := Check(t.Context(), s.push(imageOf(t, mediaType, head(valid))), "", nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a layer of type %s: %v", mediaType, err)
		}
	}
}

// TestBomb: a layer of 1 GiB that is packed to 1 MiB, and a registry that sends another layer
// than the manifest names, are refused, and hardly anything of them is held in memory.
func TestBomb(t *testing.T) {
	s := newShelf(t)
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zip)
	const size = 1 << 30
	zeros := make([]byte, 1<<20)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "SKILL.md", Size: size})
	for range size / len(zeros) {
		_, failed := w.Write(zeros)
		err = multi.Errors(err, failed)
	}
	if err := multi.Errors(err, w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	ref := s.push(imageOf(t, types.OCILayer, b.Bytes()))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Check(t.Context(), ref, "", nil)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "larger than the limit") {
		t.Error(err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Errorf("%d MiB were allocated", used>>20)
	}

	real := s.push(imageOf(t, types.OCILayer, layerOf(t, plain(Manifest, valid))))
	lies := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := http.Get("http://" + s.host + r.URL.Path)
		if err != nil {
			t.Error(err)
			return
		}
		defer answer.Body.Close()
		if strings.Contains(r.URL.Path, "/blobs/") {
			if _, err := w.Write(layerOf(t, plain(Manifest, valid), plain("more", "x"))); err != nil {
				t.Log(err)
			}
			return
		}
		w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
		if _, err := io.Copy(w, answer.Body); err != nil {
			t.Log(err)
		}
	}))
	defer lies.Close()
	forged, err := name.NewDigest(strings.TrimPrefix(lies.URL, "http://") +
		"/skills/pdf-processing@" + real.DigestStr())
	if err != nil {
		t.Fatal(err)
	}
	if found, err := Check(t.Context(), forged, "", nil); err == nil {
		t.Errorf("another layer passes: %+v", found)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Check(ctx, real, "", nil); err == nil {
		t.Error("a canceled check passes")
	}
}

// TestSpecification: the examples of agentskills.io/specification, as of agentskills/agentskills
// 69ef37e.
func TestSpecification(t *testing.T) {
	const description = "description: A description of what this skill does and when to use it.\n"
	for head, want := range map[string]string{
		"name: skill-name\n" + description: "",
		"name: pdf-processing\ndescription: Extract PDF text, fill forms, merge files. Use when " +
			"handling PDFs.\nlicense: Apache-2.0\nmetadata:\n  author: example-org\n" +
			"  version: \"1.0\"\n": "",
		"name: data-analysis\n" + description: "",
		"name: code-review\n" + description:   "",
		"name: pdf\ndescription: Helps with PDFs.\nlicense: Proprietary. LICENSE.txt has " +
			"complete terms\n": "",
		"name: a\n" + description +
			"compatibility: Designed for Claude Code (or similar products)\n": "",
		"name: a\n" + description +
			"compatibility: Requires git, docker, jq, and access to the internet\n": "",
		"name: a\n" + description +
			"compatibility: Requires Python 3.14+ and uv\n": "",
		"name: a\n" + description +
			"allowed-tools: Bash(git:*) Bash(jq:*) Read\n": "",
		"name: PDF-Processing  # uppercase not allowed\n" +
			description: `the name "PDF-Processing"`,
		"name: -pdf  # cannot start with hyphen\n" +
			description: `the name "-pdf"`,
		"name: pdf--processing  # consecutive hyphens not allowed\n" +
			description: `the name "pdf--processing"`,
	} {
		text := "---\n" + head + "---\n\n# Body\n"
		image := imageOf(t, types.OCILayer, layerOf(t, plain(Manifest, text)))
		_, err := Check(t.Context(), newShelf(t).push(image), "", nil)
		called, _, _ := strings.Cut(strings.TrimPrefix(head, "name: "), "\n")
		called, _, _ = strings.Cut(called, " ")
		dir := filepath.Join(t.TempDir(), called)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, Manifest), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, errRead := Read(dir)
		for _, err := range []error{err, errRead} {
			if want == "" && err != nil ||
				want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: want %q, got %v", head, want, err)
			}
		}
	}
}

// FuzzUnpack: whatever a registry sends is a skill by the rules, or refused.
func FuzzUnpack(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: Manifest, Mode: 0o644,
		Size: int64(len(valid))})
	if err == nil {
		_, err = io.WriteString(w, valid)
	}
	if err := multi.Errors(err, w.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, content []byte) {
		var packed bytes.Buffer
		zip := gzip.NewWriter(&packed)
		_, err := zip.Write(content)
		if err := multi.Errors(err, zip.Close()); err != nil {
			t.Fatal(err)
		}
		s, err := unpack(&packed)
		if (s == nil) == (err == nil) ||
			err == nil && (!skills.ValidName(s.Name) || s.Description == "") {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
