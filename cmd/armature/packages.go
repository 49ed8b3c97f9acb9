package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/deliver/apply"
)

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
		rows = append(rows, applied{Package: v.Package, Objects: len(v.Entries),
			Complete: v.Complete, Deleting: v.Deleting})
	}
	l := cli.Listing{Columns: []string{"NAMESPACE", "NAME", "OBJECTS", "STATE"}, Objects: rows,
		Empty: "no packages" + cli.Where(namespace)}
	for _, r := range rows {
		l.Rows, l.Names =
			append(l.Rows, []string{r.Namespace, r.Name, fmt.Sprint(r.Objects), state(r)}),
			append(l.Names, r.Name)
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
		l.Rows, l.Names =
			append(l.Rows, []string{i.Kind, i.Namespace, i.Name, string(i.Status), i.Message}),
			append(l.Names, i.Kind+"/"+i.Name)
	}
	return l.Print(cmd, format)
}
