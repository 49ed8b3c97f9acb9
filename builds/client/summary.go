package client

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Summary is what lists show of a build.
type Summary struct{ *api.AgentBuild }

// Phase returns the phase of the build; Pending before it has one.
func (s Summary) Phase() string { return cmp.Or(string(s.Status.Phase), string(api.PhasePending)) }

// Reason returns the reason of the condition Ready if it differs from the phase, or "".
func (s Summary) Reason() string {
	if c := meta.FindStatusCondition(s.Status.Conditions, api.ConditionReady); c != nil &&
		c.Reason != s.Phase() {
		return c.Reason
	}
	return ""
}

// Commit returns the commit of the last run, or "" if it is not known.
func (s Summary) Commit() string {
	if s.Status.Source == nil {
		return ""
	}
	return s.Status.Source.Git.CommitSHA
}

// At returns when the build last ended or began.
func (s Summary) At() time.Time {
	began, ended := s.Status.LastBuildTime, s.Status.CompletionTime
	switch {
	case ended != nil && (began == nil || ended.After(began.Time)):
		return ended.Time
	case began != nil:
		return began.Time
	}
	return s.CreationTimestamp.Time
}

// Took returns how long the last run took; zero while it runs.
func (s Summary) Took() time.Duration { return took(s.Status.StartTime, s.Status.CompletionTime) }

func took(began, ended *metav1.Time) time.Duration {
	if began == nil || ended == nil {
		return 0
	}
	return max(0, ended.Sub(began.Time)).Round(time.Second)
}

// Mentions reports whether each word, in lower case, occurs in the summary.
func (s Summary) Mentions(words []string) bool {
	if len(words) == 0 {
		return true
	}
	source := s.Spec.Source
	text := strings.ToLower(strings.Join([]string{s.Namespace, s.Name, s.Phase(), s.Reason(),
		s.Commit(), s.Status.BuiltImage, source.SourceRepository, source.SourceRevision}, " "))
	return !slices.ContainsFunc(words, func(word string) bool {
		return !strings.Contains(text, word)
	})
}

// Choose returns the task whose log is shown: the requested one, or else the one that failed, or
// runs, or began last. It is empty if no task has begun.
func (v View) Choose(b *api.AgentBuild, asked string) string {
	has := func(name string) bool {
		return name != "" &&
			slices.ContainsFunc(v.Tasks, func(t Task) bool { return t.Name == name })
	}
	if has(asked) {
		return asked
	}
	if f := b.Status.FailureDetails; f != nil && has(f.Task) {
		return f.Task
	}
	for _, state := range []string{"Failed", "Running"} {
		if i := slices.IndexFunc(v.Tasks, func(t Task) bool { return t.State == state }); i >= 0 {
			return v.Tasks[i].Name
		}
	}
	var last Task
	for _, t := range v.Tasks {
		if t.Began().After(last.Began()) {
			last = t
		}
	}
	return last.Name
}
