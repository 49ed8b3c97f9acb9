package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/multi"
)

// pack writes an archive as somebody else would.
func pack(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := multi.Errors(w.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func file(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644}
}

func TestRefused(t *testing.T) {
	limits := Limits{Archive: 1 << 20, Unpacked: 1000, File: 600, Files: 4}
	link := tar.Header{Typeflag: tar.TypeSymlink, Name: "a.yaml", Linkname: "/etc/passwd"}
	hard := tar.Header{Typeflag: tar.TypeLink, Name: "a.yaml", Linkname: "b.yaml"}
	device := tar.Header{Typeflag: tar.TypeChar, Name: "null"}
	for name, c := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"link":          {pack(t, link), ErrInvalid, "is a link"},
		"hard link":     {pack(t, hard), ErrInvalid, "is a link"},
		"device":        {pack(t, device), ErrInvalid, "neither file nor folder"},
		"absolute":      {pack(t, file("/etc/passwd", 1)), ErrInvalid, "leads out"},
		"parent":        {pack(t, file("../x", 1)), ErrInvalid, "leads out"},
		"parent inside": {pack(t, file("a/../b", 1)), ErrInvalid, "leads out"},
		"backslash":     {pack(t, file(`..\x`, 1)), ErrInvalid, "characters"},
		"twice":         {pack(t, file("a", 1), file("./a", 1)), ErrInvalid, "twice"},
		"large file":    {pack(t, file("a", 601)), ErrLimit, `"a" has 601 bytes`},
		"large together": {pack(t, file("a", 600), file("b", 600)), ErrLimit,
			`"b" has 600 bytes`},
		"many files": {pack(t, file("a", 1), file("b", 1), file("c", 1), file("d", 1),
			file("e", 1)), ErrLimit, "more than 4 files"},
		"bomb":             {pack(t, file("a", 4<<20)), ErrLimit, "bytes"},
		"not an archive":   {[]byte("hello"), ErrInvalid, "gzipped"},
		"cut":              {pack(t, file("a", 500))[:60], ErrInvalid, "unexpected EOF"},
		"too large packed": {make([]byte, 1<<20+1), ErrLimit, "1048577 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := Open(c.data, Digest(c.data), limits)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %v with %q", err, c.want, c.text)
			}
			if files != nil {
				t.Errorf("files are given: %v", files)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	data := pack(t, file("a", 1))
	if _, err := Open(data, Digest(data), DefaultLimits); err != nil {
		t.Error(err)
	}
	for _, digest := range []string{Digest([]byte("other")), "",
		"md5:d41d8cd98f00b204e9800998ecf8427e", strings.ToUpper(Digest(data))} {
		if _, err := Open(data, digest, DefaultLimits); !errors.Is(err, ErrDigest) {
			t.Errorf("digest %q: %v, want ErrDigest", digest, err)
		}
	}
}

// What is written is read again, and is the same bytes however often it is made.
func TestWrite(t *testing.T) {
	files := map[string][]byte{"b/c/d.yaml": []byte("d"), "a.yaml": []byte("a"), "b/e.yaml": nil,
		strings.Repeat("long/", 40) + "f.yaml": []byte("f")}
	data, err := Write(files)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Write(files)
		if err != nil || !bytes.Equal(data, again) {
			t.Fatalf("another archive of the same files: %v", err)
		}
	}
	got, err := Open(data, Digest(data), DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	files["b/e.yaml"] = []byte{}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Error(diff)
	}
	// The bytes are fixed: another archive of the same render would be a new revision
	// for everybody.
	small, err := Write(map[string][]byte{"a/b.yaml": []byte("kind: List\n")})
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	if !unzipped.ModTime.IsZero() || unzipped.Name != "" {
		t.Errorf("the archive has a time or name: %+v", unzipped.Header)
	}
	r := tar.NewReader(unzipped)
	for _, want := range []tar.Header{{Name: "a/", Mode: 0o750}, {Name: "a/b.yaml", Mode: 0o600}} {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name != want.Name || h.Mode != want.Mode || h.Uid+h.Gid != 0 ||
			h.Uname+h.Gname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("entry %+v, want name %s, mode %o, and nothing of a machine", h, want.Name,
				want.Mode)
		}
	}
}

func FuzzOpen(f *testing.F) {
	data, err := Write(map[string][]byte{"a/b.yaml": []byte("kind: List\n")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		files, err := Open(data, Digest(data),
			Limits{Archive: 1 << 20, Unpacked: 1 << 16, File: 1 << 15, Files: 100})
		if err != nil && files != nil {
			t.Fatal("an error, and files")
		}
		for name := range files {
			if strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../") {
				t.Fatalf("%q leads out", name)
			}
		}
	})
}
