// Package attesttest plays Tekton and the kubelet for tests: it makes the TaskRuns
// and pods that a run would have left.
package attesttest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/result"
	"github.com/tektoncd/pipeline/pkg/substitution"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/bases"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/recipe"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Played is what a run left.
type Played struct {
	TaskRuns []*tektonv1.TaskRun
	// Pods by the UID of the TaskRun.
	Pods map[types.UID]*corev1.Pod
}

// SBOM is a bill of materials (SPDX) of an image with a digest, as the step sbom makes it.
func SBOM(digest string) []byte {
	const format = `{"spdxVersion":"SPDX-2.3","SPDXID":"SPDXRef-DOCUMENT","name":"weather","packages":[` +
		`{"name":"weather","SPDXID":"SPDXRef-Root","checksums":[{"algorithm":"SHA256","checksumValue":"%s"}]},` +
		`{"name":"setuptools","SPDXID":"SPDXRef-Package","versionInfo":"69.0.0"}],` +
		`"relationships":[{"spdxElementId":"SPDXRef-DOCUMENT","relationshipType":"DESCRIBES","relatedSpdxElement":"SPDXRef-Root"}]}`
	return fmt.Appendf(nil, format, strings.TrimPrefix(digest, "sha256:"))
}

// BaseImage is the one that a run of BuildKit reports.
var BaseImage = "docker.io/library/python:3.13.5-slim@" + DigestOf([]byte("python"))

