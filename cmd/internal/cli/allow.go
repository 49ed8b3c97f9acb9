package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// Confirmation returns a function that asks on a terminal before objects are deleted. Without a
// terminal, it requires --yes.
func Confirmation(cmd *cobra.Command, yes, stdinTaken bool) func(*apply.Plan) error {
	return func(plan *apply.Plan) error {
		destructive := plan.Destructive()
		if yes || len(destructive) == 0 {
			return nil
		}
		w := cmd.ErrOrStderr()
		for _, s := range destructive {
			fmt.Fprintf(w, "%s: %s\n", s.Action, s.Title())
		}
		if stdinTaken || !IsTerminal(cmd.InOrStdin()) {
			return fmt.Errorf("nothing was done: %s would be deleted, and there is no terminal "+
				"for confirmation\n  hint: pass --yes", text.Count(len(destructive), "object"))
		}
		fmt.Fprintf(w, "Delete %s? [y/N] ", text.Count(len(destructive), "object"))
		answer, err := bufio.NewReader(interruptibleReader{cmd.Context(), cmd.InOrStdin()}).
			ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("nothing was done: %w", err)
		}
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return errors.New("nothing was done")
		}
		return nil
	}
}

// Report prints the result of a plan.
type Report struct{ Format string }

func (r *Report) Flags(cmd *cobra.Command) {
	OutputFlag(cmd, &r.Format, "text", "json", "yaml")
}

// The values of --allow: changes that an apply refuses otherwise.
const (
	AllowConflicts   = "conflicts=MANAGER"
	AllowAdopt       = "adopt=NAMESPACE/NAME"
	AllowRecreate    = "recreate"
	AllowReplace     = "replace"
	AllowPruneShared = "prune-shared"
)

// allowed describes the values of --allow.
var allowed = map[string]string{
	AllowConflicts: "take fields over from this field manager",
	AllowAdopt:     "take objects over from this package",
	AllowRecreate:  "delete and recreate objects whose immutable fields change",
	AllowReplace:   "prune all objects of the package and apply others instead",
	AllowPruneShared: "prune namespaces and CRDs with objects of other packages, which are " +
		"deleted with them",
}

// allow is the value of --allow.
type allow struct {
	opt   *apply.Options
	words []string
	given []string
}

// AllowFlag adds --allow, with the values that a command accepts.
func AllowFlag(cmd *cobra.Command, opt *apply.Options, words ...string) {
	var usage []string
	for _, w := range words {
		usage = append(usage, w+" ("+allowed[w]+")")
	}
	cmd.Flags().Var(&allow{opt: opt, words: words}, "allow",
		"changes to allow that are refused by default: "+strings.Join(usage, ", ")+"; repeatable")
}

func (a *allow) String() string { return strings.Join(a.given, ",") }
func (a *allow) Type() string   { return "strings" }

func (a *allow) Set(text string) error {
	for _, given := range strings.Split(text, ",") {
		word, value, _ := strings.Cut(given, "=")
		known := slices.ContainsFunc(a.words, func(w string) bool {
			name, _, takes := strings.Cut(w, "=")
			return name == word && takes == (value != "")
		})
		namespace, name, _ := strings.Cut(value, "/")
		if !known || word == "adopt" && (namespace == "" || name == "") {
			return Usagef("--allow %q: use %s", given, strings.Join(a.words, ", "))
		}
		switch word {
		case "conflicts":
			a.opt.ForceConflicts = append(a.opt.ForceConflicts, value)
		case "adopt":
			a.opt.Adopt = append(a.opt.Adopt, apply.Package{Namespace: namespace, Name: name})
		case "recreate":
			a.opt.Recreate = true
		case "replace":
			a.opt.Replace = true
		case "prune-shared":
			a.opt.PruneShared = true
		}
		a.given = append(a.given, given)
	}
	return nil
}

// Row is a step in the output of -o.
type Row struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	apply.Step `json:",inline"`
	Diff       string `json:"diff,omitempty"`
}

// PlanListing is a plan in the output of -o.
type PlanListing struct {
	Package apply.Package  `json:"package"`
	DryRun  bool           `json:"dryRun"`
	Summary map[string]int `json:"summary"`
	Objects []Row          `json:"objects"`
}

// ListPlan returns a plan for the output of -o.
func ListPlan(plan *apply.Plan, dryRun bool) PlanListing {
	l := PlanListing{Package: plan.Package, DryRun: dryRun, Summary: map[string]int{}, Objects: []Row{}}
	for _, s := range plan.Steps {
		l.Summary[string(s.Action)]++
		l.Objects = append(l.Objects, Row{Kind: s.GroupKind.Kind, Namespace: s.Namespace,
			Name: s.Name, Step: *s,
			APIVersion: schema.GroupVersion{Group: s.GroupKind.Group, Version: s.Version}.String()})
	}
	return l
}

// actions are in the order of a summary, with their past participles.
var actions = []struct {
	apply.Action
	past string
}{
	{apply.Create, "created"}, {apply.Change, "changed"}, {apply.Recreate, "recreated"},
	{apply.Run, "run"}, {apply.Unchanged, "unchanged"}, {apply.Prune, "pruned"},
	{apply.Skip, "skipped"}, {apply.Conflict, "in conflict"}, {apply.Refused, "refused"},
}

// Print prints a plan that ended with err, and returns err. A dry run with problems is an error, as
// the real run would be.
func (r *Report) Print(cmd *cobra.Command, plan *apply.Plan, dryRun bool, err error) error {
	if plan == nil {
		return err
	}
	past, counts := make(map[apply.Action]string), make(map[apply.Action]int)
	for _, a := range actions {
		past[a.Action] = a.past
	}
	for _, s := range plan.Steps {
		word, problem := past[s.Action], s.Action == apply.Conflict || s.Action == apply.Refused
		if dryRun && s.Action != apply.Skip {
			word = "would be " + word
		}
		switch {
		case problem:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n",
				strings.TrimPrefix(s.Place()+": "+s.Title(), ": "), s.Reason)
		case !dryRun && !s.Done && s.Action != apply.Skip && s.Action != apply.Unchanged:
			continue
		case s.Action != apply.Unchanged && r.Format == "text":
			fmt.Fprintln(cmd.OutOrStdout(),
				strings.TrimSuffix(s.Title()+" "+word+": "+s.Reason, ": "))
		}
		counts[s.Action]++
	}
	if dryRun && err == nil && counts[apply.Conflict]+counts[apply.Refused] > 0 {
		err = apply.ErrRefused
	}
	if r.Format != "text" {
		return multi.Errors(PrintObjects(cmd.OutOrStdout(), r.Format, ListPlan(plan, dryRun)), err)
	}
	var parts []string
	for _, a := range actions {
		if n := counts[a.Action]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, a.past))
		}
	}
	name := plan.Package.String()
	if dryRun {
		name += " (dry run)"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", name,
		cmp.Or(strings.Join(parts, ", "), "nothing was done"))
	return err
}
