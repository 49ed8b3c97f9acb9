package compose

import (
	"cmp"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/go-multierror"
)

// Problem is one thing that a user can fix: where it is, what is wrong, and how
// to fix it.
type Problem struct {
	// Reason is the condition reason, one of the api.Reason constants.
	Reason string
	// Place is a file or an object with a key and a line, such as
	// "ConfigMap kagenti-system/scan, task-spec.yaml:4".
	Place string
	// Field is a path inside the place. It may be empty.
	Field   string
	Message string
	Hint    string

	task string // the pipeline task at fault, where there is one
}

func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Place)
	if p.Field != "" {
		b.WriteString(": ")
		b.WriteString(p.Field)
	}
	b.WriteString(": ")
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("\n  hint: ")
		b.WriteString(p.Hint)
	}
	return b.String()
}

// Problems of err, which may be nil, one Problem, or many joined ones. An error
// of another kind becomes a Problem without a place.
func Problems(err error) []*Problem {
	if err == nil {
		return nil
	}
	var many *multierror.Error
	if errors.As(err, &many) {
		var out []*Problem
		for _, e := range many.Errors {
			out = append(out, Problems(e)...)
		}
		return out
	}
	var one *Problem
	if errors.As(err, &one) {
		return []*Problem{one}
	}
	return []*Problem{{Place: "build", Message: err.Error()}}
}

// Join errors into one that lists all their problems.
func Join(errs ...error) error {
	list := &problemList{}
	for _, err := range errs {
		list.found = append(list.found, Problems(err)...)
	}
	return list.err()
}

// problemList gathers what is wrong, so that a user sees all of it at once.
type problemList struct{ found []*Problem }

func (l *problemList) add(p Problem) { l.found = append(l.found, &p) }

// err joins the problems in a stable order without repetitions, or is nil.
func (l *problemList) err() error {
	if len(l.found) == 0 {
		return nil
	}
	sort.SliceStable(l.found, func(i, j int) bool { return comparePlaces(l.found[i].Place, l.found[j].Place) < 0 })
	all := &multierror.Error{ErrorFormat: formatProblems}
	seen := map[string]bool{}
	for _, p := range l.found {
		if text := p.Error(); !seen[text] {
			seen[text] = true
			all.Errors = append(all.Errors, p)
		}
	}
	return all
}

// comparePlaces orders as people count: a.yaml:7 comes before a.yaml:10.
func comparePlaces(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		m, n := digits(x), digits(y)
		if m == "" || n == "" {
			if x[0] != y[0] {
				break
			}
			m, n = x[:1], y[:1]
		}
		x, y = x[len(m):], y[len(n):]
		m, n = strings.TrimLeft(m, "0"), strings.TrimLeft(n, "0")
		if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(x, y), cmp.Compare(a, b))
}

// digits at the start of a text.
func digits(text string) string {
	return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
}

func formatProblems(errs []error) string {
	lines := make([]string, 0, len(errs)+1)
	if len(errs) > 1 {
		lines = append(lines, fmt.Sprintf("%d problems:", len(errs)))
	}
	for _, e := range errs {
		lines = append(lines, e.Error())
	}
	return strings.Join(lines, "\n")
}
