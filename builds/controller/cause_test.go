package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
)

func TestPodCause(t *testing.T) {
	for _, test := range []struct {
		reason, message string
		want            api.FailureCause
	}{
		{"PodEvicted", "The node was low on resource: memory.", api.CauseEvicted},
		{"Failed", "Pod was Evicted", api.CauseEvicted},
		// Over a limit of its own, which it would go over again.
		{"PodEvicted", `Container step-build exceeded its local ephemeral storage limit "300Mi". `, ""},
		{"PodEvicted", "Pod ephemeral local storage usage exceeds the total limit of containers 300Mi. ", ""},
		{"PodEvicted", `Usage of EmptyDir volume "buildkit-state" exceeds the limit "1Gi". `, ""},
		{"StepFailed", "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi", api.CauseEvicted},
		{"Failed", "Pod was terminated in response to imminent node shutdown.", api.CauseNodeLost},
		{"Failed", "Preempted in order to admit critical pod", api.CauseNodeLost},
		{"TaskRunImagePullFailed", `the step "a" in TaskRun "b" failed to pull the image "". The pod errored with the message: "Back-off pulling image."`, api.CauseImagePull},
		{"TaskRunImagePullFailed", `failed to resolve reference "x": x: not found`, ""},
		{"TaskRunImagePullFailed", "pull access denied, repository does not exist or may require authorization", ""},
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

func TestStepCause(t *testing.T) {
	for line, want := range map[string]api.FailureCause{
		"fatal: unable to access 'https://git.example.com/x/': The requested URL returned error: 503":                                                                                        api.CauseServerError,
		"fatal: unable to access 'https://git.example.com/x/': The requested URL returned error: 404":                                                                                        "",
		"fatal: unable to access 'https://git.example.com/x/': Could not resolve host: git.example.com":                                                                                      api.CauseServerError,
		"fatal: unable to access 'https://git.example.com/x/': Recv failure: Connection reset by peer":                                                                                       api.CauseServerError,
		"fatal: Authentication failed for 'https://git.example.com/x/'":                                                                                                                      "",
		"error pushing image: failed to push to destination r.io/x:v1: PUT https://r.io/v2/x/manifests/v1: unexpected status code 503 Service Unavailable":                                   api.CauseServerError,
		"error pushing image: failed to push to destination r.io/x:v1: PUT https://r.io/v2/x/manifests/v1: unexpected status code 403 Forbidden":                                             "",
		`error checking push permissions: POST https://r.io/v2/x/blobs/uploads/: dial tcp 10.0.0.1:443: connect: connection refused`:                                                         api.CauseServerError,
		`Error: pushing image: writing blob: received unexpected HTTP status: 502 Bad Gateway`:                                                                                               api.CauseServerError,
		"error building image: error building stage: failed to execute command: waiting for process to exit: exit status 1":                                                                  "",
		`error: failed to solve: r.io/x:v1: failed to resolve source metadata for r.io/x:v1: unexpected status from HEAD request to https://r.io/v2/x/manifests/v1: 503 Service Unavailable`: api.CauseServerError,
		`error: failed to solve: r.io/x:v1: failed to resolve source metadata for r.io/x:v1: unexpected status from HEAD request to https://r.io/v2/x/manifests/v1: 403 Forbidden`:           "",
		`error: failed to solve: r.io/x:v1: failed to do request: Head "https://r.io/v2/x/manifests/v1": dial tcp 10.0.0.1:443: connect: connection refused`:                                 api.CauseServerError,
		`error: failed to solve: process "/bin/sh -c go test ./..." did not complete successfully: exit code: 1`:                                                                             "",
		"FAIL: TestServer: GET https://api.example.com/users: 503 Service Unavailable":                                                                                                       "",
		"dial tcp 127.0.0.1:5432: connect: connection refused":                                                                                                                               "",
		"main.go:7:2: undefined: x": "",
		"":                          "",
	} {
		if got := stepCause(&corev1.ContainerStateTerminated{ExitCode: 1}, []string{"something before", line, "", " "}); got != want {
			t.Errorf("%s\n  cause %q, want %q", line, got, want)
		}
		// Output before the last lines does not count.
		if got := stepCause(&corev1.ContainerStateTerminated{ExitCode: 1}, []string{line, "exit status 1"}); got != "" {
			t.Errorf("%s, then others: cause %q", line, got)
		}
	}
	if got := stepCause(&corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}, nil); got != api.CauseNodeLost {
		t.Errorf("a container that vanished: cause %q", got)
	}
}

// What builds with BuildKit alone meet has its remedy in the build's message.
func TestRemedy(t *testing.T) {
	for line, want := range map[string]string{
		"error: failed to solve: ghcr.io/team/base:v1: failed to resolve source metadata for ghcr.io/team/base:v1: failed to authorize: failed to fetch anonymous token: unexpected status from GET request to https://ghcr.io/token: 401 Unauthorized": "pull-credentials",
		"error: failed to solve: team/base:v1: failed to resolve source metadata for docker.io/team/base:v1: pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed":      "pull-credentials",
		"error: failed to solve: r.io/base:v1: failed to resolve source metadata for r.io/base:v1: unexpected status from HEAD request to https://r.io/v2/base/manifests/v1: 401 Unauthorized":                                                          "pull-credentials",
		`error: failed to solve: r.io/base:v1: failed to do request: Head "https://r.io/v2/base/manifests/v1": http: server gave HTTP response to HTTPS client`:                                                                                         "PLAIN_HTTP",
		"BuildKit cannot make a user namespace on this node: choose another builder, such as builder: kaniko, or allow user namespaces on the node":                                                                                                     "spec.builder to kaniko",
		"error: failed to solve: r.io/base:v1: r.io/base:v1: not found":                                 "",
		`error: failed to solve: process "/bin/sh -c make" did not complete successfully: exit code: 2`: "",
		"curl: (22) The requested URL returned error: 401":                                              "",
		"": "",
	} {
		d := &api.FailureDetails{Task: "buildkit-build", LogTail: []string{"something before", line, ""}}
		if got := failureMessage(d, "one task failed"); !strings.Contains(got, want) || (want == "") != (got == "task buildkit-build: one task failed") {
			t.Errorf("%s\n  message %q, want one with %q", line, got, want)
		}
	}
}
