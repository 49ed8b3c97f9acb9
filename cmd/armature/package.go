package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/apply"
	"github.com/armature-dev/armature/render/oci"
	"github.com/armature-dev/armature/render/sign"
	"github.com/armature-dev/armature/render/source"
	"github.com/armature-dev/armature/render/verify"
)

// pkg is the package that a command works on: a folder, a file, standard input,
// or an artifact in a registry.
type pkg struct {
	manifests
	name     string
	rendered bool
	registry registryFlags
	trust    trustFlags
}

func (p *pkg) flags(cmd *cobra.Command) {
	p.manifests.flags(cmd)
	p.registry.flags(cmd)
	p.trust.flags(cmd)
	cmd.Flags().StringVar(&p.name, "name", "", "name of the package, which its inventory is under (default: the name of the folder, or of the repository)")
	cmd.Flags().BoolVar(&p.rendered, "rendered", false, "PATH is already rendered: verify it instead")
}

// identity names the package in a namespace.
func (p *pkg) identity(given, namespace string) (apply.Package, error) {
	id := apply.Package{Namespace: namespace, Name: p.name}
	switch {
	case p.name != "":
	case given == "-":
		return id, usageError{errors.New("standard input has no name: name the package with --name")}
	case strings.HasPrefix(given, oci.Scheme):
		ref, err := oci.Options{}.Parse(given)
		if err != nil {
			return id, usageError{err}
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

// objects gives what is applied: rendered, or verified, or pulled. Any error
// among the findings leaves nothing. A policy judges an artifact by its signature;
// the images of a package from elsewhere by theirs, and all images where it says how
// they must have been built.
func (p *pkg) objects(cmd *cobra.Command, given string) ([]apply.Object, error) {
	var policy *sign.Policy
	if p.trust.given() {
		read, err := p.trust.read(&p.registry)
		if err != nil {
			return nil, err
		}
		policy = &read
	}
	artifact := strings.HasPrefix(given, oci.Scheme)
	var objects []apply.Object
	var err error
	if artifact {
		objects, err = p.pulled(cmd, given, policy)
	} else {
		objects, err = p.local(cmd, given)
	}
	if err != nil || policy == nil || artifact && policy.Builds == nil {
		return objects, err
	}
	if err := verifyImages(cmd.Context(), objects, *policy); err != nil {
		return nil, err
	}
	return objects, nil
}

// local gives the objects of a folder, a file or standard input.
func (p *pkg) local(cmd *cobra.Command, given string) ([]apply.Object, error) {
	shown := begin(cmd.ErrOrStderr(), false, "reading "+given)
	defer shown.end()
	src, opt, findings, err := p.open(cmd, given)
	if err != nil {
		return nil, err
	}
	src = shown.reading("rendering", src)
	if file := p.kustomization(src); file != "" {
		return nil, fmt.Errorf("%s has to be built first\n  hint: kustomize build … | armature apply - --name …", file)
	}
	opt.ObjectsOnly, opt.Workers = true, 1
	if p.rendered && !krm.Failed(findings) {
		found, _, err := verify.Run(src, opt)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
	}
	if krm.Failed(findings) {
		shown.end()
		return nil, p.report(cmd, findings)
	}
	d := decoder{place: &p.place}
	found, _, err := render.Stream(src, opt, func(file string, data []byte) error {
		return errors.Join(d.rendered(src, file, bytes.Clone(data)), cmd.Context().Err())
	})
	shown.end()
	if err != nil {
		return nil, err
	}
	if !p.rendered { // else Verify has found the same
		findings = append(findings, found...)
	}
	if err := p.report(cmd, findings); err != nil {
		return nil, err
	}
	return d.objects, d.failed.ErrorOrNil()
}

// decoder gathers the objects of files, and all that is wrong with them.
type decoder struct {
	*place
	objects []apply.Object
	failed  *multierror.Error
}

func (d *decoder) read(file string, text []byte) {
	read, err := apply.Read(d.file(file), text)
	d.objects, d.failed = append(d.objects, read...), multierror.Append(d.failed, err)
}

// rendered reads a file as a render made it. Its objects have the lines of what
// their author wrote: of themselves, or of what they were made for.
func (d *decoder) rendered(src render.Source, file string, text []byte) error {
	written, err := original(src, file)
	if err != nil {
		return err
	}
	from := len(d.objects)
	d.read(file, text)
	if bytes.Equal(text, written) {
		return nil
	}
	authored, _ := apply.Read(file, written) // the render reports what is wrong with it
	lines := make(map[string]int)
	key := func(o apply.Object, name string) string { return o.GetNamespace() + " " + name }
	for _, o := range authored {
		lines[key(o, o.GetKind()+"/"+o.GetName())] = o.Line
	}
	for i := range d.objects[from:] {
		o := &d.objects[from+i]
		self := key(*o, o.GetKind()+"/"+o.GetName())
		if lines[self] == 0 { // generated; more may be made for it in turn
			lines[self] = lines[key(*o, o.GetAnnotations()[keys.RenderedFor])]
		}
		o.Line = lines[self]
	}
	return nil
}

// original is a file as it was before a render.
func original(src render.Source, file string) ([]byte, error) {
	for _, f := range src.Files {
		if f.Path == file && f.Data != nil {
			return f.Data, nil
		}
	}
	return src.Read(file, nil)
}

// pulled gives the objects of an artifact, as they are: the configuration that
// they were rendered with is not part of it. What opted in and was never rendered
// is refused all the same.
func (p *pkg) pulled(cmd *cobra.Command, given string, policy *sign.Policy) ([]apply.Object, error) {
	if p.config != "" || p.lock != "" {
		return nil, usageError{errors.New("an artifact is rendered already: --config and --lock have no effect on it")}
	}
	shown := begin(cmd.ErrOrStderr(), false, "pulling "+given)
	defer shown.end()
	opt := p.registry.options(shown, "pulling "+given)
	if policy != nil {
		opt.Verify = check(policy.OfPackages())
	}
	temporary, err := os.MkdirTemp("", "armature-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temporary) // what is left of it harms nobody
	folder := filepath.Join(temporary, "package")
	if _, err := oci.Pull(cmd.Context(), given, folder, opt); err != nil {
		return nil, err
	}
	src, options, findings, err := p.open(cmd, folder)
	if err != nil {
		return nil, err
	}
	p.folder = "" // nobody knows it: files are named as in the artifact
	if file := p.kustomization(src); file != "" {
		return nil, fmt.Errorf("%s: %s has to be built before it is pushed", given, file)
	}
	found, _, err := verify.Run(src, options)
	if err != nil {
		return nil, err
	}
	shown.end()
	found = slices.DeleteFunc(found, func(f krm.Finding) bool { return f.Rule != "verify/not-rendered" })
	if err := p.report(cmd, append(findings, found...)); err != nil {
		return nil, err
	}
	d := decoder{place: &p.place}
	for _, f := range src.Files {
		switch path.Ext(f.Path) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		text, err := src.Read(f.Path, nil)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", f.Path, err)
		}
		d.read(f.Path, text)
	}
	return d.objects, d.failed.ErrorOrNil()
}

// readStream reads standard input until its end, or until the user loses patience.
func readStream(ctx context.Context, in io.Reader) (render.Source, error) {
	return source.ReadStream(interruptibleReader{ctx, in})
}

// interruptibleReader reads until the user loses patience: nothing ends a read of a
// terminal or a pipe but its other end.
type interruptibleReader struct {
	ctx context.Context
	in  io.Reader
}

func (r interruptibleReader) Read(p []byte) (int, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text := make([]byte, len(p)) // p is the caller's again once nobody waits
		n, err := r.in.Read(text)
		done <- result{text[:n], err}
	}()
	select {
	case got := <-done:
		return copy(p, got.text), got.err
	case <-r.ctx.Done():
		return 0, fmt.Errorf("interrupted: %w", r.ctx.Err())
	}
}
