package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/install"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/version"
)

// installCommand is `armature install`: the controllers' manifests, printed or applied.
func installCommand() *cobra.Command {
	var i install.Options
	var k cli.Cluster
	var opt apply.Options
	var export, dryRun, yes bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the build controller, the catalog and RenderedSources, or print their manifests",
		Long: `Install prints the manifests of the build controller: CRDs, least-privilege RBAC,
Deployment, metrics Service, PodDisruptionBudget, templates and steps; with
--catalog those of the catalog as well, and with --sources those of the controller
that renders Flux's sources.

With --wait it applies them as armature apply does, and waits until the controllers
are ready; the inventory is the package armature in their namespace. With --export
or --dry-run it prints them in any case.`,
		Example: `  armature install --wait
  armature install --catalog | kubectl apply --server-side -f -
  armature install --catalog --catalog-crds kagenti.io,agent.kagenti.dev   # kagent is there
  armature install --scope namespaced --watch-namespaces team1,team2`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := i.Check(); err != nil {
				return cli.Usage(err)
			}
			if err := checkTimeout(opt); err != nil {
				return err
			}
			text, err := i.Manifests()
			if err != nil {
				return err
			}
			if i.Image == "" && !version.IsRelease() {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: the manifests name the latest image that was released, and this build, %s, is not a release\n  hint: name the image of this build with --image\n", version.String())
			}
			if !opt.Wait || export || dryRun {
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
			opt.ForceConflicts = []string{"kubectl"} // which applied what an earlier install printed
			opt.Tell, opt.Confirm = progress.Line, cli.Confirmation(cmd, yes, false)
			plan, err := c.Apply(cmd.Context(), apply.Package{Namespace: i.Namespace, Name: "armature"}, objects, opt)
			progress.End()
			return (&cli.Report{Format: "text"}).Print(cmd, plan, false, err)
		},
	}
	f := cmd.Flags()
	cli.WordFlag(cmd, &i.Scope, "scope", "", "cluster", "cluster: all namespaces, with a ClusterRole; namespaced: some, with Roles", "scope", "cluster", "namespaced")
	cli.WordFlag(cmd, &i.Scope, "mode", "", "cluster", "scope", "scope", "cluster", "namespaced")
	cli.Deprecate(cmd, "mode", "use --scope")
	f.StringVar(&k.Kubeconfig, "kubeconfig", "", "with --wait, kubeconfig file; empty is kubectl's choice")
	f.StringVar(&k.Context, "context", "", "with --wait, context of the kubeconfig; empty is its current one")
	f.StringVarP(&i.Namespace, "namespace", "n", api.DefaultNamespace, "namespace of the controllers")
	f.StringSliceVar(&i.Watch, "watch-namespaces", nil, "namespaces to watch in scope namespaced; the controllers' own is always included")
	f.StringSliceVar(&i.Watch, "watch", nil, "")
	cli.Deprecate(cmd, "watch", "use --watch-namespaces")
	f.StringVar(&i.Image, "image", "", "image of the controller; empty is the release's")
	f.StringVar(&i.Mirror, "image-mirror", "", "registry, or path in one, with the images of all steps; empty uses the published ones")
	f.StringSliceVar(&i.PlainHTTP, "plain-http-hosts", nil, "hosts, with or without port, that may receive Git logins over http as well as https")
	f.StringSliceVar(&i.Networks, "git-allow-network", nil, "networks of Git servers to allow even if they are loopback, link-local or cloud metadata addresses, such as 169.254.20.0/24")
	f.IntVar(&i.Queue.MaxRunning, "max-running", 0, "maximum number of runs of AgentBuilds under way at once; further ones wait in a queue; 0 is unlimited")
	f.IntVar(&i.Queue.MaxRunningPerNamespace, "max-running-per-namespace", 0, "the same for each namespace, whose annotation "+keys.AnnotationMaxRunning+" may lower it; 0 is unlimited")
	f.StringVar(&i.Queue.Name, "queue-name", "", "LocalQueue of Kueue that admits the runs of builds without the label kueue.x-k8s.io/queue-name; empty means none")
	f.StringVar(&i.Attest.Key, "attest-key", "", "key that signs attested builds: a Secret in the controller's namespace, or a KMS URI, whose plugin is on the PATH of the image in --image; empty is the Secret armature-attest-key")
	f.StringVar(&i.Attest.Fulcio, "attest-fulcio-url", "", "authority that certifies the controller's ServiceAccount, which then signs attested builds instead of a key")
	f.StringVar(&i.Attest.Timestamps, "attest-timestamp-url", "", "with --attest-fulcio-url, timestamp authority (RFC 3161) that proves the time of signing")
	f.StringVar(&i.Attest.TrustedRoot, "attest-trusted-root", "", "with --attest-fulcio-url, ConfigMap in the controller's namespace whose trusted_root.json vouches for both authorities")
	f.StringVar(&i.Group, "api-group", api.DefaultGroup, "API group of AgentBuild")
	f.BoolVar(&i.Catalog.Install, "catalog", false, "install the catalog of agents and tools as well")
	f.StringVar(&i.Catalog.Secret, "catalog-store-secret", "", "Secret whose key address is the connection string of a PostgreSQL; empty is SQLite in one replica")
	f.BoolVar(&i.Sources, "sources", false, "install the controller that renders Flux's sources as well")
	f.StringSliceVar(&i.Catalog.CRDs, "catalog-crds", install.CatalogGroups, "API groups whose CRDs to include; leave out those that another controller installs")
	waitFlags(cmd, &opt, false)
	f.BoolVar(&export, "export", false, "print the manifests, also with --wait")
	f.BoolVar(&dryRun, "dry-run", false, "the same")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask before objects are pruned")
	return cmd
}
