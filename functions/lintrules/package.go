package lintrules

import (
	"fmt"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// Contested returns a finding about a field that the function first sets to was, and the function
// second to is.
func (p *Package) Contested(at finding.Place, first, was, second, is string) finding.Finding {
	return finding.Finding{Rule: "lint/" + ContestedField, Severity: p.Severity(ContestedField),
		Place: at, Message: fmt.Sprintf("%s sets it to %s, and %s to %s, which takes effect",
			first, was, second, is), Hint: "no action is needed " +
			"if that is intended; `armature functions` lists them in their order"}

}

// Unbuilt is a kustomization that does not build, or a part of it that is omitted.
type Unbuilt struct {
	Place finding.Place
	// Part and Why describe the omitted part.
	Part, Why string
	// Component says that it is a component that no kustomization of the package uses.
	Component bool
	// Err is kustomize's error, without the folder of the source.
	Err string
}

// missingFile matches kustomize's error about a missing file that a kustomization names.
var missingFile = text.Pattern(`(?:open|lstat|stat) ([^:']+): no such file or directory`)

// Unbuilt returns findings about a kustomization whose objects are not checked.
func (p *Package) Unbuilt(u Unbuilt) []finding.Finding {
	severity := p.Severity(KustomizeBuild)
	if severity == Off {
		return nil
	}
	message, hint := "kustomize does not build it, so its files are not checked: ",
		"correct it, or lint what `kustomize build` prints with the flags that it needs"
	missing := missingFile().FindStringSubmatch(u.Err)
	switch {
	case u.Part != "":
		message = fmt.Sprintf("%s %s, so its objects are not checked", u.Part, u.Why)
		hint = "lint what kustomize prints: kustomize build … | armature lint -"
	case u.Component:
		message = "no kustomization of the package uses the component: its files are not checked"
		hint = "lint a folder that has a kustomization with this component"
	case missing != nil:
		message = "it names " + missing[1] + ", which does not exist"
		hint = "add the file, or remove its name from the kustomization"
		if !p.configured[KustomizeBuild] {
			severity = finding.Error
		}
	default:
		err := u.Err
		if first, rest, several := strings.Cut(err, "\n"); several { // quotes a patch
			err = first + " … " + rest[strings.LastIndex(rest, "\n")+1:]
		}
		message += text.Shown(err)
	}
	return []finding.Finding{{Rule: "lint/" + KustomizeBuild,
		Severity: severity, Place: u.Place, Message: message, Hint: hint}}
}
