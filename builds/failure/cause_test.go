package failure

import (
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/api"
)

// A pod that used more of the disk than its limit is evicted, whichever Tekton reports it, and
// its build is not at once tried again.
func TestEvictedForItsOwnDisk(t *testing.T) {
	const message = "Pod ephemeral local storage usage exceeds the total limit of " +
		"containers 1200Mi. "
	for _, test := range []struct{ reason, message, want string }{
		{"Failed", message, api.ReasonEvicted}, // Tekton 1.9
		{"PodEvicted", message, api.ReasonEvicted},
		{"Failed", "build failed for unspecified reasons.", api.ReasonFailed},
		{"StepFailed", message, api.ReasonFailed},
	} {
		task, d := &tektonv1.TaskRun{}, &api.FailureDetails{Reason: api.ReasonFailed}
		task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
			Status: corev1.ConditionFalse, Reason: test.reason, Message: test.message})
		(&Reader{}).ofTask(t.Context(), d, task)
		if string(d.Reason) != test.want || d.Cause != "" {
			t.Errorf("%s: %s: %s %q, want %s", test.reason, test.message, d.Reason, d.Cause, test.want)
		}
	}
}

func TestPodCause(t *testing.T) {
	for _, test := range []struct {
		reason, message string
		want            api.FailureCause
	}{
		{"PodEvicted", "The node was low on resource: memory.", api.CauseEvicted},
		{"Failed", "Pod was Evicted", api.CauseEvicted},
		// Over a limit of its own, which it would go over again.
		{"PodEvicted", `Container step-build exceeded its local ephemeral storage limit "300Mi". `,
			""},
		{"PodEvicted",
			"Pod ephemeral local storage usage exceeds the total limit of containers 300Mi. ", ""},
		{"PodEvicted", `Usage of EmptyDir volume "buildkit-state" exceeds the limit "1Gi". `, ""},
		{"StepFailed", "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi",
			api.CauseEvicted},
		{"Failed", "Pod was terminated in response to imminent node shutdown.", api.CauseNodeLost},
		{"Failed", "Preempted in order to admit critical pod", api.CauseNodeLost},
		{"TaskRunImagePullFailed",
			`the step "a" in TaskRun "b" failed to pull the image "". The pod errored with the message: "Back-off pulling image."`, api.CauseImagePull},
		{"TaskRunImagePullFailed", `failed to resolve reference "x": x: not found`, ""},
		{"TaskRunImagePullFailed",
			"pull access denied, repository does not exist or may require authorization", ""},
		{"TaskRunImagePullFailed", "401 Unauthorized", ""},
		{"PodCreationFailed", "failed calling webhook", api.CausePodFailed},
		{"InitContainerFailed", "init container failed", api.CausePodFailed},
		{"StepFailed", `"step-build-and-push" exited with code 1: Error`, ""},
		{"StepOOM", "OOMKilled", ""},
		{"SidecarFailed", `"sidecar-buildkitd" exited with code 137: Error`, api.CausePodFailed},
		{"SidecarFailed", `"sidecar-buildkitd" exited with code 137: OOMKilled`, ""},
		{"SidecarFailed", `"sidecar-buildkitd" exited with code 1: Error`, ""},
		{"TaskRunTimeout", "TaskRun failed to finish within 1h; the node was low on resource", ""},
		{"TaskRunValidationFailed", "invalid", ""},
		{"InvalidParamValue", "invalid", ""},
	} {
		if got := podCause(test.reason, test.message); got != test.want {
			t.Errorf("%s: %s: cause %q, want %q", test.reason, test.message, got, test.want)
		}
	}
}
