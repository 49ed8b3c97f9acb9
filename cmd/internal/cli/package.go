package cli

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/objects"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/verify"
)

// Package is the package that a command works on: a folder, a file, standard input,
// or an artifact in a registry.
type Package struct {
	Input
	name     string
	rendered bool
	registry Registry
	trust    Trust
	own      []images.Row // that the configuration names
}

func (p *Package) Flags(cmd *cobra.Command) {
	p.PackageFlags(cmd, "PATH")
	p.registry.Flags(cmd)
	p.trust.Flags(cmd)
	cmd.Flags().StringVar(&p.name, "name", "",
		"name of the package and of its inventory (default: the name of the folder, or of the "+
			"repository)")
	cmd.Flags().BoolVar(&p.rendered, "rendered", false,
		"PATH is already rendered: verify it instead")
}

// identity returns the package's name in a namespace.
func (p *Package) identity(given, namespace string) (apply.Package, error) {
	id := apply.Package{Namespace: namespace, Name: p.name}
	switch {
	case p.name != "":
	case given == "-":
		return id, Usagef("standard input has no name: name the package with --name")
	case strings.HasPrefix(given, oci.Scheme):
		ref, err := oci.Access{}.Parse(given)
		if err != nil {
			return id, Usage(err)
		}
		id.Name = path.Base(ref.Context().RepositoryStr())
	default:
		full, err := filepath.Abs(given)
		if err != nil {
			return id, err
		}
		id.Name = filepath.Base(full)
		if info, err := os.Stat(full); err == nil && !info.IsDir() {
			id.Name = strings.TrimSuffix(id.Name, filepath.Ext(id.Name))
		}
	}
	return id, nil
}

// objects returns the objects to apply: rendered, verified or pulled. It returns none if a finding
// is an error. A policy verifies the signature of an artifact, the images of any other package, and
// all images if it says how they must be built.
func (p *Package) objects(cmd *cobra.Command, given string) ([]apply.Object, error) {
	policy, err := p.trust.Demanded(&p.registry)
	if err != nil {
		return nil, err
	}
	artifact := strings.HasPrefix(given, oci.Scheme)
	read := p.local
	if artifact {
		read = func(cmd *cobra.Command, given string) ([]apply.Object, error) {
			return p.pulled(cmd, given, policy)
		}
	}
	all, err := read(cmd, given)
	if err != nil || policy == nil || artifact && policy.Builds == nil {
		return all, err
	}
	if err := objects.Verify(cmd.Context(), all, *policy, p.own); err != nil {
		return nil, err
	}
	return all, nil
}

// local returns the objects of a folder, a file or standard input.
func (p *Package) local(cmd *cobra.Command, given string) ([]apply.Object, error) {
	src, opt, findings, activity, err := p.LoadObjects(cmd, given)
	if err != nil {
		return nil, err
	}
	defer activity.End()
	p.own, _ = images.Rows(opt.Config) // the render reports errors in them
	if file := p.Kustomization(src); file != "" {
		return nil, fmt.Errorf(
			"%s has to be built first\n  hint: kustomize build … | armature apply - --name …", file)
	}
	opt.ObjectsOnly, opt.Workers = true, 1
	if p.rendered {
		found, _, err := verify.Run(src, opt)
		if err != nil {
			return nil, err
		}
		if findings = append(findings, found...); finding.Failed(findings) {
			activity.End()
			return nil, p.Report(cmd, findings)
		}
	}
	d := objects.Decoder{Name: p.File}
	found, _, err := render.Stream(src, opt, func(file string, data []byte) error {
		return multi.Errors(d.Rendered(src, file, bytes.Clone(data)), cmd.Context().Err())
	})
	activity.End()
	if err != nil {
		return nil, err
	}
	if !p.rendered { // else Verify has found the same
		findings = append(findings, found...)
	}
	if err := p.Report(cmd, findings); err != nil {
		return nil, err
	}
	return d.Objects()
}

// pulled returns the objects of an artifact unchanged, because the artifact does not contain the
// configuration that they were rendered with. It refuses an object that opted in and was never
// rendered.
func (p *Package) pulled(cmd *cobra.Command, given string,
	policy *sign.Policy) ([]apply.Object, error) {
	if p.Config != "" || p.Lock != "" {
		return nil, Usagef(
			"an artifact is rendered already: --config and --lock have no effect on it")
	}
	activity := Begin(cmd.ErrOrStderr(), false, "pulling "+given)
	defer activity.End()
	opt := p.registry.Options(activity, "pulling "+given)
	opt.Verify = CheckPackage(policy)
	temporary, err := os.MkdirTemp("", "armature-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temporary) // a failure leaves only temporary files
	folder := filepath.Join(temporary, "package")
	if _, err := oci.Pull(cmd.Context(), given, folder, opt); err != nil {
		return nil, err
	}
	src, options, findings, err := p.Open(cmd, folder, "")
	if err != nil {
		return nil, err
	}
	p.Folder = "" // findings name files as in the artifact
	if file := p.Kustomization(src); file != "" {
		return nil, fmt.Errorf("%s: %s has to be built before it is pushed", given, file)
	}
	found, _, err := verify.Run(src, options)
	if err != nil {
		return nil, err
	}
	activity.End()
	found = slices.DeleteFunc(found, func(f finding.Finding) bool {
		return f.Rule != "verify/not-rendered"
	})
	if err := p.Report(cmd, append(findings, found...)); err != nil {
		return nil, err
	}
	d := objects.Decoder{Name: p.File}
	for _, f := range src.Files {
		if !render.IsManifest(f.Path) {
			continue
		}
		text, err := src.Read(f.Path, nil)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", f.Path, err)
		}
		d.Read(f.Path, text)
	}
	return d.Objects()
}

// Open connects to the cluster and reads the package.
func (k *Cluster) Open(cmd *cobra.Command, p *Package,
	path string) (*apply.Cluster, apply.Package, []apply.Object, error) {
	config, namespace, err := k.Rest()
	if err != nil {
		return nil, apply.Package{}, nil, err
	}
	id, err := p.identity(path, namespace)
	if err != nil {
		return nil, id, nil, err
	}
	all, err := p.objects(cmd, path)
	if err != nil {
		return nil, id, nil, err
	}
	c, err := apply.Connect(config)
	return c, id, all, err
}
