package compose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline/pod"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// The workspaces that every build can have without binding them.
const (
	sharedWorkspace   = "shared-workspace"
	gitCredentials    = "git-credentials"
	registryWorkspace = "registry-credentials"
	pullCredentials   = "pull-credentials"
	// buildGroup owns what the steps write, so that steps of different users
	// can share it.
	buildGroup = 65532
)

// workspaceAliases are other names that published steps give them.
var workspaceAliases = map[string]string{
	"source":        sharedWorkspace,
	"basic-auth":    gitCredentials,
	"ssh-directory": gitCredentials,
	"dockerconfig":  registryWorkspace,
}

// chainsResults are the results that Tekton Chains reads from a pipeline.
var chainsResults = []string{"IMAGE_URL", "IMAGE_DIGEST", "CHAINS-GIT_URL", "CHAINS-GIT_COMMIT"}

// pipeline assembles the tasks, the parameters they use and the results.
func (c *composition) pipeline() *tektonv1.Pipeline {
	p := &tektonv1.Pipeline{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "Pipeline"},
		ObjectMeta: c.objectMeta(""),
		Spec:       tektonv1.PipelineSpec{Description: c.in.Template.Description},
	}
	for _, name := range sortedKeys(c.used) {
		p.Spec.Params = append(p.Spec.Params, tektonv1.ParamSpec{Name: name, Type: c.spec.values[name].Type})
	}
	for _, s := range c.steps {
		if s.row.Finally {
			p.Spec.Finally = append(p.Spec.Finally, s.task)
		} else {
			p.Spec.Tasks = append(p.Spec.Tasks, s.task)
		}
	}
	p.Spec.Results = c.results()
	return p
}

// results hands the image and the commit on, under the names that Chains reads.
// Where two tasks can give one, as when a Dockerfile decides, each result has its
// task's name in front, which Chains understands too.
func (c *composition) results() []tektonv1.PipelineResult {
	var out []tektonv1.PipelineResult
	names := chainsResults
	if len(c.in.Build.Spec.Platforms) > 0 {
		names = append(slices.Clone(names), PlatformDigests)
	}
	for _, name := range names {
		var from []string
		for _, s := range c.steps {
			if !s.row.Finally && slices.ContainsFunc(s.task.TaskSpec.Results, func(r tektonv1.TaskResult) bool { return r.Name == name }) {
				from = append(from, s.row.Name)
			}
		}
		for _, task := range from {
			as := name
			if len(from) > 1 {
				as = task + "-" + name
			}
			out = append(out, tektonv1.PipelineResult{Name: as, Type: tektonv1.ResultsTypeString,
				Value: *tektonv1.NewStructuredValues(fmt.Sprintf("$(tasks.%s.results.%s)", task, name))})
		}
	}
	return out
}

// bindWorkspaces ties what the tasks declare to the pipeline's workspaces.
func (c *composition) bindWorkspaces(p *tektonv1.Pipeline) {
	available := map[string]bool{sharedWorkspace: true}
	spec := c.in.Build.Spec
	available[gitCredentials] = spec.Source.SourceCredentials != nil
	available[registryWorkspace] = spec.BuildOutput != nil && spec.BuildOutput.ImageRepoCredentials != nil
	if spec.Pipeline != nil {
		for _, w := range spec.Pipeline.Workspaces {
			available[w.Name] = true
		}
	}
	usedBy := map[string]bool{}
	for _, list := range [][]tektonv1.PipelineTask{p.Spec.Tasks, p.Spec.Finally} {
		for i := range list {
			task := &list[i]
			s := c.taskIn[task.Name]
			for _, name := range sortedKeys(s.row.Workspaces) {
				if !slices.ContainsFunc(task.TaskSpec.Workspaces, func(w tektonv1.WorkspaceDeclaration) bool { return w.Name == name }) {
					place := c.rowPlace(s)
					c.fault(s.row.Name, place.At(place.Field+".workspaces."+name).Fault(api.ReasonUnboundWorkspace,
						fmt.Sprintf("step %q has no workspace %q", s.row.Name, name), "correct the name or remove it"))
				}
			}
			for j, w := range task.TaskSpec.Workspaces {
				target, mapped := s.row.Workspaces[w.Name]
				if !mapped {
					target = w.Name
				}
				if real, ok := workspaceAliases[target]; ok && !available[target] {
					target = real
				}
				switch {
				case available[target]:
					usedBy[target] = true
					task.Workspaces = append(task.Workspaces, tektonv1.WorkspacePipelineTaskBinding{Name: w.Name, Workspace: target})
				case !w.Optional || mapped:
					c.unbound(s, w.Name, target, j)
				}
			}
		}
	}
	for _, name := range sortedKeys(usedBy) {
		p.Spec.Workspaces = append(p.Spec.Workspaces, tektonv1.PipelineWorkspaceDeclaration{Name: name})
	}
	if spec.Pipeline == nil {
		return
	}
	for i, w := range spec.Pipeline.Workspaces {
		if !usedBy[w.Name] && len(c.steps) > 0 && !c.broken {
			c.bad(api.ReasonUnboundWorkspace, fmt.Sprintf("spec.pipeline.workspaces[%d].name", i),
				fmt.Sprintf("no enabled step has a workspace %q", w.Name), "correct the name or remove the binding")
		}
	}
}

