package artifact

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/gitrun"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/verify"
)

// push is `armature artifact push`.
type push struct {
	cli.Input
	cli.Registry
	rendered         bool
	source, revision string
	format           string
	images           cli.ImageGate

	sign bool
	cli.Signer
}

func pushCommand() *cobra.Command {
	var p push
	cmd := &cobra.Command{
		Use:   "push PATH|- oci://REGISTRY/REPOSITORY:TAG",
		Short: "Render a package and store it in a registry",
		Long: `Push renders PATH and stores the result as an OCI artifact, which Flux accepts. The same
package from the same commit always has the same digest. Source, revision and time are
those of the Git commit; outside of Git, --source, --revision and the environment variable
SOURCE_DATE_EPOCH set them.

With --sign, push signs the artifact like cosign, and attaches provenance of the render
(SLSA v1): digests of the files, versions of the functions, configuration and lock. Both
are Sigstore bundles. The tag moves last.

With --verify-images, every image in the package must have a digest and satisfy the
policy, or nothing is pushed.`,
		Example: `  armature artifact push apps/ oci://registry.example/fleet/agents:v1
  armature artifact push rendered/ --rendered oci://registry.example/fleet/agents:v1
  kustomize build . | armature artifact push - oci://registry.example/fleet/agents:v1
  armature artifact push apps/ oci://registry.example/fleet/agents:v1 --sign --key cosign.key --tlog-upload=false`,
		Args: cli.ArtifactArgs(2, 1),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := p.With(cmd, p.sign, "--sign"); err != nil {
				return err
			}
			return p.run(cmd, given[0], given[1])
		},
	}
	p.PackageFlags(cmd, "PATH")
	p.Registry.Flags(cmd)
	p.images.Flag(cmd)
	f := cmd.Flags()
	f.BoolVar(&p.rendered, "rendered", false,
		"PATH is already rendered: push it unchanged, if it verifies")
	f.StringVar(&p.source, "source", "",
		"URL of the source (default: the remote origin of PATH's Git repository)")
	f.StringVar(&p.revision, "revision", "", "revision of the source (default: branch@sha1:commit)")
	f.BoolVar(&p.sign, "sign", false, "sign the artifact and attach provenance")
	p.Signer.Flags(cmd)
	cli.OutputFlag(cmd, &p.format, "text", "json", "yaml")
	return cmd
}

func (p *push) run(cmd *cobra.Command, path, ref string) error {
	if err := p.images.Open(); err != nil {
		return err
	}
	src, opt, findings, activity, err := p.LoadObjects(cmd, path)
	if err != nil {
		return err
	}
	files, found, err := p.render(src, opt)
	activity.End()
	if err != nil {
		return err
	}
	if err := p.Report(cmd, append(findings, found...)); err != nil {
		return err
	}
	if err := p.images.Pass(cmd.Context(), &p.Place, src, files, opt.Config); err != nil {
		return err
	}
	inputs, err := load(src)
	if err != nil {
		return err
	}
	meta, err := p.metadata(cmd, path, inputs)
	if err != nil {
		return err
	}
	var attach func(context.Context, name.Digest) error
	if p.sign {
		// This may ask for a password.
		if attach, err = p.attach(cmd.Context(), opt, meta, inputs); err != nil {
			return err
		}
	}
	pushing := cli.Begin(cmd.ErrOrStderr(), false, "pushing "+ref)
	defer pushing.End()
	options := p.Options(pushing, "pushing "+ref)
	options.Attach = attach
	result, err := oci.Push(cmd.Context(), ref, files, meta, options)
	pushing.End()
	if err != nil {
		return err
	}
	return cli.PrintArtifact(cmd, p.format, result.Ref, result,
		fmt.Sprintf("pushed %s to %s\n", weight(result), ref))
}

// weight describes the size of an artifact, such as "3 files, 12 KiB,".
func weight(r oci.Result) string {
	return fmt.Sprintf("%s, %d KiB,", text.Count(r.Files, "file"), (r.Bytes+1023)>>10)
}

