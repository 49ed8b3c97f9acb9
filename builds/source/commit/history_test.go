package commit_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/armature-dev/armature/builds/source/commit"
)

func never(plumbing.Hash) bool { return false }

// pack of what Git's options select.
func (r *repository) pack(revisions string, options ...string) []byte {
	r.Helper()
	return r.run([]byte(revisions), "git",
		append([]string{"pack-objects", "-q", "--revs", "--stdout"}, options...)...)
}

// read a pack into an empty history.
func read(t *testing.T, pack []byte) *commit.History {
	t.Helper()
	h := &commit.History{}
	if err := h.Read(bytes.NewReader(pack), never); err != nil {
		t.Fatal(err)
	}
	return h
}

// What the walk says of a history with merges and tags is what git itself says, however
// the pack is made: with trees or without, with deltas by place or by hash.
func TestReaches(t *testing.T) {
	r := newRepository(t)
	long := strings.Repeat("the same words in each of the messages, so that they become deltas\n", 40)
	commits := []plumbing.Hash{r.commit("root\n\n" + long)}
	for i := range 6 {
		r.git("checkout", "-q", "-b", fmt.Sprintf("topic%d", i))
		commits = append(commits, r.commit(fmt.Sprintf("topic %d\n\n%s", i, long)))
		r.git("checkout", "-q", "main")
		commits = append(commits, r.commit(fmt.Sprintf("main %d\n\n%s", i, long)))
		if i%2 == 0 {
			r.git("merge", "-q", "--no-ff", "-m", long, fmt.Sprintf("topic%d", i))
			commits = append(commits, r.head())
		}
	}
	r.git("tag", "-a", "v1", "-m", long, commits[5].String())
	r.git("tag", "-a", "v1-again", "-m", "a tag of a tag", "v1")
	tag := func(name string) plumbing.Hash { return plumbing.NewHash(r.git("rev-parse", name)) }
	tips := append([]plumbing.Hash{tag("v1"), tag("v1-again")}, commits...)
	ancestors := map[plumbing.Hash]string{} // of a tip, as git lists them
	for _, tip := range tips {
		ancestors[tip] = r.git("rev-list", tip.String())
	}
	for name, options := range map[string][]string{
		"all": nil, "filtered": {"--filter=tree:0"},
		"deltas by place": {"--delta-base-offset", "--window=50"},
		"deltas by hash":  {"--window=50", "--filter=tree:0"},
	} {
		h := read(t, r.pack("", append(options, "--all")...))
		for _, tip := range tips {
			for _, c := range commits {
				_, got := h.Reaches(tip, c)
				if want := strings.Contains(ancestors[tip], c.String()); got != want {
					t.Fatalf("%s: %s from %s: %v, and git says %v", name, c, tip, got, want)
				}
			}
		}
		if have := h.Commit(commits[3]); !bytes.Equal(have, r.object(commits[3])) {
			t.Errorf("%s: the commit is\n%s", name, have)
		}
		if h.Commit(tag("v1")) != nil {
			t.Errorf("%s: a tag is given as a commit", name)
		}
	}
}

// The distance is what a depth of git counts: a shallow pack of one more has the commit.
func TestDistance(t *testing.T) {
	r := newRepository(t)
	first := r.commit("first")
	r.git("checkout", "-q", "-b", "short")
	r.commit("short")
	r.git("checkout", "-q", "main")
	for i := range 4 {
		r.commit(fmt.Sprint("long ", i))
	}
	r.git("merge", "-q", "--no-ff", "-m", "merge", "short")
	if distance, ok := read(t, r.pack("", "--all")).Reaches(r.head(), first); !ok || distance != 2 {
		t.Errorf("distance %d, %v", distance, ok)
	}
}

// A pack that leaves out what the other side has ends at the commit itself, or beside it.
func TestHistoryOfWhatIsMissing(t *testing.T) {
	r := newRepository(t)
	r.commit("root")
	fork := r.commit("common")
	r.git("checkout", "-q", "-b", "fork")
	theirs := r.commit("theirs")
	r.git("checkout", "-q", "main")
	r.commit("ours")
	head := r.head()
	if _, ok := read(t, r.pack("main\n^"+fork.String()+"\n")).Reaches(head, fork); !ok {
		t.Error("an ancestor is not reachable")
	}
	if _, ok := read(t, r.pack("main\n^"+theirs.String()+"\n")).Reaches(head, theirs); ok {
		t.Error("a commit of a fork is reachable")
	}
}

// packOf makes a pack of objects as they are given: type, declared size, content.
func packOf(count uint32, objects ...[]byte) []byte {
	out := binary.BigEndian.AppendUint32(append([]byte("PACK"), 0, 0, 0, 2), count)
	return append(out, bytes.Join(objects, nil)...)
}

func entry(kind plumbing.ObjectType, size int, before, content []byte) []byte {
	first := byte(kind)<<4 | byte(size&15)
	var out []byte
	for size >>= 4; size > 0; size >>= 7 {
		out = append(out, first|0x80)
		first = byte(size & 0x7f)
	}
	out = append(append(out, first), before...)
	var squeezed bytes.Buffer
	z := zlib.NewWriter(&squeezed)
	_, _ = z.Write(content)
	_ = z.Close()
	return append(out, squeezed.Bytes()...)
}

const tree = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n"

