package queue

import (
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/armature-dev/armature/builds/compose"
)

// A Workload requests what the tasks of its run do that are under way together.
func TestRequests(t *testing.T) {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	task := func(name, cpu string, after ...string) tektonv1.PipelineTask {
		steps := []tektonv1.Step{{ComputeResources: corev1.ResourceRequirements{Requests: list(cpu),
			Limits: list("9")}}, {}}
		return tektonv1.PipelineTask{Name: name, RunAfter: after,
			TaskSpec: &tektonv1.EmbeddedTask{TaskSpec: tektonv1.TaskSpec{Steps: steps}}}
	}
	build := task("arm", "1", "clone")
	build.TaskSpec.Sidecars = []tektonv1.Sidecar{{Name: "buildkitd",
		ComputeResources: corev1.ResourceRequirements{Limits: list("500m")}}}
	other := task("buildpacks", "2", "clone")
	for at, value := range map[*tektonv1.PipelineTask]string{&build: "true", &other: "false"} {
		at.When = tektonv1.WhenExpressions{{Input: "$(tasks.clone.results.dockerfile)",
			Operator: "in", Values: []string{value}}}
	}
	memory := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}
	out := &compose.Output{Run: &tektonv1.PipelineRun{},
		Pipeline: &tektonv1.Pipeline{Spec: tektonv1.PipelineSpec{
			Tasks: []tektonv1.PipelineTask{build, other, task("amd", "2", "clone"),
				task("clone", "3"), task("index", "100m", "arm", "amd")},
			Finally: []tektonv1.PipelineTask{task("report", "1"), task("log", "1")},
		}}}
	out.Run.Spec.TaskRunSpecs = []tektonv1.PipelineTaskRunSpec{{PipelineTaskName: "index",
		ComputeResources: &corev1.ResourceRequirements{Requests: memory}}}
	got := requests(out)
	if cpu, memory := got.Cpu().String(), got.Memory().String(); len(got) != 2 || cpu != "4" ||
		memory != "4Gi" {
		t.Errorf("cpu %s and memory %s, want 4 of amd and the larger of arm and buildpacks, and "+
			"4Gi of the index", cpu, memory)
	}
}