// render returns the files to push: rendered, and verified against a fresh render.
func (p *push) render(src render.Source,
	opt render.Options) ([]render.File, []finding.Finding, error) {
	if p.rendered {
		found, _, err := verify.Run(src, opt)
		if err != nil || finding.Failed(found) {
			return nil, found, err
		}
		files, err := load(src)
		files = slices.DeleteFunc(files, func(f render.File) bool {
			return f.Path == render.ConfigFile || f.Path == render.LockFile || f.Path == tools.File
		})
		return nameStdin(files), found, err
	}
	if file := p.Kustomization(src); file != "" {
		return nil, nil, fmt.Errorf("%s has to be built first: kustomize build … | armature "+
			"artifact push - oci://…, or push a rendered folder with --rendered", file)
	}
	opt.ObjectsOnly = true
	result, err := render.Run(src, opt)
	if err != nil || finding.Failed(result.Findings) {
		return nil, result.Findings, err
	}
	files := slices.DeleteFunc(result.Files,
		func(f render.File) bool { return len(bytes.TrimSpace(f.Data)) == 0 })
	nameStdin(files)
	found, _, err := verify.Run(render.Source{Files: files}, opt)
	found = slices.DeleteFunc(found, func(f finding.Finding) bool {
		return f.Severity != finding.Error
	})
	return files, append(result.Findings, found...), err
}

// nameStdin names a file from standard input.
func nameStdin(files []render.File) []render.File {
	for i := range files {
		if files[i].Path == "-" {
			files[i].Path = "manifests.yaml"
		}
	}
	return files
}

// load reads all files of a source.
func load(src render.Source) ([]render.File, error) {
	files := slices.Clone(src.Files)
	for i := range files {
		f := &files[i]
		if f.Data != nil {
			continue
		}
		var err error
		if f.Data, err = src.Read(f.Path, nil); err != nil {
			return nil, fmt.Errorf("reading %s: %w", f.Path, err)
		}
	}
	return files, nil
}

// sourceDate is the variable of reproducible builds for the time of the source, in seconds.
const sourceDate = "SOURCE_DATE_EPOCH"

// metadata returns the source, revision and time that flags and the environment set, and takes the
// others from the commit.
func (p *push) metadata(cmd *cobra.Command, path string,
	inputs []render.File) (meta oci.Metadata, err error) {
	created := os.Getenv(sourceDate)
	if path != "-" && (p.source == "" || p.revision == "" || created == "") {
		if meta, err = oci.Commit(path, inputs, p.Config, p.Lock); err != nil {
			return meta, fmt.Errorf("%w\n  hint: set --source, --revision and %s, which replace it",
				err, sourceDate)
		}
	}
	if p.source != "" {
		// CI takes the URL from git config, where it may contain a login.
		if meta.Source, err = gitrun.PublicURL(p.source); err != nil {
			return meta, err
		}
	}
	if p.revision != "" {
		meta.Revision = p.revision
	}
	if created != "" {
		seconds, err := strconv.ParseInt(created, 10, 64)
		if err != nil {
			return meta, cli.Usagef(
				"%s=%q: write the seconds since 1970, as git log -1 --format=%%ct prints them",
				sourceDate, created)
		}
		meta.Created = time.Unix(seconds, 0).UTC()
	}
	if meta.Revision == "" {
		fmt.Fprintln(cmd.ErrOrStderr(),
			"armature: the package is in no Git repository: name its origin with --source "+
				"and --revision")
	}
	return meta, nil
}

// attach returns a function that signs the artifact and attests the render.
func (p *push) attach(ctx context.Context, opt render.Options, meta oci.Metadata,
	inputs []render.File) (func(context.Context, name.Digest) error, error) {
	session, err := p.Session(ctx, p.Access)
	if err != nil {
		return nil, err
	}
	made := sign.Render{Source: meta.Source, Revision: meta.Revision,
		Functions: functions.Names(), Inputs: inputs}
	if opt.Config != nil {
		made.Config = opt.Config.Spec
	}
	if opt.Lock != nil {
		made.Lock = opt.Lock.Spec
	}
	return session.Record(sign.NewProvenance(made)), nil
}
