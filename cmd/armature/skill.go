package main

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/deliver/skill"
)

func skillCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "skill", Short: "Publish Agent Skills as images, and check them",
		Example: `  armature skill push skills/pdf-processing oci://registry.example/skills/pdf-processing:v1
  armature skill verify oci://registry.example/skills/pdf-processing:v1`}
	cli.Group(cmd, skillPushCommand(), skillVerifyCommand())
	return cmd
}

func skillPushCommand() *cobra.Command {
	var registry cli.Registry
	var signer cli.Signer
	signs := false
	cmd := &cobra.Command{
		Use:   "push FOLDER oci://REGISTRY/REPOSITORY:TAG",
		Short: "Check an Agent Skills folder, and store it as an image",
		Long: `Push checks FOLDER by the rules of Agent Skills (SKILL.md, its name and description)
and stores it as an ordinary image with one layer, which works as an image volume and
as a skill of kagent. Push prints the digest; equal folders have equal digests. It refuses
a folder that has a link or a device in it.

With --sign, push signs the image like cosign, and attaches provenance (SLSA v1): the
digests of the files, and the Git commit. The tag moves last.`,
		Example: `  armature skill push skills/pdf-processing oci://registry.example/skills/pdf-processing:v1
  armature skill push skills/pdf-processing oci://registry.example/skills/pdf-processing:v1 --sign --key cosign.key --tlog-upload=false`,
		Args: cli.ArtifactArgs(2, 1),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := signer.With(cmd, signs, "--sign"); err != nil {
				return err
			}
			s, err := skill.Read(given[0])
			if err != nil {
				return fmt.Errorf("%s: %w", given[0], err)
			}
			image, err := s.Image()
			if err != nil {
				return err
			}
			opt := oci.Options{Access: registry.Access}
			if signs {
				if opt.Attach, err = attachToSkill(cmd.Context(), s, given[0], &signer,
					registry.Access); err != nil {
					return err
				}
			}
			ref, err := oci.PushImage(cmd.Context(), given[1], image, opt)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "pushed the skill %s, %s, to %s\n", s.Name,
				text.Count(len(s.Files()), "file"), given[1])
			_, err = fmt.Fprintln(cmd.OutOrStdout(), ref)
			return err
		},
	}
	registry.Flags(cmd)
	signer.Flags(cmd)
	cmd.Flags().BoolVar(&signs, "sign", false, "sign the image and attach provenance")
	return cmd
}

// attachToSkill returns a function that signs a skill and attests its files and their commit.
func attachToSkill(ctx context.Context, s *skill.Skill, folder string, signer *cli.Signer,
	access oci.Access) (func(context.Context, name.Digest) error, error) {
	from, err := oci.Commit(folder, s.Files())
	if err != nil {
		return nil, err
	}
	made := sign.Render{Source: from.Source, Revision: from.Revision, Inputs: s.Files()}
	provenance := sign.NewProvenance(made)
	provenance.BuildDefinition.BuildType, provenance.BuildDefinition.InternalParameters =
		keys.SkillBuildType, nil
	session, err := signer.Session(ctx, access)
	if err != nil {
		return nil, err
	}
	return session.Record(provenance), nil
}

func skillVerifyCommand() *cobra.Command {
	var registry cli.Registry
	var trust cli.Trust
	cmd := &cobra.Command{
		Use:   "verify oci://REGISTRY/REPOSITORY:TAG",
		Short: "Check that an image is a skill that is safe to mount, and its signature",
		Long: `Verify reads the image and writes nothing. It refuses what push refuses in a folder:
links, devices, set-uid files, names that lead out of the folder, more than one layer,
more than 1,000 files or 64 MiB, and a SKILL.md that breaks the rules of Agent Skills.

With a key, an identity or a policy file, verify checks the signature first. It prints the
reference with the digest that it checked.`,
		Example: `  armature skill verify oci://registry.example/skills/pdf-processing:v1
  armature skill verify oci://registry.example/skills/pdf-processing:v1 --verify-policy policy.yaml`,
		Args: cli.ArtifactArgs(1, 0),
		RunE: func(cmd *cobra.Command, given []string) error {
			policy, err := trust.Demanded(&registry)
			if err != nil {
				return err
			}
			opt := oci.Options{Access: registry.Access, Verify: cli.Check(policy)}
			ref, err := opt.Parse(given[0])
			if err != nil {
				return err
			}
			digest, err := oci.Resolve(cmd.Context(), ref.Name(), "", opt)
			if err != nil {
				return err
			}
			image := ref.Context().Digest(digest)
			s, err := sign.CheckSkill(cmd.Context(), image, "", sign.Policy{Access: opt.Access})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "verified the skill %s: %s\n", s.Name,
				text.Shown(s.Description))
			_, err = fmt.Fprintln(cmd.OutOrStdout(), image)
			return err
		},
	}
	registry.Flags(cmd)
	trust.Flags(cmd)
	return cmd
}
