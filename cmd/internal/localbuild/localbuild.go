// Package localbuild has the commands that build on this machine with BuildKit, without a cluster.
package localbuild

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/builds/install"
	"github.com/armature-dev/armature/builds/local"
	"github.com/armature-dev/armature/builds/registry/pins"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/gitrun"
	"github.com/armature-dev/armature/templates"
)

// shownLines is how many last lines of a failed step are printed.
const shownLines = 20

// Build has the flags of `armature build run --local`.
type Build struct {
	source, mode, destination  string
	pinned, provenance, values string
	templates, secrets         []string
	logs                       bool
	settings                   compose.Settings
}

// Flags adds the flags that require --local.
func (l *Build) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.source, "source", "",
		"with --local: folder to build instead of the Git revision, without the files that "+
			".gitignore names")
	f.StringArrayVar(&l.secrets, "secret", nil,
		"with --local: Secret for the build: NAME=FOLDER with a file for each key, or "+
			"NAME/KEY=FILE for one key")
	f.StringVar(&l.destination, "destination", "",
		"with --local: destination of the image: registry pushes to spec.buildOutput with your "+
			"Docker login, docker loads it into Docker, layout=FOLDER writes an OCI layout "+
			"(default: none)")
	f.StringVar(&l.provenance, "provenance-file", "",
		"with --local: file for the provenance, unsigned and by the builder \"local\", which no "+
			"policy accepts")
	f.StringVar(&l.mode, "mode", "",
		"with --local: build with this mode instead of the build's own")
	cli.CompleteFlag(cmd, "mode", manifest.ShippedModes)
	l.stepFlags(cmd, "with --local: ")
}

// stepFlags adds the flags about the steps. when begins their descriptions.
func (l *Build) stepFlags(cmd *cobra.Command, when string) {
	f := cmd.Flags()
	f.BoolVar(&l.logs, "logs", false,
		when+"print all output of steps, not only the last lines of a failed step")
	f.StringSliceVar(&l.templates, "templates", nil,
		when+"folder with template and step ConfigMaps; they override the shipped ones")
	cli.ValuesFlag(cmd, &l.values)
	f.StringVar(&l.pinned, "image-pins", "", when+"YAML file that maps step images to digests "+
		"(default: the lock of this release; \"\" pins none)")
}

// pushes reports whether the image goes to the registry of spec.buildOutput.
func (l *Build) pushes() bool { return l.destination == "registry" }

// open opens the templates and steps, and completes the settings.
func (l *Build) open(cmd *cobra.Command) (library *manifest.Library, err error) {
	if err := install.StepSettings(l.values, &l.settings); err != nil {
		return nil, err
	}
	if l.settings.ImagePins, err = pins.Load(l.pinned, cmd.Flags().Changed("image-pins"),
		templates.StepLock()); err != nil {
		return nil, err
	}
	return manifest.Open(l.templates)
}

// Only refuses the flags that a local run does not have, or those that require --local.
func (l *Build) Only(cmd *cobra.Command, isLocal bool) error {
	localFlags := []string{"source", "secret", "destination", "provenance-file", "logs", "mode",
		"templates", "values", "image-pins"}
	if isLocal {
		return cli.FlagsAmong(cmd, func(name string) bool {
			return name != "wait" && name != "kubeconfig" && name != "context"
		}, "with --local, which needs no cluster")
	}
	return cli.FlagsAmong(cmd, func(name string) bool { return !slices.Contains(localFlags, name) },
		"without --local")
}

