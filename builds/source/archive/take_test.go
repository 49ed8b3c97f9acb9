package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replacing is a file that somebody replaces once all of it was read.
type replacing struct {
	*os.File
	with []byte
	t    *testing.T
}

func (r *replacing) Read(p []byte) (int, error) {
	n, err := r.File.Read(p)
	if err != nil {
		if err := os.WriteFile(r.Name(), r.with, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return n, err
}

// packedFile is a tar with one file of that content.
func packedFile(t *testing.T, content string) (packed []byte, digest string) {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	h := header("Dockerfile", tar.TypeReg, 0o644)
	h.Size = int64(len(content))
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(buffer.Bytes())
	return buffer.Bytes(), "sha256:" + hex.EncodeToString(sum[:])
}

// A tar that is replaced between hashing and unpacking is unpacked as it was hashed,
// and what is replaced while it is read has not the digest.
func TestReplacedAfterHashing(t *testing.T) {
	good, digest := packedFile(t, "FROM good")
	evil, _ := packedFile(t, "FROM evil")
	file, dir := filepath.Join(t.TempDir(), FileName), t.TempDir()
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	to, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	taken, err := take(&replacing{opened, evil, t}, int64(len(good)), digest, to)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, evil) {
		t.Fatalf("the tar was not replaced: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the copy can be opened by others: %v %v", left, err)
	}
	if err := inspect(taken); err != nil {
		t.Fatal(err)
	}
	if err := write(taken, to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "Dockerfile")); err != nil ||
		string(got) != "FROM good" {
		t.Errorf("unpacked was %q: %v", got, err)
	}

	half := append(good[:len(good)/2:len(good)/2], evil[len(good)/2:]...)
	if bytes.Equal(half, good) {
		half = append(evil[:len(good)/2:len(good)/2], good[len(good)/2:]...)
	}
	for what, content := range map[string][]byte{"half of each": half, "shorter": good[:512],
		"longer": append(good[:len(good):len(good)], 0)} {
		if _, err := take(bytes.NewReader(content), int64(len(good)), digest, to); err == nil ||
			!strings.Contains(err.Error(), "changed") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A file system that takes two names for one, as by case, gets none of them twice: the
// second is an error, and the first is not replaced.
func TestNothingIsReplaced(t *testing.T) {
	packed, _ := packedFile(t, "FROM evil")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM good"), 0o600); err != nil {
		t.Fatal(err)
	}
	to, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if err := write(bytes.NewReader(packed), to); err == nil {
		t.Error("a file that exists is replaced, or left without an error")
	}
	if got, err := os.ReadFile(filepath.Join(dir, "Dockerfile")); err != nil ||
		string(got) != "FROM good" {
		t.Errorf("it is %q: %v", got, err)
	}
}
