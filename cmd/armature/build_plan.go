package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/graph"
	"github.com/armature-dev/armature/builds/manifest"
	"github.com/armature-dev/armature/templates"
)

func buildPlanCommand() *cobra.Command {
	var dirs []string
	var drawn bool
	var format, mode, pins string
	var settings compose.Settings
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "Print the Pipeline and PipelineRun of an AgentBuild, without a cluster",
		Long: `Print the Pipeline and PipelineRun that an AgentBuild becomes, from the shipped
templates and steps, or from the ConfigMaps of a folder. Plan contacts
no cluster, registry or Git server: it passes the revision on as written.

With --graph, plan draws the pipelines instead: as text, as a Mermaid flowchart (which
GitHub and GitLab show in Markdown), in Graphviz's DOT, or as an SVG for a browser or
a page. A task that another one waits for anyway is not drawn as waited for twice.`,
		Example: `  armature build plan examples/builds/weather.yaml
  armature build plan examples/builds/weather.yaml --mode prod --graph
  armature build plan examples/builds/weather.yaml --graph -o svg > weather.svg
  armature build plan build.yaml --templates my-templates/ --image-pins my-templates/armature.lock
  armature build plan build.yaml --templates my-templates/ -o json | jq '.items[].kind'`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			formats := planFormats(drawn)
			if format == "" {
				format = formats[0]
			} else if !slices.Contains(formats, format) {
				return usageError{fmt.Errorf("-o %q: use one of %v; with --graph %v", format, planFormats(false), planFormats(true))}
			}
			group, err := cmd.Flags().GetString("api-group")
			if err != nil {
				return err
			}
			settings.Group, settings.ControllerImage = group, releasedImage()
			if settings.ImagePins, err = readPins(pins, cmd.Flags().Changed("image-pins"), templates.StepLock()); err != nil {
				return err
			}
			data, err := readFile(a[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			builds, err := manifest.Builds(a[0], data, group)
			if err != nil {
				return err
			}
			library, err := openLibrary(dirs)
			if err != nil {
				return err
			}
			var objects []any
			var pipelines []graph.Pipeline
			var problems []error
			for _, b := range builds {
				if mode != "" {
					b.Spec.Mode = mode
				}
				out, err := library.Compose(b, settings)
				if err != nil {
					problems = append(problems, err)
					continue
				}
				if out.BuilderBecause != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), out.BuilderBecause)
				}
				for _, w := range out.Warnings {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+w)
				}
				if drawn {
					pipelines = append(pipelines, graph.Of("AgentBuild "+b.Name, out.Pipeline))
				} else {
					objects = append(objects, planned(out)...)
				}
			}
			if err := compose.Join(problems...); err != nil {
				return err // nothing is printed of a file with a problem
			}
			if drawn {
				return graph.Write(cmd.OutOrStdout(), format, pipelines)
			}
			return printObjects(cmd.OutOrStdout(), format, objects...)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&dirs, "templates", nil, "folder with template and step ConfigMaps; they override the shipped ones")
	f.BoolVar(&drawn, "graph", false, "draw the pipelines instead of printing objects")
	f.StringVar(&mode, "mode", "", "plan with this mode instead of the build's own")
	completeFlag(cmd, "mode", shippedModes()...)
	f.StringVar(&settings.ImageMirror, "image-mirror", "", "registry that serves all step images, such as mirror.local/hub")
	f.StringVar(&pins, "image-pins", "", "YAML file that maps step images to digests, or the armature.lock of armature pin --steps (default: the lock of this release; \"\" pins none)")
	f.StringVar(&settings.ServiceAccountName, "service-account", "", "ServiceAccount of builds that name none")
	f.StringSliceVar(&settings.PlainHTTPHosts, "plain-http-hosts", nil, "hosts, with or without a port, that a Git login is sent to over http as well as https")
	f.BoolVar(&settings.PipelineObjects, "pipeline-objects", false, "refer to a Pipeline object instead of embedding it (clusters with disable-inline-spec)")
	f.StringVarP(&format, "output", "o", "", "output format: yaml (default) or json; with --graph text (default), mermaid, dot or svg")
	if err := cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return planFormats(drawn), cobra.ShellCompDirectiveNoFileComp
	}); err != nil {
		panic(err) // the flag was added above
	}
	return cmd
}

// planFormats are those of -o, the default first.
func planFormats(drawn bool) []string {
	if drawn {
		return graph.Formats()
	}
	return []string{"yaml", "json"}
}

// shippedModes are those of the embedded templates.
func shippedModes() []string {
	files, err := templates.Files.ReadDir("modes")
	if err != nil {
		panic(err) // it is embedded
	}
	var modes []string
	for _, f := range files {
		if mode, ok := strings.CutPrefix(f.Name(), "pipeline-template-"); ok {
			modes = append(modes, strings.TrimSuffix(mode, ".yaml"))
		}
	}
	return modes
}

// planned objects in the order in which the controller makes them, without the
// empty fields that Go types carry.
func planned(out *compose.Output) []any {
	var objects []any
	add := func(o any) {
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			panic(fmt.Sprintf("converting %T: %v", o, err)) // a type of ours always converts
		}
		delete(raw, "status")
		objects = append(objects, withoutNulls(raw))
	}
	for _, o := range out.Apply {
		if _, is := o.(*tektonv1.Pipeline); !is {
			add(o)
		}
	}
	add(out.Pipeline)
	add(out.Run)
	return objects
}

// withoutNulls drops null fields at any depth.
func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if inner == nil {
				delete(v, key)
				continue
			}
			v[key] = withoutNulls(inner)
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return value
}

// openLibrary is the shipped library with the folders on top.
func openLibrary(dirs []string) (*manifest.Library, error) {
	library, err := manifest.Shipped()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		own, err := openFolder(dir)
		if err != nil {
			return nil, err
		}
		maps.Copy(library.ConfigMaps, own.ConfigMaps)
	}
	return library, nil
}

// openFolder reads the templates and steps of one folder; one without any was
// not meant.
func openFolder(dir string) (*manifest.Library, error) {
	const hint = "\n  hint: give a folder with ConfigMaps that hold template.yaml or task-spec.yaml"
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("reading templates and steps: %w%s", err, hint)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("reading templates and steps: %s is not a folder%s", dir, hint)
	}
	own := &manifest.Library{}
	if err := own.AddDir(os.DirFS(dir), dir); err != nil {
		return nil, err
	}
	if !own.HasBuilds() {
		return nil, fmt.Errorf("%s: no template and no step was found%s", dir, hint)
	}
	return own, nil
}

// readPins reads a map of image to digest, or a lock. Without a flag the images are
// pinned by the lock of this release; an empty file, or none in a development build, pins none.
func readPins(file string, given bool, lock []byte) (map[string]string, error) {
	if !given && lock != nil {
		return compose.ReadPins("the lock of this release", lock)
	}
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the image pins: %w", err)
	}
	return compose.ReadPins(file, data)
}
