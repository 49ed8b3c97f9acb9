package lintrules

import (
	"fmt"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// Contest is a field that one function sets and a later one changes.
type Contest struct {
	Place         finding.Place
	First, Second string // the functions
	Was, Is       string // the values that they set
}

// Contested reports a field that two functions set.
func (p *Package) Contested(c Contest) (findings []finding.Finding) {
	for _, r := range p.rules {
		if check, ok := r.check.(func(Contest) (message, hint string)); ok {
			message, hint := check(c)
			findings = append(findings,
				finding.Finding{Rule: "lint/" + r.Name, Severity: r.Severity, Place: c.Place,
					Message: message, Hint: hint})
		}
	}
	return findings
}

func contestedField(c Contest) (message, hint string) {
	return fmt.Sprintf("%s sets it to %s, and %s to %s, which takes effect", c.First, c.Was,
			c.Second, c.Is),
		"no action is needed if that is intended; `armature functions` lists them in their order"
}

// Unbuilt is a kustomization that does not build, or a part of it that is left out.
type Unbuilt struct {
	Place finding.Place
	// Part and Why say what is left out.
	Part, Why string
	// Component says that it is a component that no kustomization of the package uses.
	Component bool
	// Err is kustomize's, without the folder of the source.
	Err string
}

// Unbuilt reports a kustomization whose objects are not checked.
func (p *Package) Unbuilt(u Unbuilt) (findings []finding.Finding) {
	for _, r := range p.rules {
		if check, ok := r.check.(func(*Package, Unbuilt) finding.Finding); ok {
			f := check(p, u)
			f.Rule, f.Place = "lint/"+r.Name, u.Place
			if f.Severity == "" {
				f.Severity = r.Severity
			}
			findings = append(findings, f)
		}
	}
	return findings
}

// missingFile matches what kustomize reports for a file that a kustomization names.
var missingFile = text.Pattern(`(?:open|lstat|stat) ([^:']+): no such file or directory`)

func kustomizeBuild(p *Package, u Unbuilt) finding.Finding {
	missing := missingFile().FindStringSubmatch(u.Err)
	switch {
	case u.Part != "":
		return finding.Finding{Message: fmt.Sprintf("%s %s, so its objects are not checked", u.Part,
			u.Why),
			Hint: "lint what kustomize prints: kustomize build … | armature lint -"}
	case u.Component:
		return finding.Finding{
			Message: "no kustomization of the package uses the component: its files are " +
				"not checked",
			Hint: "lint a folder that has a kustomization with this component"}
	case missing != nil:
		f := finding.Finding{Message: "it names " + missing[1] + ", which does not exist",
			Hint: "add the file, or remove its name from the kustomization"}
		if !p.configured[KustomizeBuild] {
			f.Severity = finding.Error
		}
		return f
	}

	message := u.Err
	if first, rest, several := strings.Cut(message, "\n"); several { // quotes a patch
		message = first + " … " + rest[strings.LastIndex(rest, "\n")+1:]
	}
	return finding.Finding{Message: "kustomize does not build it, so its files are not checked: " +
		text.Shown(message),
		Hint: "correct it, or lint what `kustomize build` prints with the flags that it needs"}
}
