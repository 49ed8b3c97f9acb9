package archive_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/builds/source/archive"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put a file with its content and mode, or a link where the content begins with "-> ".
func put(t *testing.T, dir, name, content string, mode os.FileMode) {
	t.Helper()
	file := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	if target, link := strings.CutPrefix(content, "-> "); link {
		must(t, os.Symlink(target, file))
		return
	}
	must(t, os.WriteFile(file, []byte(content), 0o600))
	must(t, os.Chmod(file, mode))
}

// source has what the sources of builds have, and names that are hard.
func source(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, "Dockerfile", "FROM scratch\n", 0o664)
	put(t, dir, "bin/run.sh", "#!/bin/sh\n", 0o775)
	put(t, dir, "bin/latest", "-> run.sh", 0)
	put(t, dir, "docs/up", "-> ../bin", 0)
	put(t, dir, "docs/through", "-> up/../Dockerfile", 0)
	put(t, dir, "docs/nowhere", "-> not/here", 0)
	put(t, dir, "docs/loop", "-> loop", 0)
	put(t, dir, "docs.md", "", 0o444)
	put(t, dir, "names/README", "a", 0o664)
	put(t, dir, "names/Readme", "b", 0o664)
	put(t, dir, "names/\u00e9", "composed", 0o664)
	put(t, dir, "names/e\u0301", "decomposed", 0o664)
	put(t, dir, "names/latin \xe9", "not UTF-8", 0o664)
	put(t, dir, "names/a\nb", "line", 0o664)
	put(t, dir, "names/-rf", "option", 0o664)
	put(t, dir, "names/"+strings.Repeat("n", 255), "long", 0o664)
	put(t, dir, strings.Repeat("deep/", 60)+"file", "deep", 0o664)
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	put(t, dir, ".git/config", "[core]\n", 0o664)
	put(t, dir, "vendor/module/.git", "gitdir: ../../.git/modules/module\n", 0o664)
	put(t, dir, "vendor/module/file", "of a submodule", 0o664)
	put(t, dir, ".gitignore", "*.o\n", 0o664)
	return dir
}

// listed is what a folder has, by path: the mode and the content, or the target.
func listed(t *testing.T, dir string) map[string]string {
	t.Helper()
	have := map[string]string{}
	must(t, filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		name, err := filepath.Rel(dir, file)
		must(t, err)
		info, err := entry.Info()
		must(t, err)
		switch {
		case entry.IsDir():
			have[name] = "folder"
		case info.Mode()&fs.ModeSymlink != 0:
			have[name], err = os.Readlink(file)
			have[name] = "-> " + have[name]
		default:
			var data []byte
			data, err = os.ReadFile(file)
			have[name] = fmt.Sprintf("%o %s", info.Mode().Perm(), data)
		}
		return err
	}))
	return have
}

// pack dir into a folder of its own.
func pack(t *testing.T, dir string) (packed, digest string) {
	t.Helper()
	packed = t.TempDir()
	digest, err := archive.Pack{From: dir, To: packed}.Run()
	must(t, err)
	return packed, digest
}

// What is unpacked is the source with the modes of its files and its links, and without
// .git unless that is kept.
func TestSourceIsHandedOn(t *testing.T) {
	for _, keep := range []bool{false, true} {
		dir, packed, to := source(t), t.TempDir(), t.TempDir()
		digest, err := archive.Pack{From: dir, To: packed, KeepGit: keep}.Run()
		must(t, err)
		must(t, archive.Unpack{From: packed, Digest: digest, To: to}.Run())
		want := listed(t, dir)
		if !keep {
			delete(want, ".git")
			delete(want, ".git/config")
			delete(want, "vendor/module/.git")
		}
		if diff := cmp.Diff(want, listed(t, to)); diff != "" {
			t.Errorf("keep .git %v: unpacked (-want +got):\n%s", keep, diff)
		}
		info, err := os.Stat(filepath.Join(to, "empty"))
		must(t, err)
		if info.Mode().Perm() != 0o775 {
			t.Errorf("a folder has the mode %o, so that other users of a build's group cannot "+
				"write to it", info.Mode().Perm())
		}
	}
}

