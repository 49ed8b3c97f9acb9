package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/report"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/forge"
)

// Who may start a build of a pull request is asked of the forge when the build is about to be
// derived, and for the commit that Git and the forge both name at that moment. From then on the
// derived build is the memory of the answer: it names the commit in full, and another commit is
// another question.

// pulls derives the builds of the pull requests that are open, and shows on each what became of
// it.
func (t *Triggers) pulls(ctx context.Context, r *remote, b *api.AgentBuild,
	derived map[string]*api.AgentBuild) error {
	have := make(map[int]*api.AgentBuild)
	for _, d := range derived {
		if p := d.Spec.Source.PullRequest; p != nil {
			have[int(p.Number)] = d
		}
	}
	if b.Spec.Trigger.PullRequest == nil {
		var errs []error
		for _, old := range have {
			errs = append(errs, t.remove(ctx, b, old, "spec.trigger.pullRequest is not set"))
		}
		return multi.Errors(errs...)
	}
	f, err := report.Forge(ctx, t.Access, b)
	if err != nil {
		t.event(b, "ForgeFailed", "pull requests are not built: %v", err)
		return err
	}
	return t.pullsOf(ctx, f, r, b, have)
}

// pullsOf returns the pull requests of a forge, beside the builds that are there, by number.
func (t *Triggers) pullsOf(ctx context.Context, f forge.Forge, r *remote, b *api.AgentBuild,
	have map[int]*api.AgentBuild) error {
	open, err := f.PullRequests(ctx, "")
	if err != nil {
		return fmt.Errorf("listing the open pull requests: %w", err)
	}
	var errs []error
	count, forks := 0, 0
	for _, old := range have {
		if old.Spec.Source.PullRequest.Fork {
			forks++
		}
	}
	for _, p := range open {
		old := have[p.Number]
		switch {
		case !wanted(b, p):
			continue
		case p.Fork && old == nil && forks >= maxForks:
			// Theirs wait for a place of their own: none of the team's goes for it, nor one that
			// runs.
			t.event(b, "TooManyPullRequests",
				"%d pull requests of other repositories are built, and others wait until "+
					"one is closed", maxForks)
			continue
		case !p.Fork:
			if count++; count > maxDerived {
				t.event(b, "TooManyPullRequests",
					"more than %d pull requests are open, and the newest are built", maxDerived)
				continue
			}
		}
		built, err := t.pull(ctx, f, r, b, p, old)
		if errs = append(errs, err); built && p.Fork && old == nil {
			forks++
		}
		delete(have, p.Number)
	}
	for number, old := range have {
		now, err := f.PullRequest(ctx, number)
		switch {
		case errors.Is(err, forge.ErrNotFound),
			err == nil && (!now.Open || !wanted(b, *now) || !now.Fork && count > maxDerived):
			errs = append(errs,
				t.remove(ctx, b, old, fmt.Sprintf("pull request %d is no longer built", number)))
		case err != nil:
			errs = append(errs, err)
		}
	}
	return multi.Errors(errs...)
}

// wanted reports whether a pull request is one of a trigger's.
func wanted(b *api.AgentBuild, p forge.PullRequest) bool {
	branches := b.Spec.Trigger.PullRequest.Branches
	if len(branches) == 0 {
		return "refs/heads/"+p.Base == ownRef(b)
	}
	return matches(branches, p.Base)
}

// pull derives the build of a pull request that is open, if it may start, and reports whether
// it did.
func (t *Triggers) pull(ctx context.Context, f forge.Forge, r *remote, b *api.AgentBuild,
	p forge.PullRequest, have *api.AgentBuild) (built bool, err error) {
	commit := headOf(r.refs, p)
	if commit == "" {
		return false, nil // a fork on a server whose Git has no references to its commits
	}
	if commit != p.Commit {
		r.again = true // one of the two answered before a push, and the other after it
		return false, nil
	}
	want := pullOf(t.Group, b, p)
	if have == nil || have.Spec.Source.SourceRevision != commit ||
		p.Fork && b.Spec.Trigger.PullRequest.Forks == nil {
		stop, err := t.judge(ctx, f, r, b, p)
		if err != nil {
			return false, err
		}
		if stop != nil {
			if have != nil { // its run is of a commit that is not the head any more
				if err := t.remove(ctx, b, have,
					fmt.Sprintf("pull request %d has another commit, which may not be built",
						p.Number)); err != nil {
					return false, err
				}
			}
			if err := f.SetStatus(ctx, forge.Status{Commit: commit, Ref: "refs/heads/" + p.Head,
				Context: report.Context(b), State: stop.state, Description: stop.why}); err != nil {
				return false, err
			}
			if stop.comment == "" {
				return false, nil
			}
			return false, f.Comment(ctx, p.Number, partOf(b), stop.comment)
		}
		if p.Fork {
			if err := f.Comment(ctx, p.Number, partOf(b), ""); err != nil {
				return false, err
			}
		}
		// From here on, the derived build shows its state itself.
		if err := t.put(ctx, r, b, have, want); err != nil {
			return false, err
		}
		return true, f.SetStatus(ctx, forge.Status{Commit: commit, Ref: "refs/heads/" + p.Head,
			Context: report.Context(b), State: forge.Queued,
			Description: "the build is about to start"})
	}
	return true, t.put(ctx, r, b, have, want)
}

// refs of the heads of pull requests, by server.
var pullRefs = []string{"refs/pull/%d/head", "refs/merge-requests/%d/head"}

