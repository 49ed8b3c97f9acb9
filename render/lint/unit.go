package lint

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/render"
)

// unit is a set of objects that are applied together: the output of a kustomization, or plain
// manifests.
type unit struct {
	rules *lintrules.Package
	files []render.File // plain manifests

	root    string        // the kustomization's file
	objects []render.File // output of a kustomization, each with the file that it comes from
	*builder
}

// each visits all objects of a unit.
func (u *unit) each(visit func(*krm.Object)) {
	each(u.files, visit)
	each(u.objects, visit)
}

// units divides rendered files into units. Files that a kustomization names are checked as it
// builds them, and all others as they are. The output of a kustomization that fails is not checked,
// but its files may be referenced.
func (l *linter) units(files []render.File) (units []*unit, findings []finding.Finding, err error) {
	all, err := kustomizations(l.src, l.opt)
	if err != nil {
		return nil, nil, err
	}
	found, named := roots(all)
	rendered := make(map[string][]byte)
	for _, f := range files {
		rendered[f.Path] = f.Data
	}
	read := make(map[string]bool)
	for _, k := range found {
		u, skipped := l.build(k, rendered)
		findings = append(findings, skipped...)
		if u != nil {
			units = append(units, u)
			maps.Copy(read, u.read)
		}
	}
	var unbuilt, built []render.File
	for _, f := range files {
		if read[f.Path] {
			built = append(built, f)
		} else {
			unbuilt = append(unbuilt, f)
		}
	}
	each(built, l.overwritten)
	holders, several := make(map[finding.Ref]string), make(map[finding.Ref][]string)
	each(unbuilt, func(o *krm.Object) {
		l.overwritten(o)
		l.rules.Collect(o)
		file := o.Origin.File
		if named[file] || o.Kind == "Namespace" || o.Name == "" {
			return
		}
		if first, known := holders[o.Ref]; !known {
			holders[o.Ref] = file
		} else if first != file {
			several[o.Ref] = append(several[o.Ref], first, file)
		}
	})
	loose := &unit{rules: l.rules,
		files: slices.DeleteFunc(unbuilt, func(f render.File) bool { return named[f.Path] })}
	plain := append(l.variants(loose, several), loose)
	l.relate(units, plain)
	return append(units, plain...), findings, nil
}

// build returns the unit that a kustomization builds, or a finding with the reason why it does not
// build.
func (l *linter) build(k *kustomization, rendered map[string][]byte) (*unit, []finding.Finding) {
	at := finding.Place{File: k.file, Line: 1}
	if k.component {
		return nil, l.rules.Unbuilt(lintrules.Unbuilt{Place: at, Component: true})
	}

	u := &unit{rules: l.rules.Next(), root: k.file,
		builder: &builder{root: l.src.Folder, manifests: rendered}}
	var err error
	if u.objects, err = u.build(k); err != nil {
		message := strings.NewReplacer(l.src.Folder+"/", "", l.src.Folder, ".").Replace(err.Error())
		return nil, l.rules.Unbuilt(lintrules.Unbuilt{Place: at, Err: message})
	}
	if len(u.skipped) > 0 {
		u.rules.Open = true
	}
	u.each(u.rules.Collect)

	var findings []finding.Finding
	for _, part := range u.skipped {
		findings = append(findings, l.rules.Unbuilt(part)...)
	}
	return u, findings
}

// relate lets units refer to the units that are applied with them. Roots that build the same file
// are variants: only one of them is applied.
func (l *linter) relate(built, plain []*unit) {
	for _, u := range built {
		u.rules.Beside = append(u.rules.Beside, l.rules)
		for _, other := range built {
			if u != other && !u.overlaps(other) {
				u.rules.Beside = append(u.rules.Beside, other.rules)
			}
		}
		for _, p := range plain {
			p.rules.Beside = append(p.rules.Beside, u.rules)
		}
		u.rules.Link()
	}
	for _, p := range plain {
		p.rules.Link()
	}
}

func (u *unit) overlaps(other *unit) bool {
	for file := range u.read {
		if other.read[file] {
			return true
		}
	}
	return false
}

// variants removes files from a unit that cannot be applied with the others. These are folders, or
// files of one folder, that contain the same object as a neighbor, for example the releases of a
// program. Each becomes a unit that may refer to all others.
func (l *linter) variants(plain *unit, holders map[finding.Ref][]string) (units []*unit) {
	members := make(map[string]*unit)
	for _, files := range holders {
		slices.Sort(files)
		divide("", slices.Compact(files), func(member string) { members[member] = nil })
	}
	plain.files = slices.DeleteFunc(plain.files, func(f render.File) bool {
		for member := f.Path; member != "."; member = path.Dir(member) {
			u, ok := members[member]
			if !ok {
				continue
			}
			if u == nil {
				u = &unit{rules: l.rules.Next()}
				u.rules.Beside = append(u.rules.Beside, l.rules)
				members[member], units = u, append(units, u)
			}
			u.files = append(u.files, f)
			return true
		}
		return false
	})
	for _, u := range units {
		u.each(u.rules.Collect)
	}
	return units
}

// divide calls visit for each entry of a folder that contains one of the files, if there are
// several entries, and does the same in each folder below.
func divide(folder string, files []string, visit func(member string)) {
	below := make(map[string][]string)
	for _, file := range files {
		member, _, _ := strings.Cut(file[len(folder):], "/")
		below[folder+member] = append(below[folder+member], file)
	}
	for member, inside := range below {
		if len(below) > 1 {
			visit(member)
		}
		if len(inside) > 1 {
			divide(member+"/", inside, visit)
		}
	}
}