// Run runs the builds one after the other.
func (l *Build) Run(ctx context.Context, cmd *cobra.Command, builds []manifest.Build) error {
	if len(builds) > 1 && l.destination+l.provenance != "" {
		return cli.Usagef("--destination and --provenance-file are for one image, and the files "+
			"have %d AgentBuilds", len(builds))
	}
	kind, folder, _ := strings.Cut(l.destination, "=")
	if !slices.Contains([]string{"", "docker", "registry"}, l.destination) &&
		(kind != "layout" || folder == "") {
		return cli.Usagef("--destination %q: use registry, docker or layout=FOLDER", l.destination)
	}
	library, err := l.open(cmd)
	if err != nil {
		return err
	}
	given, err := readSecrets(l.secrets)
	if err != nil {
		return err
	}
	// Builds that cannot run locally are refused before a daemon starts.
	for _, b := range builds {
		if l.mode != "" {
			b.Spec.Mode = l.mode
		}
		out, err := library.Compose(b, l.settings)
		if err != nil {
			return err
		}
		for _, w := range out.Warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+w)
		}
		if b.Spec.Source.Verify != nil {
			fmt.Fprintf(cmd.ErrOrStderr(),
				"warning: %s: spec.source.verify is not checked without a cluster\n", b.Place)
		}
		if _, err := local.SecretNames(out); err != nil {
			return err
		}
	}
	return withDaemon(ctx, func(daemon *local.Daemon) (failed error) {
		fmt.Fprintln(cmd.ErrOrStderr(), "building with "+daemon.Name)
		for _, b := range builds {
			err := l.build(ctx, cmd, daemon, library, b, given)
			if err != nil && !errors.Is(err, cli.ErrFindings) {
				return err
			}
			failed = cmp.Or(failed, err)
		}
		return failed
	})
}

// withDaemon calls do with a BuildKit that it finds, or starts with its state in the user's cache.
func withDaemon(ctx context.Context, do func(*local.Daemon) error) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	daemon, err := local.Connect(ctx, filepath.Join(cache, "armature", "buildkit"))
	if err != nil {
		return err
	}
	return multi.Errors(do(daemon), daemon.Close())
}

// once runs a build. It calls built, if not nil, with the image before the run's registry stops.
func (l *Build) once(ctx context.Context, daemon *local.Daemon, library *manifest.Library,
	b manifest.Build, given map[string]map[string][]byte, opt local.Options,
	built func(image string, out *compose.Output,
		results *local.Result) error) (results *local.Result, err error) {
	if opt.Scratch, err = local.Scratch(); err != nil {
		return nil, err
	}
	defer func() { err = multi.Errors(err, os.RemoveAll(opt.Scratch)) }()
	servers, err := local.Serve(ctx, opt.Scratch, l.settings.ControllerImage)
	if err != nil {
		return nil, err
	}
	defer servers.Close()
	if !l.pushes() || l.source != "" {
		opt.Servers = servers
	}
	b.AgentBuild = b.DeepCopy()
	if !l.pushes() {
		b.Spec.BuildOutput.ImageRegistry = servers.Registry()
	}
	if l.source != "" {
		source := &b.Spec.Source
		if source.SourceRepository, source.SourceRevision, err = servers.Source(ctx,
			l.source); err != nil {
			return nil, err
		}
	}
	out, err := library.Compose(b, l.settings)
	if err != nil {
		return nil, err
	}
	if opt.Secrets, err = l.secretsOf(ctx, b, out, given); err != nil {
		return nil, err
	}
	if results, err = daemon.Run(ctx, out, opt); err != nil || built == nil {
		return results, err
	}
	image, err := local.Image(out, results)
	if err != nil {
		return results, err
	}
	return results, built(image, out, results)
}

// build runs a build, prints its progress and delivers its image. A failed step is cli.ErrFindings.
func (l *Build) build(ctx context.Context, cmd *cobra.Command, daemon *local.Daemon,
	library *manifest.Library, b manifest.Build, given map[string]map[string][]byte) error {
	began := time.Now()
	shown := &progress{cmd: cmd, build: b.Name, logs: l.logs,
		activity: cli.Begin(cmd.ErrOrStderr(), false, "building "+b.Name)}
	_, err := l.once(ctx, daemon, library, b, given, local.Options{Report: shown.report},
		func(image string, out *compose.Output, results *local.Result) error {
			shown.activity.End()
			fmt.Fprintf(cmd.OutOrStdout(), "%s: built %s in %s\n", b.Name,
				image[strings.LastIndex(image, "@")+1:],
				time.Since(began).Round(100*time.Millisecond))
			if l.pushes() {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: pushed %s\n", b.Name, image)
			}
			if l.provenance != "" {
				if err := l.writeProvenance(b, out, image, results, began); err != nil {
					return err
				}
			}
			return l.deliver(ctx, cmd, b, image)
		})
	shown.activity.End()
	var step *local.StepError
	if errors.As(err, &step) {
		if !l.logs {
			for _, line := range step.Last[max(0, len(step.Last)-shownLines):] {
				fmt.Fprintf(cmd.OutOrStdout(), "[%s : %s] %s\n", step.Task, step.Step,
					text.Printable(line))
			}
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "agentbuild %s was not built: %s\n", b.Name,
			text.Printable(step.Error()))
		if why := failure.Of(failure.Step{Name: step.Step, Log: step.Last}); why.Reason != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "  %s: %s\n", why.Reason, text.Printable(why.String()))
		}
		return cli.ErrFindings
	}
	return err
}

