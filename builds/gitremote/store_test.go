package gitremote

import (
	"bytes"
	"errors"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/armature-dev/armature/builds/commit"
)

// A pack of some kilobytes whose object is larger than any may be is refused before it is
// unpacked, and one that is cut off leaves no panic.
func TestStoreRefuses(t *testing.T) {
	from := memory.NewStorage()
	put := func(size int) plumbing.Hash {
		t.Helper()
		o := &plumbing.MemoryObject{}
		o.SetType(plumbing.BlobObject)
		if _, err := o.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		hash, err := from.SetEncodedObject(o)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	pack := func(hashes ...plumbing.Hash) []byte {
		t.Helper()
		var out bytes.Buffer
		if _, err := packfile.NewEncoder(&out, from, false).Encode(hashes, 0); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	bomb := pack(put(10), put(maxObject+1))
	if len(bomb) > 1<<20 {
		t.Errorf("the pack has %d bytes", len(bomb))
	}
	if err := store(memory.NewStorage(), bytes.NewReader(bomb)); !errors.Is(err, commit.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	good := pack(put(10), put(1000))
	for n := range len(good) - 20 { // the checksum at the end adds nothing to the hashes of the objects
		if err := store(memory.NewStorage(), bytes.NewReader(good[:n])); err == nil {
			t.Errorf("the first %d bytes are accepted", n)
		}
	}
	if err := store(memory.NewStorage(), bytes.NewReader(good)); err != nil {
		t.Error(err)
	}
}
