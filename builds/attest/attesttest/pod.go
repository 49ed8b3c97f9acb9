package attesttest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/container"
	"github.com/tektoncd/pipeline/pkg/substitution"
	"github.com/tektoncd/pipeline/pkg/workspace"
	corev1 "k8s.io/api/core/v1"
)

// PodOf is the spec of the pod that Tekton 1.15 makes of a TaskRun, as its pkg/pod does, which
// cannot be imported here.
func PodOf(tr *tektonv1.TaskRun) corev1.PodSpec {
	tr = tr.DeepCopy() // a pod shares nothing with it
	bound := tr.Spec.Workspaces
	named := workspace.CreateVolumes(bound)
	texts, arrays := variables(tr, named)
	spec := tr.Spec.TaskSpec.DeepCopy()
	for i := range spec.Steps {
		container.ApplyStepReplacements(&spec.Steps[i], texts, arrays)
		spec.Steps[i].Script = substitution.ApplyReplacements(spec.Steps[i].Script, texts)
	}
	if spec.StepTemplate != nil {
		container.ApplyStepTemplateReplacements(spec.StepTemplate, texts, arrays)
	}
	for i := range spec.Sidecars {
		container.ApplySidecarReplacements(&spec.Sidecars[i], texts, arrays)
	}
	spec.Volumes = reread(spec.Volumes, texts)
	spec, err := workspace.Apply(context.Background(), *spec, bound, named)
	if err == nil {
		spec.Steps, err = tektonv1.MergeStepsWithStepTemplate(spec.StepTemplate, spec.Steps)
	}
	if err != nil {
		panic(err)
	}
	emptyDir := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	}
	mount := func(name, path string, readOnly bool) corev1.VolumeMount {
		return corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: readOnly}
	}
	implicit := []corev1.VolumeMount{mount("tekton-internal-bin", "/tekton/bin", true), mount("tekton-internal-workspace", "/workspace", false), mount("tekton-internal-home", "/tekton/home", false),
		mount("tekton-internal-results", "/tekton/results", false), mount("tekton-internal-steps", "/tekton/steps", true), mount("tekton-internal-artifacts", "/tekton/artifacts", false)}
	out := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, ServiceAccountName: tr.Spec.ServiceAccountName}
	if p := tr.Spec.PodTemplate; p != nil {
		out.SecurityContext, out.AutomountServiceAccountToken, out.NodeSelector, out.Tolerations = p.SecurityContext, p.AutomountServiceAccountToken, p.NodeSelector, p.Tolerations
	}
	prepare := corev1.Container{Name: "prepare", Image: "tekton.example/entrypoint:v1.15.1", WorkingDir: "/", Command: []string{"/ko-app/entrypoint", "init", "/ko-app/entrypoint", "/tekton/bin/entrypoint"},
		VolumeMounts: []corev1.VolumeMount{mount("tekton-internal-bin", "/tekton/bin", false), mount("tekton-internal-steps", "/tekton/steps", false)}}
	scripts := corev1.Container{Name: "place-scripts", Image: "tekton.example/shell", Command: []string{"sh"}, Args: []string{"-c", ""},
		VolumeMounts: []corev1.VolumeMount{mount("tekton-internal-scripts", "/tekton/scripts", false), mount("tekton-internal-bin", "/tekton/bin", false)}}
	var results, folders []string
	for _, r := range spec.Results {
		results = append(results, r.Name)
	}
	for i, step := range spec.Steps {
		c := *step.ToK8sContainer()
		c.Name = "step-" + step.Name
		prepare.Command = append(prepare.Command, c.Name)
		if step.Script != "" {
			file := fmt.Sprintf("/tekton/scripts/script-%d-x7k2p", i)
			text := step.Script
			if !strings.HasPrefix(strings.TrimSpace(text), "#!") {
				text = "#!/bin/sh\nset -e\n" + text
			}
			scripts.Args[1] += fmt.Sprintf("scriptfile=%q\ntouch ${scriptfile} && chmod +x ${scriptfile}\ncat > ${scriptfile} << '_EOF_'\n%s\n_EOF_\n/tekton/bin/entrypoint decode-script \"${scriptfile}\"\n",
				file, base64.StdEncoding.EncodeToString([]byte(text)))
			c.Command, c.VolumeMounts = []string{file}, append(c.VolumeMounts, mount("tekton-internal-scripts", "/tekton/scripts", true))
		}
		if strings.HasPrefix(c.WorkingDir, "/workspace/") {
			folders = append(folders, c.WorkingDir)
		}
		args := []string{"-wait_file", fmt.Sprintf("/tekton/run/%d/out", i-1)}
		if i == 0 {
			args = nil
			if len(spec.Sidecars) > 0 {
				args = []string{"-wait_file", "/tekton/downward/ready", "-wait_file_content"}
				c.VolumeMounts = append(c.VolumeMounts, mount("tekton-internal-downward", "/tekton/downward", true))
			}
		}
		args = append(args, "-post_file", fmt.Sprintf("/tekton/run/%d/out", i), "-termination_path", "/tekton/termination", "-step_metadata_dir", fmt.Sprintf("/tekton/run/%d/status", i))
		if step.OnError != "" {
			args = append(args, "-on_error", string(step.OnError))
		}
		if step.Timeout != nil {
			args = append(args, "-timeout", step.Timeout.Duration.String())
		}
		if len(results) > 0 {
			args = append(args, "-results", strings.Join(results, ","))
		}
		args = append(append(args, "-entrypoint", c.Command[0], "--"), c.Command[1:]...)
		c.Command, c.Args, c.TerminationMessagePath = []string{"/tekton/bin/entrypoint"}, append(args, c.Args...), "/tekton/termination"
		c.VolumeMounts = append(c.VolumeMounts, mount(fmt.Sprintf("tekton-creds-init-home-%d", i), "/tekton/creds", false))
		out.Volumes = append(out.Volumes, emptyDir(fmt.Sprintf("tekton-creds-init-home-%d", i)), emptyDir(fmt.Sprintf("tekton-internal-run-%d", i)))
		for j := range spec.Steps {
			c.VolumeMounts = append(c.VolumeMounts, mount(fmt.Sprintf("tekton-internal-run-%d", j), fmt.Sprintf("/tekton/run/%d", j), i != j))
		}
		for _, m := range implicit {
			if !slices.ContainsFunc(c.VolumeMounts, func(have corev1.VolumeMount) bool { return have.MountPath == m.MountPath }) {
				c.VolumeMounts = append(c.VolumeMounts, m)
			}
		}
		out.Containers = append(out.Containers, c)
	}
	for _, sidecar := range spec.Sidecars {
		c := *sidecar.ToK8sContainer()
		c.Name = "sidecar-" + sidecar.Name
		out.Containers = append(out.Containers, c)
	}
	out.InitContainers = []corev1.Container{prepare}
	if scripts.Args[1] != "" {
		out.InitContainers = append(out.InitContainers, scripts)
		out.Volumes = append(out.Volumes, emptyDir("tekton-internal-scripts"))
	}
	if len(folders) > 0 {
		out.InitContainers = append(out.InitContainers, corev1.Container{Name: "working-dir-initializer", Image: "tekton.example/workingdirinit", Command: []string{"/ko-app/workingdirinit"},
			Args: folders, WorkingDir: "/workspace", VolumeMounts: implicit[1:]})
	}
	if len(spec.Sidecars) > 0 {
		out.Volumes = append(out.Volumes, corev1.Volume{Name: "tekton-internal-downward", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{{Path: "ready", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['tekton.dev/ready']"}}}}}})
	}
	for _, m := range implicit {
		out.Volumes = append(out.Volumes, emptyDir(m.Name))
	}
	out.Volumes = append(out.Volumes, spec.Volumes...)
	return out
}

// variables that Tekton replaces in the text of a TaskRun's task.
func variables(tr *tektonv1.TaskRun, volumes map[string]corev1.Volume) (map[string]string, map[string][]string) {
	texts, arrays := map[string]string{}, map[string][]string{}
	param := func(name string, value tektonv1.ParamValue) {
		delete(arrays, "params."+name)
		if value.Type == tektonv1.ParamTypeArray {
			arrays["params."+name] = value.ArrayVal
		} else {
			texts["params."+name] = value.StringVal
		}
	}
	spec := tr.Spec.TaskSpec
	for _, p := range spec.Params {
		if p.Default != nil {
			param(p.Name, *p.Default)
		}
	}
	for _, p := range tr.Spec.Params {
		param(p.Name, p.Value)
	}
	texts["context.taskRun.name"], texts["context.taskRun.namespace"] = tr.Name, tr.Namespace
	for _, r := range spec.Results {
		texts["results."+r.Name+".path"] = "/tekton/results/" + r.Name
	}
	for _, w := range spec.Workspaces {
		texts["workspaces."+w.Name+".path"], texts["workspaces."+w.Name+".bound"] = w.GetMountPath(), "true"
		if _, bound := volumes[w.Name]; !bound && w.Optional {
			texts["workspaces."+w.Name+".path"], texts["workspaces."+w.Name+".bound"] = "", "false"
		}
	}
	return texts, arrays
}

// reread a value with variables replaced.
func reread[T any](v T, texts map[string]string) (out T) {
	quoted := map[string]string{}
	for key, value := range texts {
		quoted[key] = strings.Trim(text(value), `"`)
	}
	if err := json.Unmarshal([]byte(substitution.ApplyReplacements(text(v), quoted)), &out); err != nil {
		panic(err)
	}
	return out
}
