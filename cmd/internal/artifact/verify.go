package artifact

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
)

func verifyCommand() *cobra.Command {
	var r cli.Registry
	var t cli.Trust
	var format string
	cmd := &cobra.Command{
		Use:   "verify oci://REGISTRY/REPOSITORY:TAG",
		Short: "Fail if an artifact or image is not signed as required",
		Long: `Verify checks the signature of an artifact or image, made by armature artifact push
--sign or by cosign sign, in cosign's tag format or as a Sigstore bundle. A key or an
identity is required, by flags or in a policy file.`,
		Example: `  armature artifact verify oci://registry.example/fleet/agents:v1 --key cosign.pub
  armature artifact verify oci://registry.example/fleet/agents:v1 --verify-policy policy.yaml -o yaml`,
		Args: cli.ArtifactArgs(1, 0),
		RunE: func(cmd *cobra.Command, given []string) error {
			policy, err := t.Read(&r)
			if err != nil {
				return err
			}
			return judge(cmd, given[0], policy, format, sign.Verify)
		},
	}
	r.Flags(cmd)
	t.AllFlags(cmd)
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func attestCommand() *cobra.Command {
	var r cli.Registry
	var signer cli.Signer
	var file, format string
	cmd := &cobra.Command{
		Use:   "attest oci://REGISTRY/REPOSITORY:TAG --verify-policy FILE",
		Short: "Verify an artifact or image by a policy, and attach the verdict, signed",
		Long: `Attest verifies an artifact or image like armature artifact verify. If the policy accepts
it, attest attaches a verification summary (VSA, SLSA v1) as a Sigstore bundle: a signed
attestation of the policy and the SLSA build level.`,
		Example: `  armature artifact attest oci://registry.example/weather:v1 --verify-policy policy.yaml --key cosign.key --tlog-upload=false`,
		Args:    cli.ArtifactArgs(1, 0),
		RunE: func(cmd *cobra.Command, given []string) error {
			if file == "" {
				return cli.Usagef("a summary needs a policy: name its file with --verify-policy")
			}
			policy, err := (&cli.Trust{File: file}).Read(&r)
			if err != nil {
				return err
			}
			return judge(cmd, given[0], policy, format,
				func(ctx context.Context, artifact name.Digest,
					policy sign.Policy) (v sign.Verified, err error) {
					session, err := signer.Session(ctx, policy.Access)
					if err != nil {
						return v, err
					}
					return session.Summarize(ctx, artifact, policy)
				})
		},
	}
	r.Flags(cmd)
	cli.PolicyFlag(cmd, &file)
	signer.Flags(cmd)
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

// judge finds an artifact, verifies it and prints who signed it.
func judge(cmd *cobra.Command, given string, policy sign.Policy, format string,
	verify func(context.Context, name.Digest, sign.Policy) (sign.Verified, error)) error {
	ref, err := policy.Parse(given)
	if err != nil {
		return cli.Usage(err)
	}
	digest, err := oci.Resolve(cmd.Context(), ref.Name(), "", oci.Options{Access: policy.Access})
	if err != nil {
		return err
	}
	verified, err := verify(cmd.Context(), ref.Context().Digest(digest), policy)
	if err != nil {
		return err
	}
	return cli.PrintArtifact(cmd, format, verified.Ref, verified,
		fmt.Sprintf("signed by %s\n", verified.By))
}
