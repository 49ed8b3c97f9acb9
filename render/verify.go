package render

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
)

// Verify renders a source afresh and compares: a workload that opted in and was
// not rendered, or one that differs from what a render makes of it, is an
// error. Order and style of the YAML do not count, so that it works on what
// other tools made of a render.
func Verify(src Source, opt Options) ([]krm.Finding, Stats, error) {
	var mu sync.Mutex
	var different []krm.Finding
	sink := func(file string, rendered []byte) error {
		data, err := content(src, file)
		if err != nil || bytes.Equal(data, rendered) {
			return err
		}
		found, err := compare(file, data, rendered)
		mu.Lock()
		defer mu.Unlock()
		different = append(different, found...)
		return err
	}
	findings, stats, err := Stream(src, opt, sink)
	findings = append(findings, different...)
	krm.SortFindings(findings)
	return findings, stats, err
}

func content(src Source, file string) ([]byte, error) {
	for _, f := range src.Files {
		if f.Path == file && f.Data != nil {
			return f.Data, nil
		}
	}
	return src.Read(file, nil)
}

type found struct {
	value    any
	line     int
	injected bool
}

// objects decodes all objects of a file.
func objects(file string, data []byte) (map[krm.Ref]found, error) {
	all := make(map[krm.Ref]found)
	var failed error
	walk(data, func(d krm.Document, item bool, line int) {
		var o krm.Object
		isObject, err := o.Read(data, d, item, krm.Origin{File: file, Line: line})
		if err != nil || !isObject {
			return // the render reports it
		}
		value, err := o.Value()
		if err != nil {
			failed = err
			return
		}
		all[o.Ref] = found{value, line, inject.Injected(&o)}
	})
	return all, failed
}

func compare(file string, data, rendered []byte) ([]krm.Finding, error) {
	have, err := objects(file, data)
	if err != nil {
		return nil, err
	}
	want, err := objects(file, rendered)
	if err != nil {
		return nil, err
	}
	var findings []krm.Finding
	report := func(rule string, ref krm.Ref, line int, field, message, hint string) {
		findings = append(findings, krm.Finding{Rule: "verify/" + rule, Severity: krm.Error, Message: message, Hint: hint,
			File: file, Line: line, Field: field, Object: ref})
	}
	const remedy = "run `armature render`; where kustomize should have done it, pass --enable-alpha-plugins --enable-exec, without which it skips functions silently"
	for ref, w := range want {
		h, ok := have[ref]
		switch {
		case !ok:
			report("missing", ref, 0, "", fmt.Sprintf("%s is missing", ref), remedy)
		case w.injected && !h.injected:
			report("not-rendered", ref, h.line, "", fmt.Sprintf("%s opted in, but was not rendered", ref), remedy)
		default:
			if path, differ := difference("", h.value, w.value); differ {
				report("differs", ref, h.line, path, fmt.Sprintf("%s differs from a fresh render", ref), "render again, and change the source instead of the rendered file")
			}
		}
	}
	for ref, h := range have {
		if _, ok := want[ref]; !ok {
			report("left-over", ref, h.line, "", fmt.Sprintf("a fresh render does not have %s", ref), "render again")
		}
	}
	return findings, nil
}

// difference gives the path of the first value in which two objects differ.
func difference(path string, a, b any) (string, bool) {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return path, true
		}
		keys := make([]string, 0, len(a)+len(b))
		for k := range a {
			keys = append(keys, k)
		}
		for k := range b {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range slices.Compact(keys) {
			av, inA := a[k]
			bv, inB := b[k]
			at := k
			if path != "" {
				at = path + "." + k
			}
			if inA != inB {
				return at, true
			}
			if at, differ := difference(at, av, bv); differ {
				return at, true
			}
		}
		return "", false
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return path, true
		}
		for i := range a {
			if at, differ := difference(fmt.Sprintf("%s[%d]", path, i), a[i], b[i]); differ {
				return at, true
			}
		}
		return "", false
	}
	return path, !reflect.DeepEqual(a, b)
}
