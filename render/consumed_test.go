package render_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

const (
	consumedWorkload = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "labels": {"kagenti.io/inject": "enabled"}}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "d"}]}}}}`
	consumedExchange = `{"apiVersion": "kagenti.io/v1alpha1", "kind": "TokenExchange", "metadata": {"name": "e"}, "spec": {"targetRef": {"kind": "Deployment", "name": "a"}, "inbound": {"port": 9000}}}`
	consumedTrace    = `{"apiVersion": "kagenti.io/v1alpha1", "kind": "AgentTrace", "metadata": {"name": "t", "annotations": {"a": "it's <b> \"c\" \\ \u00e9"}}, "spec": {"targetRef": {"kind": "Deployment", "name": "a"}}}`
	consumedCard     = `{"apiVersion": "kagenti.io/v1alpha1", "kind": "AgentCard", "metadata": {"name": "k"}, "spec": {"targetRef": {"kind": "Deployment", "name": "a"}}}`
)

// consumedLayouts are lists in which custom resources that are consumed stand
// before, between and behind other items, or alone.
func consumedLayouts() (all []layout) {
	const w, te, at, card = consumedWorkload, consumedExchange, consumedTrace, consumedCard
	indent := strings.NewReplacer(`"items": [`, "\"items\": [\n\t", "}, {\"apiVersion\"",
		"},\n\t{\"apiVersion\"", "]}\n", "\n]}\n").Replace
	add := func(name, file, format string, args ...any) {
		all = append(all, layout{name: name, file: file, text: fmt.Sprintf(format, args...)})
	}
	list := func(items ...string) string {
		return `{"apiVersion": "v1", "kind": "List", "items": [` + strings.Join(items, ", ") + "]}\n"
	}
	slash := func(text string) string {
		return strings.NewReplacer("apps/v1", `apps\/v1`, "kagenti.io/v1alpha1",
			`kagenti.io\/v1alpha1`, `"d"`, `"\ud83d\ude00\/\u0000\"}]"`).Replace(text)
	}
	for name, items := range map[string][]string{
		"first": {te, w, bystander}, "last": {bystander, w, te}, "between": {w, te, bystander},
		"two first": {te, at, w}, "two last": {w, te, at}, "around": {te, w, at},
		"three": {te, card, w, bystander, at},
	} {
		add("json/"+name, "x.json", "%s", list(items...))
		add("json indented/"+name, "x.json", "%s", indent(list(items...)))
		add("json tight/"+name, "x.json", "%s",
			strings.ReplaceAll(strings.ReplaceAll(list(items...), `": `, `":`), ", ", ","))
		add("json escapes/"+name, "x.json", "%s", slash(list(items...)))
		add("json spaced/"+name, "x.json", "%s", strings.ReplaceAll(list(items...), `": `, `" :  `))
		add("flow/"+name, "x.yaml", "apiVersion: v1\nkind: List\nitems: [%s]\n",
			strings.Join(items, ", "))
		add("flow before/"+name, "x.yaml", "items: [\n  %s,\n]\nkind: List\napiVersion: v1",
			strings.Join(items, ",\n  "))
		add("flow crlf/"+name, "x.yaml",
			"apiVersion: v1\r\nkind: List\r\nitems: [\r\n  %s\r\n]\r\n",
			strings.Join(items, ",\r\n  "))
		add("flow in a block list/"+name, "x.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- kind: List\n  apiVersion: v1\n"+
				"  items: [%s]\n- %s\n", strings.Join(items, ", "), bystanderNamed("other"))
		add("json in a block list/"+name, "x.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- %s- %s\n", list(items...), bystanderNamed("other"))
		add("json nested/"+name, "x.json", "%s",
			list(strings.TrimSpace(list(items...)), bystanderNamed("other")))
		add("block/"+name, "x.yaml", "apiVersion: v1\nkind: List\nitems:\n- %s\n",
			strings.Join(items, "\n- "))
		add("block without an end/"+name, "x.yaml", "apiVersion: v1\nkind: List\nitems:\n- %s",
			strings.Join(items, "\n- "))
		add("block crlf without an end/"+name, "x.yaml",
			"apiVersion: v1\r\nkind: List\r\nitems:\r\n- %s", strings.Join(items, "\r\n- "))
		add("block nested/"+name, "x.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items:\n"+
				"  - %s\n- %s\n", strings.Join(items, "\n  - "), bystanderNamed("other"))
		add("block nested without an end/"+name, "x.yaml",
			"kind: List\napiVersion: v1\nitems:\n- kind: List\n  apiVersion: v1\n  items:\n  - %s",
			strings.Join(items, "\n  - "))
	}
	for name, metadata := range map[string]string{
		"null": "null", "empty": "{}", "of a cluster": `{"resourceVersion": "", "selfLink": ""}`,
		"annotations": `{"annotations": {"a": "b"}}`, "no annotations": `{"annotations": null}`,
		"empty annotations": `{"annotations": { }}`,
	} {
		add("json metadata "+name, "x.json",
			`{"apiVersion": "v1", "kind": "List", "metadata": %s, "items": [%s, %s]}`+"\n",
			metadata, te, w)
		add("json metadata behind "+name, "x.json",
			`{"apiVersion": "v1", "kind": "List", "items": [%s, %s], "metadata" : %s}`+"\n", w, te,
			metadata)
		add("flow metadata "+name, "x.yaml",
			"metadata: %s\napiVersion: v1\nkind: List\nitems: [%s, %s]\n", metadata, w, te)
		add("flow metadata behind "+name, "x.yaml",
			"apiVersion: v1\nkind: List\nitems: [%s, %s]\nmetadata: %s\n", w, te, metadata)
	}
	// Lists without any remaining item.
	add("block with brackets that go on in the first column", "x.yaml",
		"apiVersion: v1\nkind: List\nitems:\n- %s\n- %s\n- %s",
		strings.Replace(bystander, ", ", "\n, ", 1), w, te)
	add("almost json in a list", "x.yaml", "%s",
		list(w, strings.TrimSpace(list(te, strings.Replace(at, `\u00e9`, `\ `, 1)))))
	add("flow emptied", "x.yaml", "apiVersion: v1\nkind: List\nitems: [ %s,\n  %s ]\n---\n%s\n", te,
		at, w)
	add("flow emptied, with a comma", "x.yaml",
		"apiVersion: v1\nkind: List\nitems: [%s , ]\n---\n%s\n", te, w)
	add("json emptied in a list", "x.json", "%s", list(w, strings.TrimSpace(list(te, at))))
	add("block emptied", "x.yaml", "%s\n---\napiVersion: v1\nkind: List\nitems:\n- %s\n- %s", w, te, at)
	add("block nested emptied", "x.yaml",
		"apiVersion: v1\nkind: List\nitems:\n- %s\n- kind: List\n  apiVersion: v1\n  items:\n  - %s", w, te)
	return all
}

func bystanderNamed(name string) string {
	return strings.Replace(bystander, `"name": "s"`, `"name": "`+name+`"`, 1)
}

// TestConsumedLayouts holds lists with custom resources to the contract of
// checkRender, and looks for the resources in what is rendered: none is left, and
// what it says has an effect.
func TestConsumedLayouts(t *testing.T) {
	t.Parallel()
	c := config(t, small)
	for _, l := range consumedLayouts() {
		result, problem := checkRenderAs(t, l.file, []byte(l.text), c)
		if problem == "" && finding.Failed(result.Findings) {
			problem = fmt.Sprint(result.Findings)
		}
		out := rendered(result, l.file)
		if problem == "" {
			problem = consumedIn(out)
		}
		if problem != "" {
			t.Errorf("%s: %s\ninput:\n%s\nrendered:\n%s", l.name, problem, l.text, out)
		}
	}
}

// consumedIn says what is wrong with the objects of a rendered file.
func consumedIn(out []byte) (problem string) {
	var object any
	documents, err := []any{}, json.Unmarshal(out, &object)
	if documents = append(documents, object); err != nil {
		documents, err = decode3(out)
	}
	if err != nil {
		return err.Error()
	}
	var kinds []string
	exchange := ""
	var walk func(items []any)
	walk = func(items []any) {
		for _, v := range items {
			m, _ := v.(map[string]any)
			kind := text(m["kind"])
			if items, ok := m["items"].([]any); ok && kind == "List" {
				walk(items)
				continue
			} else if kind == "List" && m["items"] == nil {
				continue
			}
			kinds = append(kinds, kind)
			if child(m, "metadata")["name"] == "a-token-exchange" {
				exchange = text(child(m, "data")["LISTEN_PORT"])
			}
			if annotations := child(child(m, "metadata"),
				"annotations"); annotations[krm.LocalConfig] != nil {
				problem = "marked as local"
			}
		}
	}
	walk(documents)
	for _, kind := range []string{"TokenExchange", "AgentTrace", "AgentCard", ""} {
		if slices.Contains(kinds, kind) {
			return fmt.Sprintf("the objects are %q", kinds)
		}
	}
	if !slices.Contains(kinds, "Deployment") || exchange != "9000" {
		return fmt.Sprintf("the objects are %q, and the port is %q", kinds, exchange)
	}
	return problem
}

// TestConsumedJSONFile renders JSON files that hold only a custom resource: the result is JSON
// without an object, from which the resource is restored.
func TestConsumedJSONFile(t *testing.T) {
	c := config(t, small)
	author := map[string]string{
		"exchange.json": consumedExchange + "\n",
		"trace.json":    strings.ReplaceAll(consumedTrace, ", ", ",\n\t"),
		"card.json":     "\n " + consumedCard,
		"web.json":      strings.ReplaceAll(consumedWorkload, "apps/v1", `apps\/v1`),
	}
	source := func(files map[string]string) (src render.Source) {
		for _, name := range []string{"card.json", "exchange.json", "trace.json", "web.json"} {
			src.Files = append(src.Files, render.File{Path: name, Data: []byte(files[name])})
		}
		return src
	}
	first, err := render.Run(source(author), render.Options{Config: c})
	if err != nil || finding.Failed(first.Findings) {
		t.Fatal(err, first.Findings)
	}
	once := make(map[string]string)
	for _, f := range first.Files {
		if once[f.Path] = string(f.Data); !strings.HasSuffix(f.Path, ".json") {
			continue
		}
		var object struct {
			APIVersion, Kind string
			Items            []any
		}
		if err := json.Unmarshal(f.Data, &object); err != nil {
			t.Errorf("%s: %v\n%s", f.Path, err, f.Data)
		} else if f.Path != "web.json" &&
			(object.APIVersion != "v1" || object.Kind != "List" || object.Items == nil ||
				len(object.Items) > 0) {
			t.Errorf("%s is not an empty List:\n%s", f.Path, f.Data)
		}
	}
	if made := once["web.armature.yaml"]; !strings.Contains(made, `LISTEN_PORT: "9000"`) {
		t.Errorf("the TokenExchange has no effect:\n%s", made)
	}
	if made := once["card.armature.yaml"]; !strings.Contains(made, "k-discovery") {
		t.Errorf("the AgentCard has no effect:\n%s", made)
	}
	second, err := render.Run(source(once), render.Options{Config: c})
	if err != nil || finding.Failed(second.Findings) {
		t.Fatal(err, second.Findings)
	}
	for _, f := range second.Files {
		if string(f.Data) != once[f.Path] {
			t.Errorf("%s changes:\n%s\n%s", f.Path, once[f.Path], f.Data)
		}
	}
	_, _, err = render.Uninject(source(once), render.Options{Config: c, Workers: 1},
		func(file string, data []byte) error {
			if string(data) != author[file] {
				t.Errorf("uninject gives %s as\n%s", file, data)
			}
			return nil
		})
	if err != nil {
		t.Error(err)
	}
}

// TestConsumedListsEdited edits rendered lists: what they keep comes back among
// what somebody wrote, or is an error.
func TestConsumedListsEdited(t *testing.T) {
	c := config(t, small)
	const head = `{"apiVersion": "v1", "kind": "List", "items": [`
	run := func(text string) (string, []finding.Finding) {
		t.Helper()
		result, err := render.Run(
			render.Source{Files: []render.File{{Path: "x.json", Data: []byte(text)}}},
			render.Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		return string(rendered(result, "x.json")), result.Findings
	}
	if _, findings := run(head + consumedExchange + ", " + consumedTrace + "]}\n"); !finding.Failed(
		findings) {
		t.Error("two resources without their workload")
	}
	rendered, findings := run(head + consumedExchange + ", " + consumedWorkload + ", " +
		consumedTrace + "]}\n")
	if finding.Failed(findings) {
		t.Fatal(findings)
	}
	_, left, _ := strings.Cut(rendered, `"items": [`)
	left, _, _ = strings.Cut(left, `], "metadata"`)
	for name, test := range map[string]struct{ from, to, want string }{
		"an item in front": {`"items": [`, `"items": [` + bystander + ", ",
			head + consumedExchange + ", " + bystander + ", " + consumedWorkload + ", " +
				consumedTrace + "]}\n"},
		"an unknown field": {`\"items\":[`, `\"thing\":[`, ""},
		"a broken note":    {`\"items\":[`, `\"items\":{`, ""},
		"no note":          {`armature.dev/consumed`, `example.com/consumed`, "gone"},
		"a wrong place": {`\"after\":`, `\"after\":7`,
			head + consumedExchange + ", " + consumedWorkload + ", " + consumedTrace + "]}\n"},
		"no item": {left, "", head + consumedExchange + ", " + consumedTrace + "]}\n"},
	} {
		edited := strings.Replace(rendered, test.from, test.to, 1)
		if edited == rendered {
			t.Fatalf("%s: nothing is edited in\n%s", name, rendered)
		}
		undone := ""
		findings, _, err := render.Uninject(
			render.Source{Files: []render.File{{Path: "x.json", Data: []byte(edited)}}},
			render.Options{Workers: 1},
			func(_ string, data []byte) error { undone = string(data); return nil })
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want == "gone":
			if finding.Failed(findings) || strings.Contains(undone, `"kind": "TokenExchange"`) ||
				!json.Valid([]byte(undone)) {
				t.Errorf("%s: %v\n%s", name, findings, undone)
			}
		case test.want == "":
			if !finding.Failed(findings) {
				t.Errorf("%s: no error, but\n%s", name, undone)
			}
		case finding.Failed(findings) || undone != test.want:
			t.Errorf("%s: %v\n%s\nwant\n%s", name, findings, undone, test.want)
		}
		if _, findings := run(edited); name != "no item" &&
			finding.Failed(findings) != (test.want == "") {
			t.Errorf("%s, rendered: %v", name, findings)
		}
	}
}

// TestConsumedListFilled adds an item to a list that a render has emptied.
func TestConsumedListFilled(t *testing.T) {
	const list = `{"apiVersion": "v1", "kind": "List", "items": [` + consumedExchange + "]}\n"
	workload := render.File{Path: "w.json", Data: []byte(consumedWorkload)}
	result, err := render.Run(
		render.Source{Files: []render.File{{Path: "x.json", Data: []byte(list)}, workload}},
		render.Options{Config: config(t, small)})
	if err != nil || finding.Failed(result.Findings) {
		t.Fatal(err, result.Findings)
	}
	edited := strings.Replace(string(rendered(result, "x.json")), `"items": [`, `"items": [`+bystander, 1)
	undone := ""
	_, _, err = render.Uninject(
		render.Source{Files: []render.File{{Path: "x.json", Data: []byte(edited)}}},
		render.Options{Workers: 1}, func(_ string, data []byte) error {
			undone = string(data)
			return nil
		})
	want := strings.Replace(list, "]}", ", "+bystander+"]}", 1)
	if err != nil || undone != want {
		t.Errorf("%v\n%s\nwant\n%s", err, undone, want)
	}
}

// TestConsumedUnknown holds a note that no version writes, or that an older one wrote, to
// an error: to go on without it would lose what the resource was.
func TestConsumedUnknown(t *testing.T) {
	for _, note := range []string{"created", "emptied {}", `{"created":1,"thing":2}`,
		"null", `{"items":[null]}`, `{} {}`, `{"document":"a","document":"b"}`,
		`{"items":[{"after":1,"before":", ","text":"{}"}]}`} {
		text := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  annotations:\n" +
			"    armature.dev/consumed: '" + note + "'\n"
		findings, _, err := render.Uninject(
			render.Source{Files: []render.File{{Path: "x.yaml", Data: []byte(text)}}},
			render.Options{Workers: 1}, func(string, []byte) error { return nil })
		if err != nil || len(findings) != 1 || findings[0].Rule != "package/list-layout" ||
			findings[0].Hint == "" {
			t.Errorf("%s: %v %v", note, err, findings)
		}
	}
}

// TestConsumedLines checks the lines of text behind a list that keeps items.
func TestConsumedLines(t *testing.T) {
	c := config(t, small)
	run := func(text string) render.Result {
		t.Helper()
		result, err := render.Run(
			render.Source{Files: []render.File{{Path: "x.yaml", Data: []byte(text)}}},
			render.Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	multiline := strings.ReplaceAll(consumedExchange, ", ", ",\n  ")
	for _, items := range []string{multiline + ",\n" + consumedWorkload,
		consumedWorkload + ",\n" + multiline} {
		for _, layout := range []string{"apiVersion: v1\nkind: List\nitems: [\n%s,\n%s]\n",
			"items: [\n%s,\n%s]\napiVersion: v1\nkind: List\n"} {
			first := run(fmt.Sprintf(layout, items, bystander))
			if finding.Failed(first.Findings) {
				t.Fatal(first.Findings)
			}
			text := strings.Replace(string(rendered(first, "x.yaml")), bystander,
				strings.Replace(bystander, `"s"`, `"s", "labels": {"kagenti.io/inject": "enabled"}`,
					1), 1)
			line := 1 + strings.Count(text[:strings.Index(text, `"Service"`)], "\n")
			second := run(text)
			if !slices.ContainsFunc(second.Findings, func(f finding.Finding) bool {
				return f.Object.Kind == "Service" && f.Line == line
			}) {
				t.Errorf("line %d is not among %v of\n%s", line, second.Findings, text)
			}
		}
	}
}
