// Package local runs what an AgentBuild composes to on a BuildKit, without a cluster: each step
// is a container of BuildKit's gateway, and those of a run share folders as they share the
// volumes of their pods. It understands the part of Tekton that builds use, and refuses
// the rest before anything starts. Tekton's own reconciler needs an API server, so that the order
// of tasks and what variables stand for are our own here; substitution is Tekton's.
package local

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/container"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
)

// ReasonNotLocal is the rule of findings about what runs on a cluster alone.
const ReasonNotLocal = "NotLocal"

// Where a pod of Tekton has what its steps share, and where a container has its script.
const (
	resultsDir   = "/tekton/results"
	homeDir      = "/tekton/home"
	scriptsDir   = "/armature/scripts"
	workspaceDir = "/workspace"
)

// socketDir is where steps find the socket of the sidecar buildkitd, which the caller's own
// BuildKit replaces.
const (
	daemonSidecar = "buildkitd"
	socketDir     = "/run/buildkit-socket"
)

// plan of a run: its tasks with their variables, and what they mount.
type plan struct {
	run   *tektonv1.PipelineRun
	spec  *tektonv1.PipelineSpec
	tasks []*task
	// volumes are folders that live as long as the run, by their names.
	volumes []string
	// secrets that the steps read, by their names.
	secrets map[string]bool
}

type task struct {
	tektonv1.PipelineTask
	finally bool
	podOf   *corev1.PodSecurityContext
	after   []string
}

// planOf a composed run. The error lists all that cannot run here.
func planOf(run *tektonv1.PipelineRun, spec *tektonv1.PipelineSpec) (*plan, error) {
	p := &plan{run: run, spec: spec, secrets: map[string]bool{}}
	for _, binding := range run.Spec.Workspaces {
		switch {
		case binding.Secret != nil:
			p.secrets[binding.Secret.SecretName] = true
		case binding.EmptyDir != nil: // each pod has its own
		case binding.VolumeClaimTemplate != nil || binding.PersistentVolumeClaim != nil:
			p.volumes = append(p.volumes, binding.Name)
		}
	}
	var found []*finding.Finding
	place := finding.Place{Object: finding.Ref{Kind: "PipelineRun", Namespace: run.Namespace,
		Name: run.Name}}
	refuse := func(at, what, hint string) {
		found = append(found,
			place.At(at).Fault(ReasonNotLocal, what+" cannot run without a cluster", hint))
	}
	for _, binding := range run.Spec.Workspaces {
		if binding.ConfigMap != nil || binding.Projected != nil || binding.CSI != nil {
			refuse("workspaces."+binding.Name,
				"a workspace that is a ConfigMap, projected or of a CSI driver",
				"bind a Secret or a volume")
		}
	}
	for _, list := range []struct {
		tasks   []tektonv1.PipelineTask
		finally bool
	}{{spec.Tasks, false}, {spec.Finally, true}} {
		for i := range list.tasks {
			t := &task{PipelineTask: list.tasks[i], finally: list.finally,
				podOf: podSecurity(run, list.tasks[i].Name)}
			t.after = t.Deps()
			if t.finally {
				t.after = nil
			}
			at := "tasks." + t.Name
			for what, is := range map[string]bool{
				"a task that is not part of the pipeline": t.TaskSpec == nil || t.TaskRef != nil ||
					t.PipelineRef != nil || t.PipelineSpec != nil,
				"a matrix": t.Matrix != nil,
			} {
				if is {
					refuse(at, what, "")
				}
			}
			if t.TaskSpec != nil {
				p.checkTask(t, at, refuse)
			}
			p.tasks = append(p.tasks, t)
		}
	}
	return p, findings.Error(found)
}

// podSecurity is what the pod of a task says about users.
func podSecurity(run *tektonv1.PipelineRun, task string) *corev1.PodSecurityContext {
	for _, s := range run.Spec.TaskRunSpecs {
		if s.PipelineTaskName == task && s.PodTemplate != nil &&
			s.PodTemplate.SecurityContext != nil {
			return s.PodTemplate.SecurityContext
		}
	}
	if pod := run.Spec.TaskRunTemplate.PodTemplate; pod != nil && pod.SecurityContext != nil {
		return pod.SecurityContext
	}
	return &corev1.PodSecurityContext{}
}

