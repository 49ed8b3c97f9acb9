package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/health"
)

// applyCommand returns `armature apply`, which renders a package and applies it to a cluster.
func applyCommand() *cobra.Command {
	var k cli.Cluster
	var p cli.Package
	var r cli.Report
	var opt apply.Options
	var healthChecks string
	var dryRun, yes bool
	cmd := &cobra.Command{
		Use:   "apply PATH|-|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Render a package and apply it to a cluster, with inventory and pruning",
		Long: `Apply renders a folder, a file or standard input, or fetches a rendered package from
a registry, and applies it to the cluster by server-side apply:
namespaces and CRDs first, then the rest. It prunes the objects that the package
no longer contains. The ConfigMap armature-NAME is the inventory of its objects.

Apply first makes a plan, for which the API server checks every object that would be
created or changed. A conflict with another field manager, an immutable field or an
object that the API server refuses ends apply before it writes anything. Objects
that depend on the package itself, such as on its CRDs, are checked once those
exist. Only one command applies or deletes a package at a time: a second one waits.
After an interruption, the next apply finishes the work.

Annotations on objects control the rest:
  config.kubernetes.io/depends-on   apply it once the objects that it names are ready,
                                    and prune it before them
  argocd.argoproj.io/hook           run a Job before (PreSync) or after (PostSync) the
                                    other objects, in each apply that changes something
  ` + keys.IgnoreFields + `        leave these fields alone once the object exists

If armature.lock has the tools of a tool server, and the catalog has found that the server
offers other tools, apply refuses the package until the lock is updated.

With --key or --verify-policy, every image of a package must
have a digest and be signed. A package from a registry must itself be signed, and
its images only if the policy says how they must be built.`,
		Example: `  armature apply apps/weather -n team1
  armature apply apps/weather -n team1 --dry-run
  armature apply apps/weather -n team1 --health-checks health.yaml
  kustomize build . | armature apply - --name weather -n team1 --yes
  armature apply apps/weather --allow conflicts=kubectl-edit,recreate
  armature apply rendered/weather --rendered --timeout 0 -o json
  armature apply apps/weather -n team1 --verify-policy policy.yaml
  armature apply oci://registry.example/fleet/weather:v1 -n team1 --verify-policy policy.yaml`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, a []string) error {
			err := checkTimeout(&opt)
			if err != nil {
				return err
			}
			opt.Nudge = true
			if healthChecks != "" {
				text, err := os.ReadFile(healthChecks)
				if err != nil {
					return fmt.Errorf("reading --health-checks: %w", err)
				}
				if opt.HealthChecks, err = health.ReadChecks(healthChecks, text); err != nil {
					return err
				}
			}
			c, id, objects, err := k.Open(cmd, &p, a[0])
			if err != nil {
				return err
			}
			if err := k.CheckTools(cmd.Context(), objects); err != nil {
				return err
			}
			planning := cli.Begin(cmd.ErrOrStderr(), false,
				"comparing "+text.Count(len(objects), "object")+" with the cluster")
			defer planning.End()
			if dryRun {
				plan, err := c.Plan(cmd.Context(), id, objects, opt)
				planning.End()
				return r.Print(cmd, plan, true, err)
			}
			progress, confirm :=
				cli.NewProgress(cmd.ErrOrStderr()), cli.Confirmation(cmd, yes, a[0] == "-")
			opt.Tell = func(text string) {
				planning.End()
				progress.Line(text)
			}
			opt.Confirm = func(plan *apply.Plan) error {
				planning.End()
				return confirm(plan)
			}
			plan, err := c.Apply(cmd.Context(), id, objects, opt)
			planning.End()
			progress.End()
			return r.Print(cmd, plan, false, err)
		},
	}
	k.Flags(cmd)
	p.Flags(cmd)
	r.Flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&dryRun, "dry-run", false,
		"show what would be done; the API server checks it and stores nothing")
	cli.AllowFlag(cmd, &opt, cli.AllowConflicts, cli.AllowAdopt, cli.AllowRecreate,
		cli.AllowReplace, cli.AllowPruneShared)
	timeoutFlag(cmd, &opt)
	f.StringVar(&healthChecks, "health-checks", "",
		"a `file` with healthCheckExprs as in a Kustomization of Flux: CEL expressions for the "+
			"health of their kinds, which replace kstatus")
	f.BoolVarP(&yes, "yes", "y", false, "prune and recreate objects without confirmation")
	return cmd
}

// timeoutFlag adds --timeout, which checkTimeout reads.
func timeoutFlag(cmd *cobra.Command, opt *apply.Options) {
	cmd.Flags().DurationVar(&opt.Timeout, "timeout", 5*time.Minute,
		"how long to wait until all objects are healthy or gone; 0 does not wait")
}

// checkTimeout reports a wrong --timeout; 0 does not wait.
func checkTimeout(opt *apply.Options) error {
	if opt.Timeout < 0 {
		return cli.Usagef("--timeout %s: use a positive duration, or 0 to wait for nothing", opt.Timeout)
	}
	opt.Wait = opt.Timeout > 0
	return nil
}
