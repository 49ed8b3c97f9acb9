package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/builds/layout"
)

// pushCommand is what push-step runs. It is in this program because its image is
// the one that a cluster with builds has anyway.
func pushCommand() *cobra.Command {
	p := layout.Push{Keychain: authn.DefaultKeychain}
	var urlFile, digestFile string
	cmd := &cobra.Command{
		Use:   "push-layout",
		Short: "Push an image from an OCI layout, by the digest that the build reported",
		Args: func(_ *cobra.Command, given []string) error {
			if len(given) > 0 {
				return usageError{fmt.Errorf("%q: flags alone are taken", given[0])}
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			if p.Dir == "" || p.Digest == "" || p.Image == "" {
				return usageError{errors.New("--layout, --digest and --image are needed")}
			}
			if err := p.Run(ctrl.SetupSignalHandler()); err != nil {
				return err
			}
			for file, text := range map[string]string{urlFile: p.Image, digestFile: p.Digest} {
				if file == "" {
					continue
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					return fmt.Errorf("writing a result: %w", err)
				}
			}
			fmt.Fprintf(os.Stderr, "pushed %s@%s\n", p.Image, p.Digest)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.Dir, "layout", "", "folder of the OCI layout")
	f.StringVar(&p.Digest, "digest", "", "digest of the image or index in it")
	f.StringVar(&p.Image, "image", "", "where to push it, as registry/repository:tag; the login is in $DOCKER_CONFIG/config.json")
	f.BoolVar(&p.PlainHTTP, "plain-http", false, "push to a registry without TLS")
	f.StringVar(&urlFile, "image-url-file", "", "file that receives the image's name; empty writes none")
	f.StringVar(&digestFile, "image-digest-file", "", "file that receives the image's digest; empty writes none")
	return cmd
}
