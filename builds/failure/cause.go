// Package failure says why a run failed, and which pods of a run under way are lost.
package failure

import (
	"regexp"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
)

// A failure has a cause when the build is not to blame for it: what the cluster
// did to the pod, as Tekton reports it, or what a registry or a Git server
// answered, as the failed step's last line reports it (reasons.go). Everything else, first
// of all a compiler's or a test's failure, would fail again.

// podCause is what became of the task's pod; empty when it is not at fault.
func podCause(reason, message string) api.FailureCause {
	text := strings.ToLower(message)
	switch tektonv1.TaskRunReason(reason) {
	case tektonv1.TaskRunReasonPodEvicted:
		if overItsLimit.MatchString(text) {
			return "" // it would be again
		}
		return api.CauseEvicted
	case tektonv1.TaskRunReasonPodCreationFailed, tektonv1.TaskRunReasonInitContainerFailed,
		tektonv1.TaskRunReasonInitContainerOOM:
		return api.CausePodFailed
	case tektonv1.TaskRunReasonImagePullFailed:
		if imageIsRefused.MatchString(text) {
			return "" // it would be again
		}
		return api.CauseImagePull
	case tektonv1.TaskRunReasonTimedOut, tektonv1.TaskRunReasonCancelled:
		return ""
	case reasonSidecarFailed:
		if sidecarIsKilled.MatchString(text) {
			return api.CausePodFailed
		}
		return ""
	}
	switch {
	case strings.Contains(text, "evicted") ||
		strings.Contains(text, "the node was low on resource"):
		return api.CauseEvicted
	case nodeIsLost.MatchString(text):
		return api.CauseNodeLost
	}
	return ""
}

// reasonSidecarFailed is Tekton's reason of a TaskRun whose sidecar ended before its steps: by
// itself, or because its pod is being deleted, as an eviction does it.
const reasonSidecarFailed = "SidecarFailed"

var (
	// overItsLimit are the kubelet's words where a pod used more of the disk than its
	// containers' limits.
	overItsLimit = regexp.MustCompile(
		`exceeded its local ephemeral storage limit|exceeds the (total )?limit`)
	imageIsRefused = regexp.MustCompile(
		`not found|denied|unauthorized|forbidden|manifest unknown|name unknown|does not exist|invalid reference`)
	// sidecarIsKilled as buildkitd is with its pod; nothing that a build does right ends it so.
	sidecarIsKilled = regexp.MustCompile(`^"sidecar-[^"]*" exited with code 137: error$`)
	nodeIsLost      = regexp.MustCompile(
		`node shutdown|node is shutting down|nodelost|node .*(lost|unreachable|not ready)|preempted in order to admit|taint manager: deleting`)
)
