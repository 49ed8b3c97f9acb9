package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/explain"
	"github.com/armature-dev/armature/render/page"
)

func explainCommand() *cobra.Command {
	in := input{format: "text"}
	var format, root string
	var pick explain.Selection
	formats := []string{"text", "html", "json", "yaml"}
	cmd := &cobra.Command{
		Use:   "explain FILE [FIELD]",
		Short: "Show which function and which input set each rendered line",
		Long: `Explain renders the package of FILE in memory, and prints the rendered
file with a reason behind each line: the author's line number, or the function
that wrote it and the settings that decided it, each with the file and line that
set it, or "default".

The package is the nearest folder at or above FILE with an armature.yaml, else
the folder of FILE; --package names another.

With -o html it prints one page for a browser, with lines coloured by the function
that wrote them. The page loads nothing and runs no script; values of Secrets are
masked in it.

FIELD is a path. Items of lists go by their name, or else by their index:
spec.template.spec.initContainers[envoy-proxy].ports. Keys with dots are in
brackets: data[envoy.yaml].`,
		Example: `  armature explain apps/web.yaml
  armature explain apps/web.yaml spec.template.spec.initContainers[envoy-proxy].ports
  armature explain apps/web.yaml data[routes.yaml] --object ConfigMap/web-token-exchange
  armature explain apps/web.yaml -o html > web.html
  armature explain apps/web.yaml -o json`,
		Args:              args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(formats, format) {
				return usageError{fmt.Errorf("unknown format %q for --output: choose from %s", format, strings.Join(formats, ", "))}
			}
			if len(args) == 2 {
				pick.Field = args[1]
			}
			folder, file, err := packageOf(args[0], root)
			if err != nil {
				return err
			}
			shown := begin(cmd.ErrOrStderr(), false, "reading "+folder)
			defer shown.end()
			src, opt, findings, err := in.open(cmd, folder, "")
			if err != nil {
				return err
			}
			var explained explain.Explanation
			if !krm.Failed(findings) {
				var found []krm.Finding
				src = shown.reading("explaining", interruptibleSource(cmd, src))
				if explained, found, err = explain.File(src, opt, file, pick); err != nil {
					return err
				}
				findings = append(findings, found...)
			}
			shown.end()
			if krm.Failed(findings) {
				in.quiet = true
				return in.report(cmd, findings)
			}
			return writeExplanation(cmd.OutOrStdout(), format, explained)
		},
	}
	cmd.Flags().StringVarP(&in.config, "config", "c", "", "RenderConfig to use (default: armature.yaml at the root of the package)")
	cmd.Flags().StringVar(&in.lock, "lock", "", "ImageLock to use (default: armature.lock at the root of the package)")
	cmd.Flags().StringVar(&root, "package", "", "folder of the package (default: the nearest one with an armature.yaml)")
	cmd.Flags().StringVar(&pick.Object, "object", "", "explain one object of the file: Kind/name")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "text, html, json or yaml")
	complete(cmd, "output", formats)
	return cmd
}

// packageOf gives the folder of the package that a file is in, and the file's
// path in it.
func packageOf(file, root string) (folder, relative string, err error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return "", "", err
	case info.IsDir():
		return "", "", usageError{fmt.Errorf("%s is a folder: name one of its files", file)}
	}
	absolute, err := filepath.Abs(file)
	if err != nil {
		return "", "", err
	}
	if root == "" {
		if root, err = nearestPackage(filepath.Dir(absolute)); err != nil {
			return "", "", err
		}
	}
	rootAbsolute, err := filepath.Abs(root)
	if err != nil {
		return "", "", err
	}
	relative, err = filepath.Rel(rootAbsolute, absolute)
	if err != nil || !filepath.IsLocal(relative) {
		return "", "", usageError{fmt.Errorf("%s is not in the package %s", file, root)}
	}
	return root, filepath.ToSlash(relative), nil
}

// nearestPackage looks for armature.yaml in a folder and those above it.
func nearestPackage(folder string) (string, error) {
	for at := folder; ; at = filepath.Dir(at) {
		_, err := os.Stat(filepath.Join(at, render.ConfigFile))
		switch {
		case err == nil:
			return at, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		case at == filepath.Dir(at):
			return folder, nil
		}
	}
}

func writeExplanation(w io.Writer, format string, e explain.Explanation) error {
	switch format {
	case "html":
		return page.Explain(w, e)
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(e)
	case "yaml":
		return yaml.NewEncoder(w).Encode(e)
	}
	return printExplanation(w, e)
}

// printExplanation prints blame: the number of the line, its text, and behind
// it the reason. The reasons are in one column where the text permits.
func printExplanation(w io.Writer, e explain.Explanation) error {
	const column = 72
	digits := 1
	if n := len(e.Lines); n > 0 {
		digits = len(strconv.Itoa(e.Lines[n-1].Line))
	}
	above := "" // the reason of the lines above
	for _, l := range e.Lines {
		reason := l.Reason()
		if l.Presence && reason == above {
			reason = l.Function
		} else if l.Presence {
			above = reason
		}
		gap := max(2, column-utf8.RuneCountInString(l.Text))
		if _, err := fmt.Fprintf(w, "%*d  %s%*s%s\n", digits, l.Line, l.Text, gap, "", reason); err != nil {
			return err
		}
	}
	return nil
}
