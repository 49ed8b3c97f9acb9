// Command armature-fn is Armature as a KRM function for kustomize and kpt, as a config management
// plugin for Argo CD, and as a post-renderer for Helm. It links only the packages for rendering,
// because hosts start it for every build.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/source"
	"github.com/armature-dev/armature/render/verify"
	"github.com/armature-dev/armature/render/version"
)

const usage = `armature-fn renders AI-agent workloads as a KRM function, an Argo CD plugin or a
post-renderer of Helm.

Usage:
  armature-fn [FUNCTION...]   read a ResourceList on standard input, run all
                              functions or the named ones, write a ResourceList
  armature-fn verify          validate a ResourceList: items stay as they are,
                              items that are not rendered are errors
  armature-fn render PATH     render a folder to standard output, for Argo CD;
                              reads ARGOCD_APP_PARAMETERS
  armature-fn helm FOLDER     post-render a release for Helm: manifests on standard
                              input; reads armature.lock in FOLDER, and the nearest
                              armature.yaml from there upwards
  armature-fn --version

Functions:
`

const examples = `
Examples:
  kustomize build --enable-alpha-plugins --enable-exec .
  kpt fn eval --exec armature-fn --fn-config armature.yaml
  helm template web chart/ | armature-fn helm .
  armature-fn inject < list.yaml

Exit status: 0 done, 1 findings of severity error or failure, 2 usage.
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// usageError reports wrong usage: the exit status is 2.
type usageError struct{ error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	findings, err := command(args, stdin, stdout)
	// Hosts show the findings for information from the results.
	printed := slices.DeleteFunc(slices.Clone(findings),
		func(f finding.Finding) bool { return f.Severity == finding.Info })
	if failed := host.WriteFindings(stderr, "text", printed); err == nil {
		err = failed
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "armature-fn: %s\n", source.Explain(err))
		if errors.As(err, new(usageError)) {
			return 2
		}
		return 1
	case finding.Failed(findings):
		return 1
	}
	return 0
}

func command(args []string, stdin io.Reader, stdout io.Writer) ([]finding.Finding, error) {
	if len(args) == 0 {
		return list(nil, stdin, stdout)
	}
	switch args[0] {
	case "-h", "--help", "help":
		fmt.Fprint(stdout, usage)
		for _, f := range functions.Table() {
			fmt.Fprintf(stdout, "  %-15s %s\n", f.Name, f.Summary)
		}
		_, err := fmt.Fprint(stdout, examples)
		return nil, err
	case "--version", "version":
		_, err := fmt.Fprintf(stdout, "armature-fn %s\n", version.String())
		return nil, err
	case "render":
		if len(args) != 2 {
			return nil, usagef("render takes one folder: armature-fn render .")
		}
		return tree(args[1], stdout)
	case "helm":
		if len(args) != 2 {
			return nil, usagef("helm takes one folder, where the search for armature.yaml begins: " +
				"armature-fn helm .")
		}
		return release(args[1], stdin, stdout)
	}
	for _, name := range args {
		if _, ok := functions.Lookup(name); !ok && name != "verify" {
			return nil, usagef("function %q does not exist: see armature-fn --help", name)
		}
	}
	if slices.Contains(args, "verify") && len(args) > 1 {
		return nil, usagef("verify cannot be combined with other functions: it checks the result of " +
			"all of them")
	}
	return list(args, stdin, stdout)
}

// list runs as a KRM function: it reads a ResourceList and writes one.
func list(names []string, stdin io.Reader, stdout io.Writer) ([]finding.Finding, error) {
	src, err := source.ReadStream(stdin)
	if err == nil && len(src.Files[0].Data) == 0 {
		err = errors.New("nothing on standard input: pass a ResourceList (config.kubernetes.io/v1)")
	}
	if err != nil {
		return nil, err
	}
	in, err := host.ReadList(src.Files[0].Data)
	if err != nil {
		return nil, err
	}
	do := (*host.List).Render
	if slices.Contains(names, "verify") {
		do, names = verify.List, nil
	}
	out, findings, _, err := do(in, render.Options{Functions: names})
	if err == nil {
		_, err = stdout.Write(out)
	}
	return findings, err
}

// tree implements the generate command of the Argo CD plugin.
func tree(root string, stdout io.Writer) ([]finding.Finding, error) {
	files := []render.File{{Path: render.LockFile}}
	folder := root
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		folder = filepath.Dir(root)
	}
	findings, err := generate(root, folder, &files, stdout)
	return host.From(folder, files, findings), err
}

// generate renders a package and appends its files to files.
func generate(root, folder string, files *[]render.File,
	stdout io.Writer) ([]finding.Finding, error) {
	if _, err := os.Stat(root); err != nil {
		return nil, err
	}
	opt, findings, err := settings(folder)
	*files = append(*files, configFiles(opt, findings)...)
	if err != nil || finding.Failed(findings) {
		return findings, err
	}
	var found []finding.Finding
	opt.Config, found, err = withParameters(opt.Config, os.Getenv("ARGOCD_APP_PARAMETERS"))
	findings = append(findings, found...)
	if err != nil || finding.Failed(findings) {
		return findings, err
	}
	src, found, err := source.Tree(root, "", opt.Excludes)
	if err != nil {
		return nil, err
	}
	if file := src.Kustomization(); file != "" {
		return append(findings, found...), fmt.Errorf(
			"%s has to be built first\n  hint: let Argo CD's own kustomize "+
				"build it (kustomize.buildOptions: --enable-alpha-plugins "+
				"--enable-exec), or let CI commit the result of kustomize build",
			filepath.Join(folder, file))
	}
	*files = append(*files, src.Files...)
	for _, f := range found { // about excluded files
		*files = append(*files, render.File{Path: f.File})
	}
	findings = append(findings, found...)
	var spool source.Spool
	objects := 0
	opt.ObjectsOnly, opt.Workers = true, 1
	found, _, err = render.Stream(src, opt, func(file string, data []byte) error {
		// Argo CD applies everything that it receives, including objects that are only for tools.
		text, n, err := host.ForCluster(render.File{Path: file, Data: data})
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		objects += n
		return spool.Write(file, text)
	})
	findings = append(findings, found...)
	if err != nil || finding.Failed(findings) {
		return findings, err
	}
	if objects == 0 {
		// Argo CD would prune everything that the application ever had.
		return findings, fmt.Errorf("%s holds no manifests for a cluster, and an empty output "+
			"with pruning deletes everything", root)
	}
	w := bufio.NewWriter(stdout)
	if _, err := spool.WriteTo(w); err != nil {
		return findings, err
	}
	return findings, w.Flush()
}

// settings reads the configuration and the lock in a folder.
func settings(folder string) (opt render.Options, findings []finding.Finding, err error) {
	if opt.Config, findings, err = source.FindConfig("", folder, ""); err != nil {
		return opt, findings, err
	}
	var found []finding.Finding
	opt.Lock, found, err = source.FindLock("", folder)
	return opt, append(findings, found...), err
}

// configFiles returns the files that settings reads, and those that its findings are about.
func configFiles(opt render.Options, findings []finding.Finding) (files []render.File) {
	if opt.Config != nil {
		files = append(files, render.File{Path: opt.Config.Origin.File})
	}
	for _, f := range findings {
		files = append(files, render.File{Path: f.File})
	}
	return files
}

// release runs as Helm's post-renderer, with the configuration in a folder.
func release(folder string, stdin io.Reader, stdout io.Writer) ([]finding.Finding, error) {
	if info, err := os.Stat(folder); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", folder)
	}
	opt, findings, err := settings(folder)
	findings = host.From(folder, configFiles(opt, findings), findings)
	if err != nil || finding.Failed(findings) {
		return findings, err
	}
	src, err := source.ReadStream(stdin)
	if err != nil {
		return findings, err
	}
	out, found, err := host.Helm(src.Files[0].Data, opt)
	if findings = append(findings, found...); err == nil && !finding.Failed(findings) {
		_, err = stdout.Write(out)
	}
	return findings, err
}

// withParameters overrides the configuration with the parameters of an Argo CD application.
// plugin.yaml announces them, with the names that they have in the RenderConfig's spec.
func withParameters(config *api.RenderConfig,
	parameters string) (*api.RenderConfig, []finding.Finding, error) {
	if parameters == "" || parameters == "null" {
		return config, nil, nil
	}
	var list []struct {
		Name   string            `json:"name"`
		String *string           `json:"string"`
		Array  []string          `json:"array"`
		Map    map[string]string `json:"map"`
	}
	if err := json.Unmarshal([]byte(parameters), &list); err != nil {
		return nil, nil, fmt.Errorf("reading ARGOCD_APP_PARAMETERS: %w", err)
	}
	settings := make(map[string]string)
	for _, p := range list {
		if p.String == nil || p.Array != nil || p.Map != nil {
			return nil, nil, fmt.Errorf("the parameter %s takes a string", p.Name)
		}
		if *p.String != "" {
			settings[p.Name] = *p.String
		}
	}
	return host.WithSettings(config, settings, "ARGOCD_APP_PARAMETERS")
}
