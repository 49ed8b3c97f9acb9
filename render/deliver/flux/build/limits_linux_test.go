package build

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
)

// large packages are what takes most memory of its bytes, and what their finding has; ""
// is one that renders.
func large() map[string]struct {
	files map[string][]byte
	want  string
} {
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n"
	repeated := func(text, unit string, n int) map[string][]byte {
		return map[string][]byte{"a.yaml": []byte(text + strings.Repeat(unit, n/len(unit)) + "\n")}
	}
	kustomized := func(in map[string][]byte) map[string][]byte {
		in["kustomization.yaml"] = []byte("resources: [a.yaml]\n")
		return in
	}
	laughs := func(levels int) map[string][]byte {
		text := head + "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
		for i := range levels {
			text += fmt.Sprintf("  a%d: &a%d [%s]\n", i+1, i+1,
				strings.TrimRight(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
		}
		return map[string][]byte{"a.yaml": []byte(text)}
	}
	var fields strings.Builder
	fields.WriteString("apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\nmetadata: {name: a}\nspec:\n")
	for i := range 100 { // as many as are reported of an object
		fmt.Fprintf(&fields, "  x%d: 1\n", i)
	}
	fields.WriteString("---\n")
	list := map[string][]byte{"kustomization.yaml": nil}
	var resources string
	for i := range 500 {
		folder := fmt.Sprintf("b%d", i)
		list[folder+"/kustomization.yaml"] = []byte("namePrefix: " + folder + "-\nresources: [../base]\n")
		resources += "- " + folder + "\n"
	}
	list["kustomization.yaml"] = []byte("resources:\n" + resources)
	list["base/kustomization.yaml"] = []byte("resources: [a.yaml]\n")
	list["base/a.yaml"] = []byte(head + strings.Repeat("  a: b\n", 40_000))
	return map[string]struct {
		files map[string][]byte
		want  string
	}{
		"20 MiB": {repeated(head, "  a: b\n", 20<<20),
			"a.yaml: the file has 20971"},
		"20 MiB for kustomize": {kustomized(repeated(head, "  a: b\n", 20<<20)),
			"a.yaml: the file has 20971"},
		"a document": {repeated(head+"---\n"+head, "  a: bbbbbbbbbbbbbbbbbb\n",
			4<<20), "a.yaml:7: the document has 4194"},
		"values": {repeated(head, "  a: b\n", 3<<19),
			"a.yaml:125001: the document has more than 250000 values"},
		"values in a line": {repeated(head+"  a: [", "0,", 1<<20),
			"a.yaml:6: the document has more than 250000 values"},
		"empty lists in a line": {repeated(head+"  a: [", "[],", 1<<20),
			"a.yaml:6: the document has more than 250000 values"},
		"sequences in a line": {repeated(head+"  a:\n  ", "- ", 1<<20),
			"a.yaml:7: the document has more than 250000 values"},
		"nested": {repeated(head+"  a: ", "[", 1<<16),
			"a.yaml:6: the document has more than 250000 values, or 100 levels"},
		"aliases": {laughs(9),
			"a.yaml:1: the aliases of the document repeat more than 250000 values"},
		"aliases for kustomize": {kustomized(laughs(9)),
			"a.yaml:1: the aliases of the document repeat more than 250000 values"},
		"an alias of itself": {map[string][]byte{"a.yaml": []byte(head + "  a: &a [*a]\n")},
			"a.yaml:"},
		"configuration": {map[string][]byte{"a.yaml": []byte(configMap),
			"armature.yaml": []byte(config + strings.Repeat("  # -\n", 400_000))},
			"armature.yaml:"},
		"a kustomization": {map[string][]byte{"a.yaml": []byte(configMap),
			"kustomization.yaml": []byte("resources:\n" + strings.Repeat("- a.yaml\n", 400_000))},
			"kustomization.yaml:"},
		"many bases": {list, "reads more than 1500000 values"},
		"a patch": {map[string][]byte{"a.yaml": []byte(configMap),
			"p.yaml":             repeated(head, "  a: b\n", 3<<19)["a.yaml"],
			"kustomization.yaml": []byte("resources: [a.yaml]\npatches: [{path: p.yaml}]\n")},
			"p.yaml:125001: the document has more"},
		"beside a kustomization": {map[string][]byte{"a.yaml": []byte(configMap),
			"p.yaml":             repeated(head, "  a: b\n", 3<<20)["a.yaml"],
			"kustomization.yaml": []byte("resources: [a.yaml]\n")}, ""},
		"within":                {repeated(head, "  a: b\n", 1<<19), "a.yaml:"},
		"within, for kyaml":     {repeated(head+"  a: &x\n", "    - b\n", 960_000), ""},
		"within, for kustomize": {kustomized(repeated(head+"  a:\n", "  - b\n", 1<<19)), ""},
		"within, flow": {kustomized(repeated(head+"  a: [0", ",[0]", 480_000)),
			"a.yaml:"},
		"a text of a ConfigMap": {repeated(head+"  a: |\n",
			"    {\"a\": [1, 2], \"b\": \"some text\"}\n", 1<<20), ""},
		"findings": {map[string][]byte{"a.yaml": bytes.Repeat([]byte("x\n---\n"), 60_000)},
			"more findings are left out"},
		"findings of fields": {map[string][]byte{"a.yaml": bytes.Repeat([]byte(fields.String()), 600)},
			"more findings are left out"},
		"a few aliases":             {laughs(3), ""},
		"a large file of documents": {map[string][]byte{"a.yaml": []byte(many(head, 100_000))}, ""},
	}
}

func many(head string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Replace(head, "name: a", fmt.Sprint("name: a", i), 1) + "  a: b\n---\n")
	}
	return b.String()
}

func TestLimits(t *testing.T) {
	for name, c := range large() {
		t.Run(name, func(t *testing.T) {
			r := Run(c.files, Options{})
			var text strings.Builder
			for _, f := range r.Findings {
				text.WriteString(f.String() + "\n")
			}
			all := text.String()
			if finding.Failed(r.Findings) != (c.want != "") || !strings.Contains(all, c.want) {
				t.Errorf("findings lack %q: %.500s", c.want, all)
			}
		})
	}
}

// asBuild makes the test binary render a package in two slots, as the controller does.
const asBuild = "ARMATURE_TEST_BUILD"

func TestMain(m *testing.M) {
	name := os.Getenv(asBuild)
	if name == "" {
		os.Exit(m.Run())
	}
	files := large()[name].files
	// that of the other packages
	debug.FreeOSMemory()
	// the peak is that from here on
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		fmt.Println(err)
	}
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() { Run(files, Options{}) })
	}
	group.Wait()
	text, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	fmt.Println(strings.Fields(rest)[0])
}

// Large packages keep the controller below half of its memory limit of 1 GiB, with two of them
// rendered at once. The figures:
//
//	go test -run TestMemoryOfLargePackages -v ./render/deliver/flux/build
func TestMemoryOfLargePackages(t *testing.T) {
	if testing.Short() {
		t.Skip("renders packages as large as the limits allow; run it without -short")
	}
	for name := range large() {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asBuild+"="+name, "GOMEMLIMIT=1073741824", "GOGC=100")
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			kib, err := strconv.Atoi(strings.TrimSpace(string(out)))
			if err != nil {
				t.Fatal(err)
			}
			if t.Logf("%d MiB of 1024", kib>>10); kib>>10 > 512 {
				t.Errorf("%d MiB, more than half of 1024", kib>>10)
			}
		})
	}
}
