package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/apply"
)

// applyCommand is `armature apply`: render, and bring it into a cluster.
func applyCommand() *cobra.Command {
	var k cluster
	var p pkg
	var r report
	var opt apply.Options
	var adopt []string
	var healthChecks string
	var dryRun, yes bool
	cmd := &cobra.Command{
		Use:   "apply PATH|-|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Render a package and apply it to a cluster, with inventory and pruning",
		Long: `Apply renders a folder, a file or standard input, or takes a rendered package from
a registry, and brings the result into the cluster by server-side apply:
namespaces and CRDs first, then the rest. It prunes the objects that the package
no longer contains. The ConfigMap armature-NAME is the inventory of its objects.

Apply makes a plan first. For it the API server checks every object that would be
created or changed. A conflict with another field manager, an immutable field or an
object that the API server refuses ends apply before it writes anything. Objects
that depend on the package itself, such as on its CRDs, are checked once those
exist. Only one command applies or deletes a package at a time: a second one waits.
After an interruption, the next apply finishes the work.

Annotations of objects settle the rest:
  config.kubernetes.io/depends-on   apply it once the objects that it names are ready,
                                    and prune it before them
  kapp.k14s.io/change-group         the same for groups of objects: change-rule on others
  kapp.k14s.io/change-rule          is such as "upsert after upserting GROUP"
  argocd.argoproj.io/hook           run a Job before (PreSync) or after (PostSync) the
                                    other objects, in each apply that changes something
  ` + keys.IgnoreFields + `        leave these fields alone once the object exists

With --verify-policy, or the flags that replace it, every image of a package has to
have a digest and to be signed. Of a package from a registry the package itself has
to be, and its images where the policy says how they must have been built.`,
		Example: `  armature apply apps/weather -n team1
  armature apply apps/weather -n team1 --dry-run
  armature apply apps/weather -n team1 --health-checks health.yaml
  kustomize build . | armature apply - --name weather -n team1 --yes
  armature apply apps/weather --force-conflicts kubectl-edit
  armature apply rendered/weather --rendered --wait=false -o json
  armature apply apps/weather -n team1 --verify-policy policy.yaml
  armature apply oci://registry.example/fleet/weather:v1 -n team1 --verify-policy policy.yaml`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, a []string) error {
			err := checkTimeout(opt)
			if err != nil {
				return err
			}
			if opt.Adopt, err = packages(adopt); err != nil {
				return err
			}
			if healthChecks != "" {
				text, err := os.ReadFile(healthChecks)
				if err != nil {
					return fmt.Errorf("reading --health-checks: %w", err)
				}
				if opt.HealthChecks, err = apply.ReadHealthChecks(healthChecks, text); err != nil {
					return err
				}
			}
			c, id, objects, err := k.open(cmd, &p, a[0])
			if err != nil {
				return err
			}
			planning := begin(cmd.ErrOrStderr(), r.quiet, "comparing "+count(len(objects), "object")+" with the cluster")
			defer planning.end()
			if dryRun {
				plan, err := c.Plan(cmd.Context(), id, objects, opt)
				planning.end()
				return r.print(cmd, plan, true, err)
			}
			progress, confirm := newProgress(cmd.ErrOrStderr()), confirmation(cmd, yes, a[0] == "-")
			opt.Tell = func(text string) {
				planning.end()
				progress.line(text)
			}
			opt.Waiting = func(waiting []apply.Waiting) {
				planning.end()
				progress.waiting(waiting)
			}
			opt.Confirm = func(plan *apply.Plan) error {
				planning.end()
				return confirm(plan)
			}
			plan, err := c.Apply(cmd.Context(), id, objects, opt)
			planning.end()
			progress.end()
			return r.print(cmd, plan, false, err)
		},
	}
	k.flags(cmd)
	p.flags(cmd)
	r.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "show what would be done; the API server checks it and stores nothing")
	f.StringSliceVar(&opt.ForceConflicts, "force-conflicts", nil, "take fields over from these field managers only")
	f.StringSliceVar(&adopt, "adopt", nil, "take objects over from these packages, as NAMESPACE/NAME")
	f.BoolVar(&opt.Recreate, "recreate", false, "delete and create objects again whose immutable fields change")
	f.BoolVar(&opt.Replace, "replace", false, "allow to prune all objects of the package and to apply others instead")
	pruneSharedFlag(cmd, &opt)
	f.BoolVar(&opt.Nudge, "nudge", true, "annotate pods that mount a changed ConfigMap, so that they see it at once")
	waitFlags(cmd, &opt)
	f.StringVar(&healthChecks, "health-checks", "", "a `file` with healthCheckExprs as in a Kustomization of Flux: CEL expressions that decide for their kinds, in place of kstatus, what is healthy")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask before objects are pruned or recreated")
	return cmd
}

func pruneSharedFlag(cmd *cobra.Command, opt *apply.Options) {
	cmd.Flags().BoolVar(&opt.PruneShared, "prune-shared", false, "prune namespaces and CRDs even if they contain objects of other packages, which are deleted with them")
}

func waitFlags(cmd *cobra.Command, opt *apply.Options) {
	cmd.Flags().BoolVar(&opt.Wait, "wait", true, "wait until all objects are healthy and pruned objects are gone")
	cmd.Flags().DurationVar(&opt.Timeout, "timeout", 5*time.Minute, "how long to wait")
}

func checkTimeout(opt apply.Options) error {
	if opt.Timeout <= 0 {
		return usageError{fmt.Errorf("--timeout %s: use a positive duration; --wait=false does not wait", opt.Timeout)}
	}
	return nil
}

