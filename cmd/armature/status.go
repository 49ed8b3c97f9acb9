package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client/delivery"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/status"
)

// statusCommand returns `armature status`, which shows the state of rendered objects.
func statusCommand() *cobra.Command {
	var k cli.Cluster
	var format string
	var watch, packages bool
	cmd := &cobra.Command{
		Use:   "status [NAME]...",
		Short: "Show the state of actors, agents and injected workloads in a cluster",
		Long: `Status reads live objects and reports the state of rendered workloads: actors with the
states and columns of their former operator, agents with their conditions, and all other
injected workloads, each with the components of the identity infrastructure that are
ready. It writes nothing and reads no Secrets.

With one NAME, status also shows the chain from the source commit to the pods: the run, the
image, its attestation and the lock in Git, and which link is not complete and why.

With --packages, status lists the packages that armature apply has applied, or the objects
of the package NAME and their health.

The exit status is 0 if everything is ready, 3 if something is in progress, and 1
if something failed or cannot be read. docs/status.md explains each
state.`,
		Example: `  armature status
  armature status weather-agent -n team1 -o wide
  armature status -A --watch
  armature status --packages -A
  armature status --packages weather -n team1
  armature status -o json`,
		Args: cli.Args(func(cmd *cobra.Command, names []string) error {
			if packages {
				return cobra.MaximumNArgs(1)(cmd, names)
			}
			return nil
		}),
		ValidArgsFunction: func(cmd *cobra.Command, given []string,
			typed string) ([]string, cobra.ShellCompDirective) {
			if packages {
				return k.CompletePackages(cmd, given, typed)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			if packages && watch {
				return cli.Usagef("--packages and --watch exclude each other")
			}
			if packages {
				return showPackages(cmd, &k, names, format)
			}
			if watch && format != "table" && format != "wide" {
				return cli.Usagef("--watch prints tables: leave out -o %s", format)
			}
			config, namespace, err := k.Rest()
			if err != nil {
				return err
			}
			c, err := dynamic.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("connecting to the cluster: %w", err)
			}
			s := statusOf{c: c, namespace: namespace, names: names, format: format, watch: watch}
			if watch {
				return s.follow(cmd)
			}
			health, err := s.show(cmd)
			if err != nil {
				return err
			}
			return exitOf(health)
		},
	}
	k.Flags(cmd)
	k.AllFlag(cmd)
	cmd.Flags().BoolVar(&packages, "packages", false,
		"list the applied packages, or the objects of the package NAME")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false,
		"show the state again when it changes, until Ctrl-C")
	cli.ListFlag(cmd, &format)
	return cmd
}

func exitOf(h status.Health) error {
	switch h {
	case status.Well:
		return nil
	case status.Busy:
		return cli.InProgress
	}
	return cli.ErrFindings
}

// statusOf holds the settings of a call, and the last output of --watch.
type statusOf struct {
	c         dynamic.Interface
	namespace string
	names     []string
	format    string
	watch     bool
	last      string
}

// show prints the report. With --watch, it does so only if the report has changed.
func (s *statusOf) show(cmd *cobra.Command) (status.Health, error) {
	live, err := status.Read(cmd.Context(), s.c, s.namespace)
	if err != nil {
		return status.Ill, err
	}
	report := status.Of(live)
	if len(s.names) > 0 {
		found := report.Only(s.names)
		missing := slices.DeleteFunc(slices.Clone(s.names),
			func(n string) bool { return slices.Contains(found, n) })
		if len(missing) > 0 && !s.watch {
			return status.Ill, fmt.Errorf("no rendered object has the name %s%s",
				strings.Join(missing, ", "), cli.Where(s.namespace))
		}
	}
	chains, err := s.chains(cmd.Context(), live, report)
	if err != nil {
		return status.Ill, err
	}
	var text strings.Builder
	tables := s.format == "table" || s.format == "wide"
	switch {
	case tables:
		if err = report.Write(&text, s.namespace == "", s.format == "wide"); err == nil {
			err = writeChains(&text, chains)
		}
	case s.format == "name":
		text.WriteString(strings.Join(append(report.Names(), ""), "\n"))
	default:
		err = cli.PrintObjects(&text, s.format, struct {
			status.Report `json:",inline"`
			Chains        []delivery.Chain `json:"chains,omitempty"`
		}{report, chains})
	}
	out := text.String()
	if tables {
		out = cli.Harmless(out) // the kubelet passes on messages of registries
	}
	if err != nil || s.watch && out == s.last {
		return report.Health(), err
	}
	if s.last != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", live.Now.Format(time.TimeOnly))
	}
	s.last = out
	if report.Empty() && tables {
		fmt.Fprintf(cmd.ErrOrStderr(), "no rendered objects%s\n", cli.Where(s.namespace))
	}
	_, err = io.WriteString(cmd.OutOrStdout(), out)
	return report.Health(), err
}

// follow shows the report until Ctrl-C. The exit status is that of the last report. If the cluster
// does not answer for a while, follow prints the error and retries.
func (s *statusOf) follow(cmd *cobra.Command) error {
	const every = 2 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	health, failed := status.Ill, "" // until something was shown
	for {
		now, err := s.show(cmd)
		switch {
		case cmd.Context().Err() != nil:
			return exitOf(health)
		case err != nil && s.last == "":
			return err
		case err != nil && err.Error() != failed:
			failed = err.Error()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s (every %s)\n", cli.Harmless(failed), every)
		case err == nil:
			health, failed = now, ""
		}
		select {
		case <-cmd.Context().Done():
			return exitOf(health)
		case <-tick.C:
		}
	}
}

