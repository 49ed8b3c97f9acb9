package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/pinimages"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/oci"
)

// pin is `armature pin`.
type pin struct {
	manifests
	registryFlags
	trustFlags
	cluster
	platform   string
	check      bool
	fromBuilds bool
	all        bool
	steps      bool
	format     string
}

func pinCommand() *cobra.Command {
	var p pin
	cmd := &cobra.Command{
		Use:   "pin PATH",
		Short: "Resolve the images of a package to digests, in armature.lock",
		Long: `Pin renders PATH and asks the registries for the digest of every image that runs:
those of the workloads and of injected sidecars. The digests are in armature.lock,
which every render applies, without a network. Pinning again brings the lock up to
date and shows which tags have moved; --check only shows it, and fails.

With --verify-policy, or the flags that replace it, every image has to be signed:
those that PATH names by digest and those of builds as well.`,
		Example: `  armature pin apps/
  armature pin apps/ --check
  armature pin apps/ --platform linux/arm64 --verify-policy policy.yaml
  armature pin apps/ --from-builds -n team1`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, given []string) error {
			switch {
			case given[0] == "-":
				return usageError{errors.New("the lock is beside a package: name its folder")}
			case p.platform != "":
				if platform, err := v1.ParsePlatform(p.platform); err != nil || platform.OS == "" || platform.Architecture == "" {
					return usageError{fmt.Errorf("--platform %q: write os/arch or os/arch/variant", p.platform)}
				}
			case p.all && !p.fromBuilds:
				return usageError{errors.New("--all-namespaces requires --from-builds")}
			}
			return p.run(cmd, given[0])
		},
	}
	p.manifests.flags(cmd)
	p.registryFlags.flags(cmd)
	p.trustFlags.flags(cmd)
	p.cluster.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&p.platform, "platform", "", "resolve to the image of os/arch[/variant] (default: what the lock says, or all platforms)")
	f.BoolVar(&p.check, "check", false, "change nothing; fail where the lock is out of date")
	f.BoolVar(&p.fromBuilds, "from-builds", false, "take the images of finished AgentBuilds from the cluster")
	f.BoolVarP(&p.all, "all-namespaces", "A", false, "those of all namespaces")
	f.BoolVar(&p.steps, "steps", false, "resolve the images of build steps in PATH as well")
	f.String("api-group", buildapi.DefaultGroup, "API group of AgentBuild")
	outputFlag(cmd, &p.format, "text", "text", "yaml", "json")
	return cmd
}

func (p *pin) run(cmd *cobra.Command, path string) error {
	shown := begin(cmd.ErrOrStderr(), false, "reading "+path)
	defer shown.end()
	src, opt, findings, err := p.manifests.open(cmd, path)
	if err != nil {
		return err
	}
	if krm.Failed(findings) {
		shown.end()
		return p.report(cmd, findings)
	}
	file := p.lock
	if file == "" {
		root, err := p.root(path)
		if err != nil {
			return err
		}
		file = filepath.Join(root, render.LockFile)
	}
	before := api.ImageLockSpec{}
	if opt.Lock != nil {
		before = opt.Lock.Spec
	}
	after := api.ImageLockSpec{Builds: before.Builds}
	if p.fromBuilds {
		if after.Builds, err = p.builds(cmd, before.Builds); err != nil {
			return err
		}
	}
	images, digested, findings, err := p.images(shown.reading("rendering", src), opt, after.Builds)
	shown.end()
	if err != nil {
		return err
	}
	if krm.Failed(findings) {
		return p.report(cmd, findings)
	}
	for _, b := range after.Builds {
		digested = append(digested, b.Image)
	}
	if after.Images, err = p.resolve(cmd, images, digested, before.Images); err != nil {
		return err
	}
	changes := lockChanges(before, after)
	if err := p.print(cmd.OutOrStdout(), changes); err != nil {
		return err
	}
	switch {
	case len(changes) == 0 && (opt.Lock != nil || p.check):
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is up to date: %d images, %d builds\n", file, len(after.Images), len(after.Builds))
		return nil
	case p.check:
		fmt.Fprintf(cmd.ErrOrStderr(), "armature: %s is out of date: run `armature pin %s`\n", file, path)
		return errFindings
	}
	if err := writeLock(file, opt.Lock, after); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s: %d images, %d builds\n", file, len(after.Images), len(after.Builds))
	return nil
}

