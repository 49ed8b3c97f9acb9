package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/pin"
	"github.com/armature-dev/armature/render/source"
)

func toolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "Lock the tools of tool servers, and compare them with the lock",
		Example: `  armature tools pin apps/
  armature tools verify apps/`,
	}
	cli.Group(cmd, toolsPinCommand(), toolsVerifyCommand())
	return cmd
}

// toolSides has the tools of a package's servers, as locked and as offered.
type toolSides struct {
	lock          *api.ImageLock
	before, after tools.Side
	changes       []tools.Change
	// invalid reports whether the definitions next to the lock do not match it. They then count as
	// unknown, and are written again.
	invalid bool
}

// open queries the tool servers that a package names, unless a finding is an error.
func (s *toolSides) open(cmd *cobra.Command, path string, in *cli.Input,
	servers *cli.ToolServers) (findings []finding.Finding, err error) {
	src, opt, findings, activity, err := in.Load(cmd, path, "", "reading")
	activity.End()
	if err != nil {
		return nil, err
	}
	offered, locked, found, err := servers.Ask(cmd, src, opt)
	findings = append(findings, found...)
	if err != nil || finding.Failed(findings) {
		return findings, err
	}
	folder := in.Folder
	if in.Lock != "" {
		folder = filepath.Dir(in.Lock)
	}
	if s.lock = opt.Lock; s.lock != nil {
		s.before.Locked = s.lock.Spec.Tools
	}
	known, wrong, err := source.FindTools(folder, s.lock)
	if err != nil {
		return findings, err
	}
	for i := range locked {
		if was, ok := tools.Find(s.before.Locked, locked[i].ToolServer); ok && locked[i].Protocol == "" {
			locked[i].Protocol = was.Protocol // a catalog does not know it
		}
	}
	s.before.Definitions, s.invalid = known, len(wrong) > 0
	s.after = tools.Side{Locked: locked, Definitions: offered}
	s.changes = tools.Compare(s.before, s.after)
	return append(findings, wrong...), nil
}

func toolsPinCommand() *cobra.Command {
	var in cli.Input
	var servers cli.ToolServers
	var format string
	cmd := &cobra.Command{
		Use:   "pin PATH",
		Short: "Write the tools that tool servers offer to armature.lock",
		Long: `Pin asks the tool servers that PATH names, MCPServers and RemoteMCPServers of kagent,
for their tools. It writes the digest of each tool's name, title, description, schemas and
annotations to armature.lock, and the definitions to armature.tools.lock beside it. It
shows the changes word by word. Commit both files once you have read the change.`,
		Example: `  armature tools pin apps/
  armature tools pin apps/ --catalog-server https://localhost:8443 --certificate-authority ca.crt`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if given[0] == "-" {
				return errNoLock
			}
			var s toolSides
			findings, err := s.open(cmd, given[0], &in, &servers)
			if err != nil {
				return err
			}
			if !s.invalid {
				if err := in.Report(cmd, findings); err != nil {
					return err
				}
			}
			if err := cli.PrintAs(cmd, format, tools.Text(s.changes),
				map[string]any{"tools": append([]tools.Change{}, s.changes...)}); err != nil {
				return err
			}
			file, err := lockOf(given[0], in.Lock)
			if err != nil {
				return err
			}
			after := api.ImageLockSpec{}
			if s.lock != nil {
				after = s.lock.Spec
			}
			after.Tools = s.after.Locked
			differ := len(s.changes) > 0 || s.invalid ||
				len(s.before.Definitions) != len(s.after.Definitions) ||
				!equality.Semantic.DeepEqual(s.before.Locked, after.Tools)
			return writeLock(cmd, file, s.lock, after, differ, false, "", func() error {
				if err := pin.WriteTools(cli.ToolsFile(file), s.after.Definitions); err != nil {
					return fmt.Errorf("writing %s: %w", cli.ToolsFile(file), err)
				}
				return nil
			})
		},
	}
	in.PackageFlags(cmd, "PATH")
	servers.Flags(cmd)
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func toolsVerifyCommand() *cobra.Command {
	var in cli.Input
	var servers cli.ToolServers
	cmd := &cobra.Command{
		Use:   "verify PATH",
		Short: "Fail if the tools of tool servers differ from armature.lock",
		Long: `Verify asks the tool servers that PATH names for their tools, compares them with
armature.lock, shows each difference word by word, and fails if there is one.`,
		Example: `  armature tools verify apps/`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			var s toolSides
			findings, err := s.open(cmd, given[0], &in, &servers)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprint(cmd.OutOrStdout(), tools.Text(s.changes)); err != nil {
				return err
			}
			place := finding.Place{File: cmp.Or(in.Lock, render.LockFile)}
			for _, of := range changed(s.changes) {
				place.Object = of
				findings = append(findings,
					finding.Finding{Rule: "verify/tools", Severity: finding.Error, Place: place,
						Message: "the tools of the server differ from the lock",
						Hint: "review the change, then run `armature tools pin` and commit " +
							"armature.lock"})
			}
			if err := in.Report(cmd, findings); err != nil {
				return err
			}
			if in.Talks() {
				fmt.Fprintf(cmd.ErrOrStderr(), "verified: %s offer the tools of %s\n",
					text.Count(len(s.after.Locked), "tool server"), place.File)
			}
			return nil
		},
	}
	in.Flags(cmd)
	servers.Flags(cmd)
	return cmd
}

// changed returns the servers of changes, without duplicates.
func changed(changes []tools.Change) (servers []finding.Ref) {
	for _, c := range changes {
		ref := finding.Ref{Kind: c.Server.Kind, Namespace: c.Server.Namespace, Name: c.Server.Name}
		if !slices.Contains(servers, ref) {
			servers = append(servers, ref)
		}
	}
	return servers
}
