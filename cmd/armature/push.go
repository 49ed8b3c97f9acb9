package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/oci"
	"github.com/armature-dev/armature/render/sign"
	"github.com/armature-dev/armature/render/verify"
	"github.com/armature-dev/armature/render/version"
)

// push is `armature push`.
type push struct {
	manifests
	registryFlags
	rendered                  bool
	source, revision, created string
	format                    string

	sign bool
	signerFlags
}

func pushCommand() *cobra.Command {
	var p push
	cmd := &cobra.Command{
		Use:   "push PATH|- oci://REGISTRY/REPOSITORY:TAG",
		Short: "Render a package and store it in a registry, as an artifact that Flux accepts",
		Long: `Push renders PATH and stores the result as an OCI artifact. The same package from
the same commit has the same digest, whoever pushes it. Source, revision and time
are those of the Git commit; outside of Git, flags set them.

With --sign the artifact is signed as cosign does it, and provenance of the render
(SLSA v1) is attached: digests of the files, versions of the functions,
configuration and lock. Both are published in cosign's tag format and as Sigstore
bundles. The tag moves when all of it is in place.`,
		Example: `  armature push apps/ oci://registry.example/fleet/agents:v1
  armature push rendered/ --rendered oci://registry.example/fleet/agents:v1
  kustomize build . | armature push - oci://registry.example/fleet/agents:v1
  armature push apps/ oci://registry.example/fleet/agents:v1 --sign --key cosign.key --tlog-upload=false`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := artifact(given[1]); err != nil {
				return err
			}
			for _, flag := range [...]string{"key", "certificate", "certificate-chain", "identity-token", "fulcio-url", "rekor-url", "tlog-upload"} {
				if !p.sign && cmd.Flags().Changed(flag) {
					return usageError{fmt.Errorf("--%s requires --sign", flag)}
				}
			}
			return p.run(cmd, given[0], given[1])
		},
	}
	p.manifests.flags(cmd)
	p.registryFlags.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&p.rendered, "rendered", false, "PATH is already rendered: push it unchanged, if it verifies")
	f.StringVar(&p.source, "source", "", "URL of the source (default: the remote origin of PATH's Git repository)")
	f.StringVar(&p.revision, "revision", "", "revision of the source (default: branch@sha1:commit)")
	f.StringVar(&p.created, "created", "", "time of the source, as 2006-01-02T15:04:05Z (default: the commit's, or 1970)")
	f.BoolVar(&p.sign, "sign", false, "sign the artifact and attach provenance")
	p.signerFlags.flags(cmd, "key")
	outputFlag(cmd, &p.format, "text", "text", "yaml", "json")
	return cmd
}

func (p *push) run(cmd *cobra.Command, path, ref string) error {
	shown := begin(cmd.ErrOrStderr(), false, "reading "+path)
	defer shown.end()
	src, opt, findings, err := p.open(cmd, path)
	if err != nil {
		return err
	}
	files, found, err := p.render(shown.reading("rendering", src), opt, krm.Failed(findings))
	shown.end()
	if err != nil {
		return err
	}
	if err := p.report(cmd, append(findings, found...)); err != nil {
		return err
	}
	inputs, err := inputs(src)
	if err != nil {
		return err
	}
	meta, err := p.metadata(cmd, path, inputs)
	if err != nil {
		return err
	}
	var attach func(context.Context, name.Digest) error
	if p.sign {
		if attach, err = p.attach(cmd.Context(), opt, meta, inputs); err != nil { // it may ask for a password
			return err
		}
	}
	pushing := begin(cmd.ErrOrStderr(), false, "pushing "+ref)
	defer pushing.end()
	options := p.options(pushing, "pushing "+ref)
	options.Attach = attach
	result, err := oci.Push(cmd.Context(), ref, files, meta, options)
	pushing.end()
	if err != nil {
		return err
	}
	if p.format != "text" {
		return printObjects(cmd.OutOrStdout(), p.format, result)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "pushed %d files, %d KiB, to %s\n", result.Files, (result.Bytes+1023)>>10, ref)
	_, err = fmt.Fprintln(cmd.OutOrStdout(), oci.Scheme+result.Ref)
	return err
}