// headOf a pull request as Git names it; "" where it does not.
func headOf(refs map[string]plumbing.Hash, p forge.PullRequest) string {
	for _, ref := range pullRefs {
		if hash, ok := refs[fmt.Sprintf(ref, p.Number)]; ok {
			return hash.String()
		}
	}
	if hash, ok := refs["refs/heads/"+p.Head]; ok && !p.Fork {
		return hash.String()
	}
	return ""
}

// judge whether the head of a pull request may be built; nil if it may.
func (t *Triggers) judge(ctx context.Context, f forge.Forge, r *remote, b *api.AgentBuild,
	p forge.PullRequest) (*stopped, error) {
	trigger := b.Spec.Trigger.PullRequest
	if p.Fork && trigger.Forks == nil {
		return &stopped{state: forge.Queued,
			why: "pull requests of other repositories are not built"}, nil
	}
	base, ok := r.refs["refs/heads/"+p.Base]
	if !ok {
		return &stopped{state: forge.Queued, why: "the branch " + p.Base + " does not exist"}, nil
	}
	if p.Fork {
		if allowed, err := mayStart(ctx, f, b, p); err != nil || !allowed {
			if err != nil {
				return nil, err
			}
			return &stopped{state: forge.Queued,
				why: "waits for the approval of a user who may push", comment: askFor(b, p)}, nil
		}
	}
	stop := t.skips(ctx, r, types.NamespacedName{Namespace: b.Namespace, Name: b.Name}, p.Commit,
		base.String(), trigger.Paths)
	return stop, ctx.Err()
}

// mayStart asks whether the author of a pull request may push, or whether somebody who may has
// approved its commit.
func mayStart(ctx context.Context, f forge.Forge, b *api.AgentBuild,
	p forge.PullRequest) (bool, error) {
	for commit := range strings.SplitSeq(b.Annotations[keys.AnnotationApproved], ",") {
		if strings.TrimSpace(commit) == p.Commit {
			return true, nil
		}
	}
	asked := make(map[string]bool)
	may := func(user string) (bool, error) {
		if user == "" || asked[user] {
			return false, nil
		}
		asked[user] = true
		allowed, err := f.MayPush(ctx, user)
		if errors.Is(err, forge.ErrNotFound) {
			return false, nil
		}
		return allowed, err
	}
	if allowed, err := may(p.Author); allowed || err != nil {
		return allowed, err
	}
	comments, err := f.Comments(ctx, p.Number)
	if err != nil {
		return false, fmt.Errorf("reading the comments of pull request %d: %w", p.Number, err)
	}
	for _, c := range comments {
		if !c.Edited && approves(c.Body, p.Commit) {
			if allowed, err := may(c.Author); allowed || err != nil {
				return allowed, err
			}
		}
	}
	return false, nil
}

// command of a comment that approves a commit.
const command = "/ok-to-test"

// approves reports whether a comment approves a commit. It is the command and the full commit,
// and nothing else: so it is neither quoted nor an example, and names one commit alone.
func approves(body, commit string) bool {
	return strings.TrimRight(body, " \t\r\n") == command+" "+commit
}

// askFor an approval.
func askFor(b *api.AgentBuild, p forge.PullRequest) string {
	return fmt.Sprintf("`%s` does not build commit %.12s yet, because it is of another "+
		"repository, and its author may not push to this one.\n\n"+
		"A user who may push approves this one commit with a comment that contains only `%s %s`, "+
		"with the whole commit.\n", report.Context(b), p.Commit, command, p.Commit)
}

// partOf the comment that asks for an approval.
func partOf(b *api.AgentBuild) string { return "approval/" + b.Namespace + "/" + b.Name }

// loginsAndCaches are parameters that a fork's build has none of.
var loginsAndCaches = []string{"SOURCE_REPO_SECRET", "registry-secret", "repo-user", "cache",
	"cache-mode", templates.ImageCache, templates.BuildpacksCache}

// pullOf derives the build of the head of a pull request. compose refuses what a fork's build
// must not have, whatever is left here.
func pullOf(group string, b *api.AgentBuild, p forge.PullRequest) *api.AgentBuild {
	tag := fmt.Sprintf("pr-%d", p.Number)
	c := copyOf(group, b, tag, p.Commit, tag)
	s := &c.Spec
	s.Source.PullRequest = &api.SourcePullRequest{Number: int64(p.Number), Fork: p.Fork}
	s.OnChange = api.ChangeCancel // a newer commit makes a run superfluous
	forks := b.Spec.Trigger.PullRequest.Forks
	if !p.Fork || forks == nil {
		return c
	}
	s.BuildOutput.ImageRegistry, s.BuildOutput.Image, _ = strings.Cut(forks.Repository, "/")
	s.BuildOutput.ImageRepoCredentials = nil
	s.Source.SourceCredentials, s.Source.RepoUser = nil, ""
	s.Secrets, s.ServiceAccountName = nil, ""
	s.Cache = &api.BuildCache{Mode: "off"}
	if s.Pod != nil {
		s.Pod.AutomountServiceAccountToken = false
	}
	if s.Workspace != nil {
		s.Workspace.Keep = false
	}
	withoutParameters(s, loginsAndCaches...)
	if s.Pipeline != nil {
		s.Pipeline.Workspaces = slices.DeleteFunc(s.Pipeline.Workspaces,
			func(w api.WorkspaceBinding) bool {
				return w.Secret != nil || w.PersistentVolumeClaim != nil
			})
	}
	return c
}
