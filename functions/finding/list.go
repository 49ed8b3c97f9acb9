package finding

import (
	"fmt"
	"slices"
)

// maxListed bounds the errors, and the other findings, that a List keeps. Each takes some 500
// bytes, and the author of a package decides how many there are.
const maxListed = 50_000

// List collects findings. The zero List is empty.
type List struct {
	listed         []Finding
	errors, others int // that were added
}

// Add adds findings, or counts those that do not fit.
func (l *List) Add(found ...Finding) {
	for _, f := range found {
		n := &l.others
		if f.Severity == Error {
			n = &l.errors
		}
		if *n++; *n <= maxListed {
			l.listed = append(l.listed, f)
		}
	}
}

// Errors returns the number of errors that were added.
func (l *List) Errors() int { return l.errors }

// Findings returns the findings, and a warning about those that did not fit.
func (l *List) Findings() []Finding {
	left := l.errors + l.others - len(l.listed)
	if left == 0 {
		return l.listed
	}
	return append(slices.Clip(l.listed), Finding{Rule: "package/many-findings", Severity: Warning,
		Message: fmt.Sprintf("%d more findings are left out", left),
		Hint:    "resolve those that are listed, or render fewer files at once"})
}
