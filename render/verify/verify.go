// Package verify compares manifests with a fresh render of themselves.
package verify

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
)

// Run renders a source again and compares the results. It reports an error for a workload that
// opted in and was not rendered, and for an object that differs from a fresh render. Order and
// style of the YAML do not count, so that it also accepts the output of other tools that processed
// a render.
func Run(src render.Source, opt render.Options) ([]finding.Finding, render.Stats, error) {
	v := verification{src: src, left: make(map[finding.Ref]found),
		unrendered: make(map[finding.Ref]bool)}
	sink := func(file string, rendered []byte) error {
		if rendered == nil {
			return nil // its objects are in other files of the render
		}
		data, err := src.Content(file)
		if err != nil || bytes.Equal(data, rendered) {
			return err
		}
		return v.compare(file, data, rendered)
	}
	findings, stats, err := render.Stream(src, opt, sink)
	if err == nil && !finding.Failed(findings) {
		err = v.finish()
		if err == nil && stats.Workloads == 0 {
			err = v.nothing()
		}
	}
	findings = append(findings, v.findings...)
	finding.Sort(findings)
	return findings, stats, err
}

// List compares the items of a ResourceList with a fresh render, and returns them unchanged.
func List(l *host.List,
	opt render.Options) (out []byte, findings []finding.Finding, stats render.Stats, err error) {
	return l.Run(opt,
		func(src render.Source, opt render.Options,
			_ render.Sink) ([]finding.Finding, render.Stats, error) {
			return Run(src, opt)
		})
}

// verification collects differences. Many files may be compared in parallel.
type verification struct {
	src render.Source

	mu       sync.Mutex
	findings []finding.Finding
	missing  []found               // objects that a file lacks
	left     map[finding.Ref]found // objects that a file should not contain

	unrendered map[finding.Ref]bool // workloads, by kind, namespace and name
}

type found struct {
	file     string
	ref      finding.Ref
	line     int
	value    any
	injected bool
	local    bool        // stays in the package, and never gets into a cluster
	of       finding.Ref // the workload for which it was rendered: kind, namespace and name
}

// objects decodes all objects of a file.
func objects(file string, data []byte) (map[finding.Ref]found, error) {
	all := make(map[finding.Ref]found)
	var failed error
	// The render reports documents that are not objects.
	render.Objects(render.File{Path: file, Data: data}, func(o *krm.Object) {
		value, err := o.Value()
		if err != nil {
			failed = err
			return
		}
		local := o.Get("metadata", "annotations", krm.LocalConfig).Is("true")
		krm.DropHostAnnotations(value)
		at, line := file, o.Origin.Line
		if o.Origin.File != file { // the host names the file of the item, but not its line
			at, line = o.Origin.File, 0
		}
		made, _ := o.Annotation(keys.RenderedFor)
		kind, name, _ := strings.Cut(made, "/")
		of := finding.Ref{Kind: kind, Namespace: o.Namespace, Name: name}
		all[o.Ref] = found{at, o.Ref, line, value, identity.Injected(o), local, of}
	})
	return all, failed
}

const remedy = "run `armature render`; kustomize skips functions silently without " +
	"--enable-alpha-plugins --enable-exec, and kpt one whose condition is false"

func (v *verification) report(rule string, at found, field, message, hint string) {
	v.findings = append(v.findings, finding.Finding{Rule: "verify/" + rule, Severity: finding.Error,
		Message: message, Hint: hint,
		Place: finding.Place{File: at.file, Line: at.line, Field: field, Object: at.ref}})
}

func (v *verification) compare(file string, data, rendered []byte) error {
	have, err := objects(file, data)
	if err != nil {
		return err
	}
	want, err := objects(file, rendered)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for ref, w := range want {
		if h, ok := have[ref]; ok {
			v.judge(h, w)
		} else {
			v.missing = append(v.missing, w)
		}
	}
	for ref, h := range have {
		if _, ok := want[ref]; !ok && !h.local {
			v.left[ref] = h
		}
	}
	return nil
}

func (v *verification) judge(have, want found) {
	if want.injected && !have.injected {
		v.unrendered[finding.Ref{Kind: have.ref.Kind, Namespace: have.ref.Namespace,
			Name: have.ref.Name}] = true
		v.report("not-rendered", have, "",
			fmt.Sprintf("%s opted in, but was not rendered", have.ref), remedy)
	} else if path, differ := difference("", have.value, want.value); differ {
		v.report("differs", have, path, fmt.Sprintf("%s differs from a fresh render", have.ref),
			"render again, and change the source instead of the rendered file")
	}
}

// finish searches other files for missing objects, because kpt, for example, moves generated
// objects to files of their own.
func (v *verification) finish() error {
	elsewhere := make(map[finding.Ref]found)
	if len(v.missing) > 0 && len(v.src.Files) > 1 {
		err := v.manifests(func(file string, data []byte) error {
			all, err := objects(file, data)
			maps.Copy(elsewhere, all)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, want := range v.missing {
		if have, ok := elsewhere[want.ref]; ok {
			v.judge(have, want)
			delete(v.left, want.ref)
			continue
		}
		if v.unrendered[want.of] {
			continue // the finding about the workload suffices
		}
		want.line = 0 // the line is of the render, not of a file
		v.report("missing", want, "", fmt.Sprintf("%s is missing", want.ref), "render again")
	}
	for _, have := range v.left {
		v.report("left-over", have, "", fmt.Sprintf("a fresh render does not have %s", have.ref),
			"render again")
	}
	return nil
}

// manifests visits the source's manifests.
func (v *verification) manifests(visit func(file string, data []byte) error) error {
	for _, f := range v.src.Files {
		if f.AsIs || !render.IsManifest(f.Path) {
			continue
		}
		data, err := v.src.Content(f.Path)
		if err == nil {
			err = visit(f.Path, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nothing reports a source without an object for a cluster and without a consumed custom resource.
// Accepting it would hide that the previous step produced nothing.
func (v *verification) nothing() error {
	seen := false
	err := v.manifests(func(file string, data []byte) error {
		if seen = seen || bytes.Contains(data, []byte(keys.Consumed)); !seen {
			render.Objects(render.File{Path: file, Data: data},
				func(o *krm.Object) { seen = seen || !render.LocalKind(o) })
		}
		return nil
	})
	if err != nil || seen {
		return err
	}
	v.report("nothing", found{}, "", "there is no Kubernetes object to verify",
		"the previous step may have failed or written elsewhere: check its output and this path")
	return nil
}

// difference returns the path of the first value in which two objects differ.
func difference(path string, a, b any) (string, bool) {
	if reflect.DeepEqual(a, b) {
		return "", false
	}
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		all := maps.Clone(a)
		maps.Copy(all, b)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			if at, differ := difference(strings.TrimPrefix(path+"."+k, "."), a[k], b[k]); ok && differ {
				return at, true
			}
		}
	case []any:
		b, ok := b.([]any)
		for i := range a {
			if !ok || len(a) != len(b) {
				break
			}
			if at, differ := difference(fmt.Sprintf("%s[%d]", path, i), a[i], b[i]); differ {
				return at, true
			}
		}
	}
	return path, true
}
