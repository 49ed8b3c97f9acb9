package lint

import (
	"fmt"
	"slices"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/rules"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
)

// bindings judges the tools that agents bind by what the lock has of their servers. Without
// tools in the lock it finds nothing. It reads what authors wrote: a render replaces agents
// by the objects that they stand for.
func (l *linter) bindings() (findings []krm.Finding, err error) {
	missing, unlocked := l.rules.Severity(rules.MissingTool), l.rules.Severity(rules.UnlockedTools)
	if l.opt.Lock == nil || len(l.opt.Lock.Spec.Tools) == 0 || missing == rules.Off && unlocked == rules.Off {
		return nil, nil
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
			ignored := rules.Ignored(o)
			report := func(rule string, severity krm.Severity, at krm.Node, message, hint string) {
				if severity != rules.Off && !slices.Contains(ignored, rule) {
					findings = append(findings, o.Finding(severity, "lint/"+rule, at, message, hint))
				}
			}
			for _, b := range tools.Bindings(o) {
				locked, known := tools.Find(l.opt.Lock.Spec.Tools, b.Server)
				if !known {
					report(rules.UnlockedTools, unlocked, b.At, fmt.Sprintf("the lock has no tools of %s, which may change unseen", b.Server), "run `armature pin --tools`")
					continue
				}
				for _, name := range b.Tools {
					if !locked.Has(name.Text()) {
						report(rules.MissingTool, missing, name, fmt.Sprintf("%s does not offer the tool %q", b.Server, tools.Visible(name.Text())),
							"correct the name, or run `armature pin --tools` if the server has it by now")
					}
				}
			}
		})
	}
	return findings, nil
}
