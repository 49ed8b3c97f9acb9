package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/builds/registry/layout"
)

// pushCommand is what push-step runs. It is in this program because its image is
// the one that a cluster with builds has anyway.
func pushCommand() *cobra.Command {
	p := layout.Push{Keychain: authn.DefaultKeychain}
	var digests, platforms, cacheImage, urlFile, digestFile, platformsFile string
	cmd := &cobra.Command{
		Use: "push-layout",
		Short: "Push an image from an OCI layout, or those of several platforms as an index, by " +
			"the digests that the build reported",
		Args: flagsAlone,
		RunE: func(*cobra.Command, []string) error {
			if p.Dir == "" || digests == "" || p.Image == "" {
				return usageError{errors.New("--layout, --digest and --image are required")}
			}
			if strings.HasPrefix(digests, "/") {
				text, err := os.ReadFile(digests)
				if err != nil {
					return fmt.Errorf("reading the digest: %w", err)
				}
				digests = string(text)
			}
			p.Digests = strings.Split(digests, ",")
			if platforms != "" {
				p.Platforms = strings.Split(platforms, ",")
			}
			ctx := ctrl.SetupSignalHandler()
			pushed, err := p.Run(ctx)
			if err != nil {
				return err
			}
			var each []string
			for i, platform := range p.Platforms {
				each = append(each, platform+"="+p.Digests[i])
			}
			for file, text := range map[string]string{urlFile: p.Image, digestFile: pushed,
				platformsFile: strings.Join(each, ",")} {
				if file == "" || text == "" {
					continue
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					return fmt.Errorf("writing a result: %w", err)
				}
			}
			fmt.Fprintf(os.Stderr, "pushed %s@%s\n", p.Image, pushed)
			if cacheImage != "" {
				if err := p.TagCache(ctx, pushed, cacheImage); err != nil {
					fmt.Fprintf(os.Stderr, "the next build has no cache: %v\n", err)
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.Dir, "layout", "",
		"folder of the OCI layout; with --platforms it holds a layout for each, such as linux-arm64")
	f.StringVar(&digests, "digest", "",
		"digest of the image or index in the layout; with --platforms the digests of the images "+
			"in the same order, separated by commas; or the absolute path of a file with "+
			"the digests")
	f.StringVar(&platforms, "platforms", "",
		"platforms of the images, such as linux/amd64,linux/arm64; several are pushed as an index")
	f.StringVar(&p.Image, "image", "",
		"where to push it, as registry/repository:tag; the login is in $DOCKER_CONFIG/config.json")
	f.StringVar(&cacheImage, "cache-image", "",
		"tag in the repository of --image for the layer cache of the next build; the push "+
			"succeeds even if this tag cannot be written")
	f.BoolVar(&p.PlainHTTP, "plain-http", false, "push to a registry without TLS")
	f.StringVar(&urlFile, "image-url-file", "",
		"file that receives the image's name; empty writes none")
	f.StringVar(&digestFile, "image-digest-file", "",
		"file that receives the image's digest; empty writes none")
	f.StringVar(&platformsFile, "platform-digests-file", "",
		"file that receives PLATFORM=DIGEST for each of --platforms, separated by commas; empty "+
			"writes none")
	return cmd
}
