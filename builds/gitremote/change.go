package gitremote

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/armature-dev/armature/functions/multi"
)

// Change is what a commit brings.
type Change struct {
	// Message of the commit.
	Message string
	// Paths that differ from the older commit. Known is false if the server does not give
	// that commit any more, and then Paths is empty.
	Paths []string
	Known bool
}

// maxBetween is how many commits there may be between two for their difference, on a server
// that gives commits only as the history of a branch.
const maxBetween = 100

// Change reads the message of a commit, and what differs from an older one; an empty older
// asks for the message alone. Neither the history between them nor the content of files is
// fetched if the server can leave them out.
func (r Repository) Change(ctx context.Context, newer, older string) (out Change, err error) {
	folder, err := os.MkdirTemp("", "armature-change-")
	if err != nil {
		return out, err
	}
	defer func() { err = multi.Errors(err, os.RemoveAll(folder)) }()
	objects := filesystem.NewStorage(osfs.New(folder), cache.NewObjectLRU(4*cache.MiByte))
	get := func(sha string, filter packp.Filter, depth int) error {
		return r.fetch(ctx, objects, func(refs *packp.AdvRefs, request *packp.UploadPackRequest) {
			if refs.Capabilities.Supports(capability.Filter) {
				_ = request.Capabilities.Set(capability.Filter)
				request.Filter = filter
			}
			if refs.Capabilities.Supports(capability.Shallow) {
				_ = request.Capabilities.Set(capability.Shallow)
				request.Depth = packp.DepthCommits(depth)
			}
			request.Wants = []plumbing.Hash{plumbing.NewHash(sha)}
		})
	}
	filter := packp.FilterBlobNone()
	if older == "" {
		filter = packp.FilterTreeDepth(0)
	}
	if err := get(newer, filter, 1); err != nil {
		return out, err
	}
	after, err := object.GetCommit(objects, plumbing.NewHash(newer))
	if err != nil {
		return out, fmt.Errorf("reading commit %s: %w", newer, err)
	}
	out.Message = after.Message
	if older == "" {
		return out, nil
	}
	before, err := object.GetCommit(objects, plumbing.NewHash(older))
	// Not every server gives a commit by its hash.
	for _, from := range []struct {
		sha   string
		depth int
	}{{older, 1}, {newer, maxBetween}} {
		if errors.Is(err, plumbing.ErrObjectNotFound) && get(from.sha, filter, from.depth) == nil {
			before, err = object.GetCommit(objects, plumbing.NewHash(older))
		}
	}
	if err != nil {
		return out, ctx.Err() // the history was rewritten, and the commit is gone
	}
	was, err := before.Tree()
	if err != nil {
		return out, err
	}
	is, err := after.Tree()
	if err != nil {
		return out, err
	}
	changes, err := object.DiffTreeWithOptions(ctx, was, is, &object.DiffTreeOptions{})
	if err != nil {
		return out, err
	}
	out.Known = true
	for _, c := range changes {
		for _, name := range []string{c.From.Name, c.To.Name} {
			if name != "" {
				out.Paths = append(out.Paths, name)
			}
		}
	}
	return out, nil
}
