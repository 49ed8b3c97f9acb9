package gitremote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/memory"
)

// trees makes trees, and counts how often one is read.
type trees struct {
	*memory.Storage
	t    *testing.T
	read int
}

func (s *trees) EncodedObject(kind plumbing.ObjectType,
	hash plumbing.Hash) (plumbing.EncodedObject, error) {
	s.read++
	return s.Storage.EncodedObject(kind, hash)
}

func (s *trees) tree(entries ...object.TreeEntry) plumbing.Hash {
	s.t.Helper()
	o := s.NewEncodedObject()
	if err := (&object.Tree{Entries: entries}).Encode(o); err != nil {
		s.t.Fatal(err)
	}
	hash, err := s.SetEncodedObject(o)
	if err != nil {
		s.t.Fatal(err)
	}
	return hash
}

func file(name string, content byte) object.TreeEntry {
	return object.TreeEntry{Name: name, Mode: filemode.Regular, Hash: plumbing.Hash{content}}
}

func folder(name string, hash plumbing.Hash) object.TreeEntry {
	return object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: hash}
}

func TestDifference(t *testing.T) {
	s := &trees{Storage: memory.NewStorage(), t: t}
	same := s.tree(file("same", 1))
	was := s.tree(folder("api", s.tree(file("gone", 1), file("kept", 2), file("x", 3))),
		file("becomes", 4), file("mode", 5), folder("old", same), folder("same", same))
	mode := file("mode", 5)
	mode.Mode = filemode.Executable
	is := s.tree(folder("api", s.tree(file("kept", 2), file("new", 9), file("x", 4))),
		folder("becomes", s.tree(file("in", 4))), mode, folder("same", same),
		object.TreeEntry{Name: "sub", Mode: filemode.Submodule, Hash: plumbing.Hash{7}})
	paths, known, err := difference(t.Context(), s, was, is)
	slices.Sort(paths)
	if want := "api/gone api/new api/x becomes becomes/in mode old/same sub"; !known ||
		err != nil || strings.Join(paths, " ") != want {
		t.Errorf("%q, %v, %v, want %s", paths, known, err, want)
	}
	if paths, known, err := difference(t.Context(), s, was, was); !known || err != nil || len(paths) > 0 {
		t.Errorf("the same: %q, %v, %v", paths, known, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := difference(ended, s, was, is); !errors.Is(err, context.Canceled) {
		t.Errorf("after the deadline: %v", err)
	}
	if _, _, err := difference(t.Context(), s, was, plumbing.Hash{1}); !errors.Is(err,
		plumbing.ErrObjectNotFound) {
		t.Errorf("a tree that is missing: %v", err)
	}
}

// Ten trees that name one subtree sixteen times each have more paths than any memory: what
// differs is unknown, soon and without an error, so that the commit is not looked at again.
func TestDifferenceBomb(t *testing.T) {
	s := &trees{Storage: memory.NewStorage(), t: t}
	empty := s.tree()
	bomb, hollow := s.tree(file("x", 1)), s.tree()
	for range 10 {
		var of, none []object.TreeEntry
		for i := range 16 {
			of, none = append(of, folder(fmt.Sprintf("%02d", i), bomb)), append(none,
				folder(fmt.Sprintf("%02d", i), hollow))
		}
		bomb, hollow = s.tree(of...), s.tree(none...)
	}
	deep := s.tree(file("x", 1)) // whose paths are long
	for range 2_000 {
		deep = s.tree(folder(strings.Repeat("n", 10_000), deep))
	}
	var wide []object.TreeEntry
	for i := range maxEntries + 1 {
		wide = append(wide, file(fmt.Sprintf("%06d", i), 1))
	}
	for name, hash := range map[string]plumbing.Hash{"files": bomb, "empty folders": hollow,
		"long paths": deep, "many files": s.tree(wide...)} {
		for _, pair := range [][2]plumbing.Hash{{empty, hash}, {hash, empty}} {
			s.read = 0
			paths, known, err := difference(t.Context(), s, pair[0], pair[1])
			if known || err != nil || len(paths) > 0 || s.read > 2*maxEntries {
				t.Errorf("%s: %d paths, %v, %v after %d trees", name, len(paths), known, err, s.read)
			}
		}
	}
	// Where both have it, it is not looked at.
	is := s.tree(folder("a", bomb), file("b", 1))
	if paths, known, err := difference(t.Context(), s, s.tree(folder("a", bomb)), is); !known ||
		err != nil || !slices.Equal(paths, []string{"b"}) {
		t.Errorf("%q, %v, %v", paths, known, err)
	}
}

var _ storer.EncodedObjectStorer = &trees{}
