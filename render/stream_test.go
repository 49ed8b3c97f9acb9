package render_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/armature-dev/armature/render"
)

// A stream too large for memory leaves as one that is small.
func TestSpoolLeavesAsItCame(t *testing.T) {
	for _, pieces := range []int{1, 100, 50_000} {
		var spool render.Spool
		var want bytes.Buffer
		for i := range pieces {
			piece := fmt.Appendf(nil, "piece: %d # %s\n", i, strings.Repeat("x", 1000))
			want.Write(piece)
			if err := spool.Write("a.yaml", piece); err != nil {
				t.Fatal(err)
			}
		}
		for _, end := range []struct{ file, text, joined string }{
			{"b.yaml", "kind: A", "---\nkind: A"},
			{"c.yaml", "kind: B\n", "\n---\nkind: B\n"},
			{"d.yaml", "", ""},
			{"e.yaml", "--- # C\nkind: C\n", "--- # C\nkind: C\n"},
		} {
			want.WriteString(end.joined)
			if err := spool.Write(end.file, []byte(end.text)); err != nil {
				t.Fatal(err)
			}
		}
		var got bytes.Buffer
		if n, err := spool.WriteTo(&got); err != nil || n != int64(want.Len()) {
			t.Fatalf("%d pieces: wrote %d bytes of %d: %v", pieces, n, want.Len(), err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%d pieces: what left is not what came", pieces)
		}
	}
}

// A stream is read whole, however it trickles in.
func TestReadStream(t *testing.T) {
	want := bytes.Repeat([]byte("kind: ConfigMap\n"), 20_000)
	for name, r := range map[string]io.Reader{
		"at once":    bytes.NewReader(want),
		"in halves":  iotest.HalfReader(bytes.NewReader(want)),
		"with end":   iotest.DataErrReader(bytes.NewReader(want)),
		"one by one": iotest.OneByteReader(bytes.NewReader(want)),
	} {
		src, err := render.ReadStream(r)
		if err != nil || !bytes.Equal(src.Files[0].Data, want) {
			t.Errorf("%s: read %d bytes of %d: %v", name, len(src.Files[0].Data), len(want), err)
		}
	}
	broken := errors.New("the pipe broke")
	if _, err := render.ReadStream(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("got %v, want the reader's error", err)
	}
}
