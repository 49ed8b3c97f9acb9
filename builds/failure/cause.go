// Package failure finds the reason why a run failed, and the lost pods of a running run.
package failure

import (
	"regexp"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
)

// A failure has a cause if the build is not to blame: the cluster stopped the pod, as Tekton
// reports, or a registry or a Git server failed, as the last line of the failed step reports
// (reasons.go). All other failures, such as those of a compiler or a test, would occur again.

// podCause returns the cause of a failed task if its pod is to blame, or "".
func podCause(reason, message string) api.FailureCause {
	text := strings.ToLower(message)
	switch tektonv1.TaskRunReason(reason) {
	case tektonv1.TaskRunReasonPodEvicted:
		if overItsLimit.MatchString(text) {
			return "" // the next pod would be evicted as well
		}
		return api.CauseEvicted
	case tektonv1.TaskRunReasonPodCreationFailed, tektonv1.TaskRunReasonInitContainerFailed,
		tektonv1.TaskRunReasonInitContainerOOM:
		return api.CausePodFailed
	case tektonv1.TaskRunReasonImagePullFailed:
		if imageIsRefused.MatchString(text) {
			return "" // the registry would refuse it again
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

// reasonSidecarFailed is Tekton's reason for a TaskRun whose sidecar ended before its steps: by
// itself, or because its pod is being deleted, as by an eviction.
const reasonSidecarFailed = "SidecarFailed"

var (
	// overItsLimit matches the kubelet's message about a pod that used more disk space than its
	// limits.
	overItsLimit = regexp.MustCompile(
		`exceeded its local ephemeral storage limit|exceeds the (total )?limit`)
	imageIsRefused = regexp.MustCompile(
		`not found|denied|unauthorized|forbidden|manifest unknown|name unknown|does not exist|invalid reference`)
	// sidecarIsKilled matches a sidecar that was killed, as buildkitd is with its pod. No correct
	// build ends a sidecar with this exit code.
	sidecarIsKilled = regexp.MustCompile(`^"sidecar-[^"]*" exited with code 137: error$`)
	nodeIsLost      = regexp.MustCompile(
		`node shutdown|node is shutting down|nodelost|node .*(lost|unreachable|not ready)|preempted in order to admit|taint manager: deleting`)
)
