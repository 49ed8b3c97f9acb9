package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/rules"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
)

// authored judges what authors wrote, for the rules on resources that a render replaces by the
// objects that they stand for, and on kinds that it does not know.
func (l *linter) authored() (findings []krm.Finding, err error) {
	a := authored{rules: l.rules, seen: make(map[string]bool)}
	a.images, _ = images.Rows(l.opt.Config) // the render has reported what is wrong with them
	if l.opt.Lock != nil {
		a.locked = l.opt.Lock.Spec.Tools
		for _, image := range l.opt.Lock.Spec.Images {
			a.pinned = append(a.pinned, image.Image)
		}
	}
	for _, f := range l.src.Files {
		if f.AsIs || !render.IsManifest(f.Path) || l.opt.Excludes(f.Path) {
			continue
		}
		data, err := l.src.Content(f.Path)
		if err != nil {
			return nil, err
		}
		render.Objects(render.File{Path: f.Path, Data: data}, func(o *krm.Object) {
			a.bindings(o)
			a.sources(o)
		})
	}
	return a.findings, nil
}

type authored struct {
	rules    *rules.Package
	images   []images.Row
	locked   []api.LockedToolServer
	pinned   []string        // images of the lock
	seen     map[string]bool // what is reported once
	findings []krm.Finding
}

func (a *authored) report(o *krm.Object, rule string, at krm.Node, message, hint string) {
	if severity := a.rules.Severity(rule); severity != rules.Off && !slices.Contains(rules.Ignored(o), rule) {
		a.findings = append(a.findings, o.Finding(severity, "lint/"+rule, at, message, hint))
	}
}

// source reports a finding on an artifact one time for all objects that have it. A commit
// or a version says nothing without its repository, and is reported in each.
func (a *authored) source(o *krm.Object, rule string, i images.Image, message, hint string) {
	key := i.Kind + " " + i.Path() + " " + i.Ref
	if i.Is == images.IsCommit || i.Is == images.IsVersion {
		key = o.Ref.String() + " " + i.Field
	}
	if before := len(a.findings); !a.seen[key] {
		a.report(o, rule, i.At(o), message, hint)
		a.seen[key] = len(a.findings) > before // and not where the object is exempted
	}
}

// bindings judges the tools that an agent binds by what the lock has of their servers.
// Without tools in the lock it finds nothing.
func (a *authored) bindings(o *krm.Object) {
	if len(a.locked) == 0 {
		return
	}
	for _, b := range tools.Bindings(o) {
		locked, known := tools.Find(a.locked, b.Server)
		if !known {
			a.report(o, rules.UnlockedTools, b.At, fmt.Sprintf("the lock has no tools of %s, so they may change unnoticed", b.Server), "run `armature tools pin`")
			continue
		}
		for _, name := range b.Tools {
			if !locked.Has(name.Text()) {
				a.report(o, rules.MissingTool, name, fmt.Sprintf("%s does not offer the tool %q", b.Server, tools.Visible(name.Text())),
					"correct the name, or run `armature tools pin` if the server has it now")
			}
		}
	}
}

// sources judges artifacts other than images, and what looks like an image. What a chart or
// another repository runs is judged there.
func (a *authored) sources(o *krm.Object) {
	if images.OfKubernetes(o.Group()) {
		return
	}
	value, err := o.Value()
	if err != nil {
		return // the render reports it
	}
	found := images.In(value, a.images...)
	if slices.ContainsFunc(found, func(i images.Image) bool { return i.Field == "" }) {
		return
	}
	for _, i := range found {
		if i.Pinned() {
			continue
		}
		switch {
		case i.Guessed && i.LooksQualified():
			a.source(o, rules.UnknownImage, i, fmt.Sprintf("%q looks like an image in a field of an unknown kind: no digest is written into it", krm.Shown(i.Ref)),
				fmt.Sprintf("write its digest, or add {group: %q, kind: %s, path: %s} to spec.images of the RenderConfig", i.Group, i.Kind, i.Path()))
		case i.Is == images.IsCommit && i.Ref == "":
			a.source(o, rules.UnpinnedSource, i, "it is from Git, and names no commit", "name the commit in full")
		case i.Is == images.IsCommit:
			a.source(o, rules.UnpinnedSource, i, fmt.Sprintf("%q is not a full commit: its content may change", krm.Shown(i.Ref)), "name the commit in full: 40 hexadecimal digits")
		case i.Is == images.IsVersion:
			a.source(o, rules.UnpinnedSource, i, "it is from a bucket, and names no version", "name the version of the object")
		case (i.Is == images.IsArtifact || i.Is == images.IsSkill) && strings.HasSuffix(i.Field, "]") && !slices.Contains(a.pinned, i.Ref): // of others, the rendered field is judged
			a.source(o, rules.UnpinnedSource, i, fmt.Sprintf("%q has no digest", krm.Shown(i.Ref)), "run `armature pin`, or write its digest behind it, as NAME@sha256:…")
		}
	}
}