// Folders in a setgid volume are setgid too.
func TestFoldersKeepTheGroup(t *testing.T) {
	packed, digest := pack(t, source(t))
	to := t.TempDir()
	must(t, os.Chmod(to, 0o775|os.ModeSetgid))
	must(t, archive.Unpack{From: packed, Digest: digest, To: to}.Run())
	info, err := os.Stat(filepath.Join(to, "bin"))
	must(t, err)
	if info.Mode()&os.ModeSetgid == 0 {
		t.Errorf("a folder has the mode %s, without setgid", info.Mode())
	}
}

// The digest depends on the files alone: not on times, on the modes of folders, on who
// packs them where, or on a packed source of a run before.
func TestDigestIsOfTheFiles(t *testing.T) {
	first, second := source(t), source(t)
	packed, digest := pack(t, first)
	must(t, os.Chtimes(filepath.Join(second, "Dockerfile"), time.Time{}, time.Unix(1e9, 0)))
	must(t, os.Chmod(filepath.Join(second, "bin"), 0o700))
	must(t, os.Chmod(filepath.Join(second, "docs"), 0o755|os.ModeSetgid))
	must(t, os.WriteFile(filepath.Join(packed, archive.FileName), []byte("of a run before"), 0o600))
	for what, to := range map[string]string{"elsewhere": packed, "in the source": second,
		"in the source again": ""} {
		got, err := archive.Pack{From: second, To: to}.Run()
		must(t, err)
		if got != digest {
			t.Errorf("packed %s it has the digest %s, and the same files had %s", what, got, digest)
		}
	}
	must(t, os.Chmod(filepath.Join(second, "Dockerfile"), 0o775))
	if _, got := pack(t, second); got == digest {
		t.Error("another mode of a file gives the same digest")
	}
}

// Bits that give rights to whoever runs a file are not handed on.
func TestSetuidIsNotPacked(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	put(t, dir, "tool", "x", 0o755|os.ModeSetuid|os.ModeSetgid|os.ModeSticky)
	packed, digest := pack(t, dir)
	must(t, archive.Unpack{From: packed, Digest: digest, To: to}.Run())
	info, err := os.Stat(filepath.Join(to, "tool"))
	must(t, err)
	if info.Mode() != 0o755 {
		t.Errorf("it has the mode %s", info.Mode())
	}
}

// What a source cannot be handed on with is named, and then there is no tar.
func TestPackRefuses(t *testing.T) {
	for what, c := range map[string]struct{ name, content, want string }{
		"link to a file of the node": {"a", "-> /etc/passwd",
			`the link "a" leads out of the source, to "/etc/passwd"`},
		"link out": {"a/b", "-> ../../x", `the link "a/b" leads out`},
		"link out and back": {"a/b", "-> ../../a/c",
			`the link "a/b" leads out`},
		"link out through a link": {"deep/er/b", "-> top/../x",
			`the link "deep/er/b" leads out`},
		"link out through a link to a link": {"deep/er/b", "-> again/../x",
			`the link "deep/er/b" leads out`},
		"link out through what does not exist": {"b", "-> nothing/../../x",
			`the link "b" leads out`},
		"link to a link out, which is also one": {"b", "-> c", "leads out"},
		"pipe": {"pipe", "",
			`"pipe" is neither a file, a folder nor a link`},
	} {
		t.Run(what, func(t *testing.T) {
			dir, packed := t.TempDir(), t.TempDir()
			put(t, dir, "deep/er/top", "-> ../..", 0)
			put(t, dir, "deep/er/again", "-> top", 0)
			if c.content == "" {
				must(t, syscall.Mkfifo(filepath.Join(dir, c.name), 0o600))
			} else {
				put(t, dir, c.name, c.content, 0)
			}
			if strings.HasSuffix(c.content, " c") {
				put(t, dir, "c", "-> ..", 0)
			}
			_, err := archive.Pack{From: dir, To: packed}.Run()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if left := listed(t, packed); len(left) > 0 {
				t.Errorf("it leaves %v", left)
			}
		})
	}
}

