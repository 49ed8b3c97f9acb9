package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/oci"
	"github.com/armature-dev/armature/render/sign"
	"github.com/armature-dev/armature/render/verify"
)

// verifyCommand is `armature verify`: manifests against a fresh render, and an
// artifact against the signature that it must carry.
func verifyCommand() *cobra.Command {
	var in input
	var r registryFlags
	var t trustFlags
	var vsa vsaFlags
	var format string
	cmd := &cobra.Command{
		Use:   "verify PATH|-|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Fail if manifests differ from a fresh render, or an artifact is not signed",
		Long: `Verify renders manifests again and compares. Run it as the last step of a pipeline:
kustomize, for example, silently skips exec functions without --enable-exec.

For an artifact or image in a registry it checks the signature, made by armature
push --sign or by cosign sign, in cosign's tag format or as a Sigstore bundle. A key
or an identity is required, by flags or in a policy file.

With --vsa, what the policy accepts gets a verification summary (VSA, SLSA v1): a
signed attestation that names the policy and the SLSA build level, in both forms.`,
		Example: `  kustomize build --enable-alpha-plugins --enable-exec . | armature verify -c armature.yaml -
  armature verify rendered/ --findings github
  armature verify oci://registry.example/fleet/agents:v1 --key cosign.pub
  armature verify oci://registry.example/fleet/agents:v1 --verify-policy policy.yaml -o yaml
  armature verify oci://registry.example/weather:v1 --verify-policy policy.yaml --vsa --vsa-key cosign.key --tlog-upload=false`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	in.flags(cmd)
	local := flagNames(cmd)
	r.flags(cmd)
	t.flags(cmd)
	vsa.flags(cmd)
	outputFlag(cmd, &format, "text", "text", "yaml", "json")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if strings.HasPrefix(given[0], oci.Scheme) {
			if err := flagsAmong(cmd, func(name string) bool { return !slices.Contains(local, name) }, "is for manifests and not for "+oci.Scheme+"…"); err != nil {
				return err
			}
			return verifyArtifact(cmd, given[0], &r, &t, &vsa, format)
		}
		if err := flagsAmong(cmd, func(name string) bool { return slices.Contains(local, name) }, "is for an artifact, "+oci.Scheme+"…"); err != nil {
			return err
		}
		return verifyManifests(cmd, given[0], &in)
	}
	return cmd
}

// flagNames lists the flags that a command has so far.
func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// flagsAmong fails where a flag is set that a call does not take, for a reason.
func flagsAmong(cmd *cobra.Command, taken func(name string) bool, reason string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Name != "help" && !taken(f.Name) {
			err = usageError{fmt.Errorf("--%s %s", f.Name, reason)}
		}
	})
	return err
}

func verifyManifests(cmd *cobra.Command, path string, in *input) error {
	shown := begin(cmd.ErrOrStderr(), in.quiet, "reading "+path)
	defer shown.end()
	src, opt, findings, err := in.open(cmd, path, "")
	if err != nil {
		return err
	}
	var stats render.Stats
	if !krm.Failed(findings) {
		var found []krm.Finding
		if found, stats, err = verifySource(interruptibleSource(cmd, shown.reading("verify", src)), opt); err != nil {
			return err
		}
		findings = append(findings, found...)
	}
	shown.end()
	if err := in.report(cmd, findings); err != nil {
		return err
	}
	if in.talks() {
		fmt.Fprintf(cmd.ErrOrStderr(), "verified: %s in %s are as rendered\n", count(stats.Workloads, "workload"), count(stats.Documents, "document"))
	}
	return nil
}

// verifySource compares with a fresh render, of a ResourceList by its own configuration.
func verifySource(src render.Source, opt render.Options) ([]krm.Finding, render.Stats, error) {
	list, err := resourceList(src, opt)
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
	signerFlags
}

func (s *vsaFlags) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.wanted, "vsa", false, "attach a verification summary (VSA) to what the policy file accepts")
	s.signerFlags.flags(cmd, "vsa-key")
}

func verifyArtifact(cmd *cobra.Command, given string, r *registryFlags, t *trustFlags, vsa *vsaFlags, format string) error {
	if err := vsa.with(cmd, vsa.wanted, "--vsa"); err != nil {
		return err
	}
	if vsa.wanted && t.file == "" {
		return usageError{errors.New("--vsa names the policy that was satisfied: write it into a file, for --verify-policy")}
	}
	policy, err := t.read(r)
	if err != nil {
		return err
	}
	opt := r.options(nil, "")
	ref, err := opt.Parse(given)
	if err != nil {
		return usageError{err}
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
		return printObjects(cmd.OutOrStdout(), format, verified)
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
	session, err := s.session(ctx, policy.PlainHTTP)
	if err != nil {
		return sign.Verified{}, err
	}
	return session.Summarize(ctx, artifact, policy)
}
