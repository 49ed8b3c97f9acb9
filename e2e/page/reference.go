package page

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// Generated fails the test if a file differs from want. UPDATE=1 writes it.
func Generated(t *testing.T, file, want string) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date: run this test with UPDATE=1", file)
	}
}

// Commands returns a reference of a program: a section for each command that runs, with its
// usage and flags.
func Commands(root *cobra.Command, introduction string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "# Commands of %s\n\n%s\n", root.Name(), introduction)
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		children := c.Commands()
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		own := false // a group of commands only prints its help
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { own = own || f.Name != "help" })
		if len(children) == 0 || own {
			fmt.Fprintf(&out, "\n## %s\n\n%s.\n\n    %s\n", c.CommandPath(), c.Short, c.UseLine())
			flagTable(&out, c)
		}
		for _, child := range children {
			visit(child)
		}
	}
	visit(root)
	return out.String()
}

// flagTable writes the flags of a command, including inherited ones.
func flagTable(out *strings.Builder, c *cobra.Command) {
	var rows []string
	row := func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Deprecated != "" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name += ", `-" + f.Shorthand + "`"
		}
		standard := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			standard = "`" + f.DefValue + "`"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |\n", name, standard, cell(f.Usage)))
	}
	c.LocalFlags().VisitAll(row)
	c.InheritedFlags().VisitAll(row)
	if len(rows) > 0 {
		slices.Sort(rows)
		out.WriteString("\n| flag | default | meaning |\n|---|---|---|\n" +
			strings.Join(slices.Compact(rows), ""))
	}
}

// Fields returns a reference of the spec of a custom resource, from its definition.
func Fields(crd []byte, introduction string) (string, error) {
	var definition apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(crd, &definition); err != nil {
		return "", err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# Fields of %s\n\n%s\n\n| field | type | meaning |\n|---|---|---|\n",
		definition.Spec.Names.Kind, introduction)
	var visit func(path string, s apiextensions.JSONSchemaProps)
	visit = func(path string, s apiextensions.JSONSchemaProps) {
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			field := s.Properties[name]
			at, kind := path+name, field.Type
			below := field
			if field.Items != nil && field.Items.Schema != nil {
				at, below = at+"[]", *field.Items.Schema
				kind = "list of " + below.Type + "s"
			}
			meaning := cell(field.Description)
			if field.Default != nil {
				meaning += " Default: `" + string(field.Default.Raw) + "`."
			}
			if slices.Contains(s.Required, name) {
				kind += ", required"
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", at, kind, strings.TrimSpace(meaning))
			visit(at+".", below)
		}
	}
	visit("", definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"])
	return out.String(), nil
}

// cell returns text as the cell of a table: on one line, with escapes for characters that end a
// cell or begin an element of HTML.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(strings.Join(strings.Fields(text), " "))
}