// sandboxCapabilities are those that a container of BuildKit has.
var sandboxCapabilities = []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID",
	"KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
	"SYS_CHROOT"}

// checkTask refuses what a container of BuildKit cannot be or do.
func (p *plan) checkTask(t *task, at string, refuse func(at, what, hint string)) {
	for _, v := range t.TaskSpec.Volumes {
		switch {
		case v.Secret != nil:
			p.secrets[v.Secret.SecretName] = true
		case v.EmptyDir == nil:
			refuse(at+".volumes."+v.Name, "a volume that is neither an emptyDir nor a Secret", "")
		}
	}
	containers := slices.Clone(t.TaskSpec.Steps)
	for _, s := range t.TaskSpec.Sidecars {
		if s.ReadinessProbe != nil {
			refuse(at+".sidecars."+s.Name, "a sidecar with a readinessProbe", "let the step wait for it")
		}
		if s.Name != daemonSidecar { // which BuildKit replaces
			containers = append(containers, asStep(s))
		}
	}
	for _, s := range containers {
		at := at + ".steps." + s.Name
		for what, is := range map[string]bool{
			"a step of a StepAction":             s.Ref != nil,
			"a step with when":                   len(s.When) > 0,
			"a step with results of its own":     len(s.Results) > 0,
			"a step that writes its output away": s.StdoutConfig != nil || s.StderrConfig != nil,
			"a step with envFrom":                len(s.EnvFrom) > 0,
			"a step with devices":                len(s.VolumeDevices) > 0,
		} {
			if is {
				refuse(at, what, "")
			}
		}
		for _, e := range s.Env {
			if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil {
				p.secrets[from.SecretKeyRef.Name] = true
			} else if from != nil {
				refuse(at+".env."+e.Name, "a variable from a pod's field or a ConfigMap", "")
			}
		}
		if c := s.SecurityContext; c != nil {
			if c.Privileged != nil && *c.Privileged {
				refuse(at, "a privileged step", "")
			}
			if c.SeccompProfile != nil &&
				c.SeccompProfile.Type == corev1.SeccompProfileTypeUnconfined {
				refuse(at, "a step that makes a user namespace (seccompProfile Unconfined)",
					"set builder: buildkit, which uses the BuildKit of this machine")
			}
			if c.Capabilities != nil {
				for _, add := range c.Capabilities.Add {
					if !slices.Contains(sandboxCapabilities,
						strings.TrimPrefix(string(add), "CAP_")) {
						refuse(at, "a step with the capability "+string(add), "")
					}
				}
			}
		}
	}
}

// values are what variables stand for: texts, lists and objects, by their names without
// $( and ).
type values struct {
	texts   map[string]string
	lists   map[string][]string
	objects map[string]map[string]string
}

func newValues() values {
	return values{map[string]string{}, map[string][]string{}, map[string]map[string]string{}}
}

func (v values) clone() values {
	return values{maps.Clone(v.texts), maps.Clone(v.lists), maps.Clone(v.objects)}
}

// set a value in each of the notations of Tekton, such as params.a, params["a"] and params['a'].
func (v values) set(kind, name string, value tektonv1.ParamValue) {
	for _, at := range []string{kind + "." + name, kind + `["` + name + `"]`, kind + "['" + name + "']"} {
		switch value.Type {
		case tektonv1.ParamTypeArray:
			v.lists[at] = value.ArrayVal
			for i, item := range value.ArrayVal {
				v.texts[fmt.Sprintf("%s[%d]", at, i)] = item
			}
		case tektonv1.ParamTypeObject:
			v.objects[at] = value.ObjectVal
			for key, item := range value.ObjectVal {
				v.texts[at+"."+key] = item
			}
		default:
			v.texts[at] = value.StringVal
		}
	}
}

func (v values) put(value tektonv1.ParamValue) tektonv1.ParamValue {
	value = *value.DeepCopy()
	value.ApplyReplacements(v.texts, v.lists, v.objects)
	return value
}

