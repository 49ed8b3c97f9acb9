// Package report reports the runs of AgentBuilds to the forge: a status on the commit, and the
// reason of a failure on its pull requests.
package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/report/comment"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/process/copies"
)

// Context returns the context of the statuses of a build. It is stable, so that branch protection
// can require it: a build that was derived for a pull request has the context of its owner.
func Context(b *api.AgentBuild) string {
	name := b.Name
	if owner := metav1.GetControllerOf(b); owner != nil && owner.Kind == api.Kind &&
		b.Spec.Source.PullRequest != nil {
		name = owner.Name
	}
	return "armature/" + b.Namespace + "/" + name
}

// Of returns the status of the commit of a build's last run. ok is false if there is none.
func Of(b *api.AgentBuild) (s forge.Status, ok bool) {
	st := b.Status
	exists := meta.FindStatusCondition(st.Conditions, api.ConditionRunExists)
	noRun := exists != nil && exists.Status == metav1.ConditionFalse &&
		st.ObservedGeneration == b.Generation
	if noRun && b.Spec.Source.PullRequest != nil {
		// The pull request shows why nothing runs.
		s = forge.Status{
			Commit: b.Spec.Source.SourceRevision, Context: Context(b), ID: "held",
			State: forge.Failure, Description: text.Plain(st.Message),
		}
		switch {
		case st.Phase == api.PhaseFailed:
			return s, true
		case exists.Reason == api.ReasonQueued:
			s.State, s.ID = forge.Queued, "queued"
			return s, true
		}
	}
	if st.Source == nil || st.Source.Git.CommitSHA == "" || st.PipelineRunName == "" ||
		exists == nil || exists.Status != metav1.ConditionTrue {
		return s, false
	}
	s = forge.Status{
		Commit: st.Source.Git.CommitSHA, Ref: st.Source.Git.Ref, Context: Context(b),
		ID: st.PipelineRunName, State: forge.Running, Description: text.Plain(st.Message),
	}
	switch st.Phase {
	case api.PhasePending:
		s.State = forge.Queued
	case api.PhaseSucceeded:
		s.State = forge.Success
	case api.PhaseCancelled:
		s.State = forge.Cancelled
	case api.PhaseFailed:
		if !b.Over() {
			break // it will be retried
		}
		s.State = forge.Failure
		if d := st.FailureDetails; d != nil {
			if d.Cause != "" {
				s.State = forge.Error
			}
			s.Description = text.Plain(cmp.Or(d.Message, st.Message))
			s.Summary, s.Annotations = comment.Build(b), annotations(b.Spec.Source.SourceSubfolder, d)
		}
	}
	return s, true
}

// waits marks a commit that starts no run and whose status does not pass.
const waits = "waits: "

// SkippedValue returns the value of the annotation about a commit that starts no run: why, and
// whether its status passes.
func SkippedValue(commit, why string, passes bool) string {
	if passes {
		return commit + " " + why
	}
	return commit + " " + waits + why
}

func skippedID(commit string) string { return "skipped-" + commit }

// skipped returns the status of a commit that starts no run.
func skipped(b *api.AgentBuild, annotation string) (s forge.Status, ok bool) {
	commit, why, _ := strings.Cut(b.Annotations[annotation], " ")
	if !api.IsCommit(commit) {
		return s, false
	}
	state := forge.Skipped
	if text, ok := strings.CutPrefix(why, waits); ok {
		state, why = forge.Queued, text
	}
	s = forge.Status{
		Commit: commit, Context: Context(b), State: state, ID: skippedID(commit),
		Description: text.Plain(why),
	}
	if src := b.Status.Source; src != nil {
		s.Ref = src.Git.Ref
		ok = src.Git.CommitSHA != commit // the commit may have been built meanwhile
	}
	return s, ok
}

// plan returns the statuses to send, in order: the end of a status that another run or commit has
// superseded, the status of a skipped commit, and that of the run.
func plan(b *api.AgentBuild, annotation string) (send []forge.Status) {
	last := lastOf(b)
	now, ok := Of(b)
	// On the same commit, the status of the newer attempt replaces that of the older one.
	if unfinished(last) && (!ok || now.Commit != last.Commit) {
		why := "another commit is built"
		if !ok {
			why = text.Plain(b.Status.Message)
		}
		send = append(send, forge.Status{
			Commit: last.Commit, Context: Context(b), ID: last.Run, State: forge.Cancelled,
			Description: why,
		})
	}
	if s, is := skipped(b, annotation); is && last.Skipped != s.Commit {
		send = append(send, s)
	}
	if ok && sum(now) != last.Sum {
		send = append(send, now)
	}
	return send
}

// lastOf returns a copy of the last report.
func lastOf(b *api.AgentBuild) *api.ReportStatus {
	if b.Status.Report == nil {
		return &api.ReportStatus{}
	}
	return copies.Of(b.Status.Report)
}

// unfinished reports whether the last status, which may not have been sent, needs a final one.
func unfinished(r *api.ReportStatus) bool {
	return r != nil && r.Commit != "" && !forge.State(r.State).Done()
}

// sum returns a hash of a status.
func sum(s forge.Status) string {
	all := []any{s.Commit, s.Context, s.State, s.Description, s.ID, s.Summary, s.Annotations}
	hash := sha256.Sum256(fmt.Appendf(nil, "%q", all))
	return hex.EncodeToString(hash[:16])
}

var (
	// place matches the place that begins a message of builds/failure.
	place = regexp.MustCompile(`^([A-Za-z0-9_.][A-Za-z0-9_./-]*):(\d{1,7})\b`)
	// fileLine matches a problem as compilers and linters print it.
	fileLine = regexp.MustCompile(
		`^\s*((?:\./)?[A-Za-z0-9_][A-Za-z0-9_./-]*\.[A-Za-z0-9]+):(\d{1,7})(?::\d+)?:?\s+(\S.*)$`)
)

const maxAnnotations = 20

// annotations returns annotations for the lines that a failure names, with paths in the repository.
func annotations(folder string, d *api.FailureDetails) (found []forge.Annotation) {
	seen := make(map[string]bool)
	add := func(file, line, content string) {
		name := path.Join(folder, file)
		at, err := strconv.Atoi(line)
		key := name + ":" + line
		outside := strings.HasPrefix(name, "../") || path.IsAbs(name)
		if err != nil || at == 0 || seen[key] || len(found) == maxAnnotations || outside {
			return
		}
		seen[key] = true
		found = append(found, forge.Annotation{Path: name, Line: at, Message: text.Plain(content)})
	}
	if m := place.FindStringSubmatch(d.Message); m != nil {
		add(m[1], m[2], d.Message)
	}
	for _, line := range d.LogTail {
		if m := fileLine.FindStringSubmatch(line); m != nil {
			add(m[1], m[2], m[3])
		}
	}
	return found
}
