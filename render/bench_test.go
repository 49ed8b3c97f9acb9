package render

import (
	"testing"
)

func BenchmarkTree(b *testing.B) {
	src, _, err := Tree("/tmp/c1k", "")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := Stream(src, Options{Workers: 1}, func(string, []byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
