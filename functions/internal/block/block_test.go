package block

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAppend(t *testing.T) {
	item := Map("", Plain("name", "web"), Map("env", Env("A", "$(B)")),
		List("args", Plain("", "-v"), File("", "a\n\nb\n")))
	got := string(Append(nil, 2,
		Text("text", `say "hi"`), Int("n", 7), Bool("b", true), Null("null"),
		If(false, Plain("left", "out")), Map("empty"), List("none"),
		List("texts", Text("", "a"), Text("", "1")),
		Document("doc", Map("a", Plain("b", "c"))),
		Document("items", item),
	)) + string(AppendItem(nil, 4, Plain("x", "1"), Plain("y", "2")))
	want := `  text: "say \"hi\""
  n: 7
  b: true
  null:
  texts:
  - "a"
  - "1"
  doc: |
    a:
      b: c
  items: |
    - name: web
      env:
        A: "$$(B)"
      args:
      - -v
      - |
        a
        
        b
    - x: 1
      y: 2
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
