package library

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func named(namespace string, i int) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("b", i)}
}

// The cache of templates and steps is bounded. The namespace that has most loses the text that it
// used longest ago; unused texts expire.
func TestTextsAreEvicted(t *testing.T) {
	library, now := &Library{}, time.Now()
	key := func(namespace string, i int) textKey {
		return textKey{NamespacedName: named(namespace, i)}
	}
	for i := range 30 {
		library.keep(key("platform", i), &textOf{memory: 200 << 10},
			now.Add(-time.Duration(i)*time.Second))
	}
	const many = 500
	for i := range many {
		library.keep(key("hostile", i), &textOf{memory: 2 << 20},
			now.Add(time.Duration(i)*time.Millisecond))
	}
	total := 0
	for _, have := range library.read {
		total += have.memory + memoryOfText
	}
	if total > maxTexts {
		t.Errorf("%d MiB are kept, and at most %d are allowed", total>>20, maxTexts>>20)
	}
	for i := range 30 {
		if library.kept(key("platform", i)) == nil {
			t.Errorf("text %d of the platform is gone", i)
		}
	}
	if library.kept(key("hostile", many-1)) == nil || library.kept(key("hostile", 0)) != nil {
		t.Error("not the oldest text is gone")
	}
	library.keep(key("team", 0), &textOf{}, time.Now().Add(2*textKeeps))
	if len(library.read) != 1 {
		t.Errorf("%d texts are kept that nobody uses", len(library.read)-1)
	}
}

// Of the ConfigMaps that a build named, those of its last reconcile are remembered.
func TestSoughtNames(t *testing.T) {
	library, build := &Library{}, named("team", 0)
	for i := range 1000 {
		library.Begin(build)
		library.Note(build, fmt.Sprint("step", i))
		library.Note(build, "template")
	}
	library.Note(named("team", 1), "template")
	if got := library.sought[build]; len(got) != 2 || !got["step999"] {
		t.Errorf("%d names are remembered", len(got))
	}
	for name, want := range map[string]int{"template": 2, "step999": 1, "step0": 0} {
		if got := library.Seekers(t.Context(),
			&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}); len(got) != want {
			t.Errorf("%v look for %s, want %d", got, name, want)
		}
	}
	library.Begin(build)
	library.Begin(types.NamespacedName{Namespace: "team", Name: "b1"})
	if len(library.sought) != 0 {
		t.Errorf("left behind: %v", library.sought)
	}
}

// A panic while a ConfigMap is read is an error of the builds that need it, and ends no process.
func TestPanicOfRequest(t *testing.T) {
	_, err := do(t.Context(), &group{}, "template", func(context.Context) (int, error) {
		panic("a fault of ours")
	})
	if err == nil || !strings.Contains(err.Error(), "a fault of ours") {
		t.Errorf("error %v", err)
	}
}