// render gives the files that are pushed. They are rendered, and have been
// verified to be as a fresh render makes them.
func (p *push) render(src render.Source, opt render.Options, failed bool) ([]render.File, []krm.Finding, error) {
	if failed {
		return nil, nil, nil
	}
	if p.rendered {
		found, _, err := verify.Run(src, opt)
		if err != nil || krm.Failed(found) {
			return nil, found, err
		}
		files, err := load(src)
		return files, found, err
	}
	if file := p.kustomization(src); file != "" {
		return nil, nil, fmt.Errorf("%s has to be built first: kustomize build … | armature push - oci://…, or push a rendered folder with --rendered", file)
	}
	opt.ObjectsOnly = true
	result, err := render.Run(src, opt)
	if err != nil || krm.Failed(result.Findings) {
		return nil, result.Findings, err
	}
	files := slices.DeleteFunc(result.Files, func(f render.File) bool { return len(bytes.TrimSpace(f.Data)) == 0 })
	for i := range files {
		if files[i].Path == "-" {
			files[i].Path = "manifests.yaml"
		}
	}
	found, _, err := verify.Run(render.Source{Files: files}, opt)
	found = slices.DeleteFunc(found, func(f krm.Finding) bool { return f.Severity != krm.Error })
	return files, append(result.Findings, found...), err
}

// load reads all files of a rendered folder but those for Armature itself.
func load(src render.Source) (files []render.File, err error) {
	for _, f := range src.Files {
		if f.Path == render.ConfigFile || f.Path == render.LockFile {
			continue
		}
		if f.Data == nil {
			data, err := src.Read(f.Path, nil)
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", f.Path, err)
			}
			f.Data = bytes.Clone(data)
		}
		if f.Path == "-" {
			f.Path = "manifests.yaml"
		}
		files = append(files, f)
	}
	return files, nil
}

// inputFile is a file that a package was rendered from.
type inputFile struct {
	path string
	data []byte
}

func inputs(src render.Source) (all []inputFile, err error) {
	for _, f := range src.Files {
		data := f.Data
		if data == nil {
			if data, err = src.Read(f.Path, nil); err != nil {
				return nil, fmt.Errorf("reading %s: %w", f.Path, err)
			}
		}
		all = append(all, inputFile{f.Path, data})
	}
	return all, nil
}

// metadata is what the flags say, and for the rest what Git says.
func (p *push) metadata(cmd *cobra.Command, path string, inputs []inputFile) (meta oci.Metadata, err error) {
	if path != "-" {
		if meta, err = commit(path, inputs, p.config, p.lock); err != nil {
			return meta, err
		}
	}
	if p.source != "" {
		meta.Source = withoutLogin(p.source) // as CI has it from git config
	}
	if p.revision != "" {
		meta.Revision = p.revision
	}
	if p.created != "" {
		if meta.Created, err = time.Parse(time.RFC3339, p.created); err != nil {
			return meta, usageError{fmt.Errorf("--created: %w", err)}
		}
	}
	if meta.Revision == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "armature: the package is in no Git repository: say where it is from with --source, --revision and --created")
	}
	return meta, nil
}

// attach signs, and says what was rendered.
func (p *push) attach(ctx context.Context, opt render.Options, meta oci.Metadata, inputs []inputFile) (func(context.Context, name.Digest) error, error) {
	session, err := p.session(ctx, p.plainHTTP)
	if err != nil {
		return nil, err
	}
	made := sign.Render{Source: meta.Source, Revision: meta.Revision, Version: version.String(), Functions: functions.Names(), Inputs: make(map[string]string)}
	if opt.Config != nil {
		made.Config = opt.Config.Spec
	}
	if opt.Lock != nil {
		made.Lock = opt.Lock.Spec
	}
	for _, in := range inputs {
		sum := sha256.Sum256(in.data)
		made.Inputs[in.path] = hex.EncodeToString(sum[:])
	}
	return func(ctx context.Context, artifact name.Digest) error {
		if err := session.Sign(ctx, artifact); err != nil {
			return err
		}
		return session.Attest(ctx, artifact, sign.PredicateType, sign.NewProvenance(made))
	}, nil
}
