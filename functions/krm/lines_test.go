package krm

import "testing"

// Text that went through kyaml keeps the lines of its author in findings.
func TestLinesOfRewrittenText(t *testing.T) {
	const text = `# a comment
kind: Deployment
apiVersion: apps/v1
metadata: &m
  name: web

  labels: {a: b}
spec:
  template:
    spec:
      containers:
      - name: one
      - name: two
        env: &env
        - {name: A, value: x}
      - name: three
        env: *env
`
	var o Object
	if isObject, err := o.Read([]byte(text), Document{End: len(text)}, false,
		Origin{File: "web.yaml", Line: 10}); err != nil || !isObject {
		t.Fatal(isObject, err)
	}
	if _, rewritten := o.Rewritten(); !rewritten {
		t.Fatal("the text did not go through kyaml")
	}
	containers := o.Get("spec", "template", "spec", "containers")
	for _, c := range []struct {
		node Node
		line int
	}{
		{o.Get("metadata", "labels", "a"), 16},
		{containers, 20},
		{containers.Named("name", "two"), 22},
		{containers.Named("name", "two").Get("env"), 23},
		{first(containers.Named("name", "two").Get("env")).Get("value"), 24},
		{first(containers.Named("name", "three").Get("env")).Get("value"), 26},
	} {
		if line := c.node.Line(); line != c.line {
			t.Errorf("%s is on line %d, want %d", c.node.Path(), line, c.line)
		}
	}
}

func first(list Node) Node {
	for item := range list.Items() {
		return item
	}
	return Node{}
}
