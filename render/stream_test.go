package render_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/source"
)

// A stream too large for memory leaves as one that is small.
func TestSpoolLeavesAsItCame(t *testing.T) {
	for _, pieces := range []int{1, 100, 50_000} {
		var spool source.Spool
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
		src, err := source.ReadStream(r)
		if err != nil || !bytes.Equal(src.Files[0].Data, want) {
			t.Errorf("%s: read %d bytes of %d: %v", name, len(src.Files[0].Data), len(want), err)
		}
	}
	broken := errors.New("the pipe broke")
	if _, err := source.ReadStream(io.MultiReader(bytes.NewReader(want),
		iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

// TestKubectlReadsStreams: a stream that begins with a JSON object is read by
// kubectl's own decoder, every object of it, and is given back by uninject.
func TestKubectlReadsStreams(t *testing.T) {
	pod := func(name, more string) string {
		return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name +
			`", "labels": {"kagenti.io/inject": "enabled"}}, "spec": {"containers": [{"name": "c", "image": "d"}]` +
			more + `}}` + "\n"
	}
	const plain = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}` + "\n"
	const config = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n"
	for name, c := range map[string]struct {
		files   []string
		objects int
	}{
		"one object":   {[]string{plain}, 1},
		"one workload": {[]string{pod("a", "")}, 2},
		"on lines of its own": {
			[]string{"\n  " + strings.ReplaceAll(pod("a", ""), ", ", ",\n\t")}, 2},
		"with CRLF":           {[]string{"{\r\n" + pod("a", "")[1:]}, 2},
		"workload and others": {[]string{pod("a", "") + "---\n" + plain + "---\n" + config}, 4},
		"others first":        {[]string{plain + "---\n" + pod("a", "")}, 3},
		"two files":           {[]string{plain, config}, 2},
		"JSON files only": {[]string{plain, strings.Replace(plain, "\"s\"", "\"t\"", 1)},
			2},
		"workloads in JSON files": {[]string{pod("a", ""), plain, pod("b", "")}, 5},
		"in pieces": {
			[]string{pod("a", `, "hostname": "`+strings.Repeat("x", 3<<20)+`"`) + "---\n" + config},
			3},
	} {
		var src render.Source
		for i, text := range c.files {
			file := "-"
			if len(c.files) > 1 {
				file = fmt.Sprintf("%d.json", i)
			}
			src.Files = append(src.Files, render.File{Path: file, Data: []byte(text)})
		}
		stream := func(src render.Source, do func(render.Source, render.Options,
			render.Sink) ([]finding.Finding, render.Stats, error)) []byte {
			var spool source.Spool
			findings, _, err := do(src, render.Options{Workers: 1, Pieces: true}, spool.Write)
			if err != nil || finding.Failed(findings) {
				t.Fatalf("%s: %v %v", name, err, findings)
			}
			var b bytes.Buffer
			if n, err := spool.WriteTo(&b); err != nil || n != int64(b.Len()) {
				t.Fatalf("%s: %d bytes of %d, %v", name, n, b.Len(), err)
			}
			return b.Bytes()
		}
		out := stream(src, render.Stream)
		if begin := out[:min(len(out), 80)]; c.objects > 1 && !bytes.HasPrefix(out, []byte("---")) {
			t.Errorf("%s: kubectl before 1.33 reads it as JSON: %s", name, begin)
		}
		decoder := kubeyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
		objects := 0
		for {
			var object struct{ Kind string }
			if err := decoder.Decode(&object); err == io.EOF {
				break
			} else if err != nil {
				t.Errorf("%s: %v\n%.300s", name, err, out)
				break
			}
			if object.Kind != "" {
				objects++
			}
		}
		if objects != c.objects {
			t.Errorf("%s: kubectl reads %d objects, want %d", name, objects, c.objects)
		}
		one := func(data []byte) render.Source {
			return render.Source{Files: []render.File{{Path: "-", Data: data}}}
		}
		if again := stream(one(out), render.Stream); !bytes.Equal(again, out) {
			t.Errorf("%s: the second render differs:\n%.300s\n%.300s", name, out, again)
		}
		if undone := stream(one(out), render.Uninject); len(c.files) == 1 &&
			string(undone) != c.files[0] {
			t.Errorf("%s: uninject gives\n%.300s", name, undone)
		}
	}
}

// TestHostedFindings: what a host passes is named by its file, if the host says
// which, and never by a line of the host's stream.
func TestHostedFindings(t *testing.T) {
	item := func(name, annotation string) string {
		return "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: " + name +
			"\n    annotations: {" + annotation +
			"}\n    labels: {kagenti.io/inject: enabled}\n  spec:\n" +
			"    containers: [{name: c}, {name: c}]\n"
	}
	for annotation, file := range map[string]string{
		`a: b`:                                "",
		`config.kubernetes.io/path: p/a.yaml`: "p/a.yaml",
		`config.kubernetes.io/origin: "path: ../base/a.yaml\nrepo: https://git.example/x\n"`:                      "../base/a.yaml",
		`config.kubernetes.io/origin: "configuredIn: kustomization.yaml\nconfiguredBy:\n  apiVersion: builtin\n"`: "kustomization.yaml",
		`config.kubernetes.io/path: p/a.yaml, config.kubernetes.io/origin: "path: base/b.yaml\n"`:                 "p/a.yaml",
	} {
		list, err := host.ReadList(
			[]byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n" +
				item("web", annotation) + item("web", annotation)))
		if err != nil {
			t.Fatal(err)
		}
		out, findings, _, err := list.Render(render.Options{})
		if err != nil || !finding.Failed(findings) {
			t.Fatalf(
				"%v: two containers of one name, and two Pods of one name, are not an error: %v",
				err, findings)
		}
		for _, f := range findings {
			if f.File != file || f.Line != 0 || strings.Contains(f.Message+f.Hint, "-:") ||
				strings.Contains(f.Message+f.Hint, ".yaml:") {
				t.Errorf("%s: %s", annotation, f)
			}
			if !strings.Contains(f.String(), "Pod web") {
				t.Errorf("which object? %s", f)
			}
		}
		if want := "path: " + file; file != "" && !strings.Contains(string(out), want) {
			t.Errorf("the results lack %q:\n%s", want, out)
		}
	}
}

// TestConfigurationAmongItems: a host that passes a RenderConfig among the items, and no
// functionConfig, does not get the defaults.
func TestConfigurationAmongItems(t *testing.T) {
	const config = "  apiVersion: armature.dev/v1alpha1\n  kind: RenderConfig\n" +
		"  metadata: {name: armature, annotations: {config.kubernetes.io/path: armature.yaml}}\n"
	text := "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n-" + config[1:] +
		"- apiVersion: v1\n  kind: Pod\n  metadata: {name: web, labels: {kagenti.io/inject: " +
		"enabled}}\n  spec: {containers: [{name: web, image: \"web:v1\"}]}\n"
	for passed, failed := range map[string]bool{"": true, "functionConfig:\n" + config: false} {
		list, err := host.ReadList([]byte(text + passed))
		if err != nil {
			t.Fatal(err)
		}
		_, findings, _, err := list.Render(render.Options{})
		if err != nil || finding.Failed(findings) != failed {
			t.Errorf("with %q: %v, %v", passed, findings, err)
		}
		refused := slices.IndexFunc(findings,
			func(f finding.Finding) bool { return f.Rule == "config/not-passed" })
		if failed &&
			(refused < 0 || findings[refused].File != "armature.yaml" ||
				!strings.Contains(findings[refused].Hint, "--fn-config")) {
			t.Errorf("%v", findings)
		}
		if _, findings, _, err := list.Run(render.Options{}, render.Uninject); err != nil ||
			finding.Failed(findings) {
			t.Errorf("uninject with %q: %v, %v", passed, findings, err)
		}
	}
}