// open connects to the cluster and reads the package.
func (k *cluster) open(cmd *cobra.Command, p *pkg, path string) (*apply.Cluster, apply.Package, []apply.Object, error) {
	config, namespace, err := k.rest()
	if err != nil {
		return nil, apply.Package{}, nil, err
	}
	id, err := p.identity(path, namespace)
	if err != nil {
		return nil, id, nil, err
	}
	objects, err := p.objects(cmd, path)
	if err != nil {
		return nil, id, nil, err
	}
	c, err := apply.Connect(config)
	return c, id, objects, err
}

// packages reads NAMESPACE/NAME.
func packages(given []string) ([]apply.Package, error) {
	var out []apply.Package
	for _, g := range given {
		namespace, name, ok := strings.Cut(g, "/")
		if !ok || namespace == "" || name == "" {
			return nil, usageError{fmt.Errorf("--adopt %q: write NAMESPACE/NAME", g)}
		}
		out = append(out, apply.Package{Namespace: namespace, Name: name})
	}
	return out, nil
}

// confirmation asks on a terminal before objects are deleted. Nobody can be asked
// elsewhere, so that --yes is needed there.
func confirmation(cmd *cobra.Command, yes, stdinTaken bool) func(*apply.Plan) error {
	return func(plan *apply.Plan) error {
		destructive := plan.Destructive()
		if yes || len(destructive) == 0 {
			return nil
		}
		w := cmd.ErrOrStderr()
		for _, s := range destructive {
			fmt.Fprintf(w, "%s: %s\n", s.Action, s.Title())
		}
		in, isFile := cmd.InOrStdin().(*os.File)
		if stdinTaken || !isFile || !term.IsTerminal(int(in.Fd())) {
			return fmt.Errorf("nothing was done: %d objects would be deleted, and there is no terminal to ask on\n  hint: pass --yes", len(destructive))
		}
		fmt.Fprintf(w, "Delete these %d objects? [y/N] ", len(destructive))
		answer, err := bufio.NewReader(interruptibleReader{cmd.Context(), in}).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("nothing was done: %w", err)
		}
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return errors.New("nothing was done")
		}
		return nil
	}
}

// report prints what was done.
type report struct {
	format string
	quiet  bool
}

func (r *report) flags(cmd *cobra.Command) {
	outputFlag(cmd, &r.format, "text", "text", "json", "yaml")
	cmd.Flags().BoolVarP(&r.quiet, "quiet", "q", false, "print problems only")
}

// row is a step as -o shows it.
type row struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	apply.Step `json:",inline"`
	Diff       string `json:"diff,omitempty"`
}

func rowOf(s apply.Step) row {
	return row{APIVersion: schema.GroupVersion{Group: s.GroupKind.Group, Version: s.Version}.String(), Kind: s.GroupKind.Kind,
		Namespace: s.Namespace, Name: s.Name, Step: s}
}

// listing is a plan as -o shows it.
type listing struct {
	Package apply.Package  `json:"package"`
	DryRun  bool           `json:"dryRun"`
	Summary map[string]int `json:"summary"`
	Objects []row          `json:"objects"`
}

func listingOf(plan *apply.Plan, dryRun bool) listing {
	l := listing{Package: plan.Package, DryRun: dryRun, Summary: map[string]int{}, Objects: []row{}}
	for _, s := range plan.Steps {
		l.Summary[string(s.Action)]++
		l.Objects = append(l.Objects, rowOf(s))
	}
	return l
}

var past = map[apply.Action]string{
	apply.Create: "created", apply.Change: "changed", apply.Recreate: "recreated", apply.Run: "run", apply.Unchanged: "unchanged",
	apply.Prune: "pruned", apply.Skip: "skipped", apply.Conflict: "in conflict", apply.Refused: "refused",
}

// print a plan that ended with err, which is passed on. A dry run with problems
// is an error as the real one would be.
func (r *report) print(cmd *cobra.Command, plan *apply.Plan, dryRun bool, err error) error {
	if plan == nil {
		return err
	}
	if dryRun && err == nil && plan.Count(apply.Conflict)+plan.Count(apply.Refused) > 0 {
		err = apply.ErrRefused
	}
	for _, s := range plan.Steps {
		if s.Action == apply.Conflict || s.Action == apply.Refused {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", strings.TrimPrefix(s.Place()+": "+s.Title(), ": "), s.Reason)
		}
	}
	if r.format != "text" {
		if err := printObjects(cmd.OutOrStdout(), r.format, listingOf(plan, dryRun)); err != nil {
			return err
		}
		return err
	}
	counts := make(map[apply.Action]int)
	for _, s := range plan.Steps {
		if s.Action == apply.Conflict || s.Action == apply.Refused {
			counts[s.Action]++
			continue
		}
		if !dryRun && !s.Done && s.Action != apply.Skip && s.Action != apply.Unchanged {
			continue
		}
		counts[s.Action]++
		if s.Action != apply.Unchanged && !r.quiet {
			word := past[s.Action]
			if dryRun && s.Action != apply.Skip {
				word = "would be " + word
			}
			fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(s.Title()+" "+word+": "+s.Reason, ": "))
		}
	}
	if !r.quiet {
		name := plan.Package.String()
		if dryRun {
			name += " (dry run)"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", name, actionSummary(counts))
	}
	return err
}

func actionSummary(counts map[apply.Action]int) string {
	var parts []string
	for _, a := range []apply.Action{apply.Create, apply.Change, apply.Recreate, apply.Run, apply.Unchanged, apply.Prune, apply.Skip, apply.Conflict, apply.Refused} {
		if counts[a] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[a], past[a]))
		}
	}
	if len(parts) == 0 {
		return "nothing was done"
	}
	return strings.Join(parts, ", ")
}
