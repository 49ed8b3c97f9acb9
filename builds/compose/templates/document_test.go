package templates

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A text is refused before it is parsed, or once it is known what its aliases write
// out. What is kept of the largest one that is read is small.
func TestHostileTexts(t *testing.T) {
	aliases := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 8 {
		aliases += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	for name, c := range map[string]struct{ text, want string }{
		"bytes": {"description: " + strings.Repeat("x", maxText),
			"KiB, and at most 512 are read"},
		"values":       {"steps: [" + strings.Repeat("{},", maxMarks) + "]", "marks such as"},
		"block values": {"steps:\n" + strings.Repeat("- a\n", maxMarks), "marks such as"},
		"aliases":      {aliases, "with its aliases written out"},
		"a cycle":      {"steps: &a [*a, *a]", "with its aliases written out"},
		"a long text": {"description: &a " + strings.Repeat("x", 64<<10) + "\nb: [" +
			strings.Repeat("*a, ", 5000) + "]", "with its aliases written out"},
		"a MiB of lists": {"steps: " + strings.Repeat("[", 1<<20), "KiB, and at most 512 are read"},
		"many values": {"steps: [" + strings.Repeat("{},", maxNodes) + "]",
			"values, or 512 KiB"},
		"depth": {"steps: " + strings.Repeat("[", 15000), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			step, err := ReadStep(ConfigMap{Name: "s", Data: map[string]string{StepKey: c.text}})
			_, templateErr := ReadTemplate(ConfigMap{Name: "t",
				Data: map[string]string{TemplateKeyYAML: c.text}})
			runtime.ReadMemStats(&after)
			for _, err := range []error{err, templateErr} {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %.300v, want %s", err, c.want)
				}
			}
			if !step.Broken || step.Memory() > 0 {
				t.Error("the text is kept")
			}
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%d MiB allocated", allocated)
			if allocated > 64 {
				t.Errorf("%d MiB were allocated to refuse it", allocated)
			}
		})
	}
}

// What Memory says of a step is an upper bound of what is kept of it.
func TestMemoryOfSteps(t *testing.T) {
	const copies = 4
	for name, text := range map[string]string{
		"containers": "steps: [" + strings.Repeat("{image: a},", 1300) + "]",
		"parameters": "params: [" +
			strings.TrimSuffix(strings.Join(many(1300, "{name: p%d}"), ","), ",") +
			"]\nsteps: [{image: a}]",
		"arguments": "steps: [{image: a, args: [" + strings.Repeat("a,", 3900) + "]}]",
		"volumes": "volumes: [" + strings.Join(many(700, "{name: v%d, emptyDir: {}}"), ",") +
			"]\nsteps: [{image: a}]",
		"variables": "steps: [{image: a, env: [" + strings.Repeat("{name: a},", 1300) + "]}]",
	} {
		t.Run(name, func(t *testing.T) {
			var kept []*Step
			heap := func() uint64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			before := heap()
			began := time.Now()
			for range copies {
				step, err := ReadStep(ConfigMap{Name: "s",
					Data: map[string]string{StepKey: strings.Clone(text),
						"other": strings.Repeat("x", 4<<20)}})
				if err != nil {
					t.Fatal(err)
				}
				kept = append(kept, step)
			}
			took := int(heap()-before) / copies
			t.Logf("%d KiB of text: %d KiB kept, %d counted; read in %s", len(text)>>10, took>>10,
				kept[0].Memory()>>10, time.Since(began)/copies)
			if took > kept[0].Memory() {
				t.Errorf("a step takes %d bytes, and %d are counted", took, kept[0].Memory())
			}
			runtime.KeepAlive(kept)
		})
	}
}

func many(n int, format string) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}
