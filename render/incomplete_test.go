package render_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// A document that was meant to be an object is an error, whether only objects are kept or
// not; anything else passes.
func TestIncompleteObjects(t *testing.T) {
	const text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ok}\n---\nkind: ConfigMap\n" +
		"metadata:\n  name: x\n---\napiVersion: v1\nmetadata: {name: y}\n---\nhello: world\n---\n" +
		"kind: pipeline\nname: z\n"
	for _, only := range []bool{true, false} {
		r, err := render.Run(
			render.Source{Files: []render.File{{Path: "app.yaml", Data: []byte(text)}}},
			render.Options{ObjectsOnly: only})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range r.Findings {
			if f.Rule == "package/incomplete" {
				got = append(got, f.Message)
				if f.File != "app.yaml" || f.Line == 0 || f.Hint == "" ||
					f.Severity != finding.Error {
					t.Errorf("only objects %t: %+v", only, f)
				}
			}
		}
		if want := "ConfigMap x has no apiVersion, so it is not a Kubernetes object\n" +
			"the document y has no kind, so it is not a Kubernetes object"; strings.Join(got,
			"\n") != want {
			t.Errorf("only objects %t: got\n%s", only, strings.Join(got, "\n"))
		}
	}
}
