package page

import (
	"io"
	"slices"
	"strings"

	"github.com/armature-dev/armature/render/compare"
)

// Changes are the results of a diff for a page.
type Changes struct {
	// Title names the compared sides, and Summary counts the differences.
	Title, Summary string
	Changes        []Change
}

// Change is an object that differs.
type Change struct {
	// Object is its name, Effect a word for the change, and Headline a line about it.
	Object, Effect, Headline string
	// Restart are the keys of which running pods have old values until they are restarted.
	Restart []string
	// Details are the differing values that other services see.
	Details []compare.Detail
	// Lines are a unified diff; "" if no line of the object differs.
	Lines string
}

// ChangesOf returns the changes of a report; those that interrupt service come first.
func ChangesOf(title string, r *compare.Report) (Changes, error) {
	c := Changes{Title: title, Summary: r.Summary()}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		lines, err := w.Sides.Lines()
		if err != nil {
			return c, err
		}
		change := Change{Object: w.Object.String(), Effect: string(w.Effect),
			Headline: w.Headline(), Details: w.Details(), Lines: lines}
		if w.Effect == compare.Restart { // other effects restart the pods
			change.Restart = w.Restart
		}
		c.Changes = append(c.Changes, change)
	}
	rank := []compare.Effect{compare.Replaced, compare.Removed, compare.Restart, compare.Rolls,
		compare.Reloads, compare.Changed, compare.Added}
	slices.SortStableFunc(c.Changes, func(a, b Change) int {
		return slices.Index(rank, compare.Effect(a.Effect)) - slices.Index(rank, compare.Effect(b.Effect))
	})
	for i := range r.Objects {
		o := &r.Objects[i]
		lines, err := o.Sides.Lines()
		if err != nil {
			return c, err
		}
		c.Changes = append(c.Changes, Change{Object: o.Object.String(), Effect: string(o.Effect),
			Lines: lines})
	}
	for _, t := range r.Tools {
		lines := append([]string{"@@ " + t.Headline()}, t.Lines()...)
		c.Changes = append(c.Changes,
			Change{Object: t.Server.String(), Effect: t.Effect, Lines: strings.Join(lines, "\n ")})
	}
	return c, nil
}

// difference is the data of the page of changes.
type difference struct {
	Changes
	Counts   []tally
	Restarts []displayed // that need a restart
	Shown    []displayed
	Open     bool
}

type tally struct {
	Effect  string
	Objects int
	First   int // the ID of the first
}

// displayed is a change on the page.
type displayed struct {
	Change
	ID    int
	Rows  []row
	Plus  int
	Minus int
}

// row is a line of a diff. Its class is a for an added line, r for a removed one, h for the head of
// a hunk, and c for context.
type row struct{ Class, Text string }

// Diff writes a page of changes: a summary, the needed restarts, and the differing lines of each
// object.
func Diff(w io.Writer, c Changes) error {
	return write(w, "diff.html", differenceOf(c))
}

func differenceOf(c Changes) *difference {
	p := &difference{Changes: c}
	rows := 0
	for i, change := range c.Changes {
		s := displayed{Change: change, ID: i + 1}
		s.read(change.Lines)
		rows += len(s.Rows)
		p.Shown = append(p.Shown, s)
		if len(change.Restart) > 0 {
			p.Restarts = append(p.Restarts, s)
		}
		at := slices.IndexFunc(p.Counts, func(t tally) bool { return t.Effect == change.Effect })
		if at < 0 {
			at = len(p.Counts)
			p.Counts = append(p.Counts, tally{Effect: change.Effect, First: s.ID})
		}
		p.Counts[at].Objects++
	}
	p.Open = rows <= open
	return p
}

// read parses a unified diff.
func (s *displayed) read(unified string) {
	inside := false
	for text := range strings.Lines(unified) {
		class := "c"
		switch inside = inside || strings.HasPrefix(text, "@@"); {
		case !inside: // the names of the two sides
			continue
		case strings.HasPrefix(text, "@@"):
			class = "h"
		case strings.HasPrefix(text, "+"):
			s.Plus++
			class = "a"
		case strings.HasPrefix(text, "-"):
			s.Minus++
			class = "r"
		}
		s.Rows = append(s.Rows, row{class, strings.TrimRight(text, "\r\n")})
	}
}
