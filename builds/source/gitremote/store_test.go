package gitremote

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/armature-dev/armature/builds/source/commit"
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
	if err := store(t.Context(), memory.NewStorage(), bytes.NewReader(bomb), maxObjects,
		packs); !errors.Is(err, commit.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	good := pack(put(10), put(1000))
	// the checksum at the end adds nothing to the hashes of the objects
	for n := range len(good) - 20 {
		if err := store(t.Context(), memory.NewStorage(), bytes.NewReader(good[:n]), maxObjects,
			packs); err == nil {
			t.Errorf("the first %d bytes are accepted", n)
		}
	}
	if err := store(t.Context(), memory.NewStorage(), bytes.NewReader(good), maxObjects,
		packs); err != nil {
		t.Error(err)
	}
}

// tinyObjects is a pack of blobs of four bytes.
func tinyObjects(n uint32) []byte {
	out := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), n)
	for i := range n {
		data := binary.BigEndian.AppendUint32(nil, i)
		// zlib, stored
		out = append(out, byte(plumbing.BlobObject)<<4|4, 0x78, 1, 1, 4, 0, 0xfb, 0xff)
		out = append(out, data...)
		out = binary.BigEndian.AppendUint32(out, adler32.Checksum(data))
	}
	sum := sha1.Sum(out)
	return append(out, sum[:]...)
}

// peak of the heap while something is done, in MiB beyond what it was before.
func peak(do func()) (most float64) {
	heap := func() float64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc) / (1 << 20)
	}
	before, done, ended := heap(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				most = max(most, heap()-before)
			}
		}
	}()
	do()
	close(done)
	<-ended
	return most
}

// counted counts what is read.
type counted struct {
	from io.Reader
	n    int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += n
	return n, err
}

// A pack is refused by the number of its objects before they are read, since each takes memory
// however small it is; and the deadline ends the work on one that is not.
func TestStoreMemory(t *testing.T) {
	in := &counted{from: bytes.NewReader(tinyObjects(maxObjects + 1))}
	if err := store(t.Context(), memory.NewStorage(), in, maxObjects,
		packs); !errors.Is(err, commit.ErrTooLarge) || in.n > 12 {
		t.Errorf("%v after %d bytes", err, in.n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	most := tinyObjects(maxObjects)
	if err := store(ended, memory.NewStorage(), bytes.NewReader(most), maxObjects,
		packs); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	folder := t.TempDir()
	took := peak(func() {
		into := filesystem.NewStorage(osfs.New(folder), cache.NewObjectLRU(4*cache.MiByte))
		if err := store(t.Context(), into, bytes.NewReader(most), maxObjects, packs); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%d objects in %d KiB take %.0f MiB", maxObjects, len(most)>>10, took)
	if took > maxPacks>>20 {
		t.Errorf("%.0f MiB, of %d", took, maxPacks>>20)
	}
}

// Repositories that are read at once share the memory of one.
func TestRepositoriesAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("stores as many objects as the limits allow, four times; run it without -short")
	}
	const many = 4
	most := tinyObjects(maxObjects)
	var folders []string
	for range many {
		folders = append(folders, t.TempDir())
	}
	took := peak(func() {
		var all sync.WaitGroup
		for _, folder := range folders {
			all.Go(func() {
				into := filesystem.NewStorage(osfs.New(folder), cache.NewObjectLRU(4*cache.MiByte))
				if err := store(t.Context(), into, bytes.NewReader(most), maxObjects, packs); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	t.Logf("%d repositories at once take %.0f MiB", many, took)
	if took > maxPacks>>20 {
		t.Errorf("%.0f MiB, of %d", took, maxPacks>>20)
	}
}
