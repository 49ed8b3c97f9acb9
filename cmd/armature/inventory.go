package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/render/apply"
)

// inventoryCommand is `armature inventory`: what was applied, and how it fares.
func inventoryCommand() *cobra.Command {
	var k cluster
	var format string
	var all bool
	cmd := &cobra.Command{
		Use:   "inventory [NAME]",
		Short: "List the packages that were applied, or the objects of one and their health",
		Example: `  armature inventory -A
  armature inventory weather -n team1
  armature inventory weather -n team1 -o json`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: k.completePackages,
		RunE: func(cmd *cobra.Command, a []string) error {
			if all && len(a) == 1 {
				return usageError{errors.New("a package has one namespace: --all-namespaces cannot be combined with NAME")}
			}
			config, namespace, err := k.rest()
			if err != nil {
				return err
			}
			c, err := apply.Connect(config)
			if err != nil {
				return err
			}
			if len(a) == 1 {
				return printItems(cmd, c, apply.Package{Namespace: namespace, Name: a[0]}, format)
			}
			if all {
				namespace = ""
			}
			return printPackages(cmd, c, namespace, format)
		},
	}
	k.flags(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list those of all namespaces")
	outputFlag(cmd, &format, "table", "table", "json", "yaml")
	return cmd
}

// applied is a package as -o shows it.
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
		rows = append(rows, applied{Package: v.Package, Objects: len(v.Entries), Complete: v.Complete, Deleting: v.Deleting})
	}
	if format != "table" {
		return printObjects(cmd.OutOrStdout(), format, rows)
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tNAME\tOBJECTS\tSTATE")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", r.Namespace, r.Name, r.Objects, state(r))
	}
	return table.Flush()
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
		return fmt.Errorf("%w of a package %s\n  hint: `armature inventory -A` lists all", apply.ErrNoInventory, p)
	}
	items, err := c.Items(cmd.Context(), v)
	if err != nil {
		return err
	}
	if format != "table" {
		return printObjects(cmd.OutOrStdout(), format, applied{Package: p, Objects: len(items), Complete: v.Complete, Deleting: v.Deleting, Items: items})
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tNAMESPACE\tNAME\tHEALTH\tMESSAGE")
	for _, i := range items {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", i.Kind, i.Namespace, i.Name, i.Status, oneLine(i.Message))
	}
	return table.Flush()
}

// completePackages offers the names of applied packages.
func (k *cluster) completePackages(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	config, namespace, err := k.rest()
	if err != nil || len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := apply.Connect(config)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	inventories, err := c.Inventories(cmd.Context(), namespace)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, v := range inventories {
		names = append(names, v.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
