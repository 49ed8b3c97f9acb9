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

// The code of a pull request from another repository is not trusted. checkFork examines the
// composed run, so the rules hold for the build, the template and the steps alike.

// cacheParameters lists the parameters for caches that later builds read. A fork's build gets none.
var cacheParameters = []string{"cache", templates.ImageCache, templates.BuildpacksCache}

// harmlessVolumes lists volumes that end with the pod, or are read-only and not secret. Any other
// kind may outlive the run, be shared with another build, or hold a secret.
var harmlessVolumes = []string{"name", "emptyDir", "configMap", "downwardAPI", "projected",
	"ephemeral", "image", "sources", "defaultMode"}

func isFork(b *api.AgentBuild) bool {
	return b.Spec.Source.PullRequest != nil && b.Spec.Source.PullRequest.Fork
}

// checkFork refuses Secrets, ServiceAccounts and persistent volumes in the build of a fork.
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

// forbiddenOf returns descriptions of a task's references to Secrets and of its volumes that are
// not in harmlessVolumes.
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

// kindsOf returns the JSON names of the fields that a volume or a projection sets.
func kindsOf[V corev1.Volume | corev1.VolumeProjection](v V) []string {
	var fields map[string]any
	if err := json.Unmarshal([]byte(tekton.JSON(v)), &fields); err != nil {
		return []string{err.Error()} // no list allows this
	}
	return sortedKeys(fields)
}
