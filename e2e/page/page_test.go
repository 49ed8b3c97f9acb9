package page

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestScript(t *testing.T) {
	text := "# Page\n\n```sh\na=1\n```\n\n```yaml\nnot: run\n```\n" +
		"<!-- replaced in tests: cluster -->\n```sh\nkind create cluster\n```\n\n```sh\n" +
		"echo \"$a $b\"\n```\n"
	script, err := Script(text, map[string]string{"cluster": "b=2"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("bash", "-c", script).CombinedOutput()
	if want := "\n== line 3\n\n== line 11\n\n== line 15\n1 2\n"; err != nil || string(out) != want {
		t.Errorf("%v, %q, want %q\n%s", err, out, want, script)
	}
	script, err = Script(strings.Replace(text, "kind create cluster", "echo mine", 1),
		map[string]string{"cluster": AsWritten})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "\nmine\n") {
		t.Errorf("as written: %v, %q", err, out) // and then $b is not set
	}
	// A command that fails ends the script.
	script, err = Script("```sh\nfalse\necho later\n```\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err == nil ||
		strings.Contains(string(out), "later") {
		t.Errorf("%v, %q", err, out)
	}
}

func TestScriptRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		text         string
		replacements map[string]string
		want         string
	}{
		"nothing to run": {"# Page\n", nil, "no block"},
		"no end":         {"```sh\na\n", nil, "line 1: the block does not end"},
		"unknown to the test": {"<!-- replaced in tests: x -->\n```sh\na\n```\n", nil,
			`no replacement "x"`},
		"unknown to the page": {"```sh\na\n```\n", map[string]string{"x": "b"}, `["x"]`},
		"replaced twice": {strings.Repeat("<!-- replaced in tests: x -->\n```sh\na\n```\n",
			2), map[string]string{"x": "b"}, `no replacement "x"`},
		"text before the block": {"<!-- replaced in tests: x -->\ntext\n```sh\na\n```\n",
			map[string]string{"x": "b"}, "no block follows"},
		"no name": {"<!-- replaced in tests:  -->\n```sh\na\n```\n", nil,
			"line 1: write it as"},
	} {
		script, err := Script(c.text, c.replacements)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, script)
		}
	}
}

// TestMissing: what a page shows is compared with what the block above printed, in order.
func TestMissing(t *testing.T) {
	const text = "```sh\nls\n```\n```text\na…c\n…\nd\n```\n\n```sh\nb\n```\nIt prints:\n" +
		"```diff\n+x\n```\n"
	for output, want := range map[string][]string{
		"\n== line 1\nabbc\nmore\nd\n\n== line 10\n+x\n": nil,
		"\n== line 1\nd\nac\n\n== line 10\n+x\n":         {"line 7: d"},
		"\n== line 1\nac\nd\n+x\n\n== line 10\n":         {"line 15: +x"},
		"\n== line 1\nac\nde\n\n== line 10\n+x\n":        {"line 7: d"},
		"": {"line 5: a…c", "line 7: d", "line 15: +x"},
	} {
		if missing, err := Missing(text, output); err != nil || !slices.Equal(missing, want) {
			t.Errorf("%q: %q, %v, want %q", output, missing, err, want)
		}
	}
	if _, err := Missing("# Page\n", ""); err == nil {
		t.Error("a page that shows nothing is compared")
	}
}

// TestBlock: a command has its own block of sh, and what the page shows before the next one.
func TestBlock(t *testing.T) {
	const text = "```sh\nfirst\n```\n```text\na\n```\n\n```sh\nls apps\nls\n```\n\n```text\nb\n" +
		"```\n\n```sh\nlast\n```\n```text\nc\n```\n"
	script, shown, err := Block(text, "ls apps")
	if err != nil || script != "ls apps\nls\n" {
		t.Errorf("%q, %v", script, err)
	}
	for output, want := range map[string]int{"b\n": 0, "a\nc\n": 1} {
		if missing, err := Missing(shown, "== line 1\n"+output); err != nil || len(missing) != want {
			t.Errorf("%q: %q, %v", output, missing, err)
		}
	}
	if _, _, err := Block(text, "ls"); err == nil {
		t.Error("a line that begins no block is found")
	}
}
