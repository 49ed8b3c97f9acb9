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

// Before it derives the build of a pull request, the trigger asks the forge whether the author may
// start it, for the commit that Git and the forge both name at that time. The derived build stores
// the answer: it names the full commit, and another commit needs another answer.

// pulls derives the builds of the open pull requests, and reports the result on each.
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

// pullsOf derives the builds of the open pull requests of a forge, and deletes those of closed
// ones. have are the existing builds by number.
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
			// The pull request waits: it displaces neither the team's builds nor one that runs.
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

// wanted reports whether the trigger of a build includes a pull request.
func wanted(b *api.AgentBuild, p forge.PullRequest) bool {
	branches := b.Spec.Trigger.PullRequest.Branches
	if len(branches) == 0 {
		return "refs/heads/"+p.Base == ownRef(b)
	}
	return matches(branches, p.Base)
}

// pull derives the build of an open pull request if it may start, and reports whether it did.
func (t *Triggers) pull(ctx context.Context, f forge.Forge, r *remote, b *api.AgentBuild,
	p forge.PullRequest, have *api.AgentBuild) (built bool, err error) {
	commit := headOf(r.refs, p)
	if commit == "" {
		return false, nil // a fork, on a server without references to the commits of forks
	}
	if commit != p.Commit {
		r.again = true // there was a push between the answers of Git and of the forge
		return false, nil
	}
	want := pullOf(t.Group, b, p)
	if have != nil && have.Spec.Source.SourceRevision == commit &&
		(!p.Fork || b.Spec.Trigger.PullRequest.Forks != nil) {
		return true, t.put(ctx, r, b, have, want)
	}
	stop, err := t.judge(ctx, f, r, b, p)
	if err != nil {
		return false, err
	}
	status := forge.Status{Commit: commit, Ref: "refs/heads/" + p.Head, Context: report.Context(b),
		State: forge.Queued, Description: "the build is about to start"}
	if stop != nil {
		if have != nil { // its run is of a commit that is no longer the head
			const why = "pull request %d has another commit, which may not be built"
			if err := t.remove(ctx, b, have, fmt.Sprintf(why, p.Number)); err != nil {
				return false, err
			}
		}
		status.State, status.Description = stop.state, stop.why
		if err := f.SetStatus(ctx, status); err != nil || stop.comment == "" {
			return false, err
		}
		return false, f.Comment(ctx, p.Number, partOf(b), stop.comment)
	}
	if p.Fork {
		if err := f.Comment(ctx, p.Number, partOf(b), ""); err != nil {
			return false, err
		}
	}
	// From here on, the derived build reports its state itself.
	if err := t.put(ctx, r, b, have, want); err != nil {
		return false, err
	}
	return true, f.SetStatus(ctx, status)
}

// pullRefs are the references to the heads of pull requests on different servers.
var pullRefs = []string{"refs/pull/%d/head", "refs/merge-requests/%d/head"}

// headOf returns the head of a pull request from the references of Git, or "" if they lack it.
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

// judge returns why the head of a pull request may not be built, or nil if it may.
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
		if allowed, err := mayStart(ctx, f, b, p); err != nil {
			return nil, err
		} else if !allowed {
			return &stopped{state: forge.Queued, comment: approvalText(b, p),
				why: "waits for the approval of a user who may push"}, nil
		}
	}
	stop := t.skips(ctx, r, types.NamespacedName{Namespace: b.Namespace, Name: b.Name}, p.Commit,
		base.String(), trigger.Paths)
	return stop, ctx.Err()
}

// mayStart reports whether the author of a pull request may push, or a user who may push has
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

// command begins a comment that approves a commit.
const command = "/ok-to-test"

// approves reports whether a comment approves a commit. It must contain only the command and the
// full commit, so that it is neither a quotation nor an example, and names exactly one commit.
func approves(body, commit string) bool {
	return strings.TrimRight(body, " \t\r\n") == command+" "+commit
}

// approvalText returns a comment that asks for an approval.
func approvalText(b *api.AgentBuild, p forge.PullRequest) string {
	return fmt.Sprintf("`%s` does not build commit %.12s yet, because it is of another "+
		"repository, and its author may not push to this one.\n\n"+
		"A user who may push approves this one commit with a comment that contains only `%s %s`, "+
		"with the whole commit.\n", report.Context(b), p.Commit, command, p.Commit)
}

// partOf returns the name of the part of the comment that asks for an approval.
func partOf(b *api.AgentBuild) string { return "approval/" + b.Namespace + "/" + b.Name }

// loginsAndCaches are the parameters that a fork's build must not have.
var loginsAndCaches = []string{"SOURCE_REPO_SECRET", "registry-secret", "repo-user", "cache",
	"cache-mode", templates.ImageCache, templates.BuildpacksCache}

// pullOf derives the build of the head of a pull request. Independently of this function, compose
// rejects the fields that a fork's build must not have.
func pullOf(group string, b *api.AgentBuild, p forge.PullRequest) *api.AgentBuild {
	tag := fmt.Sprintf("pr-%d", p.Number)
	c := copyOf(group, b, tag, p.Commit, tag)
	s := &c.Spec
	s.Source.PullRequest = &api.SourcePullRequest{Number: int64(p.Number), Fork: p.Fork}
	s.OnChange = api.ChangeCancel // a newer commit makes the run obsolete
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
