// Package conformance checks whether a program is a KRM function that hosts and people can
// rely on: docs/test-function.md has what is asked of one.
package conformance

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Answer is what a function did with its input.
type Answer struct {
	Stdout, Stderr []byte
	Exit           int
}

// Function runs a function on an input. An error is one that has no answer: it does not
// end, say.
type Function interface {
	Run(ctx context.Context, input []byte) (Answer, error)
}

// Status of a check.
type Status string

const (
	OK      Status = "ok"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Check is one thing that is asked of a function. Seen is what was seen, and Hint what to do.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Seen   string `json:"seen"`
	Hint   string `json:"hint,omitempty"`
}

var (
	//go:embed base.yaml
	base []byte
	//go:embed odd.yaml
	odd []byte
	//go:embed unknown.yaml
	unknown []byte
)

const (
	emptyList = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
	badConfig = "apiVersion: functions.example.com/v1\nkind: NoSuchConfig\nmetadata:\n" +
		"  name: wrong\nspec: [wrong]\n"
	baseName   = "the list"
	configName = "a functionConfig of an unknown kind"
)

// large is the number of items of the large list.
var large = 1000

// trial is a run of the function.
type trial struct {
	name   string
	input  string
	in     *list // nil: it cannot be read
	answer Answer
	err    error // there is no answer
	out    *list
	badOut error // what is printed is not a list
	at     []int // of the items of in in out
}

// refused reports whether the function did not do its work, and has a result with the reason.
func (t *trial) refused() bool { return t.err == nil && t.answer.Exit != 0 && exitStatus(t) == "" }

// Test runs all checks with a list, nil for one that is built in, and a functionConfig,
// nil for none. An error is one of the list or the configuration, or the end of ctx.
func Test(ctx context.Context, f Function, input, config []byte) ([]Check, error) {
	if input == nil {
		input = base
	}
	in, err := read(input)
	if err != nil {
		return nil, fmt.Errorf("reading the list: %w", err)
	}
	given := string(input)
	if config != nil {
		if in.config != nil {
			return nil, errors.New(
				"the list has a functionConfig already: remove it, or leave out --config")
		}
		n, err := yaml.Parse(string(config))
		if err != nil {
			return nil, fmt.Errorf("reading the functionConfig: %w", err)
		}
		in.config = n.YNode()
		more, err := configText(in.config)
		if err != nil {
			return nil, fmt.Errorf("writing the functionConfig: %w", err)
		}
		given = strings.TrimRight(given, "\n") + "\n" + more
	}
	with, err := configText(in.config)
	if err != nil {
		return nil, fmt.Errorf("writing the functionConfig: %w", err)
	}
	wrong := append(slices.Clip(base), "functionConfig:\n"+indented(badConfig)...)
	cut := "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n" +
		"  kind: ConfigMap\n  metadata: {name: cut\n"

	s := &suite{ctx: ctx, f: f}
	s.base = s.run(baseName, given)
	s.odd = s.run("the list of odd YAML", string(odd)+with)
	s.unknown = s.run("the list of unknown kinds", string(unknown)+with)
	s.empty = s.run("the empty list", emptyList+with)
	s.large = s.run("the large list", largeList()+with)
	s.config = s.run(configName, string(wrong))
	s.cut = s.run("a list that is cut off", cut)
	checks := s.checks()
	return checks, ctx.Err()
}

func indented(text string) string {
	return string(krm.AppendIndented(nil, []byte(text), 2, "\n"))
}

func largeList() string {
	var b strings.Builder
	b.WriteString("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n")
	for i := range large {
		fmt.Fprintf(&b,
			"- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: m%d\n"+
				"    namespace: team1\n  data:\n    number: \"%d\" # of %d\n", i, i, large)
	}
	return b.String()
}

type suite struct {
	ctx                                           context.Context
	f                                             Function
	base, odd, unknown, empty, large, config, cut *trial
}

func (s *suite) run(name, input string) *trial {
	t := &trial{name: name, input: input}
	t.in, _ = read([]byte(input))
	if t.answer, t.err = s.f.Run(s.ctx, []byte(input)); t.err != nil {
		return t
	}
	if len(t.answer.Stdout) == 0 && t.answer.Exit != 0 {
		return t
	}
	if t.out, t.badOut = read(t.answer.Stdout); t.in != nil && t.out != nil {
		t.at = pairs(t.in, t.out)
	}
	return t
}

// rule reports what is wrong in a run, and whether the run could show it.
type rule func(t *trial) (fault string, applies bool)