// deliver copies an image from the registry of the run to the destination.
func (l *Build) deliver(ctx context.Context, cmd *cobra.Command, b manifest.Build, image string) error {
	if l.destination == "" || l.pushes() {
		return nil
	}
	ref, err := name.NewDigest(image)
	if err != nil {
		return err
	}
	found, err := remote.Get(ref, remote.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("reading the built image: %w", err)
	}
	if folder, ok := strings.CutPrefix(l.destination, "layout="); ok {
		if err := writeLayout(folder, found); err != nil {
			return fmt.Errorf("writing the layout %s: %w", folder, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: written to the OCI layout %s\n", b.Name, folder)
		return nil
	}
	img, err := found.Image()
	if err != nil {
		return err
	}
	tag, err := name.NewTag(b.Spec.BuildOutput.Image + ":" + b.Spec.BuildOutput.ImageTag)
	if err != nil {
		return err
	}
	load := exec.CommandContext(ctx, "docker", "load")
	load.Stdout, load.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	reader, writer := io.Pipe()
	load.Stdin = reader
	go func() { writer.CloseWithError(tarball.Write(tag, img, writer)) }()
	if err := load.Run(); err != nil {
		return fmt.Errorf("docker load: %w", err)
	}
	return nil
}

// writeLayout replaces an OCI layout or an empty folder, and leaves anything else as it is.
func writeLayout(folder string, found *remote.Descriptor) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, noLayout := os.Stat(filepath.Join(folder, "oci-layout"))
	other := func(e fs.DirEntry) bool {
		return !slices.Contains([]string{"blobs", "index.json", "ingest", "oci-layout"}, e.Name())
	}
	if len(entries) > 0 && noLayout != nil || slices.ContainsFunc(entries, other) {
		return errors.New(
			"the folder has other files\n  hint: name a folder that is empty, or an OCI layout")
	}
	next, err := os.MkdirTemp(filepath.Dir(filepath.Clean(folder)), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(next)
	var built mutate.Appendable
	if found.MediaType.IsIndex() {
		built, err = found.ImageIndex()
	} else {
		built, err = found.Image()
	}
	if err != nil {
		return err
	}
	if _, err := layout.Write(next, mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: built})); err != nil {
		return err
	}
	if err := os.Chmod(next, 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	return os.Rename(next, folder)
}

// readSecrets reads the files of --secret by Secret and key.
func readSecrets(given []string) (map[string]map[string][]byte, error) {
	out := map[string]map[string][]byte{}
	for _, text := range given {
		at, file, ok := strings.Cut(text, "=")
		secret, key, one := strings.Cut(at, "/")
		if !ok || secret == "" || file == "" || one && key == "" {
			return nil, cli.Usagef("--secret %q: use NAME=FOLDER or NAME/KEY=FILE", at)
		}
		if out[secret] == nil {
			out[secret] = map[string][]byte{}
		}
		files := map[string]string{key: file}
		if !one {
			entries, err := os.ReadDir(file)
			if err != nil {
				return nil, fmt.Errorf("--secret %s: %w\n  hint: give a folder with a file for "+
					"each key, or NAME/KEY=FILE", secret, err)
			}
			files = map[string]string{}
			for _, e := range entries {
				if !e.IsDir() {
					files[e.Name()] = filepath.Join(file, e.Name())
				}
			}
		}
		for key, file := range files {
			value, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("--secret %s: %w", at, err)
			}
			if len(value) > 500<<10 { // This is BuildKit's limit.
				return nil, fmt.Errorf("--secret %s: %s has more than 500 KiB", at, file)
			}
			out[secret][key] = value
		}
	}
	return out, nil
}

