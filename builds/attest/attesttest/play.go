// Package attesttest simulates Tekton for tests: it returns the TaskRuns of a run that succeeded.
package attesttest

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/result"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// SBOM returns a bill of materials (SPDX) of an image, like that of the step sbom.
func SBOM(digest string) []byte {
	const format = `{"spdxVersion":"SPDX-2.3","SPDXID":"SPDXRef-DOCUMENT","name":"weather","packages":[` +
		`{"name":"weather","SPDXID":"SPDXRef-Root","checksums":[{"algorithm":"SHA256","checksumValue":"%s"}]},` +
		`{"name":"setuptools","SPDXID":"SPDXRef-Package","versionInfo":"69.0.0"}],` +
		`"relationships":[{"spdxElementId":"SPDXRef-DOCUMENT","relationshipType":"DESCRIBES","relatedSpdxElement":"SPDXRef-Root"}]}`
	return fmt.Appendf(nil, format, strings.TrimPrefix(digest, "sha256:"))
}

// BaseImage is the base image that a run of BuildKit reports.
var BaseImage = "docker.io/library/python:3.13.5-slim@" + DigestOf([]byte("python"))

// DigestOf returns the digest of content: "sha256:" and 64 hexadecimal digits.
func DigestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// Succeed ends a run whose image has a digest and whose bill of materials is SBOM, and returns its
// TaskRuns by the task. For several platforms the digest is that of an index, and parts are the
// digests of the platforms' images.
func Succeed(run *tektonv1.PipelineRun, pipeline *tektonv1.PipelineSpec, digest string,
	parts ...string) map[string]*tektonv1.TaskRun {
	begun := run.CreationTimestamp.Time
	now := metav1.NewTime(begun.Add(time.Minute))
	out := map[string]*tektonv1.TaskRun{}
	results := map[string]string{
		"IMAGE_URL": run.Annotations[keys.AnnotationImage], "IMAGE_DIGEST": digest,
		"commit":            run.Annotations[keys.AnnotationCommit],
		"CHAINS-GIT_COMMIT": run.Annotations[keys.AnnotationCommit], "url": "https://git.example/x",
		"CHAINS-GIT_URL": "https://git.example/x", "dockerfile-name": "Dockerfile",
		"layout-digest": digest, "SBOM_DIGEST": DigestOf(SBOM(digest)), "TEST_RESULT": "PASSED",
		attest.BaseImagesResult: BaseImage,
	}
	values := tekton.NewValues(pipeline.Params, run.Spec.Params)
	platforms := strings.Split(values.Texts["params.platforms"], ",")
	if len(platforms) == 1 { // the image itself
		parts = []string{digest}
	}
	for i, platform := range platforms {
		results[compose.PlatformDigests] += strings.Repeat(",", min(i, 1)) + platform + "=" + parts[i]
	}
	run.Status.ChildReferences = nil
	for t := range tekton.Tasks(pipeline) {
		name := run.Name + "-" + t.Name
		tr := &tektonv1.TaskRun{
			ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: name,
				UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(begun),
				Labels: map[string]string{"tekton.dev/pipelineTask": t.Name,
					"tekton.dev/pipelineRun": run.Name},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "tekton.dev/v1",
					Kind: "PipelineRun", Name: run.Name, UID: run.UID, Controller: new(true)}}},
			Spec: tektonv1.TaskRunSpec{TaskSpec: t.TaskSpec.TaskSpec.DeepCopy(),
				Params: values.PutAll(t.Params)},
		}
		own := values.With(t.TaskSpec.Params, tr.Spec.Params)
		var written []result.RunResult
		for _, r := range t.TaskSpec.Results {
			text := cmp.Or(results[r.Name], "some "+r.Name)
			// A task of one of several platforms reports its platform's image.
			if at := slices.Index(platforms, own.Texts["params."+templates.Platform]); at >= 0 &&
				len(platforms) > 1 {
				text = cmp.Or(map[string]string{"layout-digest": parts[at],
					"SBOM_DIGEST": DigestOf(SBOM(parts[at]))}[r.Name], text)
			}
			value := *tektonv1.NewStructuredValues(text)
			values.Set("tasks."+t.Name+".results", r.Name, value)
			written = append(written,
				result.RunResult{Key: r.Name, Value: text, ResultType: result.TaskRunResultType})
			tr.Status.Results = append(tr.Status.Results, tektonv1.TaskRunResult{Name: r.Name,
				Type: tektonv1.ResultsTypeString, Value: value})
		}
		for i, step := range t.TaskSpec.Steps {
			state := corev1.ContainerStateTerminated{FinishedAt: now,
				StartedAt: metav1.NewTime(begun)}
			if i == len(t.TaskSpec.Steps)-1 && len(written) > 0 {
				state.Message = tekton.JSON(written)
			}
			tr.Status.Steps = append(tr.Status.Steps,
				tektonv1.StepState{Name: step.Name, Container: "step-" + step.Name,
					ImageID: "registry.example/step@sha256:" +
						strings.Repeat(fmt.Sprint(i+1), 64),
					ContainerState: corev1.ContainerState{Terminated: &state}})
		}
		tr.Status.TaskSpec = t.TaskSpec.TaskSpec.DeepCopy()
		for i := range tr.Status.TaskSpec.Steps {
			step := &tr.Status.TaskSpec.Steps[i]
			step.Image = own.Put(*tektonv1.NewStructuredValues(step.Image)).StringVal
		}
		tr.Status.PodName, tr.Status.StartTime, tr.Status.CompletionTime =
			name+"-pod", &metav1.Time{Time: begun}, &now
		tr.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
			Status: corev1.ConditionTrue, Reason: "Succeeded"})
		run.Status.ChildReferences = append(run.Status.ChildReferences,
			tektonv1.ChildStatusReference{TypeMeta: runtime.TypeMeta{Kind: "TaskRun"}, Name: name,
				PipelineTaskName: t.Name})
		out[t.Name] = tr
	}
	for _, r := range pipeline.Results {
		run.Status.Results = append(run.Status.Results,
			tektonv1.PipelineRunResult{Name: r.Name, Value: values.Put(r.Value)})
	}
	run.Status.StartTime, run.Status.CompletionTime = &metav1.Time{Time: begun}, &now
	run.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded,
		Status: corev1.ConditionTrue, Reason: "Succeeded"})
	return out
}
