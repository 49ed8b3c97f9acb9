package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"
)

// OutputFlag adds -o with the formats that a command knows, the default first.
func OutputFlag(cmd *cobra.Command, format *string, formats ...string) {
	WordFlag(cmd, format, "output", "o", formats[0], "output format: "+strings.Join(formats, ", "),
		"format", formats...)
}

// ListFlag adds -o to a command that prints a Listing.
func ListFlag(cmd *cobra.Command, format *string) {
	OutputFlag(cmd, format, "table", "wide", "name", "json", "yaml")
}

// DirFlag adds --output-dir, the folder that a command writes to.
func DirFlag(cmd *cobra.Command, dir *string, usage string) {
	cmd.Flags().StringVarP(dir, "output-dir", "d", "", usage)
}

// ValuesFlag adds --values.
func ValuesFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "values", "",
		"file with the settings of the controllers: values of the Helm chart")
}

// Listing is a list that a command prints, for people and for programs.
type Listing struct {
	Columns []string // of a table; none prints it without a head
	Wide    []string // further columns of -o wide
	Rows    [][]string
	Names   []string // for -o name
	Objects any      // for -o json and yaml
	Empty   string   // printed to standard error if there are no rows
}

// Add adds a row, with its name for -o name.
func (l *Listing) Add(name string, cells ...string) {
	l.Rows, l.Names = append(l.Rows, cells), append(l.Names, name)
}

// Print prints a listing.
func (l Listing) Print(cmd *cobra.Command, format string) error {
	out := cmd.OutOrStdout()
	switch format {
	case "json", "yaml":
		return PrintObjects(out, format, l.Objects)
	case "name":
		for _, name := range l.Names {
			if _, err := fmt.Fprintln(out, OneLine(name)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(l.Rows) == 0 && l.Empty != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), l.Empty)
		return nil
	}
	head, cells := l.Columns, len(l.Columns)
	if format == "wide" {
		head, cells = append(head[:cells:cells], l.Wide...), cells+len(l.Wide)
	}
	for i, row := range l.Rows {
		if len(head) > 0 {
			l.Rows[i] = row[:cells]
		}
	}
	return PrintTable(out, strings.Join(head, "\t"), l.Rows)
}

// Where returns the end of a sentence about a namespace; "" means all namespaces.
func Where(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

// PrintObjects writes objects as YAML documents, or several as one List in JSON.
func PrintObjects(out io.Writer, format string, objects ...any) error {
	if format == "json" {
		if len(objects) == 1 {
			return Encode(out, format, objects[0])
		}
		return Encode(out, format,
			map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	}
	for i, o := range objects {
		data, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("marshalling: %w", err)
		}
		if i > 0 {
			data = append([]byte("---\n"), data...)
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// PrintAs prints text in the format text, and otherwise a value.
func PrintAs(cmd *cobra.Command, format, text string, value any) error {
	if format != "text" {
		return PrintObjects(cmd.OutOrStdout(), format, value)
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text)
	return err
}

// Encode writes a value in the order of its fields, as JSON with indentation, or else as YAML.
func Encode(w io.Writer, format string, value any) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	return kyaml.NewEncoder(w).Encode(value)
}

// PrintTable writes rows in columns, below a head with tabs, if there is one. Untrusted text stays
// in its cell.
func PrintTable(w io.Writer, head string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	if head != "" {
		fmt.Fprintln(table, head)
	}
	for _, row := range rows {
		for i := range row {
			row[i] = OneLine(row[i])
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// ColorFlag adds --color.
func ColorFlag(cmd *cobra.Command, color *string) {
	ChoiceFlag(cmd, color, "color", "auto", "auto", "always", "never")
}

// Colored reports whether output is in colours: as the flag says, or on a terminal.
func Colored(out io.Writer, color string) bool {
	return color == "always" || color != "never" && IsTerminal(out) && os.Getenv("NO_COLOR") == ""
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(file any) bool {
	f, ok := file.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Paint writes lines, each in the colour that the function returns as an escape sequence; "" is
// none.
func Paint(out io.Writer, text string, colour func(line string) string) error {
	for line := range strings.Lines(text) {
		if code := colour(line); code != "" {
			line = code + strings.TrimSuffix(line, "\n") + "\033[0m\n"
		}
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
	}
	return nil
}

// The escape sequences of colours.
const (
	Bold   = "\033[1m"
	Red    = "\033[31m"
	Green  = "\033[32m"
	Yellow = "\033[33m"
	Cyan   = "\033[36m"
)
