package compose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// A pull request of another repository is a stranger's program. What its build must not have is
// looked for in the run as it was composed, whoever named it: the build, the template or a step.

// cacheParameters name what a build writes for later ones. A fork's build gets none of them.
var cacheParameters = []string{"cache", templates.ImageCache, templates.BuildpacksCache}

// harmlessVolumes end with the pod, or are read and not secret. A volume of any other kind may
// outlive the run, be shared with another build, or have a secret.
var harmlessVolumes = []string{"name", "emptyDir", "configMap", "downwardAPI", "projected",
	"ephemeral", "image", "sources", "defaultMode"}

func isFork(b *api.AgentBuild) bool {
	return b.Spec.Source.PullRequest != nil && b.Spec.Source.PullRequest.Fork
}

// checkFork refuses what a fork's build must not have.
func checkFork(c *composer, o *Output) {
	if !isFork(c.Build) {
		return
	}
	bad := func(format string, args ...any) {
		c.bad(api.ReasonForkRestricted, "spec.source.pullRequest.fork",
			"use a mode whose steps do without it for pull requests of forks",
			"the commit is of another repository, and %s", fmt.Sprintf(format, args...))
	}
	spec := c.Build.Spec
	if spec.ServiceAccountName != "" || spec.Pod != nil && spec.Pod.AutomountServiceAccountToken {
		bad("the build asks for a ServiceAccount or its token")
	}
	for _, w := range o.Run.Spec.Workspaces {
		if w.PersistentVolumeClaim != nil || w.Secret != nil || w.CSI != nil || w.Projected != nil {
			bad("the workspace %s is a Secret, or a volume that outlives the run", w.Name)
		}
	}
	if t := o.Run.Spec.TaskRunTemplate.PodTemplate; t != nil &&
		(len(t.ImagePullSecrets) > 0 || len(t.Volumes) > 0) {
		bad("its pods have Secrets or volumes of the platform")
	}
	for task := range tekton.Tasks(&o.Pipeline.Spec) {
		for _, name := range forbiddenOf(&task.TaskSpec.TaskSpec) {
			bad("step %q has %s", task.Name, name)
		}
	}
}

// forbiddenOf a task are its references to Secrets, and its volumes of other kinds than
// harmlessVolumes.
func forbiddenOf(task *tektonv1.TaskSpec) (names []string) {
	containers := tekton.JSON(task.Steps) + tekton.JSON(task.Sidecars) +
		tekton.JSON(task.StepTemplate)
	for _, key := range []string{"secretKeyRef", "secretRef"} {
		if strings.Contains(containers, `"`+key+`":`) {
			names = append(names, "a Secret in its environment")
		}
	}
	for _, v := range task.Volumes {
		kinds := kindsOf(v)
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				kinds = append(kinds, kindsOf(source)...)
			}
		}
		for _, kind := range kinds {
			if !slices.Contains(harmlessVolumes, kind) {
				names = append(names, fmt.Sprintf("the volume %s of kind %s", v.Name, kind))
			}
		}
	}
	return names
}

// kindsOf a volume or a projection: the fields that are set.
func kindsOf[V corev1.Volume | corev1.VolumeProjection](v V) []string {
	var fields map[string]any
	if err := json.Unmarshal([]byte(tekton.JSON(v)), &fields); err != nil {
		return []string{err.Error()} // which no list allows
	}
	return sortedKeys(fields)
}
