package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/local/tcpproxy"
	"github.com/armature-dev/armature/builds/registry/layout"
	"github.com/armature-dev/armature/builds/source/archive"
)

// stepCommands returns the commands that build steps run. They are part of this program because
// every cluster with builds has its image.
func stepCommands() []*cobra.Command {
	return []*cobra.Command{pushCommand(), basesCommand(), packCommand(), unpackCommand(),
		forwardCommand(), connectCommand()}
}

// stepCommand returns a command that takes only flags, some of which are required.
func stepCommand(use, short string, run func() error, required ...string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: flagsAlone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range required {
				if cmd.Flag(name).Value.String() == "" {
					last := len(required) - 1
					return usagef("--%s and --%s are required",
						strings.Join(required[:last], ", --"), required[last])
				}
			}
			return run()
		}}
}

// writeResult writes a result of a step if it was asked for.
func writeResult(file, text string) error {
	if file == "" || text == "" {
		return nil
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing a result: %w", err)
	}
	return nil
}

// pushCommand returns the command of push-step.
func pushCommand() *cobra.Command {
	p := layout.Push{Keychain: authn.DefaultKeychain}
	var digests, platforms, cacheImage, urlFile, digestFile, platformsFile string
	cmd := stepCommand("push-layout",
		"Push an image from an OCI layout, or those of several platforms as an index, by "+
			"the digests that the build reported",
		func() error {
			if strings.HasPrefix(digests, "/") {
				text, err := os.ReadFile(digests)
				if err != nil {
					return fmt.Errorf("reading the digest: %w", err)
				}
				digests = string(text)
			}
			p.Digests, p.Platforms = strings.Split(digests, ","), splitList(platforms)
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
				if err := writeResult(file, text); err != nil {
					return err
				}
			}
			fmt.Fprintf(os.Stderr, "pushed %s@%s\n", p.Image, pushed)
			if cacheImage != "" {
				if err := p.TagCache(ctx, pushed, cacheImage); err != nil {
					fmt.Fprintf(os.Stderr, "the next build has no cache: %v\n", err)
				}
			}
			return nil
		}, "layout", "digest", "image")
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

// basesCommand returns the command of the last container of buildkit-build-step.
func basesCommand() *cobra.Command {
	var record, resultFile string
	cmd := stepCommand("base-images",
		"Report the images, by digest, that BuildKit recorded as sources of a build",
		func() error {
			file, err := os.Open(record)
			if err != nil {
				return fmt.Errorf("opening BuildKit's record of the build: %w", err)
			}
			defer file.Close()
			images, err := attest.ReadBaseImages(file)
			if err != nil {
				return err
			}
			text := attest.FormatBaseImages(images)
			if err := os.WriteFile(resultFile, []byte(text), 0o644); err != nil {
				return fmt.Errorf("writing a result: %w", err)
			}
			for _, image := range images {
				fmt.Fprintf(os.Stderr, "used %s\n", image)
			}
			if _, err := attest.ParseBaseImages(text); err != nil {
				fmt.Fprintf(os.Stderr,
					"warning: %v, so none is reported: an attested mode then fails\n", err)
			}
			return nil
		}, "record", "result-file")
	f := cmd.Flags()
	f.StringVar(&record, "record", "",
		"file with the provenance that BuildKit's history has of the build")
	f.StringVar(&resultFile, "result-file", "",
		"file that receives the images, each NAME@DIGEST, separated by spaces")
	return cmd
}

// packCommand returns the command of pack-source-step.
func packCommand() *cobra.Command {
	var p archive.Pack
	var digestFile string
	cmd := stepCommand("pack-source",
		"Pack a source as a tar for later tasks of a build, and report its digest",
		func() error {
			digest, err := p.Run()
			if err == nil {
				err = writeResult(digestFile, digest)
			}
			if err == nil {
				fmt.Fprintf(os.Stderr, "packed the source as %s\n", digest)
			}
			return err
		}, "from", "digest-file")
	f := cmd.Flags()
	f.StringVar(&p.From, "from", "", "folder of the source")
	f.StringVar(&p.To, "to", "", "folder that receives the tar; empty is the folder of the source")
	f.BoolVar(&p.KeepGit, "keep-git", false, "pack the folders .git as well")
	f.StringVar(&digestFile, "digest-file", "", "file that receives the digest")
	return cmd
}

// unpackCommand returns the command of the first container of a step with sourceFrom.
func unpackCommand() *cobra.Command {
	var u archive.Unpack
	cmd := stepCommand("unpack-source",
		"Unpack a source that pack-source packed, if its digest matches",
		func() error {
			if err := u.Run(); err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "unpacked the source %s\n", u.Digest)
			return nil
		}, "from", "to", "digest")
	f := cmd.Flags()
	f.StringVar(&u.From, "from", "", "folder that has the tar")
	f.StringVar(&u.Digest, "digest", "", "digest of the tar: sha256: and 64 hexadecimal digits")
	f.StringVar(&u.To, "to", "", "empty folder that receives the source")
	return cmd
}

// forwardCommand forwards connections for builds on a machine whose BuildKit has its own loopback
// address: `armature build run --local` runs it there, with a socket that leads back to its
// registry and its sources. If the address is in use, the loopback is the same and needs no
// forwarding.
func forwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "forward ADDRESS SOCKET",
		Short: "Pass TCP connections to ADDRESS on to a Unix socket",
		Args: func(_ *cobra.Command, given []string) error {
			if len(given) != 2 {
				return usagef("an address and a socket are required")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			listener, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", given[0])
			if errors.Is(err, syscall.EADDRINUSE) {
				fmt.Fprintln(cmd.OutOrStdout(), "in use")
				return nil
			} else if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "listening")
			return tcpproxy.Serve(listener, func() (net.Conn, error) {
				return new(net.Dialer).DialContext(cmd.Context(), "unix", given[1])
			})
		},
	}
}

// connectCommand connects to an address, or listens on one. `armature check --cluster=probe` uses
// it to find out whether a network enforces NetworkPolicies. A policy may take a moment to apply to
// a new pod, so only the last attempt decides the exit status: 1 if it did not connect.
func connectCommand() *cobra.Command {
	var listen string
	var lasting time.Duration
	cmd := &cobra.Command{
		Use:    "connect ADDRESS",
		Short:  "Connect to an address by TCP, to find out whether a network lets it through",
		Hidden: true,
		Args: func(_ *cobra.Command, given []string) error {
			if (len(given) == 1) == (listen != "") {
				return usagef("an address to connect to, or --listen, is required")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			if listen != "" {
				return acceptAll(cmd.Context(), listen)
			}
			dialer := net.Dialer{Timeout: 2 * time.Second}
			for end := time.Now().Add(lasting); ; time.Sleep(time.Second) {
				conn, err := dialer.DialContext(cmd.Context(), "tcp", given[0])
				if err == nil {
					err = conn.Close()
				}
				if time.Now().After(end) {
					return err
				}
			}
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "listen address, whose connections are closed")
	cmd.Flags().DurationVar(&lasting, "for", 0, "how long to repeat it; the last attempt counts")
	return cmd
}

func acceptAll(ctx context.Context, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	for err == nil {
		var conn net.Conn
		if conn, err = listener.Accept(); err == nil {
			_ = conn.Close()
		}
	}
	return fmt.Errorf("listening: %w", err)
}
