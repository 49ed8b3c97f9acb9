package commit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// Git servers are not trusted, and their answers may have no end. A History keeps the commits and
// tags of a pack, under the hashes that it computes of their content, and skips other objects. An
// object that is missing or too large is not part of the history, so that fewer commits are
// reachable.
const (
	// MaxPack is the largest part of a pack that is read, in bytes.
	MaxPack = 32 << 20
	// maxCount bounds the objects of a pack, and maxInflated their inflated size in bytes.
	maxCount, maxInflated = 500_000, 512 << 20
	// maxObject is the size of the largest commit that is kept, in bytes.
	maxObject = 256 << 10
	// maxRetained bounds the memory of all commits and tags, in bytes: about 40,000 commits.
	maxRetained = 16 << 20
)

// ErrTooLarge reports a history beyond these bounds.
var ErrTooLarge = errors.New("the history is too large to be searched")

// History is a part of a repository's history. The zero History is empty.
type History struct {
	objects  map[plumbing.Hash]object
	retained int   // bytes of objects
	inflated int64 // bytes of the pack that is being read
}

// object is a commit or a tag.
type object struct {
	kind  plumbing.ObjectType
	data  []byte
	links []plumbing.Hash
}

// Read adds the objects of a pack. It calls enough after each object, and returns when that returns
// true. hash is zero for an object that is neither a commit nor a tag.
func (h *History) Read(pack io.Reader, enough func(hash plumbing.Hash) bool) error {
	limit := &io.LimitedReader{R: pack, N: MaxPack}
	err := h.read(limit, enough)
	if err != nil && limit.N <= 0 {
		return ErrTooLarge
	}
	return err
}

func (h *History) read(pack io.Reader, enough func(plumbing.Hash) bool) error {
	scanner := packfile.NewScanner(pack)
	_, count, err := scanner.Header()
	if err != nil {
		return fmt.Errorf("reading a pack: %w", err)
	}
	if count > maxCount {
		return ErrTooLarge
	}
	at := map[int64]plumbing.Hash{} // by the offset in the pack
	h.inflated = 0
	for range count {
		header, err := scanner.NextObjectHeader()
		if err != nil {
			return fmt.Errorf("reading a pack: %w", err)
		}
		if h.inflated += header.Length; header.Length < 0 || h.inflated > maxInflated {
			return ErrTooLarge
		}
		hash, err := h.add(scanner, header, at)
		if err != nil {
			return err
		}
		if enough(hash) {
			return nil
		}
	}
	return nil
}

// add adds the object of a header if it is a commit or a tag, and returns its hash.
func (h *History) add(scanner *packfile.Scanner, header *packfile.ObjectHeader,
	at map[int64]plumbing.Hash) (none plumbing.Hash, _ error) {
	kind, base := header.Type, object{}
	switch kind {
	case plumbing.CommitObject, plumbing.TagObject:
	case plumbing.OFSDeltaObject:
		base = h.objects[at[header.OffsetReference]]
	case plumbing.REFDeltaObject:
		base = h.objects[header.Reference]
	default:
		return none, nil
	}
	if kind.IsDelta() && base.data == nil || header.Length > maxObject {
		return none, nil
	}
	var content bytes.Buffer
	n, _, err := scanner.NextObject(&content)
	if err == nil && n != header.Length {
		err = fmt.Errorf("it has %d bytes of %d", n, header.Length)
	}
	if err != nil {
		return none, fmt.Errorf("reading an object of a pack: %w", err)
	}
	data := content.Bytes()
	if kind.IsDelta() {
		target := DeltaTarget(data)
		if target > maxObject {
			return none, nil
		}
		if h.inflated += int64(target); h.inflated > maxInflated {
			return none, ErrTooLarge
		}
		if data, err = packfile.PatchDelta(base.data, data); err != nil {
			return none, fmt.Errorf("reading an object of a pack: %w", err)
		}
		kind = base.kind
	}
	hash := plumbing.ComputeHash(kind, data)
	at[header.Offset] = hash
	if _, have := h.objects[hash]; have {
		return hash, nil
	}
	refers, err := links(kind, data)
	if err != nil {
		return none, fmt.Errorf("object %s: %w", hash, err)
	}
	if h.retained += len(data) + len(refers)*len(hash); h.retained > maxRetained {
		return none, ErrTooLarge
	}
	if h.objects == nil {
		h.objects = map[plumbing.Hash]object{}
	}
	h.objects[hash] = object{kind, bytes.Clone(data), refers}
	return hash, nil
}

// DeltaTarget returns the size of the object that a delta produces, which is its second number.
func DeltaTarget(delta []byte) uint64 {
	_, n := binary.Uvarint(delta)
	size, m := binary.Uvarint(delta[max(n, 0):])
	if n <= 0 || m <= 0 {
		return maxObject + 1 // malformed
	}
	return size
}

// Reaches reports whether a commit is tip or one of its ancestors, as far as the history was read,
// and its distance from tip on the shortest path.
func (h *History) Reaches(tip, commit plumbing.Hash) (distance int, ok bool) {
	for range 10 { // tags of tags
		if o := h.objects[tip]; o.kind == plumbing.TagObject {
			tip = o.links[0]
		}
	}
	seen := map[plumbing.Hash]bool{tip: true}
	for level := []plumbing.Hash{tip}; len(level) > 0; distance++ {
		var next []plumbing.Hash
		for _, hash := range level {
			if hash == commit {
				return distance, true
			}
			o := h.objects[hash]
			if o.kind != plumbing.CommitObject {
				continue
			}
			for _, parent := range o.links {
				if !seen[parent] {
					seen[parent] = true
					next = append(next, parent)
				}
			}
		}
		level = next
	}
	return 0, false
}

// Commit returns a commit as Git stores it, or nil if it was not read.
func (h *History) Commit(hash plumbing.Hash) []byte {
	if o := h.objects[hash]; o.kind == plumbing.CommitObject {
		return o.data
	}
	return nil
}

// links returns the parents of a commit, or the object of a tag.
func links(kind plumbing.ObjectType, object []byte) (out []plumbing.Hash, err error) {
	next := func(key string) (hash plumbing.Hash, ok bool) {
		line, rest, _ := bytes.Cut(object, []byte("\n"))
		value, ok := bytes.CutPrefix(line, []byte(key+" "))
		if !ok || !plumbing.IsHash(string(value)) {
			return hash, false
		}
		object = rest
		return plumbing.NewHash(string(value)), true
	}
	if kind == plumbing.TagObject {
		hash, ok := next("object")
		if !ok {
			return nil, errors.New("a tag names no object")
		}
		return []plumbing.Hash{hash}, nil
	}
	if _, ok := next("tree"); !ok {
		return nil, errors.New("a commit names no tree")
	}
	for {
		hash, ok := next("parent")
		if !ok {
			return out, nil
		}
		out = append(out, hash)
	}
}