// forged is a folder with a tar of such entries, and the digest of that tar.
func forged(t *testing.T, entries ...tar.Header) (packed, digest string) {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, h := range entries {
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte("x"))
			must(t, err)
		}
	}
	must(t, w.Close())
	packed = t.TempDir()
	must(t, os.WriteFile(filepath.Join(packed, archive.FileName), buffer.Bytes(), 0o600))
	sum := sha256.Sum256(buffer.Bytes())
	return packed, "sha256:" + hex.EncodeToString(sum[:])
}

// A tar that Pack does not write is refused before one entry of it is written, also
// when it has the digest.
func TestUnpackRefusesEntries(t *testing.T) {
	file := func(name string, mode int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}
	}
	folder := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o775}
	}
	link := func(kind byte, name, target string) tar.Header {
		return tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}
	}
	for what, c := range map[string]struct {
		entries []tar.Header
		want    string
	}{
		"path out": {[]tar.Header{file("../x", 0o600)}, "not a path within the source"},
		"path out of a folder": {[]tar.Header{folder("a"), file("a/../../x", 0o600)},
			"not a path within the source"},
		"absolute path": {[]tar.Header{file("/etc/x", 0o600)},
			"not a path within the source"},
		"the folder itself": {[]tar.Header{file(".", 0o600)}, "not a path within the source"},
		"double":            {[]tar.Header{file("a", 0o600), file("a", 0o600)}, "twice"},
		"folder and file":   {[]tar.Header{folder("a"), file("a", 0o600)}, "twice"},
		"no folder":         {[]tar.Header{file("a/b", 0o600)}, "the folder of"},
		"file as a folder": {[]tar.Header{file("a", 0o600), file("a/b", 0o600)},
			"the folder of"},
		"link as a folder": {[]tar.Header{folder("c"), link(tar.TypeSymlink, "a", "c"),
			file("a/b", 0o600)}, "the folder of"},
		"link out":      {[]tar.Header{link(tar.TypeSymlink, "a", "../x")}, "leads out"},
		"absolute link": {[]tar.Header{link(tar.TypeSymlink, "a", "/x")}, "leads out"},
		"link out by a link": {[]tar.Header{folder("a"), link(tar.TypeSymlink, "a/b", "c/.."),
			link(tar.TypeSymlink, "a/c", "..")}, "leads out"},
		"hard link": {[]tar.Header{file("a", 0o600), link(tar.TypeLink, "b", "a")},
			"neither a file"},
		"device": {[]tar.Header{{Typeflag: tar.TypeBlock, Name: "a", Mode: 0o600,
			Devmajor: 8}}, "neither a file"},
		"pipe": {[]tar.Header{{Typeflag: tar.TypeFifo, Name: "a", Mode: 0o600}},
			"neither a file"},
		"setuid": {[]tar.Header{file("a", 0o4755)}, "only permissions"},
		"sticky folder": {[]tar.Header{{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o1777}},
			"only permissions"},
		"name that is too long": {[]tar.Header{file(strings.Repeat("n", 256), 0o600)},
			"not a path within the source"},
	} {
		t.Run(what, func(t *testing.T) {
			packed, digest := forged(t, append([]tar.Header{file("first", 0o600)}, c.entries...)...)
			to := t.TempDir()
			err := archive.Unpack{From: packed, Digest: digest, To: to}.Run()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if got := listed(t, to); len(got) > 0 {
				t.Errorf("it wrote %v", got)
			}
			// both folders, and the tar in the other one
			if all := listed(t, filepath.Dir(to)); len(all) != 3 {
				t.Errorf("beside the folder is more than the tar: %v", all)
			}
		})
	}
}