func (c *composition) unbound(s *plannedStep, name, target string, at int) {
	hint := fmt.Sprintf("bind it in spec.pipeline.workspaces of %s, or map it to shared-workspace in the template's steps[].workspaces", c.buildPlace())
	switch target {
	case gitCredentials:
		hint = "set spec.source.sourceCredentials of " + c.buildPlace().String()
	case registryWorkspace:
		hint = "set spec.buildOutput.imageRepoCredentials of " + c.buildPlace().String()
	}
	field := fmt.Sprintf("workspaces[%d]", at)
	c.fault(s.row.Name, s.file.doc.place(field).Fault(api.ReasonUnboundWorkspace,
		fmt.Sprintf("step %q needs the workspace %q, and nothing is bound to it", s.row.Name, name), hint))
}

// run makes the PipelineRun, and the claim of a workspace that is kept.
func (c *composition) run(p *tektonv1.Pipeline) (*tektonv1.PipelineRun, *corev1.PersistentVolumeClaim) {
	b := c.in.Build
	run := &tektonv1.PipelineRun{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "PipelineRun"},
		ObjectMeta: c.objectMeta(""),
	}
	setIf(run.Labels, labelQueue, c.in.Settings.QueueName)
	for k, v := range b.Spec.Labels {
		if _, ours := run.Labels[k]; !ours {
			run.Labels[k] = v
		}
	}
	run.Annotations = map[string]string{}
	for k, v := range b.Spec.Annotations {
		run.Annotations[k] = v
	}
	specHash, templateHash := InputHashes(b, c.in.Template, c.in.Steps)
	run.Annotations[keys.AnnotationBuild] = b.Name
	run.Annotations[keys.AnnotationSpec] = specHash
	run.Annotations[keys.AnnotationTemplate] = templateHash
	run.Annotations[keys.AnnotationAttempt] = strconv.Itoa(int(c.in.Attempt))
	setIf(run.Annotations, keys.AnnotationCommit, c.in.Commit)
	setIf(run.Annotations, keys.AnnotationRef, c.in.Ref)
	if len(c.in.Verified) > 0 {
		run.Annotations[keys.AnnotationVerified] = mustJSON(c.in.Verified)
	}
	setIf(run.Annotations, keys.AnnotationImage, c.spec.image)
	if c.in.Template.Attest {
		run.Annotations[keys.AnnotationMaterials] = mustJSON(c.materials())
	}
	group := c.in.Settings.Group
	if group == "" {
		group = api.DefaultGroup
	}
	setIf(run.Annotations, keys.AnnotationRerun, b.Annotations[api.RerunAnnotation(group)])

	for _, param := range p.Spec.Params {
		run.Spec.Params = append(run.Spec.Params, tektonv1.Param{Name: param.Name, Value: c.spec.values[param.Name]})
	}
	run.Spec.TaskRunTemplate = tektonv1.PipelineTaskRunTemplate{
		ServiceAccountName: firstOf(b.Spec.ServiceAccountName, c.in.Settings.ServiceAccountName),
		PodTemplate:        podTemplate(b.Spec.Pod, b.Spec.Workspace != nil && b.Spec.Workspace.Keep),
	}
	c.placeAll(run.Spec.TaskRunTemplate.PodTemplate)
	run.Spec.TaskRunSpecs = c.taskRunSpecs(p)
	if c.in.Template.Attest && run.Spec.TaskRunTemplate.ServiceAccountName == "" {
		run.Spec.TaskRunTemplate.ServiceAccountName = "default" // else Tekton's defaults decide
	}
	if t := c.timeout(); t > 0 {
		run.Spec.Timeouts = &tektonv1.TimeoutFields{Pipeline: &metav1.Duration{Duration: t}}
	}
	var claim *corev1.PersistentVolumeClaim
	for _, w := range p.Spec.Workspaces {
		binding := c.workspace(w.Name)
		if w.Name == sharedWorkspace && b.Spec.Workspace != nil && b.Spec.Workspace.Keep {
			claim = &corev1.PersistentVolumeClaim{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
				ObjectMeta: c.objectMeta(objectName(b.Name) + "-workspace"),
				Spec:       c.claimSpec(),
			}
			binding = tektonv1.WorkspaceBinding{Name: w.Name, PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}
		}
		run.Spec.Workspaces = append(run.Spec.Workspaces, binding)
	}
	// The pipeline is most of a run, so its text is made once.
	pipelineText := mustJSON(p.Spec)
	p.Name = objectName(b.Name) + "-" + fingerprint(pipelineText)[:10]
	if c.in.Settings.PipelineObjects {
		run.Spec.PipelineRef = &tektonv1.PipelineRef{Name: p.Name}
	}
	// Everything that shapes the run is in its name, and its number: going back to
	// an earlier spec makes a run of its own, and no name is used twice.
	c.texts = []string{mustJSON(run.Spec), pipelineText, mustJSON(run.Annotations), mustJSON(run.Labels)}
	shape := c.texts
	if c.in.Number > 0 {
		run.Annotations[keys.AnnotationNumber], run.Annotations[keys.AnnotationSource] = strconv.Itoa(int(c.in.Number)), SourceHash(b, c.in.Template)
		shape = append(slices.Clone(shape), run.Annotations[keys.AnnotationNumber])
	}
	run.Name = objectName(b.Name) + "-" + fingerprint(shape...)[:10]
	if !c.in.Settings.PipelineObjects {
		run.Spec.PipelineSpec = &p.Spec
	}
	setIf(run.Annotations, keys.AnnotationTrigger, string(c.in.Trigger))
	if c.in.Template.Attest {
		run.Annotations[keys.AnnotationRunDigest] = RunDigest(&run.Spec)
		if c.in.Settings.PipelineObjects {
			run.Annotations[keys.AnnotationPipelineDigest] = PipelineDigest(&p.Spec)
		}
	}
	return run, claim
}

