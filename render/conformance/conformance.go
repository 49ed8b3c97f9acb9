// Package conformance checks whether a program is a KRM function that hosts and people can rely on.
// docs/test-function.md lists the requirements.
package conformance

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Answer is the output and the exit status of a function.
type Answer struct {
	Stdout, Stderr []byte
	Exit           int
}

// Function runs a function on an input. It returns an error if there is no answer, for example
// because the function does not end.
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

// Check is one requirement for a function. Seen is the observation, and Hint the remedy.
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
)

// large is the number of items of the large list.
var large = 1000

// trial is a run of the function.
type trial struct {
	name   string
	input  string
	in     *list // nil if the input cannot be read
	answer Answer
	err    error // set if there is no answer
	out    *list
	badOut error // set if the output is not a list
	at     []int // the indexes of the items of in in out

	again func(input string) *trial // runs the function once more
}

// answered reports whether the input is a list, and the function has answered it.
func (t *trial) answered() bool { return t.err == nil && t.in != nil }

// done reports whether the function succeeded.
func (t *trial) done() bool { return t.answered() && t.out != nil && t.answer.Exit == 0 }

// refused reports whether the function failed with a result that contains the reason.
func (t *trial) refused() bool { return t.err == nil && t.answer.Exit != 0 && exitStatus(t) == "" }

