// Package multi combines errors with go-multierror, and runs functions concurrently.
package multi

import (
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"
)

// Each calls do for each number below n, at most eight concurrently, and returns the errors in the
// order of the numbers.
func Each(n int, do func(i int) error) []error {
	failed := make([]error, n)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			failed[i] = do(i)
			return nil
		})
	}
	_ = group.Wait() // errors are in failed
	return slices.DeleteFunc(failed, func(err error) bool { return err == nil })
}

// Errors returns nil if there are no errors, the error itself if there is one, and otherwise a
// *multierror.Error that prints one error per line. It skips nil errors.
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