// apply lists the objects that must exist before the run.
func (c *composition) apply(p *tektonv1.Pipeline, claim *corev1.PersistentVolumeClaim) []Object {
	var out []Object
	if s := c.in.Settings; s.CreateServiceAccount && s.ServiceAccountName != "" && c.in.Build.Spec.ServiceAccountName == "" {
		no := false
		out = append(out, &corev1.ServiceAccount{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			// All builds of the namespace share it, so none owns it.
			ObjectMeta:                   metav1.ObjectMeta{Name: s.ServiceAccountName, Namespace: c.in.Build.Namespace, Labels: map[string]string{LabelManagedBy: ManagedBy}},
			AutomountServiceAccountToken: &no,
		})
	}
	if claim != nil {
		out = append(out, claim)
	}
	if c.in.Settings.PipelineObjects {
		out = append(out, p)
	}
	return out
}

func setIf(m map[string]string, key, value string) {
	if value != "" {
		m[key] = value
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// podTemplate gives all pods of a run one group for the shared volume, the
// runtime's seccomp profile and no ServiceAccount token, unless the build says
// otherwise: what a Dockerfile or a test runs could read the token. In a volume that is
// kept, folders that a step made as root are given to the group again each time,
// since the next run could not remove them.
func podTemplate(settings *api.PodSettings, keep bool) *pod.PodTemplate {
	group, policy := int64(buildGroup), corev1.FSGroupChangeOnRootMismatch
	if keep {
		policy = corev1.FSGroupChangeAlways
	}
	token := settings != nil && settings.AutomountServiceAccountToken
	t := &pod.PodTemplate{
		AutomountServiceAccountToken: &token,
		SecurityContext: &corev1.PodSecurityContext{
			FSGroup:             &group,
			FSGroupChangePolicy: &policy,
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if settings == nil {
		return t
	}
	t.NodeSelector = settings.NodeSelector
	t.Tolerations = settings.Tolerations
	if settings.SecurityContext != nil {
		t.SecurityContext = settings.SecurityContext
	}
	return t
}

// taskRunSpecs give the build's resources to the task that makes the image, pods in
// which containers are made a security context that allows it, and those of a platform
// its nodes.
func (c *composition) taskRunSpecs(p *tektonv1.Pipeline) []tektonv1.PipelineTaskRunSpec {
	settings := c.in.Build.Spec.Pod
	var makers []string
	if settings != nil && settings.Resources != nil {
		makers = makersOf(p)
	}
	var out []tektonv1.PipelineTaskRunSpec
	for _, task := range p.Spec.Tasks {
		row := tektonv1.PipelineTaskRunSpec{PipelineTaskName: task.Name}
		nests := makesContainers(task)
		if slices.Contains(makers, task.Name) {
			if row.ComputeResources = settings.Resources; nests {
				row.ComputeResources = nil
				for _, s := range task.TaskSpec.Sidecars {
					row.SidecarSpecs = append(row.SidecarSpecs, tektonv1.TaskRunSidecarSpec{Name: s.Name, ComputeResources: *settings.Resources})
				}
			}
		}
		if nests && (settings == nil || settings.SecurityContext == nil) {
			context := podTemplate(settings, c.in.Build.Spec.Workspace != nil && c.in.Build.Spec.Workspace.Keep).SecurityContext
			context.SeccompProfile = nil
			row.PodTemplate = &pod.PodTemplate{SecurityContext: context}
		}
		if s := c.taskIn[task.Name]; s.platform != "" && !s.looks() && c.nativeNodes() && len(c.in.Build.Spec.Platforms) > 1 {
			if row.PodTemplate == nil {
				row.PodTemplate = &pod.PodTemplate{}
			}
			var selector map[string]string
			if settings != nil {
				selector = settings.NodeSelector
			}
			row.PodTemplate.NodeSelector = nodesOf(s.platform, selector)
		}
		if row.ComputeResources != nil || row.SidecarSpecs != nil || row.PodTemplate != nil {
			out = append(out, row)
		}
	}
	return out
}

// makersOf the image are the tasks with the result layout-digest or, where that
// is not what they push, IMAGE_DIGEST; all tasks where there is none.
func makersOf(p *tektonv1.Pipeline) []string {
	var makers, all []string
	for _, task := range p.Spec.Tasks {
		all = append(all, task.Name)
		has := func(names ...string) bool {
			return slices.ContainsFunc(task.TaskSpec.Results, func(r tektonv1.TaskResult) bool { return slices.Contains(names, r.Name) })
		}
		if has(layoutDigest, "IMAGE_DIGEST") && !declares(task.TaskSpec.Params, layoutDigest) {
			makers = append(makers, task.Name)
		}
	}
	if len(makers) > 0 {
		return makers
	}
	return all
}

// layoutDigest is the result of a task that leaves an image as an OCI layout, and
// the parameter of the one that pushes it.
const layoutDigest = "layout-digest"

// makesContainers reports whether a sidecar of the task makes containers in a user
// namespace of its own, as rootless BuildKit does: that is what it adds SETUID and
// SETGID for. It needs system calls that the runtime's seccomp profile forbids,
// and a container cannot take back a profile that its pod has.
func makesContainers(task tektonv1.PipelineTask) bool {
	return slices.ContainsFunc(task.TaskSpec.Sidecars, func(s tektonv1.Sidecar) bool {
		return s.SecurityContext != nil && s.SecurityContext.Capabilities != nil &&
			slices.Contains(s.SecurityContext.Capabilities.Add, "SETUID") && slices.Contains(s.SecurityContext.Capabilities.Add, "SETGID")
	})
}

// timeout of the run: the spec's, the parameter's, the template's, the
// controller's; zero leaves it to Tekton.
func (c *composition) timeout() time.Duration {
	spec := c.in.Build.Spec
	if spec.Timeout != nil {
		return spec.Timeout.Duration
	}
	if spec.Pipeline != nil {
		if p := findUser(spec.Pipeline.Parameters, timeoutParameter); p != nil && p.Value != nil {
			return c.duration(*p.Value, c.buildPlace().At("spec.pipeline.parameters["+timeoutParameter+"]"), api.ReasonInvalidBuild)
		}
	}
	if p := findDefault(c.in.Template.GlobalParameters, timeoutParameter); p != nil && p.Value != nil {
		return c.duration(p.Value.StringVal, c.in.Template.doc.place("globalParameters").At("globalParameters["+timeoutParameter+"]"), api.ReasonInvalidTemplate)
	}
	return c.in.Settings.Timeout
}

func (c *composition) duration(text string, place krm.Place, reason string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		c.problems.add(place.Fault(reason,
			fmt.Sprintf("%q is not a positive duration", text), "write it like 20m or 1h30m"))
		return 0
	}
	return d
}

// workspace binds one workspace of the pipeline.
func (c *composition) workspace(name string) tektonv1.WorkspaceBinding {
	spec := c.in.Build.Spec
	binding := tektonv1.WorkspaceBinding{Name: name}
	if spec.Pipeline != nil {
		for _, w := range spec.Pipeline.Workspaces {
			if w.Name != name {
				continue
			}
			switch {
			case w.Secret != nil:
				binding.Secret = &corev1.SecretVolumeSource{SecretName: w.Secret.Name}
			case w.ConfigMap != nil:
				binding.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: *w.ConfigMap}
			case w.PersistentVolumeClaim != nil:
				binding.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.PersistentVolumeClaim.Name}
			default:
				binding.EmptyDir = &corev1.EmptyDirVolumeSource{}
			}
			return binding
		}
	}
	switch name {
	case ownSource:
		size := c.claimSpec().Resources.Requests[corev1.ResourceStorage]
		binding.EmptyDir = &corev1.EmptyDirVolumeSource{SizeLimit: &size}
	case gitCredentials:
		binding.Secret = &corev1.SecretVolumeSource{SecretName: spec.Source.SourceCredentials.Name}
	case registryWorkspace:
		secret := spec.BuildOutput.ImageRepoCredentials.Name
		binding.Secret = &corev1.SecretVolumeSource{SecretName: secret}
		keys, known := c.in.SecretKeys[secret]
		switch {
		case slices.Contains(keys, "config.json"):
		case !known, slices.Contains(keys, corev1.DockerConfigJsonKey):
			binding.Secret.Items = []corev1.KeyToPath{{Key: corev1.DockerConfigJsonKey, Path: "config.json"}}
		default:
			c.bad(api.ReasonSecretInvalid, "spec.buildOutput.imageRepoCredentials.name",
				fmt.Sprintf("Secret %s has neither the key .dockerconfigjson nor config.json", secret),
				"create it with kubectl create secret docker-registry")
		}
	default:
		binding.VolumeClaimTemplate = &corev1.PersistentVolumeClaim{Spec: c.claimSpec()}
	}
	return binding
}

func (c *composition) claimSpec() corev1.PersistentVolumeClaimSpec {
	size, mode := resource.MustParse("1Gi"), corev1.ReadWriteOnce
	var class *string
	if w := c.in.Build.Spec.Workspace; w != nil {
		if w.Size != nil {
			size = *w.Size
		}
		if w.AccessMode != "" {
			mode = w.AccessMode
		}
		class = w.StorageClassName
	}
	return corev1.PersistentVolumeClaimSpec{
		AccessModes:      []corev1.PersistentVolumeAccessMode{mode},
		StorageClassName: class,
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
	}
}

// mustJSON of a value of our own making, which always marshals.
func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("compose: marshalling %T: %v", v, err))
	}
	return strings.TrimSpace(string(data))
}