// What a hostile server sends ends at a bound, or is refused.
func TestHostilePacks(t *testing.T) {
	base := []byte(tree + "\nbase\n")
	hash := plumbing.ComputeHash(plumbing.CommitObject, base)
	first := entry(plumbing.CommitObject, len(base), nil, base)
	varint := func(n uint64) []byte { return binary.AppendUvarint(nil, n) }
	bomb := append(append(varint(uint64(len(base))), varint(1<<40)...), 0x90, 1)
	short := append(append(varint(uint64(len(base))), varint(100)...), 0x90, 1)
	for _, test := range []struct {
		name string
		pack io.Reader
		want string // of the error; "" for none
	}{
		{"no pack", strings.NewReader("no pack at all"), "malformed pack file signature"},
		{"empty", strings.NewReader(""), "empty packfile"},
		{"cut", bytes.NewReader(packOf(2, first)), "reading a pack"},
		{"a delta that becomes a tebibyte",
			bytes.NewReader(packOf(2, first,
				entry(plumbing.REFDeltaObject, len(bomb), hash[:], bomb))), ""},
		{"a delta that becomes less than it says",
			bytes.NewReader(packOf(2, first,
				entry(plumbing.REFDeltaObject, len(short), hash[:], short))), "invalid delta"},
		{"a delta of nothing",
			bytes.NewReader(packOf(1, entry(plumbing.REFDeltaObject, len(short), hash[:], short))),
			""},
		{"an object larger than it says",
			bytes.NewReader(packOf(1, entry(plumbing.CommitObject, 10, nil, base))),
			"exceeds declared size"},
		{"an object smaller than it says",
			bytes.NewReader(packOf(1, entry(plumbing.CommitObject, 200, nil, base))),
			"bytes of 200"},
		{"a commit without a tree",
			bytes.NewReader(packOf(1, entry(plumbing.CommitObject, 3, nil, []byte("abc")))),
			"names no tree"},
		{"a tag without an object",
			bytes.NewReader(packOf(1, entry(plumbing.TagObject, 3, nil, []byte("abc")))),
			"names no object"},
		{"a file of 600 MiB",
			bytes.NewReader(packOf(2, entry(plumbing.BlobObject, 600<<20, nil, nil))),
			commit.ErrTooLarge.Error()},
		{"commits without end", &endless{head: packOf(1 << 31), next: randomCommit},
			commit.ErrTooLarge.Error()},
		{"files without end", &endless{head: packOf(1 << 31), next: randomFile},
			commit.ErrTooLarge.Error()},
		{"files without end, which shrink well", &endless{head: packOf(1 << 31), next: emptyFile},
			commit.ErrTooLarge.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &commit.History{}
			err := h.Read(test.pack, never)
			if test.want == "" && err != nil ||
				test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if test.want == commit.ErrTooLarge.Error() && !errors.Is(err, commit.ErrTooLarge) {
				t.Errorf("%v is not ErrTooLarge", err)
			}
			if e, is := test.pack.(*endless); is && e.sent > commit.MaxPack+1<<20 {
				t.Errorf("%d bytes were read", e.sent)
			}
		})
	}
}

// A commit of a wrong hash is held under its right one.
func TestHashesAreComputed(t *testing.T) {
	object := []byte(tree + "\na commit\n")
	h := read(t, packOf(1, entry(plumbing.CommitObject, len(object), nil, object)))
	hash := plumbing.ComputeHash(plumbing.CommitObject, object)
	if have := h.Commit(hash); !bytes.Equal(have, object) {
		t.Errorf("%s is %q", hash, have)
	}
	if h.Commit(plumbing.NewHash("0123456789012345678901234567890123456789")) != nil {
		t.Error("there is another commit")
	}
}

// endless sends a head, then objects.
type endless struct {
	head []byte
	next func() []byte
	sent int64
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.head) == 0 {
		e.head = e.next()
	}
	n := copy(p, e.head)
	e.head = e.head[n:]
	e.sent += int64(n)
	return n, nil
}

func randomBytes(n int) []byte {
	out := make([]byte, 0, n)
	for len(out) < n {
		out = binary.LittleEndian.AppendUint64(out, rand.Uint64())
	}
	return out
}

func randomCommit() []byte {
	object := append([]byte(tree+"\n"), randomBytes(100<<10)...)
	return entry(plumbing.CommitObject, len(object), nil, object)
}

func randomFile() []byte {
	object := randomBytes(1 << 20)
	return entry(plumbing.BlobObject, len(object), nil, object)
}

var emptyFile = sync.OnceValue(func() []byte {
	return entry(plumbing.BlobObject, 64<<20, nil, make([]byte, 64<<20))
})

func FuzzHistory(f *testing.F) {
	base := []byte(tree + "\nbase\n")
	f.Add(packOf(1, entry(plumbing.CommitObject, len(base), nil, base)))
	f.Add(packOf(1, entry(plumbing.OFSDeltaObject, 3, []byte{1}, []byte{1, 2, 3})))
	f.Fuzz(func(t *testing.T, pack []byte) {
		h := &commit.History{}
		var last plumbing.Hash
		err := h.Read(bytes.NewReader(pack), func(hash plumbing.Hash) bool {
			if !hash.IsZero() {
				last = hash
			}
			return false
		})
		if err != nil || last.IsZero() {
			return
		}
		if _, ok := h.Reaches(last, last); !ok && h.Commit(last) != nil {
			t.Errorf("%s does not reach itself", last)
		}
	})
}
