package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/pin"
)

// pinning is `armature pin`.
type pinning struct {
	cli.Input
	cli.Registry
	cli.Trust
	platform     string
	check, steps bool
	format       string
}

func pinCommand() *cobra.Command {
	var p pinning
	cmd := &cobra.Command{
		Use:   "pin PATH",
		Short: "Resolve the images of a package to digests, in armature.lock",
		Long: `Pin renders PATH and asks the registries for the digest of every image of workloads and of
injected sidecars. It writes the digests to armature.lock, which every render applies
without a network. Pinning again updates the lock and shows which tags have moved. With
--check, pin only shows them, and fails if the lock is out of date.

Before pin writes a new digest of a mounted skill, it checks the skill like armature skill
verify. With --key or --verify-policy, every image must be signed, including those that
PATH names by digest.

armature pin-builds writes the images of finished AgentBuilds to the lock, and
armature tools pin the tools of tool servers.`,
		Example: `  armature pin apps/
  armature pin apps/ --check
  armature pin apps/ --platform linux/arm64 --verify-policy policy.yaml`,
		Args: cli.Args(cobra.ExactArgs(1)),

		RunE: func(cmd *cobra.Command, given []string) error {
			switch {
			case given[0] == "-":
				return errNoLock
			case p.platform != "":
				if platform, err := v1.ParsePlatform(p.platform); err != nil || platform.OS == "" ||
					platform.Architecture == "" {
					return cli.Usagef("--platform %q: write os/arch or os/arch/variant", p.platform)
				}
			}
			return p.run(cmd, given[0])
		},
	}
	p.PackageFlags(cmd, "PATH")
	p.Registry.Flags(cmd)
	p.Trust.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&p.platform, "platform", "",
		"resolve to the image of os/arch[/variant] (default: the platform in the lock, or "+
			"all platforms)")
	f.BoolVar(&p.check, "check", false, "write nothing; fail if the lock is out of date")
	f.BoolVar(&p.steps, "steps", false, "resolve the images of build steps in PATH as well")
	cli.OutputFlag(cmd, &p.format, "text", "json", "yaml")
	return cmd
}

// errNoLock is the error of a command that writes a lock and was given standard input.
var errNoLock = cli.Usagef("standard input has no lock: name the folder of the package")

// lockOf returns the path of a package's lock, or the path that a flag names.
func lockOf(path, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	root, err := cli.RootOf(path)
	return filepath.Join(root, render.LockFile), err
}

func (p *pinning) run(cmd *cobra.Command, path string) error {
	src, opt, _, activity, err := p.Load(cmd, path, "", "rendering")
	if err != nil {
		return err
	}
	defer activity.End()
	file, err := lockOf(path, p.Lock)
	if err != nil {
		return err
	}
	before := api.ImageLockSpec{}
	if opt.Lock != nil {
		before = opt.Lock.Spec
	}
	after := api.ImageLockSpec{Builds: before.Builds, Tools: before.Tools, Cards: before.Cards}
	found, findings, err := pin.Images(src, opt, after.Builds, p.steps)
	activity.End()
	if err != nil {
		return err
	}
	if err := p.Report(cmd, findings); err != nil {
		return err
	}
	for _, b := range after.Builds {
		found.Digested = append(found.Digested, b.Image)
	}
	if after.Images, err = p.resolve(cmd, found, before.Images); err != nil {
		return err
	}
	changes := pin.Changes(before, after)
	if err := printPins(cmd, p.format, changes, nil); err != nil {
		return err
	}
	return writeLock(cmd, file, opt.Lock, after, len(changes) > 0, p.check, "armature pin "+path, nil)
}

// writeLock writes a changed lock, after first has written the files that belong to it. With check,
// it fails instead and names the command that writes the lock.
func writeLock(cmd *cobra.Command, file string, before *api.ImageLock, after api.ImageLockSpec,
	changed, check bool, command string, first func() error) error {
	size := text.Count(len(after.Images), "image") + ", " + text.Count(len(after.Builds), "build")
	if len(after.Tools) > 0 {
		size += ", " + text.Count(len(after.Tools), "tool server")
	}
	switch {
	case !changed && (before != nil || check):
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is up to date: %s\n", file, size)
		return nil
	case check:
		fmt.Fprintf(cmd.ErrOrStderr(), "armature: %s is out of date: run `%s`\n", file, command)
		return cli.ErrFindings
	}
	if first != nil {
		if err := first(); err != nil {
			return err
		}
	}
	if err := pin.Write(file, before, after); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s: %s\n", file, size)
	return nil
}

// resolve queries the registries for the digests and shows its progress.
func (p *pinning) resolve(cmd *cobra.Command, found pin.Found,
	before []api.LockedImage) ([]api.LockedImage, error) {
	policy, err := p.Demanded(&p.Registry)
	if err != nil {
		return nil, err
	}
	opt := oci.Options{Access: p.Access, Verify: cli.Check(policy)}
	var resolved atomic.Int64
	activity := cli.Begin(cmd.ErrOrStderr(), false, "resolving")
	defer activity.End()
	activity.Show(func() string {
		return fmt.Sprintf("resolving: %d of %s", resolved.Load(),
			text.Count(len(found.Open), "image"))
	})
	return pin.Resolve(cmd.Context(), found, before, p.platform, opt, func() { resolved.Add(1) })
}

// printPins prints the changes of a lock. JSON and YAML also have the values of more.
func printPins(cmd *cobra.Command, format string, changes []pin.Change, more map[string]any) error {
	var lines strings.Builder
	for _, c := range changes {
		if c.Build != "" {
			c.Image = "build " + c.Build
		}
		fmt.Fprintln(&lines, c.Image)
		if c.Was != "" {
			fmt.Fprintln(&lines, "  - "+c.Was)
		}
		if c.Is != "" {
			fmt.Fprintln(&lines, "  + "+c.Is)
		}
	}
	value := map[string]any{"changes": append([]pin.Change{}, changes...)}
	maps.Copy(value, more)
	return cli.PrintAs(cmd, format, lines.String(), value)
}