func (s *suite) checks() []Check {
	all := []*trial{s.base, s.odd, s.unknown, s.empty, s.large, s.config, s.cut}
	done := func(fault func(t *trial) string) rule {
		return func(t *trial) (string, bool) {
			if t.err != nil || t.in == nil || t.out == nil || t.answer.Exit != 0 {
				return "", false
			}
			return fault(t), true
		}
	}
	checks := []Check{
		over("answer", all, func(t *trial) (string, bool) {
			if t.err != nil {
				return t.err.Error(), true
			}
			return "", true
		}, "every run ends by itself", "end within the time, with a bounded output: see --timeout"),
		over("list", all, func(t *trial) (string, bool) {
			if t.badOut != nil {
				return "standard output is not a ResourceList: " + t.badOut.Error(), true
			}
			return "", t.err == nil && t.out != nil
		}, "standard output has one ResourceList and nothing else", "print logs to standard error"),
		over("exit status", all, func(t *trial) (string, bool) {
			return exitStatus(t), t.err == nil && t.in != nil
		},
			"exit status 0 without a result of severity error, and not 0 with one",
			"on failure, exit with a status that is not 0 and a result of severity error "+
				"with the reason"),
		over("partial output", all, func(t *trial) (string, bool) {
			if t.err != nil || t.in == nil || t.answer.Exit == 0 {
				return "", false
			}
			return partial(t), true
		}, "if it fails, it prints the items of its input or nothing",
			"compute everything before you print; to see a failure, name a list with --input "+
				"that the function refuses"),
		s.cutOff(),
		over("results", all, func(t *trial) (string, bool) {
			if t.err != nil || t.in == nil || t.out == nil || len(t.out.results) == 0 {
				return "", false
			}
			return faultyResult(t), true
		}, "results have severity, message and place",
			"set message, severity, resourceRef, field.path, and file.path from the item's "+
				"annotations; to see results, name a list with --input that has some"),
		over("text", all, done(changedText), "what does not change keeps its text and comments",
			"edit the text or its nodes: do not decode and encode an item"),
		over("order", all, done(changedOrder), "the items keep their order",
			"append new items, and sort nothing"),
		over("host annotations", all, done(changedAnnotations),
			"items keep the annotations of their host",
			"leave config.kubernetes.io/path, index and all of internal.config.kubernetes.io/ alone"),
		s.twice(),
		s.again(),
	}
	for _, p := range []struct {
		name  string
		t     *trial
		fault func(t *trial) string
		ok    string
		hint  string
	}{
		{"empty list", s.empty, func(*trial) string { return "" }, "it accepts an empty list",
			"do nothing if there are no items"},
		{"unknown kinds", s.unknown, foreign, "it does not change fields of unknown kinds",
			"look at apiVersion and kind before you change or remove an item"},
		{"odd YAML", s.odd, lost,
			"it accepts comments, anchors, strings of many lines and flow style",
			"read YAML with a library, and keep unknown fields"},
		{"large list", s.large, lost, text.Count(large, "item"), "read all of standard input"},
	} {
		checks = append(checks, over(p.name, []*trial{p.t}, func(t *trial) (string, bool) {
			switch {
			case t.refused():
				return "", false
			case t.err != nil:
				return t.err.Error(), true
			case t.answer.Exit != 0:
				return failure(t), true
			case t.out == nil:
				return "there is no list", true
			}
			return p.fault(t), true
		}, p.ok, p.hint))
	}
	return checks
}

// over applies a rule to runs. The first fault is shown.
func over(name string, trials []*trial, r rule, ok, hint string) Check {
	c := Check{name, Skipped, "no run showed it", hint}
	if len(trials) == 1 && trials[0].refused() {
		c.Seen = "it refuses " + trials[0].name + ", with a result that has the reason"
	}
	for _, t := range trials {
		fault, applies := r(t)
		if applies && fault != "" {
			return Check{name, Failed, t.name + ": " + fault, hint}
		}
		if applies {
			c = Check{name, OK, ok, ""}
		}
	}
	return c
}

func failure(t *trial) string {
	text := fmt.Sprintf("exit status %d", t.answer.Exit)
	if words := strings.TrimSpace(string(t.answer.Stderr)); words != "" {
		line, _, _ := strings.Cut(words, "\n")
		text += ": " + shown(line)
	}
	return text
}

