package cli

import (
	"context"
	"strings"
)

// Differs names a file of the working tree that is not as the revision has it: a tracked one,
// or an input of the package that is not tracked, ignored or not; "" for none.
func (r Revision) Differs(ctx context.Context) (string, error) {
	changed, err := RunGit(ctx, r.Repository, nil, "diff", "--name-only", "-z", "--no-ext-diff",
		"--no-textconv", r.Commit, "--")
	if err != nil {
		return "", err
	}
	if name, _, ok := strings.Cut(string(changed), "\x00"); ok {
		return name, nil
	}
	path := ":(top,literal)" + r.Path
	if r.Path == "" {
		path = ":(top)"
	}
	others, err := RunGit(ctx, r.Repository, nil, "ls-files", "--others", "-z", "--", path)
	if err != nil {
		return "", err
	}
	for name := range strings.SplitSeq(string(others), "\x00") {
		if name != "" && isInput(name) {
			return name, nil
		}
	}
	return "", nil
}
