package krm

import (
	"bytes"
	"testing"

	"github.com/armature-dev/armature/e2e/bench/workload"
)

func benchText(b *testing.B) []byte {
	b.Helper()
	var text bytes.Buffer
	if err := workload.Write(&text, 0); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	return text.Bytes()
}

func BenchmarkScan(b *testing.B) {
	text := benchText(b)
	var t tree
	for b.Loop() {
		if why, _ := t.scan(text, 0, len(text), false); why != "" {
			b.Fatal(why)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	text := benchText(b)
	var o Object
	for b.Loop() {
		if _, err := o.Read(text, Document{End: len(text)}, false, Origin{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkInsert reads a document, adds an annotation and prints it.
func BenchmarkInsert(b *testing.B) {
	text := benchText(b)
	var o Object
	var out []byte
	entries := []byte("example.com/note: \"text\"\n")
	for b.Loop() {
		if _, err := o.Read(text, Document{End: len(text)}, false, Origin{}); err != nil {
			b.Fatal(err)
		}
		if _, err := o.Insert(o.Get("metadata"), []string{"annotations"}, entries, false); err != nil {
			b.Fatal(err)
		}
		out = o.Append(out[:0])
	}
}

func BenchmarkHead(b *testing.B) {
	text := benchText(b)
	for b.Loop() {
		if _, ok := HeadOf(text, Document{End: len(text)}, false); !ok {
			b.Fatal("no head")
		}
	}
}

// BenchmarkKyaml measures a document that the scanner is not certain of.
func BenchmarkKyaml(b *testing.B) {
	text := append(benchText(b), "anchor: &a x\n"...)
	var o Object
	for b.Loop() {
		if _, err := o.Read(text, Document{End: len(text)}, false, Origin{}); err != nil || !o.rewritten {
			b.Fatal(err)
		}
	}
}
