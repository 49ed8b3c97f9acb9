package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/verify"
)

// verifyCommand is `armature verify`: manifests against a fresh render, and an
// artifact against the signature that it must carry.
func verifyCommand() *cobra.Command {
	var in cli.Input
	var r cli.Registry
	var t cli.Trust
	var vsa vsaFlags
	var format string
	var required bool
	var withTools bool
	var servers cli.ToolServers
	cmd := &cobra.Command{
		Use:   "verify PATH|-|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Fail if manifests differ from a fresh render, or an artifact is not signed",
		Long: `Verify renders manifests again and compares. Run it as the last step of a pipeline:
kustomize, for example, silently skips exec functions without --enable-exec.

With --tools, it renders nothing: it asks the tool servers that PATH names for their
tools, shows word by word where they differ from armature.lock, and fails if they do.

For an artifact or image in a registry it checks the signature, made by armature
push --sign or by cosign sign, in cosign's tag format or as a Sigstore bundle. A key
or an identity is required, by flags or in a policy file.

With --vsa, verify attaches a verification summary (VSA, SLSA v1) to what the policy
accepts: a signed attestation, in both forms, of the policy and the SLSA build level.`,
		Example: `  kustomize build --enable-alpha-plugins --enable-exec . | armature verify -c armature.yaml -
  armature verify rendered/ --findings github
  armature verify apps/ --tools
  armature verify oci://registry.example/fleet/agents:v1 --key cosign.pub
  armature verify oci://registry.example/fleet/agents:v1 --verify-policy policy.yaml -o yaml
  armature verify oci://registry.example/weather:v1 --verify-policy policy.yaml --vsa --vsa-key cosign.key --tlog-upload=false`,
		Args: cli.Args(cobra.ExactArgs(1)),
	}
	in.Flags(cmd)
	cmd.Flags().BoolVar(&required, "require-workloads", false, "fail if no workload opted in, as where its label is misspelt")
	cmd.Flags().BoolVar(&withTools, "tools", false, "ask the tool servers of PATH for their tools, and compare with the lock")
	servers.Flags(cmd)
	local := cli.FlagNames(cmd)
	r.Flags(cmd)
	t.Flags(cmd)
	vsa.flags(cmd)
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if strings.HasPrefix(given[0], oci.Scheme) {
			if err := cli.FlagsAmong(cmd, func(name string) bool { return !slices.Contains(local, name) }, "is for manifests and not for "+oci.Scheme+"…"); err != nil {
				return err
			}
			return verifyArtifact(cmd, given[0], &r, &t, &vsa, format)
		}
		if err := cli.FlagsAmong(cmd, func(name string) bool { return slices.Contains(local, name) }, "is for an artifact, "+oci.Scheme+"…"); err != nil {
			return err
		}
		if servers.Given() && !withTools {
			return cli.Usagef("--catalog-server, --token-file and --certificate-authority require --tools")
		}
		if withTools {
			return verifyTools(cmd, given[0], &in, &servers)
		}
		return verifyManifests(cmd, given[0], &in, required)
	}
	return cmd
}

func verifyManifests(cmd *cobra.Command, path string, in *cli.Input, required bool) error {
	shown := cli.Begin(cmd.ErrOrStderr(), in.Quiet, "reading "+path)
	defer shown.End()
	src, opt, findings, err := in.Open(cmd, path, "")
	if err != nil {
		return err
	}
	var stats render.Stats
	if !krm.Failed(findings) {
		var found []krm.Finding
		if found, stats, err = verifySource(cli.InterruptibleSource(cmd, shown.Reading("verify", src)), opt, in.Config); err != nil {
			return err
		}
		findings = append(findings, found...)
	}
	shown.End()
	if required && stats.Workloads == 0 && !krm.Failed(findings) {
		findings = append(findings, krm.Finding{Rule: "verify/no-workload", Severity: krm.Error, Place: krm.Place{File: path}, Message: "no workload opted in",
			Hint: "give a workload the label " + keys.LabelPrefix + "/inject: enabled, or that of the configured prefix"})
	}
	if err := in.Report(cmd, findings); err != nil {
		return err
	}
	switch {
	case !in.Talks():
	case stats.Workloads == 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "verified: no workload opted in; %s are as rendered\n", krm.Count(stats.Documents, "document"))
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "verified: %s in %s are as rendered\n", krm.Count(stats.Workloads, "workload"), krm.Count(stats.Documents, "document"))
	}
	return nil
}

// verifySource compares with a fresh render, of a ResourceList by its own configuration.
func verifySource(src render.Source, opt render.Options, named string) ([]krm.Finding, render.Stats, error) {
	list, err := resourceList(src, opt, named)
	if err != nil {
		return nil, render.Stats{}, err
	}
	if list == nil {
		return verify.Run(src, opt)
	}
	_, findings, stats, err := verify.List(list, opt)
	return findings, stats, err
}

// vsaFlags say whether a verdict is written down, and who signs it.
type vsaFlags struct {
	wanted bool
	cli.Signer
}

func (s *vsaFlags) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.wanted, "vsa", false, "attach a verification summary (VSA) to what the policy file accepts")
	s.Signer.Flags(cmd, "vsa-key")
}

func verifyArtifact(cmd *cobra.Command, given string, r *cli.Registry, t *cli.Trust, vsa *vsaFlags, format string) error {
	if err := vsa.With(cmd, vsa.wanted, "--vsa"); err != nil {
		return err
	}
	if vsa.wanted && t.File == "" {
		return cli.Usagef("--vsa names the policy that was satisfied: write it into a file, for --verify-policy")
	}
	policy, err := t.Read(r)
	if err != nil {
		return err
	}
	opt := r.Options(nil, "")
	ref, err := opt.Parse(given)
	if err != nil {
		return cli.Usage(err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), sign.MaxTime)
	defer cancel()
	found, err := remote.Get(ref, opt.Remote(ctx)...)
	if err != nil {
		return fmt.Errorf("verifying %s: %w", ref, err)
	}
	verified, err := vsa.judge(cmd.Context(), ref.Context().Digest(found.Digest.String()), policy)
	if err != nil {
		return err
	}
	if format != "text" {
		return cli.PrintObjects(cmd.OutOrStdout(), format, verified)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "signed by %s\n", verified.By)
	_, err = fmt.Fprintln(cmd.OutOrStdout(), oci.Scheme+verified.Ref)
	return err
}

// judge verifies, and attaches a summary on request.
func (s *vsaFlags) judge(ctx context.Context, artifact name.Digest, policy sign.Policy) (sign.Verified, error) {
	if !s.wanted {
		return sign.Verify(ctx, artifact, policy)
	}
	session, err := s.Session(ctx, policy.PlainHTTP)
	if err != nil {
		return sign.Verified{}, err
	}
	return session.Summarize(ctx, artifact, policy)
}