// images gives the images of all containers that a render makes, and of build
// steps on request. Those that have a digest come apart.
func (p *pin) images(src render.Source, opt render.Options, builds []api.LockedBuild) (open, digested []string, findings []krm.Finding, err error) {
	opt.Lock = &api.ImageLock{Spec: api.ImageLockSpec{Builds: builds}}
	opt.Functions = slices.DeleteFunc(functions.Names(), func(name string) bool { return name == pinimages.Function().Name })
	opt.ObjectsOnly = true
	result, err := render.Run(src, opt)
	if err != nil || krm.Failed(result.Findings) {
		return nil, nil, result.Findings, err
	}
	found := make(map[string]bool)
	for _, f := range result.Files {
		render.Objects(f, func(o *krm.Object) {
			if pod, ok := o.PodTemplate(); ok {
				podImages(pod.Spec(), found)
			}
			if task := o.Get("data", "task-spec.yaml"); p.steps && o.Kind == "ConfigMap" && task.Exists() {
				err = errors.Join(err, stepImages(task.Text(), found))
			}
		})
	}
	delete(found, "")
	for _, image := range slices.Sorted(maps.Keys(found)) {
		if strings.Contains(image, "@") {
			digested = append(digested, image)
		} else {
			open = append(open, image)
		}
	}
	return open, digested, nil, err
}

func podImages(spec krm.Node, found map[string]bool) {
	for _, list := range [...]string{"initContainers", "containers"} {
		for c := range spec.Get(list).Items() {
			found[c.Get("image").Text()] = true
		}
	}
}

// stepImages reads a Tekton TaskSpec. Images that are parameters are left out.
func stepImages(text string, found map[string]bool) error {
	type container struct {
		Image string `json:"image"`
	}
	var task struct {
		Steps, Sidecars []container
		StepTemplate    container
	}
	if err := yaml.Unmarshal([]byte(text), &task); err != nil {
		return fmt.Errorf("reading a task-spec.yaml: %w", err)
	}
	for _, c := range append(append(task.Steps, task.Sidecars...), task.StepTemplate) {
		if !strings.Contains(c.Image, "$") {
			found[c.Image] = true
		}
	}
	return nil
}

