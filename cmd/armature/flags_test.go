package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/armature-dev/armature/e2e/page"
)

// everyFlag calls a function for each flag of each command. None is deprecated.
func everyFlag(t *testing.T, do func(c *cobra.Command, f *pflag.Flag)) {
	walk(root(), func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Deprecated != "" || f.ShorthandDeprecated != "" {
				t.Errorf("%s: --%s is deprecated: nothing was released", c.CommandPath(), f.Name)
			}
			if f.Name != "help" {
				do(c, f)
			}
		})
	})
}

// TestReference compares docs/reference/commands.md with the commands.
func TestReference(t *testing.T) {
	page.Generated(t, "../../docs/reference/commands.md", page.Commands(root(),
		"Every command and flag. The [other pages](../README.md) explain when to use them. A "+
			"test writes this page."))
}

// A flag and a letter have one meaning in all commands: the table of testdata/flags.txt has a row
// for each flag, with its letter, its type and the commands that have it. UPDATE=1 writes it.
func TestFlagTable(t *testing.T) {
	type row struct{ letter, kind string }
	rows, letters, commands := map[string]row{}, map[string][]string{}, map[string][]string{}
	everyFlag(t, func(c *cobra.Command, f *pflag.Flag) {
		letter := f.Shorthand
		r := row{letter, f.Value.Type()}
		if f.Name == "key" {
			// as in cosign: a private key to sign with, or public ones to verify with
			r.kind = "key"
		}
		if other, twice := rows[f.Name]; twice && other != r {
			t.Errorf("%s: --%s is %v, and %v in %s", c.CommandPath(), f.Name, r, other, commands[f.Name])
		}
		rows[f.Name] = r
		if letter != "" && !slices.Contains(letters[letter], f.Name) {
			letters[letter] = append(letters[letter], f.Name)
		}
		commands[f.Name] = append(commands[f.Name],
			strings.TrimPrefix(c.CommandPath(), "armature "))
	})
	for letter, names := range letters {
		// kubectl has -f for both as well: a file to read, and a log to follow.
		if slices.Sort(names); len(names) > 1 &&
			!slices.Equal(names, []string{"filename", "follow"}) {
			t.Errorf("-%s means %s", letter, strings.Join(names, " and "))
		}
	}
	var table strings.Builder
	for name, r := range rows {
		slices.Sort(commands[name])
		letter := ""
		if r.letter != "" {
			letter = "-" + r.letter
		}
		fmt.Fprintf(&table, "--%-28s %-2s  %-12s %s\n", name, letter, r.kind,
			strings.Join(commands[name], ", "))
	}
	// What people have to read before they find what they need.
	const most, mostOfCommand = 110, 16
	if len(rows) > most {
		t.Errorf("%d flags: %d are the most", len(rows), most)
	}
	walk(root(), func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		n := -1 // --help
		count := func(*pflag.Flag) { n++ }
		c.LocalFlags().VisitAll(count)
		c.InheritedFlags().VisitAll(count)
		if n > mostOfCommand {
			t.Errorf("%s has %d flags: %d are the most; two commands or a file are easier to read",
				c.CommandPath(), n, mostOfCommand)
		}
	})
	lines := slices.Sorted(strings.Lines(table.String()))
	got, file := strings.Join(lines, ""), filepath.Join("testdata", "flags.txt")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%s is not up to date: read what changed, then UPDATE=1 (%v)\n%s", file, err, got)
	}
	walk(root(), func(c *cobra.Command) {
		// What lists knows all formats of a list.
		if c.Name() == "list" || c.Name() == "search" || c.Name() == "status" {
			if o := c.Flags().Lookup("output"); o == nil ||
				!strings.Contains(o.Usage, "table, wide, name, json, yaml") {
				t.Errorf("%s: -o is %v", c.CommandPath(), o)
			}
		}
		if all := c.Flags().Lookup("all-namespaces"); all != nil &&
			c.Flags().Lookup("namespace") == nil {
			t.Errorf("%s has -A and not -n", c.CommandPath())
		}
	})
}
