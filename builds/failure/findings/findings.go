// Package findings combines the findings about a build into one error, and lists them again.
package findings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/armature-dev/armature/functions/finding"
)

// Of returns the findings of err, which may be nil, a *finding.Finding, or the error of Error or
// Join. The rule of each finding is a reason of a condition, one of the api.Reason constants.
// Another error becomes a finding without a place and a rule.
func Of(err error) []*finding.Finding {
	if err == nil {
		return nil
	}
	if many, ok := err.(*multierror.Error); ok {
		var out []*finding.Finding
		for _, e := range many.Errors {
			out = append(out, Of(e)...)
		}
		return out
	}
	var one *finding.Finding
	if errors.As(err, &one) {
		return []*finding.Finding{one}
	}
	return []*finding.Finding{finding.Place{}.Fault("", err.Error(), "")}
}

// Join combines errors into one that lists all their findings.
func Join(errs ...error) error {
	var all []*finding.Finding
	for _, err := range errs {
		all = append(all, Of(err)...)
	}
	return Error(all)
}

// most limits the findings of an error; a hostile text has thousands.
const most = 100

// Error combines findings into an error that lists them in a stable order without duplicates. It
// returns nil if there are none.
func Error(found []*finding.Finding) error {
	if len(found) == 0 {
		return nil
	}
	slices.SortStableFunc(found, func(a, b *finding.Finding) int {
		return comparePlaces(a.Place, b.Place)
	})
	all := &multierror.Error{ErrorFormat: format}
	seen := map[string]bool{}
	for _, f := range found {
		text := f.Error()
		if seen[text] {
			continue
		}
		if len(all.Errors) == most {
			all.Errors = append(all.Errors,
				finding.Place{}.Fault("", "more problems are not listed", "fix these first"))
			break
		}
		seen[text] = true
		all.Errors = append(all.Errors, f)
	}
	return all
}

// comparePlaces orders by file, line, object, key and the key's line. Findings without a place come
// last: the reason of a condition is that of the first finding.
func comparePlaces(a, b finding.Place) int {
	nowhere := func(p finding.Place) int {
		if p.File == "" && p.Object.Kind == "" {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(nowhere(a), nowhere(b)),
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Namespace,
			b.Object.Namespace), cmp.Compare(a.Object.Name, b.Object.Name),
		cmp.Compare(a.Key, b.Key), cmp.Compare(a.KeyLine, b.KeyLine),
	)
}

func format(errs []error) string {
	lines := make([]string, 0, len(errs)+1)
	if len(errs) > 1 {
		lines = append(lines, fmt.Sprintf("%d problems:", len(errs)))
	}
	for _, e := range errs {
		lines = append(lines, e.Error())
	}
	return strings.Join(lines, "\n")
}
