package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/skill"
)

func skillCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "skill", Short: "Publish Agent Skills as images",
		Example: "  armature skill push skills/pdf-processing oci://registry.example/skills/pdf-processing:v1"}
	cmd.AddCommand(skillPushCommand())
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
as a skill of kagent. The same folder has the same digest, which is printed. A folder
with a link or a device in it is refused.

With --sign, the image is signed like by cosign; the tag moves when it is.`,
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
			opt := oci.Options{PlainHTTP: registry.PlainHTTP}
			if signs {
				session, err := signer.Session(cmd.Context(), registry.PlainHTTP)
				if err != nil {
					return err
				}
				opt.Attach = session.Sign
			}
			ref, err := oci.PushImage(cmd.Context(), given[1], image, opt)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "pushed the skill %s, %s, to %s\n", s.Name, krm.Count(s.Files(), "file"), given[1])
			_, err = fmt.Fprintln(cmd.OutOrStdout(), ref)
			return err
		},
	}
	registry.Flags(cmd)
	signer.Flags(cmd, "key")
	cmd.Flags().BoolVar(&signs, "sign", false, "sign the image")
	return cmd
}
