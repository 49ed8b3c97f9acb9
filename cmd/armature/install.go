package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/install"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/version"
)

// installCommand returns `armature install`, which prints or applies the controllers' manifests.
func installCommand() *cobra.Command {
	var i install.Options
	var k cli.Cluster
	var opt apply.Options
	var dryRun, yes bool
	var values string
	cmd := &cobra.Command{
		Use: "install",
		Short: "Install the build controller, the catalog and RenderedSources, or print " +
			"their manifests",
		Long: `Install prints the manifests of the build controller: CRDs, least-privilege RBAC,
Deployment, metrics Service, PodDisruptionBudget, templates and steps; with
--catalog those of the catalog as well, and with --sources those of the controller
that renders Flux's sources, and with --monitoring a ServiceMonitor, alerts and a dashboard. A file of --values can have all settings: they are those of
the chart. Flags override them.

With --wait, install applies the manifests like armature apply, as the package armature in
the namespace of the controllers, and waits until the controllers are ready.`,
		Example: `  armature install --wait
  armature install --catalog | kubectl apply --server-side -f -
  armature install --values values.yaml --wait --dry-run
  armature install --scope namespaced --watch-namespaces team1,team2`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dryRun && !opt.Wait {
				return cli.Usagef("--dry-run requires --wait: without it, install prints the " +
					"manifests and applies nothing")
			}
			if values != "" {
				if err := fromValues(cmd, values, &i); err != nil {
					return err
				}
			}
			if err := i.Check(); err != nil {
				return cli.Usage(err)
			}
			if opt.Timeout <= 0 {
				return cli.Usagef("--timeout %s: use a positive duration", opt.Timeout)
			}
			text, err := i.Manifests()
			if err != nil {
				return err
			}
			if i.Image == "" && !version.IsRelease() {
				fmt.Fprintf(cmd.ErrOrStderr(),
					"warning: this build, %s, is not a release: the manifests name the image of "+
						"the latest release\n  hint: name the image of this build with --image\n",
					version.String())
			}
			if !opt.Wait {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			objects, err := apply.Read("armature install", text)
			if err != nil {
				return err
			}
			c, _, err := k.Applier()
			if err != nil {
				return err
			}
			progress := cli.NewProgress(cmd.ErrOrStderr())
			// Users may have applied the output of an earlier install with kubectl.
			opt.ForceConflicts = []string{"kubectl"}
			id := apply.Package{Namespace: i.Namespace, Name: "armature"}
			if dryRun {
				plan, err := c.Plan(cmd.Context(), id, objects, opt)
				progress.End()
				return (&cli.Report{Format: "text"}).Print(cmd, plan, true, err)
			}
			opt.Tell, opt.Confirm = progress.Line, cli.Confirmation(cmd, yes, false)
			plan, err := c.Apply(cmd.Context(), id, objects, opt)
			progress.End()
			return (&cli.Report{Format: "text"}).Print(cmd, plan, false, err)
		},
	}
	f := cmd.Flags()
	cli.WordFlag(cmd, &i.Scope, "scope", "", "cluster",
		"cluster: all namespaces, with a ClusterRole; namespaced: some, with Roles", "scope",
		"cluster", "namespaced")
	k.LoginFlags(cmd)
	f.StringVarP(&i.Namespace, "namespace", "n", api.DefaultNamespace,
		"namespace of the controllers")
	f.StringSliceVar(&i.Watch, "watch-namespaces", nil,
		"namespaces to watch in scope namespaced; the controllers' own is always included")
	f.StringVar(&i.Image, "image", "", "image of the controller (default: that of this release)")
	f.StringVar(&i.Mirror, "image-mirror", "",
		"registry, or path in one, with the images of all steps (default: the published ones)")
	f.StringVar(&i.Group, "api-group", api.DefaultGroup, "API group of AgentBuild")
	f.BoolVar(&i.Catalog.Install, "catalog", false,
		"install the catalog of agents and tools as well")
	f.BoolVar(&i.Sources.Install, "sources", false,
		"install the controller that renders Flux's sources as well")
	f.BoolVar(&i.Monitoring.Install, "monitoring", false,
		"add alerts, a ServiceMonitor and a Grafana dashboard for the Prometheus operator")
	i.Catalog.CRDs = install.CatalogGroups()
	cli.ValuesFlag(cmd, &values)
	cmd.Flags().BoolVar(&opt.Wait, "wait", false,
		"apply the manifests, and wait until the controllers are ready")
	f.DurationVar(&opt.Timeout, "timeout", 5*time.Minute, "how long to wait")
	f.BoolVar(&dryRun, "dry-run", false,
		"with --wait, show what would be done; the API server checks it and stores nothing")
	f.BoolVarP(&yes, "yes", "y", false, "prune objects without confirmation")
	return cmd
}

// fromValues fills options from a file; flags that were given override it.
func fromValues(cmd *cobra.Command, file string, i *install.Options) error {
	flags := *i
	if err := install.ReadValues(file, i); err != nil {
		return err
	}
	for name, override := range map[string]func(){
		"scope":            func() { i.Scope = flags.Scope },
		"watch-namespaces": func() { i.Watch = flags.Watch },
		"image":            func() { i.Image = flags.Image },
		"image-mirror":     func() { i.Mirror = flags.Mirror },
		"api-group":        func() { i.Group = flags.Group },
		"catalog":          func() { i.Catalog.Install = flags.Catalog.Install },
		"sources":          func() { i.Sources = flags.Sources },
		"monitoring":       func() { i.Monitoring.Install = flags.Monitoring.Install },
	} {
		if cmd.Flags().Changed(name) {
			override()
		}
	}
	return nil
}
