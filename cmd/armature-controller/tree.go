package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/source/tree"
)

// packCommand is what pack-source-step runs.
func packCommand() *cobra.Command {
	var p tree.Pack
	var digestFile string
	cmd := &cobra.Command{
		Use:   "pack-source",
		Short: "Pack a source as a tar for later tasks of a build, and report its digest",
		Args:  flagsAlone,
		RunE: func(*cobra.Command, []string) error {
			if p.From == "" || digestFile == "" {
				return usageError{errors.New("--from and --digest-file are required")}
			}
			digest, err := p.Run()
			if err != nil {
				return err
			}
			if err := os.WriteFile(digestFile, []byte(digest), 0o644); err != nil {
				return fmt.Errorf("writing a result: %w", err)
			}
			fmt.Fprintf(os.Stderr, "packed the source as %s\n", digest)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.From, "from", "", "folder of the source")
	f.StringVar(&p.To, "to", "", "folder that receives the tar; empty is the folder of the source")
	f.BoolVar(&p.KeepGit, "keep-git", false, "pack the folders .git as well")
	f.StringVar(&digestFile, "digest-file", "", "file that receives the digest")
	return cmd
}

// unpackCommand is what the first container of a step with sourceFrom runs.
func unpackCommand() *cobra.Command {
	var u tree.Unpack
	cmd := &cobra.Command{
		Use:   "unpack-source",
		Short: "Unpack a source that pack-source packed, if its digest matches",
		Args:  flagsAlone,
		RunE: func(*cobra.Command, []string) error {
			if u.From == "" || u.To == "" || u.Digest == "" {
				return usageError{errors.New("--from, --to and --digest are required")}
			}
			if err := u.Run(); err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "unpacked the source %s\n", u.Digest)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&u.From, "from", "", "folder that has the tar")
	f.StringVar(&u.Digest, "digest", "", "digest of the tar: sha256: and 64 hexadecimal digits")
	f.StringVar(&u.To, "to", "", "empty folder that receives the source")
	return cmd
}
