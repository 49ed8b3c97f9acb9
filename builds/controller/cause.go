package controller

import (
	"regexp"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
)

// A failure has a cause when the build is not to blame for it: what the cluster
// did to the pod, as Tekton reports it, or what a registry or a Git server
// answered, as the failed step's last line reports it. Everything else, first of all a
// compiler's or a test's failure, would fail again.

// podCause is what became of the task's pod; empty when it is not at fault.
func podCause(reason, message string) api.FailureCause {
	text := strings.ToLower(message)
	switch tektonv1.TaskRunReason(reason) {
	case tektonv1.TaskRunReasonPodEvicted:
		if overItsLimit.MatchString(text) {
			return "" // it would be again
		}
		return api.CauseEvicted
	case tektonv1.TaskRunReasonPodCreationFailed, tektonv1.TaskRunReasonInitContainerFailed, tektonv1.TaskRunReasonInitContainerOOM:
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
	case strings.Contains(text, "evicted") || strings.Contains(text, "the node was low on resource"):
		return api.CauseEvicted
	case nodeIsLost.MatchString(text):
		return api.CauseNodeLost
	}
	return ""
}

// reasonSidecarFailed is Tekton's reason of a TaskRun whose sidecar ended before its steps: by
// itself, or because its pod is being deleted, as an eviction does it.
const reasonSidecarFailed = "SidecarFailed"

// stepCause is why a step ended: its container vanished with the node, or its
// last line names a server.
func stepCause(ended *corev1.ContainerStateTerminated, log []string) api.FailureCause {
	if ended.Reason == "ContainerStatusUnknown" {
		return api.CauseNodeLost
	}
	if serverFailed.MatchString(lastLine(log)) {
		return api.CauseServerError
	}
	return ""
}

// remedy for what a step's last line reports of the builder; empty where it reports
// something else.
func remedy(log []string) string {
	line := lastLine(log)
	for _, known := range remedies {
		if known.line.MatchString(line) {
			return known.remedy
		}
	}
	return ""
}

// lastLine of a log that is not empty.
func lastLine(log []string) string {
	for i := len(log) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(log[i]); line != "" {
			return line
		}
	}
	return ""
}

// remedies for what builds with BuildKit alone meet, in BuildKit's words and in those of
// buildkit-build-step.
var remedies = []struct {
	line   *regexp.Regexp
	remedy string
}{
	{regexp.MustCompile(`failed to solve: .*(failed to authorize|authorization failed|pull access denied|401 Unauthorized|403 Forbidden)`),
		"the base image needs a login, and BuildKit has not the push login: bind a Secret that may pull it to the workspace pull-credentials in spec.pipeline.workspaces, or set spec.builder to kaniko"},
	{regexp.MustCompile(`failed to solve: .*server gave HTTP response to HTTPS client`),
		"the base image's registry speaks plain HTTP: BuildKit expects that of the image's own with the parameter PLAIN_HTTP, and of local ones in build arguments; or set spec.builder to kaniko"},
	{regexp.MustCompile(`^BuildKit cannot make a user namespace`),
		"set spec.builder to kaniko, or allow user namespaces on the build's nodes"},
}

var (
	// overItsLimit are the kubelet's words where a pod used more of the disk than its
	// containers' limits.
	overItsLimit   = regexp.MustCompile(`exceeded its local ephemeral storage limit|exceeds the (total )?limit`)
	imageIsRefused = regexp.MustCompile(`not found|denied|unauthorized|forbidden|manifest unknown|name unknown|does not exist|invalid reference`)
	// sidecarIsKilled as buildkitd is with its pod; nothing that a build does right ends it so.
	sidecarIsKilled = regexp.MustCompile(`^"sidecar-[^"]*" exited with code 137: error$`)
	nodeIsLost      = regexp.MustCompile(`node shutdown|node is shutting down|nodelost|node .*(lost|unreachable|not ready)|preempted in order to admit|taint manager: deleting`)
	// serverFailed are the last words of git, of the libraries that steps speak to
	// registries with, of BuildKit and of buildah. A program that an author wrote does not end
	// like that: a registry's address has /v2/ in it.
	serverFailed = regexp.MustCompile(`^fatal: unable to access '[^']*': (The requested URL returned error: (429|5\d\d)|Could not resolve host|Failed to connect|.*([Tt]imed out|[Cc]onnection reset))` +
		`|^error: RPC failed; HTTP (429|5\d\d)` +
		`|https?://\S+/v2/\S*:? .*(unexpected status code (429|5\d\d)|TOOMANYREQUESTS|i/o timeout|TLS handshake timeout|connection reset by peer|connection refused)` +
		`|unexpected status from (HEAD|GET) request to https?://\S+/v2/\S*: (429|5\d\d)` +
		`|received unexpected HTTP status: (429|5\d\d)|toomanyrequests: `)
)
