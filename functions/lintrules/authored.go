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

// authored is a check of an object as its author wrote it. A render replaces some resources by the
// objects that they expand to, and does not know the kinds of others.
type authored func(*checker)

// CheckAuthored checks an object as its author wrote it. lock may be nil.
func (p *Package) CheckAuthored(o *krm.Object, lock *api.ImageLock) []finding.Finding {
	c := checker{Package: p, Object: o, lock: lock, ignored: Ignored(o)}
	c.artifacts = c.unpinned()
	return run[authored](&c)
}

// unpinned returns the artifacts of the object whose content may change. The images of a chart or
// another repository are checked there.
func (c *checker) unpinned() []images.Image {
	if images.OfKubernetes(c.Group()) {
		return nil
	}
	value, err := c.Value()
	if err != nil {
		return nil // the render reports it
	}

	found := images.In(value, c.images...)
	if slices.ContainsFunc(found, func(i images.Image) bool { return i.Field == "" }) {
		return nil
	}
	return slices.DeleteFunc(found, images.Image.Pinned)
}

// artifact reports a finding about an artifact once for all objects that have it. A commit or a
// version depends on its repository, so it is reported for each object.
func (c *checker) artifact(i images.Image, hint, message string, values ...any) {
	key := i.Kind + " " + i.Path() + " " + i.Ref
	if i.Is == images.IsCommit || i.Is == images.IsVersion {
		key = c.Ref.String() + " " + i.Field
	}
	c.once(key, i.At(c.Object), hint, message, values...)
}

// bindings visits the tools that an agent binds, with the entry of their server in the lock. A lock
// without tools is not used.
func (c *checker) bindings(visit func(b tools.Binding, locked api.LockedToolServer, known bool)) {
	if c.lock == nil || len(c.lock.Spec.Tools) == 0 {
		return
	}
	for _, b := range tools.Bindings(c.Object) {
		locked, known := tools.Find(c.lock.Spec.Tools, b.Server)
		visit(b, locked, known)
	}
}

func unlockedTools(c *checker) {
	c.bindings(func(b tools.Binding, _ api.LockedToolServer, known bool) {
		if !known {
			c.report(b.At, "run `armature tools pin`",
				"the lock has no tools of %s, so they may change unnoticed", b.Server)
		}
	})
}

func missingTool(c *checker) {
	c.bindings(func(b tools.Binding, locked api.LockedToolServer, known bool) {
		for _, name := range b.Tools {
			if known && !locked.Has(name.Text()) {
				c.report(name,
					"correct the name, or run `armature tools pin` if the server has it now",
					"%s does not offer the tool %q", b.Server, tools.Visible(name.Text()))
			}
		}
	})
}

func unknownImage(c *checker) {
	for _, i := range c.artifacts {
		if i.Guessed && i.LooksQualified() {
			c.artifact(i, fmt.Sprintf("write its digest, or add {group: %q, kind: "+
				"%s, path: %s} to spec.images of the RenderConfig", i.Group, i.Kind, i.Path()),
				"%q looks like an image in "+
					"a field of an unknown kind: no digest is written into it", text.Shown(i.Ref))
		}
	}
}

func unpinnedSource(c *checker) {
	for _, i := range c.artifacts {
		switch {
		case i.Guessed && i.LooksQualified(): // see unknownImage
		case i.Is == images.IsCommit && i.Ref == "":
			c.artifact(i, "name the commit in full", "it is from Git, and names no commit")
		case i.Is == images.IsCommit:
			c.artifact(i, "name the commit in full: 40 hexadecimal digits",
				"%q is not a full commit: its content may change", text.Shown(i.Ref))
		case i.Is == images.IsVersion:
			c.artifact(i, "name the version of the object",
				"it is from a bucket, and names no version")
		// For other artifacts, the rendered field is checked.
		case i.Is != images.IsArtifact && i.Is != images.IsSkill,
			!strings.HasSuffix(i.Field, "]"),
			c.lock != nil && slices.ContainsFunc(c.lock.Spec.Images,
				func(x api.LockedImage) bool { return x.Image == i.Ref }):
		default:
			c.artifact(i, "run `armature pin`, or write its digest behind it, as NAME@sha256:…",
				"%q has no digest", text.Shown(i.Ref))
		}
	}
}
