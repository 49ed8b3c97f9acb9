package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/explain"
	"github.com/armature-dev/armature/render/page"
	"github.com/armature-dev/armature/render/source"
)

func explainCommand() *cobra.Command {
	var in cli.Input
	var format, root string
	var pick explain.Selection
	cmd := &cobra.Command{
		Use:   "explain FILE [FIELD]",
		Short: "Show which function and which input set each rendered line",
		Long: `Explain renders the package of FILE in memory, and prints the rendered
file with the reason for each line: the author's line number, or the function
that wrote it and the settings that decided it, each with the file and line that
set it, or "default".

The package is the nearest folder at or above FILE with an armature.yaml, up to the
root of the repository, else the folder of FILE; --package names another.

With -o html, explain prints one page for a browser, with lines coloured by the function
that wrote them. The page loads nothing and runs no script; values of Secrets are
masked in it.

FIELD is a path. Items of lists are addressed by name, otherwise by index:
spec.template.spec.initContainers[envoy-proxy].ports. Keys with dots are in
brackets: data[envoy.yaml].`,
		Example: `  armature explain apps/web.yaml
  armature explain apps/web.yaml spec.template.spec.initContainers[envoy-proxy].ports
  armature explain apps/web.yaml data[routes.yaml] --object ConfigMap/web-token-exchange
  armature explain apps/web.yaml -o html > web.html
  armature explain apps/web.yaml -o json`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),

		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				pick.Field = args[1]
			}
			folder, file, err := packageOf(args[0], root)
			if err != nil {
				return err
			}
			src, opt, findings, activity, err := in.Load(cmd, folder, "", "explaining")
			if err != nil {
				return err
			}
			explained, found, err := explain.File(src, opt, file, pick)
			activity.End()
			if err != nil {
				return err
			}
			if findings = append(findings, found...); finding.Failed(findings) {
				in.Quiet = true
				return in.Report(cmd, findings)
			}
			return writeExplanation(cmd.OutOrStdout(), format, explained)
		},
	}
	in.PackageFlags(cmd, "the package")
	cmd.Flags().StringVar(&root, "package", "",
		"folder of the package (default: the nearest one with an armature.yaml)")
	cmd.Flags().StringVar(&pick.Object, "object", "", "explain one object of the file: Kind/name")
	cli.OutputFlag(cmd, &format, "text", "html", "json", "yaml")
	return cmd
}

// packageOf returns the folder of the package that a file is in, and the file's path in it.
func packageOf(file, root string) (folder, relative string, err error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return "", "", err
	case info.IsDir():
		return "", "", cli.Usagef("%s is a folder: name one of its files", file)
	}
	absolute, err := filepath.Abs(file)
	if err != nil {
		return "", "", err
	}
	if root == "" {
		root = filepath.Dir(absolute)
		if nearest, err := source.Nearest(root, ""); err != nil {
			return "", "", err
		} else if nearest != "" {
			root = nearest
		}
	}
	rootAbsolute, err := filepath.Abs(root)
	if err != nil {
		return "", "", err
	}
	if relative, err = filepath.Rel(rootAbsolute, absolute); err != nil ||
		!filepath.IsLocal(relative) {
		// The nearest package has no symbolic links in its path.
		if real, failed := filepath.EvalSymlinks(filepath.Dir(absolute)); failed == nil {
			relative, err = filepath.Rel(rootAbsolute, filepath.Join(real, filepath.Base(absolute)))
		}
	}
	if err != nil || !filepath.IsLocal(relative) {
		return "", "", cli.Usagef("%s is not in the package %s", file, root)
	}
	return root, filepath.ToSlash(relative), nil
}

func writeExplanation(w io.Writer, format string, e explain.Explanation) error {
	switch format {
	case "html":
		return page.Explain(w, e)
	case "json", "yaml":
		return cli.Encode(w, format, e)
	}
	// As in git blame, each line has its number, its text and then the reason, which is aligned in
	// one column if the text is short enough.
	const column = 72
	digits := 1
	if n := len(e.Lines); n > 0 {
		digits = len(strconv.Itoa(e.Lines[n-1].Line))
	}
	for _, l := range e.Lines {
		gap := max(2, column-utf8.RuneCountInString(l.Text))
		if _, err := fmt.Fprintf(w, "%*d  %s%*s%s\n", digits, l.Line, l.Text, gap, "",
			l.Reason()); err != nil {
			return err
		}
	}
	return nil
}
