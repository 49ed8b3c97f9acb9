package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
)

func buildRerunCommand() *cobra.Command {
	return buildEditCommand("rerun", "Build once more, from the revision as it is now", "is started again",
		func(p *buildPatch, group string) {
			p.Metadata.Annotations = map[string]string{api.RerunAnnotation(group): time.Now().UTC().Format(time.RFC3339Nano)}
		})
}