// Whatever somebody makes of the volume after the source was packed, what is unpacked is
// what was packed, or nothing.
func TestUnpackRefusesAnotherTar(t *testing.T) {
	for what, c := range map[string]struct {
		change func(t *testing.T, file string)
		want   string
	}{
		"nothing": {func(*testing.T, string) {}, ""},
		"other file": {func(t *testing.T, file string) {
			put(t, filepath.Dir(file), "Dockerfile", "FROM evil", 0o664)
		}, ""},
		"other source": {func(t *testing.T, file string) {
			dir := t.TempDir()
			put(t, dir, "Dockerfile", "FROM evil", 0o664)
			_, err := archive.Pack{From: dir, To: filepath.Dir(file)}.Run()
			must(t, err)
		}, "it was changed"},
		"one byte": {func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			must(t, err)
			must(t,
				os.WriteFile(file,
					bytes.Replace(data, []byte("FROM scratch"), []byte("FROM scratcz"), 1), 0o600))
		}, "it was changed"},
		"appended": {func(t *testing.T, file string) {
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			_, err = f.Write(make([]byte, 512))
			must(t, err)
			must(t, f.Close())
		}, "it was changed"},
		"cut": {func(t *testing.T, file string) { must(t, os.Truncate(file, 1024)) },
			"it was changed"},
		"emptied": {func(t *testing.T, file string) { must(t, os.Truncate(file, 0)) },
			"it was changed"},
		"removed": {func(t *testing.T, file string) { must(t, os.Remove(file)) },
			"there is no packed source"},
		"sparse": {func(t *testing.T, file string) { must(t, os.Truncate(file, 17<<30)) },
			"more than 16 GiB"},
		"link to itself elsewhere": {func(t *testing.T, file string) {
			elsewhere := filepath.Join(t.TempDir(), "tar")
			must(t, os.Rename(file, elsewhere))
			must(t, os.Symlink(elsewhere, file))
		}, "not a regular file"},
		"link beside it": {func(t *testing.T, file string) {
			must(t, os.Rename(file, file+".1"))
			must(t, os.Symlink(filepath.Base(file)+".1", file))
		}, "not a regular file"},
		"pipe": {func(t *testing.T, file string) {
			must(t, os.Remove(file))
			must(t, syscall.Mkfifo(file, 0o600))
		}, "not a regular file"},
		"folder": {func(t *testing.T, file string) {
			must(t, os.Remove(file))
			must(t, os.Mkdir(file, 0o700))
		}, "not a regular file"},
	} {
		t.Run(what, func(t *testing.T) {
			dir, to := source(t), t.TempDir()
			packed, digest := pack(t, dir)
			c.change(t, filepath.Join(packed, archive.FileName))
			err := archive.Unpack{From: packed, Digest: digest, To: to}.Run()
			if (err == nil) != (c.want == "") ||
				err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			want := map[string]string{}
			if c.want == "" {
				want = listed(t, dir)
				delete(want, ".git")
				delete(want, ".git/config")
				delete(want, "vendor/module/.git")
			}
			if diff := cmp.Diff(want, listed(t, to)); diff != "" {
				t.Errorf("unpacked (-want +got):\n%s", diff)
			}
		})
	}
}

// A result that is not a digest is refused, and so is a folder in which something is.
func TestUnpackRefusesWhatItIsGiven(t *testing.T) {
	packed, digest := pack(t, source(t))
	for _, bad := range []string{"", "sha256:", digest[:70], digest + "0", strings.ToUpper(digest),
		digest[7:], digest + "\n", "$(params.x)"} {
		if err := (archive.Unpack{From: packed, Digest: bad, To: t.TempDir()}).Run(); err == nil ||
			!strings.Contains(err.Error(), "is not a digest") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	to := t.TempDir()
	put(t, to, "Dockerfile", "FROM evil", 0o600)
	if err := (archive.Unpack{From: packed, Digest: digest, To: to}).Run(); err == nil ||
		!strings.Contains(err.Error(), "not empty") {
		t.Errorf("a folder that is not empty: %v", err)
	}
}