// secretsOf returns the Secrets of a build: the given ones, and the user's own logins in place of
// those that the build names.
func (l *Build) secretsOf(ctx context.Context, b manifest.Build, out *compose.Output,
	given map[string]map[string][]byte) (map[string]map[string][]byte, error) {
	names, err := local.SecretNames(out)
	if err != nil {
		return nil, err
	}
	secrets := map[string]map[string][]byte{}
	for _, secret := range names {
		login, source := b.Spec.BuildOutput.ImageRepoCredentials, b.Spec.Source.SourceCredentials
		switch {
		case given[secret] != nil:
			secrets[secret] = given[secret]
		case login != nil && login.Name == secret:
			if secrets[secret], err = l.registryLogin(b); err != nil {
				return nil, err
			}
		case source != nil && source.Name == secret:
			if secrets[secret], err = l.gitLogin(ctx, b); err != nil {
				return nil, err
			}
		}
	}
	for secret := range given {
		if !slices.Contains(names, secret) {
			return nil, cli.Usagef(
				"--secret %s: the build %s reads no Secret of that name; it reads %s", secret,
				b.Name, cmp.Or(strings.Join(names, ", "), "none"))
		}
	}
	return secrets, nil
}

// registryLogin returns the user's login for the build's registry; the run's registry needs none.
func (l *Build) registryLogin(b manifest.Build) (map[string][]byte, error) {
	const key = ".dockerconfigjson"
	if !l.pushes() {
		return map[string][]byte{key: []byte("{}")}, nil
	}
	repository, err := name.NewRepository(b.Spec.BuildOutput.ImageRegistry + "/" +
		b.Spec.BuildOutput.Image)
	if err != nil {
		return nil, err
	}
	login, err := authn.DefaultKeychain.Resolve(repository)
	if err != nil {
		return nil, err
	}
	config, err := login.Authorization()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(
		map[string]any{"auths": map[string]any{repository.RegistryStr(): config}})
	return map[string][]byte{key: text}, err
}

// gitLogin returns the login that git has for the repository; that of --source needs none.
func (l *Build) gitLogin(ctx context.Context, b manifest.Build) (map[string][]byte, error) {
	if l.source != "" {
		return map[string][]byte{}, nil
	}
	address := b.Spec.Source.SourceRepository
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	clone, err := gitrun.Open(ctx, ".")
	if err != nil && !errors.Is(err, gitrun.ErrNone) {
		return nil, err
	}
	found, err := cli.Repository(ctx, clone, address)
	if err != nil {
		return nil, err
	}
	if login, ok := found.Auth.(*githttp.BasicAuth); ok {
		return map[string][]byte{"username": []byte(login.Username),
			"password": []byte(login.Password)}, nil
	}
	return map[string][]byte{}, nil
}

// progress prints a line for each step that ends or task that is skipped, and the logs on request.
type progress struct {
	cmd      *cobra.Command
	build    string
	logs     bool
	activity *cli.Activity
}

func (p *progress) report(e local.Event) {
	line := ""
	switch {
	case e.State == "" && p.logs:
		line = fmt.Sprintf("[%s : %s] %s", e.Task, e.Step, e.Line)
	case e.State == local.Skipped:
		line = fmt.Sprintf("%s %s: Skipped: %s", p.build, e.Task, e.Because)
	case e.State == "" || e.Step == "":
		return
	case e.State == local.Running:
		text := "building " + p.build + ": " + e.Task + "/" + e.Step
		p.activity.Show(func() string { return text })
		return
	default:
		line = fmt.Sprintf("%s %s/%s: %s in %s", p.build, e.Task, e.Step, e.State,
			e.Took.Round(10*time.Millisecond))
	}
	p.activity.End()
	fmt.Fprintln(p.cmd.OutOrStdout(), text.Printable(line))
	p.activity = cli.Begin(p.cmd.ErrOrStderr(), false, "building "+p.build)
}

// PruneCommand returns `armature build prune`.
func PruneCommand() *cobra.Command {
	var isLocal bool
	cmd := &cobra.Command{
		Use:   "prune --local",
		Short: "Remove folders that interrupted local builds left in BuildKit",
		Long: `Prune removes the step folders that interrupted local builds left in BuildKit. It keeps the
folders of running builds and BuildKit's cache.`,
		Example: `  armature build prune --local`,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !isLocal {
				return cli.Usagef("--local is required: AgentBuilds remove their runs from a " +
					"cluster (spec.cleanupAfterBuild)")
			}
			return withDaemon(cmd.Context(), func(daemon *local.Daemon) error {
				bytes, err := daemon.Prune(cmd.Context())
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "%d MiB removed from %s\n", bytes>>20, daemon.Name)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&isLocal, "local", false, "of the BuildKit on this machine")
	return cmd
}
