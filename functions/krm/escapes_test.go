package krm

import (
	"encoding/json"
	"testing"
)

// JSON is read as JSON reads it, whatever its escapes are to YAML.
func TestJSONEscapes(t *testing.T) {
	for _, value := range []string{`a\/b`, `\ud83d\ude00`, `\ud83d`, `\ude00\ud83d`,
		`\ud83d\ud83d\ude00`, `\ud83dx\/`, `\\/`, `\\ud83d`, `\\\/`, `\"\\\n\u0041`} {
		text := `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "annotations": {"k": "` +
			value + `"}}}`
		var want struct {
			Metadata struct{ Annotations map[string]string }
		}
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		for _, item := range []bool{false, true} {
			src := text
			if item {
				src = "- " + text + "\n"
			}
			var o Object
			if isObject, err := o.Read([]byte(src), Document{End: len(src)}, item,
				Origin{File: "a.json", Line: 1}); err != nil || !isObject {
				t.Errorf("%s: %t %v", src, isObject, err)
				continue
			}
			if have, _ := o.Annotation("k"); have != want.Metadata.Annotations["k"] {
				t.Errorf("%s: read as %q", src, have)
			}
			if out := string(o.Append(nil)); out != src {
				t.Errorf("%s leaves as %s", src, out)
			}
		}
	}
}