// DigestOf some content: "sha256:" and 64 hexadecimal digits.
func DigestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// Succeed ends a run whose image has a digest, and whose bill of materials is SBOM. For several
// platforms that is an index, and parts are the digests of their images. Objects get
// UIDs that follow from their names.
func Succeed(run *tektonv1.PipelineRun, pipeline *tektonv1.PipelineSpec, digest string, parts ...string) Played {
	begun := run.CreationTimestamp.Time
	now := metav1.NewTime(begun.Add(time.Minute))
	out := Played{Pods: map[types.UID]*corev1.Pod{}}
	results := map[string]string{
		"IMAGE_URL": run.Annotations[keys.AnnotationImage], "IMAGE_DIGEST": digest,
		"commit": run.Annotations[keys.AnnotationCommit], "CHAINS-GIT_COMMIT": run.Annotations[keys.AnnotationCommit],
		"url": "https://git.example/x", "CHAINS-GIT_URL": "https://git.example/x", "dockerfile-name": "Dockerfile", "layout-digest": digest,
		"SBOM_DIGEST": DigestOf(SBOM(digest)), "TEST_RESULT": "PASSED", bases.Result: BaseImage,
	}
	texts := map[string]string{}
	arrays := map[string][]string{}
	for _, p := range run.Spec.Params {
		if p.Value.Type == tektonv1.ParamTypeArray {
			arrays["params."+p.Name] = p.Value.ArrayVal
		} else {
			texts["params."+p.Name] = p.Value.StringVal
		}
	}
	platforms := strings.Split(texts["params.platforms"], ",")
	switch {
	case platforms[0] == "":
	case len(platforms) == 1:
		results[compose.PlatformDigests] = platforms[0] + "=" + digest
	default:
		var each []string
		for i, platform := range platforms {
			each = append(each, platform+"="+parts[i])
		}
		results[compose.PlatformDigests] = strings.Join(each, ",")
	}
	run.Status.ChildReferences = nil
	for _, t := range slices.Concat(pipeline.Tasks, pipeline.Finally) {
		name := run.Name + "-" + t.Name
		tr := &tektonv1.TaskRun{
			ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(begun),
				Labels:          map[string]string{"tekton.dev/pipelineTask": t.Name, "tekton.dev/pipelineRun": run.Name},
				OwnerReferences: []metav1.OwnerReference{owner("tekton.dev/v1", "PipelineRun", run.Name, run.UID)}},
			Spec: tektonv1.TaskRunSpec{TaskSpec: t.TaskSpec.TaskSpec.DeepCopy(), Retries: t.Retries, Timeout: &metav1.Duration{Duration: time.Hour}},
		}
		settings := run.DeepCopy().GetTaskRunSpec(t.Name)
		tr.Spec.ServiceAccountName, tr.Spec.PodTemplate = settings.ServiceAccountName, settings.PodTemplate
		tr.Spec.ComputeResources, tr.Spec.SidecarSpecs, tr.Spec.StepSpecs = settings.ComputeResources, settings.SidecarSpecs, settings.StepSpecs
		own := map[string]string{}
		for _, p := range t.Params {
			p := *p.DeepCopy()
			p.Value.ApplyReplacements(texts, arrays, nil)
			tr.Spec.Params = append(tr.Spec.Params, p)
			own["params."+p.Name] = p.Value.StringVal
		}
		for _, p := range t.TaskSpec.Params {
			if _, given := own["params."+p.Name]; !given && p.Default != nil {
				own["params."+p.Name] = p.Default.StringVal
			}
		}
		tr.Spec.Workspaces = bindings(run, t)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: name + "-pod", UID: types.UID("uid-" + name + "-pod"), CreationTimestamp: metav1.NewTime(begun),
				OwnerReferences: []metav1.OwnerReference{owner("tekton.dev/v1", "TaskRun", name, tr.UID)}},
			Status: corev1.PodStatus{Phase: corev1.PodSucceeded},
		}
		var written []result.RunResult
		for _, r := range t.TaskSpec.Results {
			value, ok := results[r.Name]
			if at := slices.Index(platforms, own["params."+recipe.Platform]); at >= 0 && len(platforms) > 1 { // its own image
				switch r.Name {
				case "layout-digest":
					value = parts[at]
				case "SBOM_DIGEST":
					value = DigestOf(SBOM(parts[at]))
				}
			}
			if !ok {
				value = "some " + r.Name
			}
			texts["tasks."+t.Name+".results."+r.Name] = value
			written = append(written, result.RunResult{Key: r.Name, Value: value, ResultType: result.TaskRunResultType})
			tr.Status.Results = append(tr.Status.Results, tektonv1.TaskRunResult{Name: r.Name, Type: tektonv1.ResultsTypeString, Value: *tektonv1.NewStructuredValues(value)})
		}
		pod.Spec = PodOf(tr)
		for i, c := range pod.Spec.Containers[:len(t.TaskSpec.Steps)] {
			state := corev1.ContainerStateTerminated{FinishedAt: now, StartedAt: metav1.NewTime(begun)}
			if i == len(t.TaskSpec.Steps)-1 && len(written) > 0 {
				state.Message = text(written)
			}
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image,
				ImageID: "registry.example/step@sha256:" + strings.Repeat(fmt.Sprint(i+1), 64), State: corev1.ContainerState{Terminated: &state}})
		}
		tr.Status.PodName, tr.Status.StartTime, tr.Status.CompletionTime = pod.Name, &metav1.Time{Time: begun}, &now
		tr.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionTrue, Reason: "Succeeded"})
		run.Status.ChildReferences = append(run.Status.ChildReferences, tektonv1.ChildStatusReference{Name: name, PipelineTaskName: t.Name})
		run.Status.ChildReferences[len(run.Status.ChildReferences)-1].Kind = "TaskRun"
		out.TaskRuns = append(out.TaskRuns, tr)
		out.Pods[tr.UID] = pod
	}
	for _, r := range pipeline.Results {
		run.Status.Results = append(run.Status.Results, tektonv1.PipelineRunResult{Name: r.Name, Value: *tektonv1.NewStructuredValues(substitution.ApplyReplacements(r.Value.StringVal, texts))})
	}
	run.Status.StartTime, run.Status.CompletionTime = &metav1.Time{Time: begun}, &now
	run.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionTrue, Reason: "Succeeded"})
	return out
}

func bindings(run *tektonv1.PipelineRun, t tektonv1.PipelineTask) (out []tektonv1.WorkspaceBinding) {
	for _, w := range t.Workspaces {
		for _, b := range run.Spec.Workspaces {
			if b.Name != w.Workspace {
				continue
			}
			b = *b.DeepCopy()
			if b.VolumeClaimTemplate != nil {
				b.VolumeClaimTemplate = nil
				b.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim(b.Name, run.UID)}
			}
			b.Name = w.Name
			out = append(out, b)
		}
	}
	return out
}

func owner(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &yes}
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}
