// Package multi makes one error of several, by go-multierror.
package multi

import (
	"strings"

	"github.com/hashicorp/go-multierror"
)

// Errors is nil without errors, the error itself if there is one, and otherwise
// a *multierror.Error that prints one error per line. Nil errors are skipped.
func Errors(errs ...error) error {
	all := &multierror.Error{ErrorFormat: lines}
	for _, err := range errs {
		if err != nil {
			all = multierror.Append(all, err)
		}
	}
	if len(all.Errors) == 1 {
		return all.Errors[0]
	}
	return all.ErrorOrNil()
}

func lines(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "\n")
}
