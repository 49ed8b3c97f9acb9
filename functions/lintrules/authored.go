package lintrules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/tools"
)

// authored judges an object as its author wrote it. A render replaces some resources by the
// objects that they stand for, and does not know the kinds of others.
type authored struct {
	*Package
	*krm.Object
	lock *api.ImageLock // nil for none

	artifacts []images.Image
	rule      Rule
	findings  []finding.Finding
}

// CheckAuthored judges an object as its author wrote it. lock may be nil.
func (p *Package) CheckAuthored(o *krm.Object, lock *api.ImageLock) []finding.Finding {
	a := authored{Package: p, Object: o, lock: lock}
	a.artifacts = a.unpinned()

	ignored := Ignored(o)
	for _, a.rule = range p.rules {
		if check, ok := a.rule.check.(func(*authored)); ok &&
			!slices.Contains(ignored, a.rule.Name) {
			check(&a)
		}
	}
	return a.findings
}

func (a *authored) report(at krm.Node, message, hint string) {
	a.findings = append(a.findings, a.Finding(a.rule.Severity, "lint/"+a.rule.Name, at, message, hint))
}

// unpinned returns the artifacts of the object whose content may change. What a chart or
// another repository runs is judged there.
func (a *authored) unpinned() []images.Image {
	if images.OfKubernetes(a.Group()) {
		return nil
	}
	value, err := a.Value()
	if err != nil {
		return nil // the render reports it
	}

	found := images.In(value, a.images...)
	if slices.ContainsFunc(found, func(i images.Image) bool { return i.Field == "" }) {
		return nil
	}
	return slices.DeleteFunc(found, images.Image.Pinned)
}

// artifact reports a finding on an artifact one time for all objects that have it. A commit
// or a version says nothing without its repository, and is reported in each.
func (a *authored) artifact(i images.Image, message, hint string) {
	key := i.Kind + " " + i.Path() + " " + i.Ref
	if i.Is == images.IsCommit || i.Is == images.IsVersion {
		key = a.Ref.String() + " " + i.Field
	}
	if key = a.rule.Name + " " + key; !a.reported[key] {
		a.reported[key] = true
		a.report(i.At(a.Object), message, hint)
	}
}

// bindings returns the tools that the object, an agent, binds, with what the lock has of
// their server. Nothing is judged by a lock without tools.
func (a *authored) bindings(visit func(b tools.Binding, locked api.LockedToolServer, known bool)) {
	if a.lock == nil || len(a.lock.Spec.Tools) == 0 {
		return
	}
	for _, b := range tools.Bindings(a.Object) {
		locked, known := tools.Find(a.lock.Spec.Tools, b.Server)
		visit(b, locked, known)
	}
}

func unlockedTools(a *authored) {
	a.bindings(func(b tools.Binding, _ api.LockedToolServer, known bool) {
		if !known {
			a.report(b.At, fmt.Sprintf("the lock has no tools of %s, so they may change unnoticed",
				b.Server),
				"run `armature tools pin`")
		}
	})
}

func missingTool(a *authored) {
	a.bindings(func(b tools.Binding, locked api.LockedToolServer, known bool) {
		for _, name := range b.Tools {
			if known && !locked.Has(name.Text()) {
				a.report(name, fmt.Sprintf("%s does not offer the tool %q", b.Server,
					tools.Visible(name.Text())),
					"correct the name, or run `armature tools pin` if the server has it now")
			}
		}
	})
}

func unknownImage(a *authored) {
	for _, i := range a.artifacts {
		if i.Guessed && i.LooksQualified() {
			a.artifact(i, fmt.Sprintf(
				"%q looks like an image in a field of an unknown kind: no digest is written into it",
				text.Shown(i.Ref)),
				fmt.Sprintf("write its digest, or add {group: %q, kind: %s, path: %s} to "+
					"spec.images of the RenderConfig", i.Group, i.Kind, i.Path()))
		}
	}
}

func unpinnedSource(a *authored) {
	for _, i := range a.artifacts {
		switch {
		case i.Guessed && i.LooksQualified(): // see unknownImage
		case i.Is == images.IsCommit && i.Ref == "":
			a.artifact(i, "it is from Git, and names no commit", "name the commit in full")
		case i.Is == images.IsCommit:
			a.artifact(i, fmt.Sprintf("%q is not a full commit: its content may change",
				text.Shown(i.Ref)),
				"name the commit in full: 40 hexadecimal digits")
		case i.Is == images.IsVersion:
			a.artifact(i, "it is from a bucket, and names no version",
				"name the version of the object")
		// of others, the rendered field is judged
		case i.Is != images.IsArtifact && i.Is != images.IsSkill, !strings.HasSuffix(i.Field, "]"),
			a.pins(i.Ref):
		default:
			a.artifact(i, fmt.Sprintf("%q has no digest", text.Shown(i.Ref)),
				"run `armature pin`, or write its digest behind it, as NAME@sha256:…")
		}
	}
}

// pins reports whether the lock pins an image.
func (a *authored) pins(image string) bool {
	return a.lock != nil &&
		slices.ContainsFunc(a.lock.Spec.Images,
			func(x api.LockedImage) bool { return x.Image == image })
}
