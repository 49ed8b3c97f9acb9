package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/rest"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/pin"
	"github.com/armature-dev/armature/render/source"
)

// pinning is `armature pin`.
type pinning struct {
	cli.Manifests
	cli.Registry
	cli.Trust
	cli.Cluster
	platform   string
	check      bool
	fromBuilds bool
	steps      bool
	tools      bool
	servers    cli.ToolServers
	format     string
	committing
}

func pinCommand() *cobra.Command {
	var p pinning
	cmd := &cobra.Command{
		Use:   "pin PATH",
		Short: "Resolve the images of a package to digests, in armature.lock",
		Long: `Pin renders PATH and asks the registries for the digest of every image that runs:
those of the workloads and of injected sidecars. The digests are in armature.lock,
which every render applies, without a network. Pinning again brings the lock up to
date and shows which tags have moved; --check only shows it, and fails.

A skill that a workload mounts is checked before a new digest of it is written, as by
armature skill verify.

With --tools, pin asks the tool servers that PATH names, MCPServers and
RemoteMCPServers of kagent, for their tools, and writes the digest of each tool's
name, title, description, schemas and annotations to the lock, and the definitions
to armature.tools.lock beside it. It shows what changed word by word. Commit both
files once you have read the change.

With --verify-policy, or the flags that replace it, every image has to be signed:
those that PATH names by digest and those of builds as well.

With --from-builds --commit, pin writes the images of finished builds to the lock on
the branch of the remote origin, as one commit that changes only their lines, and
leaves the working tree alone; with --pull-request BASE, it writes a branch of its own
and opens a pull request. An image that a person took out of the lock again, by a
revert or by closing the pull request, is held back, and so is one whose source commit
is older than that of the lock; --accept lifts that. With --via api, the forge makes
the commit, by the account of the token in GITHUB_TOKEN, GITLAB_TOKEN or GITEA_TOKEN,
so that GitHub signs it.`,
		Example: `  armature pin apps/
  armature pin apps/ --check
  armature pin apps/ --platform linux/arm64 --verify-policy policy.yaml
  armature pin apps/ --tools
  armature pin apps/ --tools --catalog-server https://localhost:8443 --certificate-authority ca.crt
  armature pin apps/ --from-builds -n team1
  armature pin apps/ --from-builds -n team1 --commit --signing-key bot.key --verify-policy policy.yaml
  armature pin apps/ --from-builds -n team1 --commit --via api
  armature pin apps/ --from-builds -n team1 --pull-request main`,
		Args: cli.Args(cobra.ExactArgs(1)),

		RunE: func(cmd *cobra.Command, given []string) error {
			switch {
			case given[0] == "-":
				return cli.Usagef("the lock is beside a package: name its folder")
			case p.platform != "":
				if platform, err := v1.ParsePlatform(p.platform); err != nil || platform.OS == "" || platform.Architecture == "" {
					return cli.Usagef("--platform %q: write os/arch or os/arch/variant", p.platform)
				}
			case p.All && !p.fromBuilds:
				return cli.Usagef("--all-namespaces requires --from-builds")
			case p.servers.Given() && !p.tools:
				return cli.Usagef("--catalog-server, --token-file and --certificate-authority require --tools")
			case p.tools && p.given():
				return cli.Usagef("--tools excludes --commit and --pull-request: a person has to read what changed")
			}
			if err := p.checkCommit(); err != nil {
				return err
			}
			if p.given() {
				return p.runCommit(cmd, given[0])
			}
			return p.run(cmd, given[0])
		},
	}
	p.Manifests.Flags(cmd, "PATH")
	p.Registry.Flags(cmd)
	p.Trust.Flags(cmd)
	p.Cluster.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&p.platform, "platform", "", "resolve to the image of os/arch[/variant] (default: what the lock says, or all platforms)")
	f.BoolVar(&p.check, "check", false, "change nothing; fail where the lock is out of date")
	f.BoolVar(&p.fromBuilds, "from-builds", false, "take the images of finished AgentBuilds from the cluster")
	p.AllFlag(cmd)
	f.BoolVar(&p.steps, "steps", false, "resolve the images of build steps in PATH as well")
	f.BoolVar(&p.tools, "tools", false, "ask the tool servers of PATH for their tools, and compare with the lock")
	p.servers.Flags(cmd)
	f.String("api-group", buildapi.DefaultGroup, "API group of AgentBuild")
	cli.OutputFlag(cmd, &p.format, "text", "json", "yaml")
	p.committing.flags(cmd)
	return cmd
}