func exitStatus(t *trial) string {
	wrong := false
	if t.out != nil {
		wrong = slices.ContainsFunc(t.out.results,
			func(r result) bool { return r.Severity == "error" })
	}
	switch {
	case t.answer.Exit == 0 && wrong:
		return "exit status 0, and a result of severity error"
	case t.answer.Exit != 0 && !wrong:
		return failure(t) + ", and no result of severity error"
	}
	return ""
}

// partial finds output where some items are done and some are not.
func partial(t *trial) string {
	if t.out == nil || len(t.out.items) == 0 {
		return ""
	}
	if len(t.out.items) != len(t.in.items) {
		return fmt.Sprintf("%s, with %d of %d items", failure(t), len(t.out.items), len(t.in.items))
	}
	for i, it := range t.in.items {
		if !same(it.value, t.out.items[i].value) {
			return fmt.Sprintf("%s, and %s is changed", failure(t), it.ref)
		}
	}
	return ""
}

func (s *suite) cutOff() Check {
	return over("unreadable input", []*trial{s.cut}, func(t *trial) (string, bool) {
		switch {
		case t.err != nil:
			return t.err.Error(), true
		case t.answer.Exit == 0:
			return "exit status 0", true
		case t.out != nil && len(t.out.items) > 0 || t.badOut != nil:
			return failure(t) + ", and standard output has more than results", true
		case len(bytes.TrimSpace(t.answer.Stderr)) == 0 &&
			(t.out == nil || len(t.out.results) == 0):
			return failure(t) + ", and no result has the reason", true
		}
		return "", true
	}, "it fails with a reason, and prints no items",
		"exit with a status that is not 0 if the input cannot be read")
}

func faultyResult(t *trial) string {
	items := append(slices.Clip(t.in.items), t.out.items...)
	for i, r := range t.out.results {
		at := fmt.Sprintf("results[%d]: ", i)
		switch {
		case strings.TrimSpace(r.Message) == "":
			return at + "no message"
		case !slices.Contains([]string{"error", "warning", "info"}, r.Severity):
			return at + "its severity is " + shown(r.Severity) + ": write error, warning or info"
		case r.Field != nil && r.Field.Path == "":
			return at + "its field has no path"
		case r.File != nil && r.File.Path == "":
			return at + "its file has no path"
		case r.ResourceRef == nil:
			continue
		case r.ResourceRef.APIVersion == "" || r.ResourceRef.Kind == "" || r.ResourceRef.Name == "":
			return at + "its resourceRef lacks apiVersion, kind or name"
		}
		n := slices.IndexFunc(items, func(it *item) bool { return it.ref == *r.ResourceRef })
		if n < 0 {
			c := t.in.config
			if textOf(field(c, "kind")) == r.ResourceRef.Kind &&
				textOf(field(field(c, "metadata"), "name")) == r.ResourceRef.Name {
				continue
			}
			if r.Field == nil { // an item that is missing
				continue
			}
			return at + fmt.Sprintf("it has a field of %s, which is not an item", *r.ResourceRef)
		}
		path, index := items[n].file()
		switch {
		case path == "":
		case r.File == nil:
			return at + fmt.Sprintf("it has no file, and %s is from %s", items[n].ref, shown(path))
		case r.File.Path != path:
			return at + fmt.Sprintf("its file is %s, and %s is from %s", shown(r.File.Path),
				items[n].ref, shown(path))
		case r.File.Index != 0 && fmt.Sprint(r.File.Index) != index:
			return at + fmt.Sprintf("its index is %d, and %s is at %s", r.File.Index, items[n].ref,
				shown(index))
		}
	}
	return ""
}

func changedText(t *trial) string {
	for i, it := range t.in.items {
		if t.at[i] < 0 {
			continue
		}
		after := t.out.items[t.at[i]]
		if same(it.value, after.value) {
			if it.text != "" && it.text != after.text {
				return fmt.Sprintf("%s is unchanged, but its text differs%s", it.ref,
					difference(it.text, after.text))
			}
			continue
		}
		was, is := shapeOf(it.node), shapeOf(after.node)
		for c := range was.comments {
			path, text, _ := strings.Cut(c, "\n")
			if is.all[text] < was.all[text] && is.paths[path] {
				return fmt.Sprintf("%s: the comment %s at %s is gone", it.ref, shown(text), path)
			}
		}
		for at, styles := range was.styles {
			for style := range styles {
				if now := is.styles[at]; now != nil && !now[style] {
					path, value, _ := strings.Cut(at, "\n")
					return fmt.Sprintf("%s: %s is %s as before, in other quotes", it.ref, path,
						shown(value))
				}
			}
		}
		for path, keys := range was.keys {
			if !slices.Equal(common(keys, is.keys[path]), common(is.keys[path], keys)) {
				return fmt.Sprintf("%s: the keys of %s are in another order", it.ref, shown(path))
			}
		}
	}
	return ""
}

