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

// contested is a check of a field that two functions set.
type contested func(*checker)

// Contested reports a field that two functions set.
func (p *Package) Contested(contest Contest) []finding.Finding {
	return run[contested](&checker{Package: p, contest: contest})
}

func contestedField(c *checker) {
	x := &c.contest
	c.reportAt(x.Place, c.rule.Severity,
		fmt.Sprintf("%s sets it to %s, and %s to %s, which takes effect", x.First, x.Was, x.Second,
			x.Is),
		"no action is needed if that is intended; `armature functions` lists them in their order")
}

func (c *checker) reportAt(at finding.Place, severity finding.Severity, message, hint string) {
	c.findings = append(c.findings, finding.Finding{Rule: "lint/" + c.rule.Name,
		Severity: severity, Place: at, Message: message, Hint: hint})
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

// unbuilt is a check of a kustomization.
type unbuilt func(*checker)

// Unbuilt reports a kustomization whose objects are not checked.
func (p *Package) Unbuilt(u Unbuilt) []finding.Finding {
	return run[unbuilt](&checker{Package: p, unbuilt: u})
}

// missingFile matches what kustomize reports for a file that a kustomization names.
var missingFile = text.Pattern(`(?:open|lstat|stat) ([^:']+): no such file or directory`)

func kustomizeBuild(c *checker) {
	u, severity := &c.unbuilt, c.rule.Severity
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
		if !c.configured[KustomizeBuild] {
			severity = finding.Error
		}
	default:
		err := u.Err
		if first, rest, several := strings.Cut(err, "\n"); several { // quotes a patch
			err = first + " … " + rest[strings.LastIndex(rest, "\n")+1:]
		}
		message += text.Shown(err)
	}
	c.reportAt(u.Place, severity, message, hint)
}
