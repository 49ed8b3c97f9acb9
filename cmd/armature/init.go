package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
	"github.com/armature-dev/armature/templates"
)

func initCommand() *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{
		Use: "init [FOLDER]",
		Short: "Write armature.yaml and the wiring for kustomize, kpt, Argo CD, Flux, Helm, CI " +
			"or admission",
		Long: `Init writes armature.yaml, which is both the configuration and the functionConfig of
kustomize and kpt, and an example of the wiring for each host in --for. It never
overwrites a file.`,
		Example: `  armature init
  armature init apps/ --for kustomize
  armature init --for kpt,argocd,ci
  armature init helm/ --for helm # the post-renderer of Helm 3 and 4
  armature init --for flux       # renders in the cluster
  armature init --for flux-oci   # applies what CI pushes`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			folder := "."
			if len(args) == 1 {
				folder = args[0]
			}
			files := []string{"armature.yaml"}
			for _, host := range hosts {
				if err := cli.Among("for", "host", host, wiringHosts()); err != nil {
					return err
				}
				found, err := fs.Glob(templates.Wiring, "wiring/"+host+"/*")
				if err != nil {
					return err
				}
				for _, f := range found {
					files = append(files, strings.TrimPrefix(f, "wiring/"))
				}
			}
			from := make(map[string]string)
			for _, f := range files {
				name, host := filepath.Base(f), filepath.Dir(f)
				if other, twice := from[name]; twice && other != host {
					return cli.Usagef("%s and %s both have a %s: give each a folder of its own",
						other, host, name)
				}
				from[name] = host
			}
			for _, f := range append(slices.Clip(files), render.MisnamedConfig) {
				_, err := os.Stat(filepath.Join(folder, filepath.Base(f)))
				switch {
				case err == nil:
					return fmt.Errorf("%s exists already: nothing was written",
						filepath.Join(folder, filepath.Base(f)))
				case !errors.Is(err, fs.ErrNotExist):
					return err
				}
			}
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			resources, err := kustomizeResources(folder)
			if err != nil {
				return err
			}
			for _, f := range files {
				data, err := templates.Wiring.ReadFile("wiring/" + f)
				if err != nil {
					return err
				}
				data = bytes.Replace(data, []byte("resources: []\n"), []byte(resources), 1)
				to := filepath.Join(folder, filepath.Base(f))
				mode := os.FileMode(0o644)
				if bytes.HasPrefix(data, []byte("#!")) {
					mode = 0o755
				}
				if err := os.WriteFile(to, data, mode); err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s\n", to)
			}
			return nextStep(cmd, folder)
		},
	}
	cmd.Flags().StringSliceVar(&hosts, "for", nil,
		"hosts to wire up: "+strings.Join(wiringHosts(), ", "))
	cli.CompleteFlag(cmd, "for", wiringHosts)
	return cmd
}

// kustomizeResources returns the field resources of a kustomization with the manifests of a folder.
// The list is empty if the folder already contains a kustomization, which says which files belong
// together.
func kustomizeResources(folder string) (string, error) {
	var names []string
	src, _, err := source.Tree(folder, "", nil)
	for _, f := range src.Files {
		if render.IsKustomization(f.Path) {
			return "resources: []\n", err
		}
		if render.IsManifest(f.Path) && !f.AsIs {
			names = append(names, f.Path)
		}
	}
	if err != nil || len(names) == 0 {
		return "resources: []\n", err
	}
	list, err := yaml.Marshal(map[string][]string{"resources": names})
	return string(list), err
}

// wiringHosts returns the names of the folders below templates/wiring.
func wiringHosts() []string {
	entries, err := templates.Wiring.ReadDir("wiring")
	if err != nil {
		panic(err) // it is embedded
	}
	var hosts []string
	for _, e := range entries {
		if e.IsDir() {
			hosts = append(hosts, e.Name())
		}
	}
	return hosts
}

// nextStep prints the workloads of a folder that are not labelled, and what to do next.
func nextStep(cmd *cobra.Command, folder string) error {
	var in cli.Input
	src, opt, _, err := in.Open(cmd, folder, "")
	if err != nil {
		return err
	}
	workloads, label, err := unlabelled(&in, src, opt)
	for _, w := range workloads[:min(len(workloads), 10)] {
		fmt.Fprintf(cmd.ErrOrStderr(), "not labelled: %s\n", w)
	}
	if more := len(workloads) - 10; more > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "not labelled: %s\n", text.Count(more, "more workload"))
	}
	fmt.Fprintf(cmd.ErrOrStderr(),
		"next: label each agent %s: enabled, then run armature render %s -d FOLDER, and armature "+
			"check %[2]s\n", label, folder)
	return err
}

// unlabelled returns the workloads of a source that opt neither in to injection nor out of it, each
// with its file and line, and the label that decides it.
func unlabelled(in *cli.Input, src render.Source,
	opt render.Options) (workloads []string, label string, err error) {
	settings, _ := sidecars.All().Base(opt.Config)
	label = settings.Prefix + "/inject"
	for _, f := range src.Files {
		if f.AsIs || !render.IsManifest(f.Path) {
			continue
		}
		data, err := src.Content(f.Path)
		if err != nil {
			return nil, "", err
		}
		render.Objects(render.File{Path: f.Path, Data: data}, func(o *krm.Object) {
			template, ok := o.PodTemplate()
			if ok && images.OfKubernetes(o.Group()) &&
				!o.Get("metadata", "labels", label).Exists() &&
				!template.Template.Get("metadata", "labels", label).Exists() {
				workloads = append(workloads,
					fmt.Sprintf("%s (%s:%d)", o.Ref, in.File(f.Path), o.Origin.Line))
			}
		})
	}
	return workloads, label, nil
}
