package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/apply"
	"github.com/armature-dev/armature/render/oci"
)

// pkg is the package that a command works on: a folder, a file, standard input,
// or an artifact in a registry, which is rendered already.
type pkg struct {
	manifests
	registry registryFlags
	trust    trustFlags
	name     string
	rendered bool
}

func (p *pkg) flags(cmd *cobra.Command) {
	p.manifests.flags(cmd)
	p.registry.flags(cmd)
	p.trust.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&p.name, "name", "", "name of the package, which its inventory is under (default: the name of the folder, or of the repository)")
	f.BoolVar(&p.rendered, "rendered", false, "PATH is rendered already: verify it instead")
}

// identity names the package in a namespace.
func (p *pkg) identity(path, namespace string) (apply.Package, error) {
	if p.name != "" {
		return apply.Package{Namespace: namespace, Name: p.name}, nil
	}
	if path == "-" {
		return apply.Package{}, usageError{errors.New("standard input has no name: name the package with --name")}
	}
	if strings.HasPrefix(path, oci.Scheme) {
		ref, err := oci.Options{}.Parse(path)
		if err != nil {
			return apply.Package{}, usageError{err}
		}
		return apply.Package{Namespace: namespace, Name: filepath.Base(ref.Context().RepositoryStr())}, nil
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return apply.Package{}, err
	}
	name := filepath.Base(full)
	if info, err := os.Stat(full); err == nil && !info.IsDir() {
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	return apply.Package{Namespace: namespace, Name: name}, nil
}

// objects renders the package, or verifies it, and decodes what comes out. Any
// error among the findings leaves nothing.
func (p *pkg) objects(cmd *cobra.Command, path string) ([]apply.Object, error) {
	switch {
	case strings.HasPrefix(path, oci.Scheme):
		return p.pull(cmd, path)
	case p.trust.given():
		return nil, usageError{errors.New("only what comes from a registry, oci://…, carries a signature to verify")}
	}
	src, opt, findings, err := p.open(cmd, path)
	if err != nil {
		return nil, err
	}
	opt.ObjectsOnly, opt.Workers = true, 1
	if p.rendered && !krm.Failed(findings) {
		found, _, err := render.Verify(src, opt)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
	}
	var objects []apply.Object
	var failed *multierror.Error
	if !krm.Failed(findings) {
		found, _, err := render.Stream(src, opt, func(file string, data []byte) error {
			if cmd.Context().Err() != nil {
				return errors.New("interrupted: nothing was applied")
			}
			read, err := apply.Read(file, bytes.Clone(data))
			objects, failed = append(objects, read...), multierror.Append(failed, err)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if !p.rendered { // else Verify has told them
			findings = append(findings, found...)
		}
	}
	if err := render.WriteFindings(cmd.ErrOrStderr(), "text", findings); err != nil {
		return nil, err
	}
	if krm.Failed(findings) {
		return nil, errFindings
	}
	return objects, failed.ErrorOrNil()
}

// pull fetches an artifact and decodes its objects. What it was rendered with is
// not in it, so that it is taken as it is.
func (p *pkg) pull(cmd *cobra.Command, ref string) (objects []apply.Object, err error) {
	if p.config != "" || p.lock != "" {
		return nil, usageError{errors.New("an artifact is rendered already: --config and --lock have no effect on it")}
	}
	opt := p.registry.options(cmd, "pulling "+ref)
	if p.trust.given() {
		policy, err := p.trust.read(&p.registry)
		if err != nil {
			return nil, err
		}
		opt.Verify = check(policy)
	}
	dir, err := os.MkdirTemp("", "armature-pull-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err := oci.Pull(cmd.Context(), ref, dir, opt); err != nil {
		return nil, err
	}
	src, _, err := render.Tree(dir, "")
	if err != nil {
		return nil, err
	}
	var failed *multierror.Error
	for _, f := range src.Files {
		data, err := src.Read(f.Path, nil)
		if err != nil {
			return nil, err
		}
		read, err := apply.Read(f.Path, bytes.Clone(data))
		objects, failed = append(objects, read...), multierror.Append(failed, err)
	}
	return objects, failed.ErrorOrNil()
}

// readStream reads standard input until its end, or until the user loses patience.
func readStream(ctx context.Context, in io.Reader) (render.Source, error) {
	type result struct {
		src render.Source
		err error
	}
	done := make(chan result, 1)
	go func() {
		src, err := render.ReadStream(in)
		done <- result{src, err}
	}()
	select {
	case r := <-done:
		return r.src, r.err
	case <-ctx.Done():
		return render.Source{}, fmt.Errorf("interrupted: %w", ctx.Err())
	}
}
