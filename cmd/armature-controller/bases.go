package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/attest"
)

// basesCommand is what the last container of buildkit-build-step runs.
func basesCommand() *cobra.Command {
	var record, resultFile string
	cmd := &cobra.Command{
		Use:   "base-images",
		Short: "Report the images, by digest, that BuildKit recorded as sources of a build",
		Args:  flagsAlone,
		RunE: func(*cobra.Command, []string) error {
			if record == "" || resultFile == "" {
				return usageError{errors.New("--record and --result-file are required")}
			}
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
		},
	}
	f := cmd.Flags()
	f.StringVar(&record, "record", "",
		"file with the provenance that BuildKit's history has of the build")
	f.StringVar(&resultFile, "result-file", "",
		"file that receives the images, each NAME@DIGEST, separated by spaces")
	return cmd
}
