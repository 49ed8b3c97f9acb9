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

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/apply"
)

// pkg is the package that a command works on: a folder, a file or standard input.
type pkg struct {
	name     string
	config   string
	rendered bool
}

func (p *pkg) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.name, "name", "", "name of the package, which its inventory is under (default: the name of the folder)")
	f.StringVarP(&p.config, "config", "c", "", "RenderConfig to use (default: armature.yaml at the root of PATH)")
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

func (p *pkg) open(cmd *cobra.Command, path string) (render.Source, render.Options, []krm.Finding, error) {
	fail := func(err error) (render.Source, render.Options, []krm.Finding, error) {
		return render.Source{}, render.Options{}, nil, err
	}
	root := path
	if info, err := os.Stat(path); path != "-" && err != nil {
		return fail(err)
	} else if path != "-" && !info.IsDir() {
		root = filepath.Dir(path)
	}
	var config *api.RenderConfig
	var findings []krm.Finding
	var err error
	if path != "-" || p.config != "" {
		if config, findings, err = render.FindConfig(p.config, root); err != nil {
			return fail(err)
		}
	}
	opt := render.Options{Config: config}
	if path != "-" {
		src, found, err := render.Tree(path, "")
		return src, opt, append(findings, found...), err
	}
	src, err := readStream(cmd.Context(), cmd.InOrStdin())
	switch {
	case err != nil:
		return fail(err)
	case len(src.Files[0].Data) == 0:
		return fail(errors.New("nothing on standard input")) // most likely the command before the pipe failed
	case render.IsResourceList(src.Files[0].Data):
		return fail(errors.New("standard input is a ResourceList, which is for functions\n  hint: unwrap it first, with `kpt fn sink` for one"))
	}
	return src, opt, findings, nil
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
