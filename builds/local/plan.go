// Package local runs the pipeline of an AgentBuild on a BuildKit, without a cluster: each step is a
// container of BuildKit's gateway, and the steps of a run share folders as they share the volumes
// of their pods. It implements the part of Tekton that builds use, and refuses the rest before
// anything starts. Tekton's own reconciler needs an API server, so this package orders the tasks
// itself, and builds/compose/tekton replaces the variables.
package local

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline/pod"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/container"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
)

// The folders that the steps of a Tekton pod share, and the folder of scripts in a container.
const (
	resultsDir   = "/tekton/results"
	homeDir      = "/tekton/home"
	scriptsDir   = "/armature/scripts"
	workspaceDir = "/workspace"
)

// stepDirs are the folders that the steps of each task share.
var stepDirs = []string{resultsDir, homeDir, workspaceDir}

// socketDir has the socket of the sidecar daemonSidecar, which the user's BuildKit replaces.
const (
	daemonSidecar = "buildkitd"
	socketDir     = "/run/buildkit-socket"
)

// plan is a run with its tasks and what they mount.
type plan struct {
	run   *tektonv1.PipelineRun
	spec  *tektonv1.PipelineSpec
	tasks []*task
	// volumes are the names of the folders that live as long as the run.
	volumes []string
	// secrets has the names of the Secrets that the steps read.
	secrets map[string]bool
	// daemon reports whether a step uses the sidecar buildkitd.
	daemon bool
}

type task struct {
	tektonv1.PipelineTask
	finally bool
	podOf   *corev1.PodSecurityContext
	after   []string
	// socket is the volume where the sidecar buildkitd has its socket; empty for none.
	socket string
}

// planOf returns the plan of a composed run. The error lists all that requires a cluster.
func planOf(run *tektonv1.PipelineRun, spec *tektonv1.PipelineSpec) (*plan, error) {
	p := &plan{run: run, spec: spec, secrets: map[string]bool{}}
	var found []*finding.Finding
	place := finding.Place{Object: finding.Ref{Kind: "PipelineRun", Namespace: run.Namespace,
		Name: run.Name}}
	refuse := func(is bool, at, what, hint string) {
		if is {
			found = append(found,
				place.At(at).Fault("NotLocal", what+" cannot run without a cluster", hint))
		}
	}
	for _, b := range run.Spec.Workspaces {
		if b.Secret != nil {
			p.secrets[b.Secret.SecretName] = true
		} else if b.VolumeClaimTemplate != nil || b.PersistentVolumeClaim != nil {
			p.volumes = append(p.volumes, b.Name) // Each pod has its own emptyDir.
		}
		refuse(b.ConfigMap != nil || b.Projected != nil || b.CSI != nil, "workspaces."+b.Name,
			"a workspace that is a ConfigMap, projected or of a CSI driver",
			"bind a Secret or a volume")
	}
	for ordered := range tekton.Tasks(spec) {
		t := &task{PipelineTask: *ordered, finally: len(p.tasks) >= len(spec.Tasks)}
		pods := ptr.Deref(run.DeepCopy().GetTaskRunSpec(t.Name).PodTemplate, pod.PodTemplate{})
		t.podOf = cmp.Or(pods.SecurityContext, &corev1.PodSecurityContext{})
		if !t.finally {
			t.after = t.Deps()
		}
		at := "tasks." + t.Name
		refuse(t.TaskSpec == nil || t.TaskRef != nil || t.PipelineRef != nil ||
			t.PipelineSpec != nil, at, "a task that is not part of the pipeline", "")
		refuse(t.Matrix != nil, at, "a matrix", "")
		if t.TaskSpec != nil {
			p.checkTask(t, at, refuse)
		}
		p.tasks = append(p.tasks, t)
	}
	return p, findings.Error(found)
}

// sandboxCapabilities are the capabilities of a container of BuildKit.
var sandboxCapabilities = []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID",
	"KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
	"SYS_CHROOT"}

// checkTask refuses what a container of BuildKit does not support.
func (p *plan) checkTask(t *task, at string, refuse func(is bool, at, what, hint string)) {
	for _, v := range t.TaskSpec.Volumes {
		if v.Secret != nil {
			p.secrets[v.Secret.SecretName] = true
		}
		refuse(v.Secret == nil && v.EmptyDir == nil, at+".volumes."+v.Name,
			"a volume that is neither an emptyDir nor a Secret", "")
	}
	containers := slices.Clone(t.TaskSpec.Steps)
	for _, s := range t.TaskSpec.Sidecars {
		refuse(s.ReadinessProbe != nil, at+".sidecars."+s.Name, "a sidecar with a readinessProbe",
			"let the step wait for it")
		if s.Name != daemonSidecar {
			containers = append(containers, asStep(s))
			continue
		}
		p.daemon = true
		for _, m := range s.VolumeMounts {
			if m.MountPath == socketDir {
				t.socket = m.Name
			}
		}
	}
	for _, s := range containers {
		at := at + ".steps." + s.Name
		refuse(s.Ref != nil, at, "a step of a StepAction", "")
		refuse(len(s.When) > 0, at, "a step with when", "")
		refuse(len(s.Results) > 0, at, "a step with results of its own", "")
		refuse(s.StdoutConfig != nil || s.StderrConfig != nil, at,
			"a step that writes its output away", "")
		refuse(len(s.EnvFrom) > 0, at, "a step with envFrom", "")
		refuse(len(s.VolumeDevices) > 0, at, "a step with devices", "")
		for _, e := range s.Env {
			if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil {
				p.secrets[from.SecretKeyRef.Name] = true
			} else {
				refuse(from != nil, at+".env."+e.Name,
					"a variable from a pod's field or a ConfigMap", "")
			}
		}
		c := cmp.Or(s.SecurityContext, &corev1.SecurityContext{})
		refuse(ptr.Deref(c.Privileged, false), at, "a privileged step", "")
		refuse(ptr.Deref(c.SeccompProfile, corev1.SeccompProfile{}).Type ==
			corev1.SeccompProfileTypeUnconfined, at,
			"a step that makes a user namespace (seccompProfile Unconfined)",
			"set builder: buildkit, which uses the BuildKit of this machine")
		for _, add := range ptr.Deref(c.Capabilities, corev1.Capabilities{}).Add {
			refuse(!slices.Contains(sandboxCapabilities, strings.TrimPrefix(string(add), "CAP_")),
				at, "a step with the capability "+string(add), "")
		}
	}
}

