package finding

import "fmt"

// maxListed bounds the findings of a List, which take some 500 bytes each: a package decides how
// many there are.
const maxListed = 50_000

// List collects findings. The zero List is empty.
type List struct {
	listed []Finding
	// left counts those that did not fit, and leftErrors the errors among them.
	left, leftErrors int
	errors           int
}

// Add adds findings, or counts those that do not fit.
func (l *List) Add(found ...Finding) {
	for _, f := range found {
		failed := 0
		if f.Severity == Error {
			failed = 1
		}
		l.errors += failed
		if len(l.listed) < maxListed {
			l.listed = append(l.listed, f)
		} else {
			l.left, l.leftErrors = l.left+1, l.leftErrors+failed
		}
	}
}

// Errors returns the number of errors that were added.
func (l *List) Errors() int { return l.errors }

// Findings returns the findings, and one about those that did not fit.
func (l *List) Findings() []Finding {
	if l.left == 0 {
		return l.listed
	}
	more := Finding{Rule: "package/many-findings", Severity: Warning,
		Message: fmt.Sprintf("%d more findings are left out", l.left),
		Hint:    "resolve those that are listed, or render fewer files at once"}
	if l.leftErrors > 0 {
		more.Severity = Error
	}
	return append(l.listed[:maxListed:maxListed], more)
}
