package attest

import (
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/result"
	"github.com/tektoncd/pipeline/pkg/termination"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Pods are where things ran, and the kubelet writes their status. Tekton takes any
// pod that names the TaskRun as its owner, an old one of a TaskRun of the same name
// too; here it counts by the TaskRun's UID alone.

// How Tekton names containers.
const (
	stepPrefix    = "step-"
	sidecarPrefix = "sidecar-"
)

// checkPods makes sure that each TaskRun's pod ran its steps, and reads the results
// of the pods.
func (i *inspection) checkPods() error {
	for _, t := range i.tasks {
		if t.run == nil {
			continue
		}
		if err := i.checkPod(t); err != nil {
			return err
		}
		if err := t.readResults(); err != nil {
			return err
		}
	}
	return nil
}

func (i *inspection) checkPod(t *task) error {
	name := t.run.Status.PodName
	bad := func(format string, args ...any) error {
		return refuse(api.ReasonNotAsOrdered, tampered, "pod %s of TaskRun %s %s", name, t.run.Name, fmt.Sprintf(format, args...))
	}
	pod := t.pod
	switch {
	case pod == nil:
		return refuse(api.ReasonNotAsOrdered, "pods have to be kept until the build is Ready; "+rerun, "pod %q of TaskRun %s does not exist", name, t.run.Name)
	case pod.Name != name || !controlledBy(pod, t.run.UID):
		return bad("is not owned by the TaskRun of UID %s", t.run.UID)
	case pod.CreationTimestamp.Before(&t.run.CreationTimestamp):
		return bad("is older than the TaskRun")
	case len(pod.Spec.EphemeralContainers) > 0:
		return bad("was given a container for debugging")
	case pod.Generation > t.generations():
		return bad("was changed after it was made")
	}
	steps, declared := t.ordered.TaskSpec.Steps, []string{}
	for n, step := range steps {
		container := stepContainer(step, n)
		declared = append(declared, container)
		have := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
		if have < 0 {
			return bad("has no container for step %s", step.Name)
		}
		if image := t.imageOf(step); image == "" || !sameImage(pod.Spec.Containers[have].Image, image) {
			return bad("runs image %q for step %s, and %q was ordered", pod.Spec.Containers[have].Image, step.Name, image)
		}
		state := t.state(container)
		switch {
		case state == nil || state.State.Terminated == nil:
			return bad("did not finish step %s", step.Name)
		case state.State.Terminated.ExitCode != 0:
			return bad("ended step %s with exit code %d", step.Name, state.State.Terminated.ExitCode)
		case state.RestartCount > 0:
			return bad("restarted the container of step %s", step.Name)
		case state.State.Terminated.FinishedAt.Before(&i.Run.CreationTimestamp):
			return bad("finished step %s before run %s began", step.Name, i.Run.Name)
		}
	}
	for _, sidecar := range t.ordered.TaskSpec.Sidecars {
		declared = append(declared, sidecarPrefix+sidecar.Name)
	}
	for _, c := range pod.Spec.Containers {
		if !slices.Contains(declared, c.Name) {
			return bad("has a container %s, which no step or sidecar orders", c.Name)
		}
	}
	return nil
}

// generations that a pod's spec has at most. An image can be changed while the pod
// runs, and put back; the API server counts that. Tekton does it once, to end sidecars
// that are plain containers.
func (t *task) generations() int64 {
	if slices.ContainsFunc(t.pod.Spec.Containers, func(c corev1.Container) bool { return strings.HasPrefix(c.Name, sidecarPrefix) }) {
		return 2
	}
	return 1
}

func (t *task) state(container string) *corev1.ContainerStatus {
	list := slices.Concat(t.pod.Status.InitContainerStatuses, t.pod.Status.ContainerStatuses)
	for i := range list {
		if list[i].Name == container {
			return &list[i]
		}
	}
	return nil
}

// imageOf a step, with the TaskRun's parameters put in. checkTasks compares those.
func (t *task) imageOf(step tektonv1.Step) string {
	image := step.Image
	if template := t.ordered.TaskSpec.StepTemplate; image == "" && template != nil {
		image = template.Image
	}
	return replaceIn(image, []values{t.params(t.ordered.TaskSpec.Params)})
}

// sameImage reports whether a pod's image is the one that was ordered, or the digest
// that admission put behind its tag.
func sameImage(have, want string) bool {
	return have == want || strings.HasPrefix(have, want+"@sha256:")
}

// written is what the kubelet says that a container of a step wrote.
type written struct {
	container string
	result.RunResult
}

func (t *task) written() (all []written, _ error) {
	for _, c := range t.pod.Spec.Containers {
		state := t.state(c.Name)
		if !strings.HasPrefix(c.Name, stepPrefix) || state == nil {
			continue
		}
		results, err := termination.ParseMessage(zap.NewNop().Sugar(), state.State.Terminated.Message)
		if err != nil {
			return nil, refuse(api.ReasonResultInvalid, wrongStep, "what container %s of pod %s reports cannot be read", c.Name, t.pod.Name)
		}
		for _, r := range results {
			all = append(all, written{c.Name, r})
		}
	}
	return all, nil
}

// readResults of a task from what the kubelet says that its containers wrote, and
// compares them with those that the TaskRun's status has.
func (t *task) readResults() error {
	t.results = map[string]tektonv1.ResultValue{}
	declared := map[string]tektonv1.ResultsType{}
	for _, r := range t.ordered.TaskSpec.Results {
		declared[r.Name] = r.Type
	}
	written, err := t.written()
	if err != nil {
		return err
	}
	for _, w := range written {
		kind, ok := declared[w.Key]
		if w.ResultType != result.TaskRunResultType || !ok {
			continue
		}
		value := *tektonv1.NewStructuredValues(w.Value)
		if kind != tektonv1.ResultsTypeString && kind != "" {
			if err := value.UnmarshalJSON([]byte(w.Value)); err != nil {
				return refuse(api.ReasonResultInvalid, wrongStep, "the result %s of task %s is not of its type", w.Key, t.ordered.Name)
			}
		}
		t.results[w.Key] = value
	}
	reported := map[string]bool{}
	for _, r := range t.run.Status.Results {
		value, ok := t.results[r.Name]
		if !ok || canonical(value) != canonical(r.Value) {
			return refuse(api.ReasonResultsForged, tampered, "the result %s of TaskRun %s is not what its pod reported", r.Name, t.run.Name)
		}
		reported[r.Name] = true
	}
	for name := range t.results {
		if !reported[name] {
			return refuse(api.ReasonResultsForged, tampered, "the result %s of TaskRun %s is missing, and its pod reported one", name, t.run.Name)
		}
	}
	return nil
}
