package krm

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// sameMeaning holds the scanner to what kyaml reads from the same text.
func sameMeaning(o *Object, n Node, want *yaml.Node) string {
	switch want.Kind {
	case yaml.DocumentNode:
		return sameMeaning(o, n, want.Content[0])
	case yaml.MappingNode:
		if !n.IsMap() {
			return n.Path() + ": not a mapping"
		}
		i := 0
		for key, value := range n.Fields() {
			if i >= len(want.Content) || want.Content[i].Value != key {
				return n.Path() + ": key " + key
			}
			if diff := sameMeaning(o, value, want.Content[i+1]); diff != "" {
				return diff
			}
			i += 2
		}
		if i != len(want.Content) {
			return n.Path() + ": missing keys"
		}
	case yaml.SequenceNode:
		if !n.IsList() {
			return n.Path() + ": not a list"
		}
		i := 0
		for item := range n.Items() {
			if i >= len(want.Content) {
				return n.Path() + ": too many items"
			}
			if diff := sameMeaning(o, item, want.Content[i]); diff != "" {
				return diff
			}
			i++
		}
		if i != len(want.Content) {
			return n.Path() + ": missing items"
		}
	case yaml.ScalarNode:
		if want.Tag == yaml.NodeTagNull {
			if !n.IsNull() {
				return n.Path() + ": not null: " + n.Text()
			}
			return ""
		}
		if !n.IsScalar() {
			return n.Path() + ": not a scalar"
		}
		if n.Text() != want.Value {
			return n.Path() + ": text " + n.Text() + " != " + want.Value
		}
	default:
		return n.Path() + ": an alias"
	}
	return ""
}

// compare reads text with the scanner and with kyaml. It returns a difference, and whether the
// scanner was certain.
func compare(text []byte) (diff string, certain bool) {
	if at, why := valid(text); at >= 0 {
		return why, false
	}
	o := &Object{start: 0, end: len(text)}
	if why, _ := o.tree.scan(text, 0, len(text), false); why != "" {
		return why, false
	}
	var want yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&want); errors.Is(err, io.EOF) {
		if !o.Root().IsNull() {
			return "not empty", true
		}
		return "", true
	} else if err != nil {
		return "kyaml says " + err.Error(), true
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return "kyaml found a second document", true
	}
	return sameMeaning(o, o.Root(), &want), true
}

func FuzzScan(f *testing.F) {
	for _, text := range scanSeeds {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for d := range Documents(text) {
			if diff, certain := compare(text[d.Start:d.End]); certain && diff != "" {
				t.Errorf("%s in\n%s", diff, text[d.Start:d.End])
			}
		}
	})
}

func TestScanSeeds(t *testing.T) {
	for _, text := range scanSeeds {
		diff, certain := compare([]byte(text))
		if !certain || diff != "" {
			t.Errorf("certain %v, %s in\n%s", certain, diff, text)
		}
	}
}

var scanSeeds = []string{
	"a: ::/0\nb:\n- ::1/128\n- ?x\n- :y\n::1: c\n?d: e\n",
	"a: b\n",
	"a:\n  b: c\n  d:\n  - e\n  -   f: g\n      h: i\n",
	"a:\n- b\n- c:\nd: 'it''s'\ne: \"x\\ty\"\n",
	"a: |\n  one\n\n   two\n  # three\nb: >-\n  four\n  five\nc: |+\n  six\n\n",
	"a: [1, 'b', {c: d}, \"e\"]\nb: {}\nc: []\n",
	"{\"a\": {\"b\": [1, 2,\n  3]}, \"c\": \"d\"}\n",
	"a: one\n  two\n\n  three # four\nb: \"x\n  y\"\n# end\n",
	"a: # comment\n  b: c # d#e\nf: #g\n",
	"- - a\n  - b\n-\n  c: d\n- e: |2\n    f\n",
	"a:\r\n  b: c\r\n  d: |\r\n    e\r\n    f\r\n",
	"a: b",
	"x: http://y:80/z#w\nz: -1\nw: --flag\n",
}

// TestScanRealFiles reads every YAML file that the modules of this build ship.
func TestScanRealFiles(t *testing.T) {
	root := os.Getenv("ARMATURE_YAML_CORPUS")
	if root == "" {
		t.Skip("ARMATURE_YAML_CORPUS names no folder")
	}
	documents, uncertain := 0, map[string]int{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() ||
			!strings.HasSuffix(path, ".yaml") && !strings.HasSuffix(path, ".yml") {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for d := range Documents(src) {
			documents++
			diff, certain := compare(src[d.Start:d.End])
			switch {
			case !certain:
				uncertain[diff]++
			case diff != "":
				t.Errorf("%s: %s", path, diff)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d documents, uncertain: %v", documents, uncertain)
}

// TestMarkerLine compares with a look at every line, over all short texts of
// the characters that matter.
func TestMarkerLine(t *testing.T) {
	const characters = "-\na"
	for n := range 3 * 3 * 3 * 3 * 3 * 3 * 3 * 3 * 3 {
		var text []byte
		for k := n; k > 0; k /= 3 {
			text = append(text, characters[k%3])
		}
		for at := 0; at < len(text); {
			want := -1
			for line := at; line < len(text) && want < 0; line = nextLine(text, line) {
				if bytes.HasPrefix(text[line:], []byte("---")) {
					want = line
				}
			}
			if got := markerLine(text, at); got != want {
				t.Fatalf("%q from %d: %d, not %d", text, at, got, want)
			}
			at = nextLine(text, at)
		}
	}
}

// TestFrozen reads text that kyaml cannot write in a form that the scanner is certain of: it cannot
// be edited, and leaves unchanged.
func TestFrozen(t *testing.T) {
	for _, value := range []string{"!!binary aGVsbG8=",
		"&a 1\n  " + strings.Repeat("k", 200) + ": *a"} {
		text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: " + value + "\n"
		var o Object
		isObject, err := o.Read([]byte(text), Document{End: len(text)}, false, Origin{})
		if err != nil || !isObject || o.Name != "a" || o.Get("data", "x").Text() == "" {
			t.Errorf("%s: %v, %v, name %q", text, isObject, err, o.Name)
		}
		if got := string(o.Append(nil)); got != text {
			t.Errorf("%s became\n%s", text, got)
		}
		if _, err := o.Insert(o.Root(), []string{"metadata", "labels"},
			[]byte("a: b\n"), false); err == nil || o.Edited() {
			t.Errorf("%s was edited: %v", text, err)
		}
	}
}
