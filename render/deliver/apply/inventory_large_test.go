package apply_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// What an inventory unpacks to is bounded, and what is beyond that is an error and not a part of
// the package.
func TestLargeInventories(t *testing.T) {
	lines := func(n int, line func(i int) string) []byte {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		for i := range n {
			if _, err := fmt.Fprintln(z, line(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	short := func(i int) string { return fmt.Sprintf("v1 A - %x - -", i) }
	for name, c := range map[string]struct {
		packed []byte
		want   string
	}{
		"many objects": {lines(1_000_000, short), "more than 8 MiB"},
		"short lines":  {lines(400_000, short), "more than 50000 objects"},
		"the same object": {lines(9_000_000, func(int) string { return "v1 A - a - -" }),
			"more than 8 MiB"},
		"many words": {lines(100, func(int) string { return strings.Repeat("a ", 30_000) }),
			`line "a a a`},
		"a long package": {lines(20_000, func(i int) string {
			return fmt.Sprintf("apps/v1 Deployment travel web-%d %036d %020d", i, i, i)
		}), ""},
	} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "travel",
			Name: "armature-web", Labels: map[string]string{keys.LabelInventory: "web"}},
			Data:       map[string]string{"format": "1", "state": "applied"},
			BinaryData: map[string][]byte{"objects.gz": c.packed}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v, err := apply.ParseInventory(cm)
		runtime.ReadMemStats(&after)
		mib := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %d KiB packed, %d MiB allocated, %d objects", name, len(c.packed)>>10, mib,
			len(v.Entries))
		switch {
		case mib > 80:
			t.Errorf("%s: %d MiB were allocated", name, mib)
		case c.want == "" && (err != nil || len(v.Entries) != 20_000):
			t.Errorf("%s: %d objects: %v", name, len(v.Entries), err)
		case c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 ||
				len(v.Entries) > 0):
			t.Errorf("%s: %d objects: %v", name, len(v.Entries), err)
		}
	}
}