// resolve asks the registries, for eight images at once. All failures are reported. Images
// with a digest are looked up only if they have to be signed.
func (p *pin) resolve(cmd *cobra.Command, images, digested []string, before []api.LockedImage) ([]api.LockedImage, error) {
	opt := oci.Options{PlainHTTP: p.plainHTTP}
	if p.given() {
		policy, err := p.read(&p.registryFlags)
		if err != nil {
			return nil, err
		}
		opt.Verify = check(policy)
	}
	platforms := make(map[string]string)
	for _, image := range before {
		platforms[image.Image] = image.Platform
	}
	var resolved atomic.Int64
	shown := begin(cmd.ErrOrStderr(), false, "resolving")
	defer shown.end()
	shown.show(func() string { return fmt.Sprintf("resolving: %d of %d images", resolved.Load(), len(images)) })
	locked := make([]api.LockedImage, len(images))
	failed := make([]error, len(images)+len(digested))
	var group errgroup.Group
	group.SetLimit(8)
	for i, image := range images {
		platform := p.platform
		if platform == "" {
			platform = platforms[image]
		}
		group.Go(func() error {
			digest, err := oci.Resolve(cmd.Context(), image, platform, opt)
			locked[i], failed[i] = api.LockedImage{Image: image, Digest: digest, Platform: platform}, err
			resolved.Add(1)
			return nil
		})
	}
	for i, image := range digested {
		if opt.Verify == nil {
			break
		}
		group.Go(func() error {
			_, failed[len(images)+i] = oci.Resolve(cmd.Context(), image, "", opt)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return locked, multierror.Append(nil, failed...).ErrorOrNil()
}

// builds gives the images of finished AgentBuilds. What the lock has of namespaces
// that are not asked stays.
func (p *pin) builds(cmd *cobra.Command, before []api.LockedBuild) (locked []api.LockedBuild, err error) {
	c, err := p.connect(cmd)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if !p.all {
		namespace = c.namespace
		locked = slices.DeleteFunc(slices.Clone(before), func(b api.LockedBuild) bool { return b.Namespace == c.namespace })
	}
	list, err := c.listBuilds(cmd.Context(), namespace)
	if err != nil {
		return nil, fmt.Errorf("listing AgentBuilds: %w", err)
	}
	for _, b := range list.Items {
		if strings.Contains(b.Status.BuiltImage, "@sha256:") {
			locked = append(locked, api.LockedBuild{Namespace: b.Namespace, Name: b.Name, Image: b.Status.BuiltImage})
		}
	}
	slices.SortFunc(locked, func(a, b api.LockedBuild) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return locked, nil
}

// change is one line of the difference between two locks.
type change struct {
	// Image is as written; Build is namespace/name. One of the two is set.
	Image string `json:"image,omitempty"`
	Build string `json:"build,omitempty"`
	// Was and Is are digests, or images of builds; "" is not in the lock.
	Was string `json:"was,omitempty"`
	Is  string `json:"is,omitempty"`
}

func lockChanges(before, after api.ImageLockSpec) (changes []change) {
	was, is := entries(before), entries(after)
	both := maps.Clone(was)
	maps.Copy(both, is)
	for _, key := range slices.SortedFunc(maps.Keys(both), func(a, b change) int { return strings.Compare(a.Image+a.Build, b.Image+b.Build) }) {
		if was[key] != is[key] {
			changes = append(changes, change{key.Image, key.Build, was[key], is[key]})
		}
	}
	return changes
}

// entries gives the values of a lock by what they are of.
func entries(spec api.ImageLockSpec) map[change]string {
	all := make(map[change]string)
	for _, image := range spec.Images {
		all[change{Image: image.Image}] = strings.TrimSpace(image.Digest + " " + image.Platform)
	}
	for _, b := range spec.Builds {
		all[change{Build: b.Namespace + "/" + b.Name}] = b.Image
	}
	return all
}

func (p *pin) print(out io.Writer, changes []change) error {
	if p.format != "text" {
		return printObjects(out, p.format, map[string]any{"changes": append([]change{}, changes...)})
	}
	for _, c := range changes {
		what := c.Image
		if c.Build != "" {
			what = "build " + c.Build
		}
		if _, err := fmt.Fprintln(out, what); err != nil {
			return err
		}
		if c.Was != "" {
			fmt.Fprintln(out, "  - "+c.Was)
		}
		if c.Is != "" {
			fmt.Fprintln(out, "  + "+c.Is)
		}
	}
	return nil
}

// writeLock replaces the file at once.
func writeLock(file string, before *api.ImageLock, spec api.ImageLockSpec) error {
	title := "images"
	if before != nil && before.Name != "" {
		title = before.Name
	}
	text, err := yaml.Marshal(spec)
	if err != nil {
		return err
	}
	head := fmt.Sprintf(`# Written by armature pin, applied by every render. Keep it in Git.
apiVersion: %s
kind: ImageLock
metadata:
  name: %s
  annotations:
    config.kubernetes.io/local-config: "true"
spec:
`, api.RenderV1alpha1, title)
	var lines strings.Builder
	lines.WriteString(head)
	for line := range strings.Lines(string(text)) {
		lines.WriteString("  " + line)
	}
	next, err := os.CreateTemp(filepath.Dir(file), ".armature.lock-")
	if err != nil {
		return err
	}
	_, err = next.WriteString(lines.String())
	err = errors.Join(err, next.Chmod(0o644), next.Close())
	if err == nil {
		err = os.Rename(next.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}