// chains returns the delivery chains of the workloads with the given name, if exactly one name was
// given. There are none without AgentBuilds or the right to read them.
func (s *statusOf) chains(ctx context.Context, live status.Live,
	report status.Report) (all []delivery.Chain, err error) {
	if len(s.names) != 1 {
		return nil, nil
	}
	var builds buildapi.AgentBuildList
	found, err := s.list(ctx,
		buildapi.GroupVersion(buildapi.DefaultGroup).WithResource("agentbuilds"), &builds)
	if err != nil || !found {
		return nil, err
	}
	var writes updates.ImageUpdateList
	if _, err := s.list(ctx, updates.GroupVersion.WithResource("imageupdates"), &writes); err != nil {
		return nil, err
	}
	for _, o := range live.Workloads {
		if o.GetName() != s.names[0] {
			continue
		}
		w := delivery.WorkloadOf(o, report)
		if b := delivery.BuildOf(w, builds.Items); b != nil {
			all = append(all, delivery.Of(w, b, delivery.UpdateOf(b, writes.Items)))
		}
	}
	return all, nil
}

// list lists objects of a kind that the cluster may lack or the user may not read.
func (s *statusOf) list(ctx context.Context, resource schema.GroupVersionResource,
	into any) (found bool, err error) {
	list, err := s.c.Resource(resource).Namespace(s.namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
	}
	return true, runtime.DefaultUnstructuredConverter.FromUnstructured(list.UnstructuredContent(), into)
}

// writeChains writes chains below the tables: a line for each link, then the link where the chain
// stops.
func writeChains(out io.Writer, chains []delivery.Chain) error {
	for _, c := range chains {
		fmt.Fprintf(out, "\nfrom build %s to %s\n", c.Build, c.Workload)
		table := tabwriter.NewWriter(out, 0, 4, 3, ' ', 0)
		for _, l := range c.Links {
			fmt.Fprintf(table, "  %s\t%s\t%s\n", l.Name, l.State, l.What)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		if stop := c.Stop(); stop != nil {
			fmt.Fprintf(out, "it stops at %s: %s\n", stop.Name, strings.TrimSpace(stop.Why))
		}
	}
	return nil
}

// showPackages prints the packages that were applied, or the objects of a named one and their
// health.
func showPackages(cmd *cobra.Command, k *cli.Cluster, names []string, format string) error {
	if k.All && len(names) == 1 {
		return cli.Usagef(
			"a package has one namespace: --all-namespaces cannot be combined with NAME")
	}
	c, namespace, err := k.Applier()
	if err != nil {
		return err
	}
	if len(names) == 1 {
		return printItems(cmd, c, apply.Package{Namespace: namespace, Name: names[0]}, format)
	}
	return printPackages(cmd, c, namespace, format)
}

// applied is a package in the output of -o.
type applied struct {
	apply.Package `json:",inline"`
	Objects       int          `json:"objects"`
	Complete      bool         `json:"complete"`
	Deleting      bool         `json:"deleting,omitempty"`
	Items         []apply.Item `json:"items,omitempty"`
}

func printPackages(cmd *cobra.Command, c *apply.Cluster, namespace, format string) error {
	inventories, err := c.Inventories(cmd.Context(), namespace)
	if err != nil {
		return err
	}
	rows := []applied{}
	for _, v := range inventories {
		rows = append(rows, applied{Package: v.Package, Objects: len(v.Entries),
			Complete: v.Complete, Deleting: v.Deleting})
	}
	l := cli.Listing{Columns: []string{"NAMESPACE", "NAME", "OBJECTS", "STATE"}, Objects: rows,
		Empty: "no packages" + cli.Where(namespace)}
	for _, r := range rows {
		l.Add(r.Name, r.Namespace, r.Name, fmt.Sprint(r.Objects), state(r))
	}
	return l.Print(cmd, format)
}

func state(a applied) string {
	switch {
	case a.Deleting:
		return "being deleted, or interrupted: delete again"
	case a.Complete:
		return "applied"
	}
	return "being applied, or interrupted: apply again"
}

func printItems(cmd *cobra.Command, c *apply.Cluster, p apply.Package, format string) error {
	v, err := c.Inventory(cmd.Context(), p)
	if err != nil {
		return err
	}
	if !v.Exists() {
		return fmt.Errorf("%w of a package %s\n  hint: `armature status --packages -A` lists all",
			apply.ErrNoInventory, p)
	}
	items, err := c.Items(cmd.Context(), v)
	if err != nil {
		return err
	}
	l := cli.Listing{
		Columns: []string{"KIND", "NAMESPACE", "NAME", "HEALTH", "MESSAGE"},
		Objects: applied{Package: p, Objects: len(items), Complete: v.Complete,
			Deleting: v.Deleting, Items: items},
		Empty: "the package has no objects",
	}
	for _, i := range items {
		l.Add(i.Kind+"/"+i.Name, i.Kind, i.Namespace, i.Name, string(i.Status), i.Message)
	}
	return l.Print(cmd, format)
}
