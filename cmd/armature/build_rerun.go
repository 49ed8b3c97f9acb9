package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
)

func buildRerunCommand() *cobra.Command {
	return buildEditCommand("rerun", "Build once more, from the revision as it is now", "is started again",
		func(b *api.AgentBuild, group string) {
			b.Spec.Cancel = false
			if b.Annotations == nil {
				b.Annotations = map[string]string{}
			}
			b.Annotations[api.RerunAnnotation(group)] = time.Now().UTC().Format(time.RFC3339Nano)
		})
}