// params of the run, with the pipeline's defaults, and the names of what runs.
func (p *plan) params() values {
	v := newValues()
	for _, declared := range p.spec.Params {
		if declared.Default != nil {
			v.set("params", declared.Name, *declared.Default)
		}
	}
	for _, given := range p.run.Spec.Params {
		v.set("params", given.Name, given.Value)
	}
	v.texts["context.pipelineRun.name"], v.texts["context.pipelineRun.namespace"] =
		p.run.Name, p.run.Namespace
	v.texts["context.pipelineRun.uid"], v.texts["context.pipeline.name"] = p.run.Name, p.run.Name
	return v
}

// ofTask are the variables inside of a task: its parameters, results and workspaces.
// Those of the pipeline are there too, as a task within a pipeline sees them.
func (p *plan) ofTask(t *task, given tektonv1.Params, attempt int) values {
	v := p.params()
	for _, declared := range t.TaskSpec.Params {
		if declared.Default != nil {
			v.set("params", declared.Name, v.put(*declared.Default))
		}
	}
	for _, param := range given {
		v.set("params", param.Name, param.Value)
	}
	for _, r := range t.TaskSpec.Results {
		for _, at := range []string{"results." + r.Name, `results["` + r.Name + `"]`,
			"results['" + r.Name + "']"} {
			v.texts[at+".path"] = path.Join(resultsDir, r.Name)
		}
	}
	for _, declared := range t.TaskSpec.Workspaces {
		bound := p.bound(t, declared.Name) != nil
		at := "workspaces." + declared.Name
		v.texts[at+".bound"], v.texts[at+".path"], v.texts[at+".claim"], v.texts[at+".volume"] =
			fmt.Sprint(bound), "", "", ""
		if bound {
			v.texts[at+".path"] = workspacePath(declared)
		}
	}
	name := p.run.Name + "-" + t.Name
	v.texts["context.taskRun.name"], v.texts["context.taskRun.namespace"],
		v.texts["context.taskRun.uid"] = name, p.run.Namespace, name
	v.texts["context.task.name"], v.texts["context.task.retry-count"] = t.Name, fmt.Sprint(attempt)
	return v
}

func workspacePath(w tektonv1.WorkspaceDeclaration) string {
	if w.MountPath != "" {
		return w.MountPath
	}
	return path.Join(workspaceDir, w.Name)
}

// bound is what a workspace of a task is bound to; nil for nothing.
func (p *plan) bound(t *task, workspace string) *tektonv1.WorkspaceBinding {
	name := ""
	for _, b := range t.Workspaces {
		if b.Name == workspace {
			if name = b.Workspace; name == "" {
				name = b.Name
			}
		}
	}
	for i, b := range p.run.Spec.Workspaces {
		if name != "" && b.Name == name {
			return &p.run.Spec.Workspaces[i]
		}
	}
	return nil
}

// unknown is a variable that nothing stands for.
var unknown = regexp.MustCompile(`\$\((params|workspaces|results|tasks|context)[.\[][^)]*\)`)

// asStep is a sidecar as far as a container is concerned.
func asStep(s tektonv1.Sidecar) tektonv1.Step {
	return tektonv1.Step{Name: "sidecar-" + s.Name, Image: s.Image, Command: s.Command,
		Args: s.Args, WorkingDir: s.WorkingDir, EnvFrom: s.EnvFrom, Env: s.Env,
		VolumeMounts: s.VolumeMounts, VolumeDevices: s.VolumeDevices,
		SecurityContext: s.SecurityContext, Script: s.Script, Workspaces: s.Workspaces}
}

// steps of a task with their variables replaced, and its sidecars, but for that which
// BuildKit replaces.
func (t *task) steps(v values) (steps, sidecars []tektonv1.Step, err error) {
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

func replaced(steps []tektonv1.Step, v values) ([]tektonv1.Step, error) {
	out := make([]tektonv1.Step, len(steps))
	for i := range steps {
		s := steps[i].DeepCopy()
		container.ApplyStepReplacements(s, v.texts, v.lists)
		for _, text := range slices.Concat([]string{s.Image, s.Script, s.WorkingDir}, s.Command, s.Args) {
			if name := unknown.FindString(text); name != "" {
				return nil, fmt.Errorf("step %s: the variable %s has no value", s.Name, name)
			}
		}
		out[i] = *s
	}
	return out, nil
}