// Test runs all checks with a list, or a built-in one for nil, and a functionConfig, or none for
// nil. The error is one of the list or the configuration, or that of ctx.
func Test(ctx context.Context, f Function, input, config []byte) ([]Check, error) {
	if input == nil {
		input = base
	}
	in, err := read(input)
	if err != nil {
		return nil, fmt.Errorf("reading the list: %w", err)
	}
	if config != nil && in.config != nil {
		return nil, errors.New(
			"the list has a functionConfig already: remove it, or leave out --config")
	}
	if config != nil {
		n, err := yaml.Parse(string(config))
		if err != nil {
			return nil, fmt.Errorf("reading the functionConfig: %w", err)
		}
		in.config = n.YNode()
	}
	with, err := configText(in.config)
	if err != nil {
		return nil, fmt.Errorf("writing the functionConfig: %w", err)
	}
	given := string(input)
	if config != nil {
		given = strings.TrimRight(given, "\n") + "\n" + with
	}
	wrong := string(base) + "functionConfig:\n" + indented(badConfig)
	cut := "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n" +
		"  kind: ConfigMap\n  metadata: {name: cut\n"
	var trials []*trial
	for _, t := range [][2]string{
		{"the list", given},
		{"the list of odd YAML", string(odd) + with},
		{"the list of unknown kinds", string(unknown) + with},
		{"the empty list", emptyList + with},
		{"the large list", largeList() + with},
		{"a functionConfig of an unknown kind", wrong},
		{"a list that is cut off", cut},
	} {
		trials = append(trials, run(ctx, f, t[0], t[1]))
	}
	return checks(trials), ctx.Err()
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

func run(ctx context.Context, f Function, name, input string) *trial {
	t := &trial{name: name, input: input,
		again: func(input string) *trial { return run(ctx, f, name, input) }}
	t.in, _ = read([]byte(input))
	t.answer, t.err = f.Run(ctx, []byte(input))
	if t.err != nil || len(t.answer.Stdout) == 0 && t.answer.Exit != 0 {
		return t
	}
	if t.out, t.badOut = read(t.answer.Stdout); t.in != nil && t.out != nil {
		t.at = pairs(t.in, t.out)
	}
	return t
}

// checks returns the results of the trials, in the order of Test.
func checks(all []*trial) (judged []Check) {
	none := func(*trial) string { return "" }
	always := func(*trial) bool { return true }
	accepted := func(t *trial) bool { return !t.refused() }
	accepts := func(fault func(*trial) string) func(*trial) string {
		return func(t *trial) string {
			switch {
			case t.err != nil:
				return t.err.Error()
			case t.answer.Exit != 0:
				return failure(t)
			case t.out == nil:
				return "there is no list"
			}
			return fault(t)
		}
	}
	for _, c := range []struct {
		name   string
		trials []*trial
		// applies reports whether a run can show a fault, and fault returns the fault.
		applies  func(*trial) bool
		fault    func(*trial) string
		ok, hint string
	}{
		{"answer", all, always, func(t *trial) string {
			if t.err != nil {
				return t.err.Error()
			}
			return ""
		}, "every run ends by itself", "end within the time, with a bounded output: see --timeout"},
		{"list", all, func(t *trial) bool { return t.err == nil && (t.out != nil || t.badOut != nil) },
			func(t *trial) string {
				if t.badOut != nil {
					return "standard output is not a ResourceList: " + t.badOut.Error()
				}
				return ""
			}, "standard output has one ResourceList and nothing else",
			"print logs to standard error"},
		{"exit status", all, (*trial).answered, exitStatus,
			"exit status 0 without a result of severity error, and not 0 with one",
			"on failure, exit with a status that is not 0 and a result of severity error " +
				"with the reason"},
		{"partial output", all, func(t *trial) bool { return t.answered() && t.answer.Exit != 0 },
			partial, "if it fails, it prints the items of its input or nothing",
			"compute everything before you print; to see a failure, name a list with --input " +
				"that the function refuses"},
		{"unreadable input", all[6:], always, cutOff, "it fails with a reason, and prints no items",
			"exit with a status that is not 0 if the input cannot be read"},
		{"results", all, func(t *trial) bool {
			return t.answered() && t.out != nil && len(t.out.results) > 0
		}, faultyResult, "results have severity, message and place",
			"set message, severity, resourceRef, field.path, and file.path from the item's " +
				"annotations; to see results, name a list with --input that has some"},
		{"text", all, (*trial).done, changedText, "what does not change keeps its text and comments",
			"edit the text or its nodes: do not decode and encode an item"},
		{"order", all, (*trial).done, changedOrder, "the items keep their order",
			"append new items, and sort nothing"},
		{"host annotations", all, (*trial).done, changedAnnotations,
			"items keep the annotations of their host",
			"leave config.kubernetes.io/path, index and all of internal.config.kubernetes.io/ alone"},
		{"deterministic", all[:2], func(t *trial) bool { return t.err == nil }, twice,
			"equal input produces equal output",
			"do not use the time, random numbers or the order of a map"},
		{"idempotent", all[:2], (*trial).done, again, "on its own output it changes nothing",
			"check whether the change was already made"},
		{"empty list", all[3:4], accepted, accepts(none), "it accepts an empty list",
			"do nothing if there are no items"},
		{"unknown kinds", all[2:3], accepted, accepts(foreign),
			"it does not change fields of unknown kinds",
			"look at apiVersion and kind before you change or remove an item"},
		{"odd YAML", all[1:2], accepted, accepts(lost),
			"it accepts comments, anchors, strings of many lines and flow style",
			"read YAML with a library, and keep unknown fields"},
		{"large list", all[4:5], accepted, accepts(lost), text.Count(large, "item"),
			"read all of standard input"},
	} {
		judged = append(judged, judge(c.name, c.trials, c.applies, c.fault, c.ok, c.hint))
	}
	return judged
}

// judge applies a check to runs and reports the first fault.
func judge(name string, trials []*trial, applies func(*trial) bool, fault func(*trial) string,
	ok, hint string) Check {
	c := Check{name, Skipped, "no run showed it", hint}
	if len(trials) == 1 && trials[0].refused() {
		c.Seen = "it refuses " + trials[0].name + ", with a result that has the reason"
	}
	for _, t := range trials {
		if !applies(t) {
			continue
		}
		if found := fault(t); found != "" {
			return Check{name, Failed, t.name + ": " + found, hint}
		}
		c = Check{name, OK, ok, ""}
	}
	return c
}

func failure(t *trial) string {
	text := fmt.Sprintf("exit status %d", t.answer.Exit)
	if words := strings.TrimSpace(string(t.answer.Stderr)); words != "" {
		line, _, _ := strings.Cut(words, "\n")
		text += ": " + quoted(line)
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

// partial returns a fault if only some of the items were processed.
func partial(t *trial) string {
	if t.out == nil || len(t.out.items) == 0 {
		return ""
	}
	if len(t.out.items) != len(t.in.items) {
		return fmt.Sprintf("%s, with %d of %d items", failure(t), len(t.out.items), len(t.in.items))
	}
	for i, it := range t.in.items {
		if !reflect.DeepEqual(it.value, t.out.items[i].value) {
			return fmt.Sprintf("%s, and %s is changed", failure(t), it.ref)
		}
	}
	return ""
}

func cutOff(t *trial) string {
	switch {
	case t.err != nil:
		return t.err.Error()
	case t.answer.Exit == 0:
		return "exit status 0"
	case t.out != nil && len(t.out.items) > 0 || t.badOut != nil:
		return failure(t) + ", and standard output has more than results"
	case len(bytes.TrimSpace(t.answer.Stderr)) == 0 && (t.out == nil || len(t.out.results) == 0):
		return failure(t) + ", and no result has the reason"
	}
	return ""
}

func faultyResult(t *trial) string {
	items := append(slices.Clip(t.in.items), t.out.items...)
	for i, r := range t.out.results {
		at := fmt.Sprintf("results[%d]: ", i)
		switch {
		case strings.TrimSpace(r.Message) == "":
			return at + "no message"
		case !slices.Contains([]string{"error", "warning", "info"}, r.Severity):
			return at + "its severity is " + quoted(r.Severity) + ": write error, warning or info"
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
			// The result may be about the configuration, or about a missing item.
			if r.Field == nil || textOf(c, "kind") == r.ResourceRef.Kind &&
				textOf(c, "metadata", "name") == r.ResourceRef.Name {
				continue
			}
			return at + fmt.Sprintf("it has a field of %s, which is not an item", *r.ResourceRef)
		}
		path, index := items[n].file()
		switch {
		case path == "":
		case r.File == nil:
			return at + fmt.Sprintf("it has no file, and %s is from %s", items[n].ref, quoted(path))
		case r.File.Path != path:
			return at + fmt.Sprintf("its file is %s, and %s is from %s", quoted(r.File.Path),
				items[n].ref, quoted(path))
		case r.File.Index != 0 && fmt.Sprint(r.File.Index) != index:
			return at + fmt.Sprintf("its index is %d, and %s is at %s", r.File.Index, items[n].ref,
				quoted(index))
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
		if reflect.DeepEqual(it.value, after.value) {
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
				return fmt.Sprintf("%s: the comment %s at %s is gone", it.ref, quoted(text), path)
			}
		}
		for at, styles := range was.styles {
			for style := range styles {
				if now := is.styles[at]; now != nil && !now[style] {
					path, value, _ := strings.Cut(at, "\n")
					return fmt.Sprintf("%s: %s is %s as before, in other quotes", it.ref, path,
						quoted(value))
				}
			}
		}
		for path, keys := range was.keys {
			if !slices.Equal(common(keys, is.keys[path]), common(is.keys[path], keys)) {
				return fmt.Sprintf("%s: the keys of %s are in another order", it.ref, quoted(path))
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

// difference returns the first differing line of two texts.
func difference(was, is string) string {
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	for i, line := range a {
		if i >= len(b) || line != b[i] {
			now := "nothing"
			if i < len(b) {
				now = quoted(b[i])
			}
			return fmt.Sprintf(": %s is now %s", quoted(line), now)
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
					return fmt.Sprintf("%s: %s was %s and is %s", it.ref, key, quoted(was), quoted(is))
				}
			}
		}
	}
	return ""
}

// lost returns a fault if an item is missing.
func lost(t *trial) string {
	for i, at := range t.at {
		if at < 0 {
			return fmt.Sprintf("%s is gone, and %d of %d items are there", t.in.items[i].ref,
				len(t.out.items), len(t.in.items))
		}
	}
	return ""
}

// foreign returns a fault if fields that no function can know were changed.
func foreign(t *trial) string {
	if fault := lost(t); fault != "" {
		return fault
	}
	for i, it := range t.in.items {
		was, _ := it.value.(map[string]any)
		is, _ := t.out.items[t.at[i]].value.(map[string]any)
		for _, v := range []map[string]any{was, is} {
			for key := range v {
				if key != "metadata" && !reflect.DeepEqual(was[key], is[key]) {
					return fmt.Sprintf("%s: its %s is changed", it.ref, quoted(key))
				}
			}
		}
	}
	return ""
}

// twice runs the function again on the same list and returns a fault if the answer differs.
func twice(t *trial) string {
	second := t.again(t.input)
	switch {
	case second.err != nil:
		return "the second run: " + second.err.Error()
	case second.answer.Exit != t.answer.Exit:
		return fmt.Sprintf("exit status %d, and %d the second time", t.answer.Exit,
			second.answer.Exit)
	case !bytes.Equal(second.answer.Stdout, t.answer.Stdout):
		return "the second run has another output" +
			difference(string(t.answer.Stdout), string(second.answer.Stdout))
	}
	return ""
}

// again runs the function on its own output and returns a fault if it changes.
func again(t *trial) string {
	input := string(t.answer.Stdout)
	if !slices.ContainsFunc(t.out.items, func(it *item) bool { return it.text == "" }) {
		text, err := compose(t.out.version, t.out.items, t.in.config)
		if err != nil {
			return err.Error()
		}
		input = text
	}
	second := t.again(input)
	switch {
	case second.err != nil:
		return "on its own output: " + second.err.Error()
	case second.answer.Exit != 0:
		return "on its own output: " + failure(second)
	case second.in == nil || second.out == nil:
		return "on its own output: no list"
	case len(second.out.items) != len(t.out.items):
		return fmt.Sprintf("on its own output: %d items, which were %d", len(second.out.items),
			len(t.out.items))
	}
	for i, it := range second.in.items {
		if now := second.out.items[i]; it.text != now.text || !reflect.DeepEqual(it.value, now.value) {
			return fmt.Sprintf("on its own output: %s changes%s", it.ref,
				difference(it.text, now.text))
		}
	}
	return ""
}