func (p *pinning) run(cmd *cobra.Command, path string) error {
	shown := cli.Begin(cmd.ErrOrStderr(), false, "reading "+path)
	defer shown.End()
	src, opt, findings, err := p.Manifests.Open(cmd, path, "")
	if err != nil {
		return err
	}
	if krm.Failed(findings) {
		shown.End()
		return p.Report(cmd, findings)
	}
	file := p.Lock
	if file == "" {
		root, err := cli.RootOf(path)
		if err != nil {
			return err
		}
		file = filepath.Join(root, render.LockFile)
	}
	before := api.ImageLockSpec{}
	if opt.Lock != nil {
		before = opt.Lock.Spec
	}
	after := api.ImageLockSpec{Builds: before.Builds, Tools: before.Tools, Cards: before.Cards}
	if p.fromBuilds {
		if after.Builds, err = p.builds(cmd, before.Builds); err != nil {
			return err
		}
	}
	found, findings, err := pin.Images(shown.Reading("rendering", src), opt, after.Builds, p.steps)
	shown.End()
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
	var learnt learntTools
	if p.tools {
		if learnt, err = p.askTools(cmd, src, opt, file); err != nil {
			return err
		}
		after.Tools = learnt.after.Locked
	}
	changes := pin.Changes(before, after)
	if err := p.print(cmd.OutOrStdout(), changes, learnt.changes); err != nil {
		return err
	}
	size := krm.Count(len(after.Images), "image") + ", " + krm.Count(len(after.Builds), "build")
	if len(after.Tools) > 0 {
		size += ", " + krm.Count(len(after.Tools), "tool server")
	}
	switch {
	case len(changes) == 0 && !learnt.differ && (opt.Lock != nil || p.check):
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is up to date: %s\n", file, size)
		return nil
	case p.check:
		fmt.Fprintf(cmd.ErrOrStderr(), "armature: %s is out of date: run `armature pin %s`\n", file, path)
		return cli.ErrFindings
	}
	if p.tools {
		if err := pin.WriteTools(cli.ToolsFile(file), learnt.after.Definitions); err != nil {
			return fmt.Errorf("writing %s: %w", cli.ToolsFile(file), err)
		}
	}
	if err := pin.Write(file, opt.Lock, after); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s: %s\n", file, size)
	return nil
}

// learntTools is what tool servers offer, beside what the lock has.
type learntTools struct {
	after   tools.Side
	changes []tools.Change
	// differ says that the lock or its definitions have to be written.
	differ bool
}

// askTools asks the tool servers. Definitions beside the lock that are not those of the lock
// count as unknown, and are written again.
func (p *pinning) askTools(cmd *cobra.Command, src render.Source, opt render.Options, file string) (learnt learntTools, err error) {
	kubeconfig := func() (*rest.Config, error) { return p.Loader().ClientConfig() }
	offered, locked, findings, err := p.servers.Ask(cmd, src, opt, kubeconfig)
	if err != nil {
		return learnt, err
	}
	if err := p.Report(cmd, findings); err != nil {
		return learnt, err
	}
	var before tools.Side
	if opt.Lock != nil {
		before.Locked = opt.Lock.Spec.Tools
	}
	known, wrong, err := source.FindTools(filepath.Dir(file), opt.Lock)
	if err != nil {
		return learnt, err
	}
	before.Definitions = known
	for i := range locked {
		if was, ok := tools.Find(before.Locked, locked[i].ToolServer); ok && locked[i].Protocol == "" {
			locked[i].Protocol = was.Protocol // a catalog does not say
		}
	}
	learnt.after = tools.Side{Locked: locked, Definitions: offered}
	learnt.changes = tools.Compare(before, learnt.after)
	learnt.differ = len(learnt.changes) > 0 || len(wrong) > 0 || len(known) != len(offered) || !equality.Semantic.DeepEqual(before.Locked, locked)
	return learnt, nil
}

// resolve asks the registries, and shows how far it is.
func (p *pinning) resolve(cmd *cobra.Command, found pin.Found, before []api.LockedImage) ([]api.LockedImage, error) {
	opt := oci.Options{PlainHTTP: p.PlainHTTP}
	if p.Given() {
		policy, err := p.Read(&p.Registry)
		if err != nil {
			return nil, err
		}
		opt.Verify = cli.Check(policy)
	}
	var resolved atomic.Int64
	shown := cli.Begin(cmd.ErrOrStderr(), false, "resolving")
	defer shown.End()
	shown.Show(func() string {
		return fmt.Sprintf("resolving: %d of %s", resolved.Load(), krm.Count(len(found.Open), "image"))
	})
	return pin.Resolve(cmd.Context(), found, before, p.platform, opt, func() { resolved.Add(1) })
}

// builds gives the images of finished AgentBuilds. What the lock has of namespaces
// that are not asked stays.
func (p *pinning) builds(cmd *cobra.Command, before []api.LockedBuild) (locked []api.LockedBuild, err error) {
	c, err := connect(cmd, &p.Cluster)
	if err != nil {
		return nil, err
	}
	if !p.All {
		locked = slices.DeleteFunc(slices.Clone(before), func(b api.LockedBuild) bool { return b.Namespace == c.Namespace })
	}
	list, err := c.List(cmd.Context())
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		b := &list.Items[i]
		if built, ready := writeback.Of(b); ready {
			locked = append(locked, built.LockedBuild)
		} else if strings.Contains(b.Status.BuiltImage, "@sha256:") {
			locked = append(locked, api.LockedBuild{Namespace: b.Namespace, Name: b.Name, Image: b.Status.BuiltImage})
		}
	}
	slices.SortFunc(locked, func(a, b api.LockedBuild) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return locked, nil
}

func (p *pinning) print(out io.Writer, changes []pin.Change, ofTools []tools.Change) error {
	if p.format != "text" {
		answer := map[string]any{"changes": append([]pin.Change{}, changes...)}
		if p.tools {
			answer["tools"] = append([]tools.Change{}, ofTools...)
		}
		return cli.PrintObjects(out, p.format, answer)
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
	_, err := io.WriteString(out, tools.Text(ofTools))
	return err
}