// params returns the parameters of the run with the pipeline's defaults, and the context variables.
func (p *plan) params() tekton.Values {
	v := tekton.NewValues(p.spec.Params, p.run.Spec.Params)
	v.Texts["context.pipelineRun.name"], v.Texts["context.pipelineRun.namespace"] =
		p.run.Name, p.run.Namespace
	v.Texts["context.pipelineRun.uid"], v.Texts["context.pipeline.name"] = p.run.Name, p.run.Name
	return v
}

// ofTask returns the variables of the pipeline and of a task: parameters, results and workspaces.
func (p *plan) ofTask(t *task, given tektonv1.Params, attempt int) tekton.Values {
	v := p.params().With(t.TaskSpec.Params, given)
	for _, r := range t.TaskSpec.Results {
		v.Set("results", r.Name,
			*tektonv1.NewObject(map[string]string{"path": path.Join(resultsDir, r.Name)}))
	}
	for _, declared := range t.TaskSpec.Workspaces {
		at := ""
		if p.bound(t, declared.Name) != nil {
			at = declared.GetMountPath()
		}
		v.Set("workspaces", declared.Name, *tektonv1.NewObject(map[string]string{
			"bound": fmt.Sprint(at != ""), "path": at, "claim": "", "volume": ""}))
	}
	name := p.run.Name + "-" + t.Name
	v.Texts["context.taskRun.name"], v.Texts["context.taskRun.namespace"],
		v.Texts["context.taskRun.uid"] = name, p.run.Namespace, name
	v.Texts["context.task.name"], v.Texts["context.task.retry-count"] = t.Name, fmt.Sprint(attempt)
	return v
}

// bound returns the binding of a workspace of a task, or nil.
func (p *plan) bound(t *task, workspace string) *tektonv1.WorkspaceBinding {
	to := tekton.BoundTo(&t.PipelineTask, workspace)
	name := cmp.Or(to.Workspace, to.Name)
	for i, b := range p.run.Spec.Workspaces {
		if name != "" && b.Name == name {
			return &p.run.Spec.Workspaces[i]
		}
	}
	return nil
}

// asStep returns a sidecar as a step with the same container.
func asStep(s tektonv1.Sidecar) tektonv1.Step {
	return tektonv1.Step{Name: "sidecar-" + s.Name, Image: s.Image, Command: s.Command,
		Args: s.Args, WorkingDir: s.WorkingDir, EnvFrom: s.EnvFrom, Env: s.Env,
		VolumeMounts: s.VolumeMounts, VolumeDevices: s.VolumeDevices,
		SecurityContext: s.SecurityContext, Script: s.Script, Workspaces: s.Workspaces}
}

// steps returns the steps and sidecars of a task with their variables replaced, without the sidecar
// that BuildKit replaces.
func (t *task) steps(v tekton.Values) (steps, sidecars []tektonv1.Step, err error) {
	if steps, err = tektonv1.MergeStepsWithStepTemplate(t.TaskSpec.StepTemplate,
		slices.Clone(t.TaskSpec.Steps)); err != nil {
		return nil, nil, err
	}
	if steps, err = replaced(steps, v); err != nil {
		return nil, nil, err
	}
	for _, s := range t.TaskSpec.Sidecars {
		if s.Name != daemonSidecar {
			sidecars = append(sidecars, asStep(s))
		}
	}
	sidecars, err = replaced(sidecars, v)
	return steps, sidecars, err
}

func replaced(steps []tektonv1.Step, v tekton.Values) ([]tektonv1.Step, error) {
	out := make([]tektonv1.Step, len(steps))
	for i := range steps {
		s := steps[i].DeepCopy()
		container.ApplyStepReplacements(s, v.Texts, v.Lists)
		for _, text := range slices.Concat([]string{s.Image, s.Script, s.WorkingDir}, s.Command, s.Args) {
			if name := tekton.Variable().FindString(text); name != "" {
				return nil, fmt.Errorf("step %s: the variable %s has no value", s.Name, name)
			}
		}
		out[i] = *s
	}
	return out, nil
}