func common(keys, others []string) (both []string) {
	for _, k := range keys {
		if slices.Contains(others, k) {
			both = append(both, k)
		}
	}
	return both
}

// difference shows the first line of two texts that differs.
func difference(was, is string) string {
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	for i, line := range a {
		if i >= len(b) || line != b[i] {
			now := "nothing"
			if i < len(b) {
				now = shown(b[i])
			}
			return fmt.Sprintf(": %s is now %s", shown(line), now)
		}
	}
	return ""
}

func changedOrder(t *trial) string {
	last := -1
	for i, at := range t.at {
		if at >= 0 && at < last {
			return fmt.Sprintf("%s comes before %s", t.in.items[i].ref, t.out.items[last].ref)
		}
		last = max(last, at)
	}
	return ""
}

func changedAnnotations(t *trial) string {
	for i, it := range t.in.items {
		if t.at[i] < 0 {
			continue
		}
		now := t.out.items[t.at[i]].host
		for _, both := range []map[string]string{it.host, now} {
			for key := range both {
				if was, is := it.host[key], now[key]; was != is {
					return fmt.Sprintf("%s: %s was %s and is %s", it.ref, key, shown(was), shown(is))
				}
			}
		}
	}
	return ""
}

// lost finds an item that is gone.
func lost(t *trial) string {
	for i, at := range t.at {
		if at < 0 {
			return fmt.Sprintf("%s is gone, and %d of %d items are there", t.in.items[i].ref,
				len(t.out.items), len(t.in.items))
		}
	}
	return ""
}

// foreign finds a change of fields that no function can know.
func foreign(t *trial) string {
	if fault := lost(t); fault != "" {
		return fault
	}
	for i, it := range t.in.items {
		was, _ := it.value.(map[string]any)
		is, _ := t.out.items[t.at[i]].value.(map[string]any)
		for _, v := range []map[string]any{was, is} {
			for key := range v {
				if key != "metadata" && !same(was[key], is[key]) {
					return fmt.Sprintf("%s: its %s is changed", it.ref, shown(key))
				}
			}
		}
	}
	return ""
}

// twice runs the function again on the same lists.
func (s *suite) twice() Check {
	return over("deterministic", []*trial{s.base, s.odd}, func(t *trial) (string, bool) {
		if t.err != nil {
			return "", false
		}
		second := s.run(t.name, t.input)
		switch {
		case second.err != nil:
			return "the second run: " + second.err.Error(), true
		case second.answer.Exit != t.answer.Exit:
			return fmt.Sprintf("exit status %d, and %d the second time", t.answer.Exit,
				second.answer.Exit), true
		case !bytes.Equal(second.answer.Stdout, t.answer.Stdout):
			return "the second run has another output" +
				difference(string(t.answer.Stdout), string(second.answer.Stdout)), true
		}
		return "", true
	}, "equal input produces equal output",
		"do not use the time, random numbers or the order of a map")
}

// again runs the function on its own output.
func (s *suite) again() Check {
	return over("idempotent", []*trial{s.base, s.odd}, func(t *trial) (string, bool) {
		if t.err != nil || t.in == nil || t.out == nil || t.answer.Exit != 0 {
			return "", false
		}
		input := string(t.answer.Stdout)
		if !slices.ContainsFunc(t.out.items, func(it *item) bool { return it.text == "" }) {
			text, err := compose(t.out.version, t.out.items, t.in.config)
			if err != nil {
				return err.Error(), true
			}
			input = text
		}
		second := s.run(t.name, input)
		switch {
		case second.err != nil:
			return "on its own output: " + second.err.Error(), true
		case second.answer.Exit != 0:
			return "on its own output: " + failure(second), true
		case second.in == nil || second.out == nil:
			return "on its own output: no list", true
		case len(second.out.items) != len(t.out.items):
			return fmt.Sprintf("on its own output: %d items, which were %d", len(second.out.items),
				len(t.out.items)), true
		}
		for i, it := range second.in.items {
			if now := second.out.items[i]; it.text != now.text || !same(it.value, now.value) {
				return fmt.Sprintf("on its own output: %s changes%s", it.ref,
					difference(it.text, now.text)), true
			}
		}
		return "", true
	}, "on its own output it changes nothing", "check whether the change was already made")
}
