package compose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline/pod"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// The workspaces that a build has without binding them.
const (
	sharedWorkspace   = "shared-workspace"
	gitCredentials    = "git-credentials"
	registryWorkspace = "registry-credentials"
	pullCredentials   = "pull-credentials"
)

// workspaceAliases maps the names that published steps use to these workspaces.
var workspaceAliases = map[string]string{
	"source":        sharedWorkspace,
	"basic-auth":    gitCredentials,
	"ssh-directory": gitCredentials,
	"dockerconfig":  registryWorkspace,
}

// isShared reports whether a workspace is the shared volume of the steps.
func isShared(name string) bool {
	return name == sharedWorkspace || workspaceAliases[name] == sharedWorkspace
}

// chainsResults are the results that Tekton Chains reads from a pipeline.
var chainsResults = []string{"IMAGE_URL", "IMAGE_DIGEST", "CHAINS-GIT_URL", "CHAINS-GIT_COMMIT"}

// assemble sets the parameters, the tasks and the results of the pipeline.
func assemble(c *composer) {
	p := &c.pipeline
	p.Description = c.Template.Description
	for _, name := range sortedKeys(c.used()) {
		p.Params = append(p.Params, tektonv1.ParamSpec{Name: name, Type: c.spec[name].Type})
	}
	for _, s := range c.steps {
		if s.row.Finally {
			p.Finally = append(p.Finally, s.task)
		} else {
			p.Tasks = append(p.Tasks, s.task)
		}
	}
	// The results have the names that Chains reads. If two tasks can produce one, as when a
	// Dockerfile decides, the name of each task precedes the name, which Chains understands too.
	names := chainsResults
	if len(c.Build.Spec.Platforms) > 0 {
		names = append(slices.Clone(names), PlatformDigests)
	}
	for _, name := range names {
		var from []string
		for _, task := range p.Tasks {
			if tekton.Reports(&task.TaskSpec.TaskSpec, name) {
				from = append(from, task.Name)
			}
		}
		for _, task := range from {
			as := name
			if len(from) > 1 {
				as = task + "-" + name
			}
			p.Results = append(p.Results, tektonv1.PipelineResult{
				Name: as, Type: tektonv1.ResultsTypeString,
				Value: *tektonv1.NewStructuredValues("$(tasks." + task + ".results." + name + ")")})
		}
	}
}

// workspaces returns the workspaces that the build binds.
func (c *composer) workspaces() []api.WorkspaceBinding { return pipelineOf(c.Build).Workspaces }

// bindWorkspaces binds the workspaces of the tasks to workspaces of the pipeline.
func bindWorkspaces(c *composer) {
	spec := c.Build.Spec
	available := map[string]bool{
		sharedWorkspace:   true,
		gitCredentials:    spec.Source.SourceCredentials != nil,
		registryWorkspace: spec.BuildOutput != nil && spec.BuildOutput.ImageRepoCredentials != nil,
	}
	for _, w := range c.workspaces() {
		available[w.Name] = true
	}
	used := map[string]bool{}
	for task := range tekton.Tasks(&c.pipeline) {
		s := c.named(task.Name)
		for _, name := range sortedKeys(s.row.Workspaces) {
			if !tekton.HasWorkspace(&task.TaskSpec.TaskSpec, name) {
				c.fault(task.Name, s.at(".workspaces."+name), api.ReasonUnboundWorkspace,
					"correct the name or remove it", "step %q has no workspace %q", task.Name, name)
			}
		}
		for i, w := range task.TaskSpec.Workspaces {
			target, mapped := s.row.Workspaces[w.Name]
			if !mapped {
				target = w.Name
			}
			if real, ok := workspaceAliases[target]; ok && !available[target] {
				target = real
			}
			if available[target] {
				used[target] = true
				task.Workspaces = append(task.Workspaces,
					tektonv1.WorkspacePipelineTaskBinding{Name: w.Name, Workspace: target})
				continue
			} else if w.Optional && !mapped {
				continue
			}
			hint := fmt.Sprintf("bind it in spec.pipeline.workspaces of %s, or map it to "+
				"shared-workspace in the template's steps[].workspaces", c.Place)
			switch target {
			case gitCredentials:
				hint = "set spec.source.sourceCredentials of " + c.Place.String()
			case registryWorkspace:
				hint = "set spec.buildOutput.imageRepoCredentials of " + c.Place.String()
			}
			c.fault(task.Name, s.file.Doc.At(fmt.Sprintf("workspaces[%d]", i)),
				api.ReasonUnboundWorkspace, hint,
				"step %q needs the workspace %q, and nothing is bound to it", task.Name, w.Name)
		}
	}
	for _, name := range sortedKeys(used) {
		c.pipeline.Workspaces = append(c.pipeline.Workspaces,
			tektonv1.PipelineWorkspaceDeclaration{Name: name})
	}
	for i, w := range c.workspaces() {
		if !used[w.Name] && len(c.steps) > 0 && !c.broken {
			c.bad(api.ReasonUnboundWorkspace, fmt.Sprintf("spec.pipeline.workspaces[%d].name", i),
				"correct the name or remove the binding", "no enabled step has a workspace %q",
				w.Name)
		}
	}
}

// makeRun sets the run, the pipeline, and the objects to apply before the run.
func makeRun(c *composer, o *Output) {
	b, p := c.Build, c.pipeline
	run := &tektonv1.PipelineRun{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "PipelineRun"},
		ObjectMeta: c.objectMeta(""),
	}
	for k, v := range b.Spec.Labels {
		if _, reserved := run.Labels[k]; !reserved {
			run.Labels[k] = v
		}
	}
	run.Annotations = runAnnotations(c)
	for _, param := range p.Params {
		run.Spec.Params = append(run.Spec.Params,
			tektonv1.Param{Name: param.Name, Value: c.spec[param.Name].ParamValue})
		if param.Name == templates.Secrets {
			checkKeys(c)
		}
	}
	template := podTemplate(b.Spec)
	account := cmp.Or(b.Spec.ServiceAccountName, c.Settings.ServiceAccountName)
	if c.Template.Isolates() {
		account = BuildAccount
	}
	run.Spec.TaskRunTemplate = tektonv1.PipelineTaskRunTemplate{
		ServiceAccountName: account, PodTemplate: template}
	if s := c.Settings; c.isolated() && s.RuntimeClass != "" {
		template.RuntimeClassName = &s.RuntimeClass
	}
	if one := b.Spec.Platforms; len(one) == 1 && nativeNodes(b) { // all pods share a volume
		template.NodeSelector = nodesOf(one[0], template.NodeSelector)
	}
	run.Spec.TaskRunSpecs = taskRunSpecs(c)
	if limit := c.timeout(); limit > 0 {
		run.Spec.Timeouts = &tektonv1.TimeoutFields{Pipeline: &metav1.Duration{Duration: limit}}
	}
	o.Apply = nil
	if s := c.Settings; !c.isolated() && s.CreateServiceAccount && s.ServiceAccountName != "" &&
		b.Spec.ServiceAccountName == "" {
		o.Apply = append(o.Apply, &corev1.ServiceAccount{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			// All builds of the namespace share this account, so no build owns it.
			ObjectMeta: metav1.ObjectMeta{Name: s.ServiceAccountName, Namespace: b.Namespace,
				Labels: map[string]string{LabelManagedBy: ManagedBy}},
			AutomountServiceAccountToken: ptr.To(false),
		})
	}
	for _, w := range p.Workspaces {
		binding := workspace(c, w.Name)
		if w.Name == sharedWorkspace && keepsWorkspace(b.Spec) {
			claim := &corev1.PersistentVolumeClaim{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
				ObjectMeta: c.objectMeta(objectName(b.Name) + "-workspace"),
				Spec:       claimSpec(b.Spec.Workspace),
			}
			o.Apply = append(o.Apply, claim)
			kept := corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}
			binding = tektonv1.WorkspaceBinding{Name: w.Name, PersistentVolumeClaim: &kept}
		}
		run.Spec.Workspaces = append(run.Spec.Workspaces, binding)
	}
	o.Pipeline = &tektonv1.Pipeline{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "Pipeline"},
		ObjectMeta: c.objectMeta(objectName(b.Name) + "-" + fingerprint(c.text)[:10]),
		Spec:       p,
	}
	number := strconv.Itoa(int(c.Number))
	if c.isolated() { // the run owns it
		o.Pipeline.Name = c.isolatedName(shorten(objectName(b.Name), 30), c.text, number)
	}
	if c.Settings.PipelineObjects {
		run.Spec.PipelineRef = &tektonv1.PipelineRef{Name: o.Pipeline.Name}
		if !c.isolated() {
			o.Apply = append(o.Apply, o.Pipeline)
		}
	}
	// The run's name is a hash of everything that shapes the run, and of its number: a return to
	// an earlier spec creates another run, and no name is used twice.
	named := []string{tekton.JSON(run.Spec), c.text, tekton.JSON(run.Annotations),
		tekton.JSON(run.Labels)}
	c.size = 0
	for _, text := range named {
		c.size += len(text)
	}
	if c.Number > 0 {
		run.Annotations[keys.AnnotationNumber], run.Annotations[keys.AnnotationSource] =
			number, SourceHash(b, c.Template)
		named = append(named, number)
	}
	run.Name = objectName(b.Name) + "-" + fingerprint(named...)[:10]
	if c.isolated() {
		run.Name = c.isolatedName(shorten(objectName(b.Name), 30), named...)
	}
	if value, labelled := b.Labels[c.Settings.ShardLabel]; labelled { // not in the name
		run.Labels[c.Settings.ShardLabel] = value
	}
	if c.Settings.ShardLabel != "" && c.isolated() {
		run.Labels[keys.AnnotationBuildNamespace] = b.Namespace
	}
	if !c.Settings.PipelineObjects {
		run.Spec.PipelineSpec = &o.Pipeline.Spec
	}
	setIf(run.Annotations, keys.AnnotationTrigger, string(c.Trigger))
	if Attests(b, c.Template) {
		run.Annotations[keys.AnnotationRunDigest] = RunDigest(&run.Spec)
		if c.Settings.PipelineObjects {
			run.Annotations[keys.AnnotationPipelineDigest] = PipelineDigest(&o.Pipeline.Spec)
		}
	}
	o.Run = run
}

// runAnnotations returns the annotations of the run: those of the build, and those that identify
// the inputs of the run.
func runAnnotations(c *composer) map[string]string {
	b, out := c.Build, map[string]string{}
	maps.Copy(out, b.Spec.Annotations)
	out[keys.AnnotationBuild] = b.Name
	if c.isolated() {
		out[keys.AnnotationBuildNamespace] = b.Namespace
		out[keys.AnnotationBuildUID] = string(b.UID)
	}
	out[keys.AnnotationSpec], out[keys.AnnotationTemplate] = InputHashes(b, c.Template, c.Steps)
	out[keys.AnnotationAttempt] = strconv.Itoa(int(c.Attempt))
	setIf(out, keys.AnnotationCommit, c.Commit)
	setIf(out, keys.AnnotationRef, c.Ref)
	if len(c.Verified) > 0 {
		out[keys.AnnotationVerified] = tekton.JSON(c.Verified)
	}
	setIf(out, keys.AnnotationImage, Image(b))
	if Attests(b, c.Template) {
		out[keys.AnnotationMaterials] = tekton.JSON(materials(c))
	}
	if b.Spec.Source.PullRequest != nil {
		out[ChainsSigned] = "failed"
	}
	setIf(out, keys.AnnotationRerun, b.Annotations[api.RerunAnnotation(c.Settings.group())])
	return out
}

func setIf(m map[string]string, key, value string) {
	if value != "" {
		m[key] = value
	}
}

// podTemplate returns the template for all pods of a run. Unless the build overrides them, it sets
// one group for the shared volume, the runtime's seccomp profile and no ServiceAccount token, which
// a Dockerfile or a test could read. In a kept volume, each run sets the group again on folders
// that a step created as root, since the next run could not remove them.
func podTemplate(spec api.AgentBuildSpec) *pod.PodTemplate {
	settings := ptr.Deref(spec.Pod, api.PodSettings{})
	policy := corev1.FSGroupChangeOnRootMismatch
	if keepsWorkspace(spec) {
		policy = corev1.FSGroupChangeAlways
	}
	return &pod.PodTemplate{
		NodeSelector:                 settings.NodeSelector,
		Tolerations:                  settings.Tolerations,
		AutomountServiceAccountToken: &settings.AutomountServiceAccountToken,
		SecurityContext: cmp.Or(settings.SecurityContext, &corev1.PodSecurityContext{
			FSGroup:             ptr.To(int64(tekton.BuildGroup)),
			FSGroupChangePolicy: &policy,
			SeccompProfile: &corev1.SeccompProfile{
				Type: corev1.SeccompProfileTypeRuntimeDefault},
		}),
	}
}

// keepsWorkspace reports whether the shared volume of the steps outlives the run.
func keepsWorkspace(spec api.AgentBuildSpec) bool {
	return spec.Workspace != nil && spec.Workspace.Keep
}

// taskRunSpecs returns settings of single tasks: the build's resources for tasks that make the
// image, a security context that allows nested containers, and the nodes of a platform.
func taskRunSpecs(c *composer) (out []tektonv1.PipelineTaskRunSpec) {
	b, settings := c.Build, ptr.Deref(c.Build.Spec.Pod, api.PodSettings{})
	var makers []string
	if settings.Resources != nil {
		makers = makersOf(c.pipeline.Tasks)
	}
	for _, task := range c.pipeline.Tasks {
		row := tektonv1.PipelineTaskRunSpec{PipelineTaskName: task.Name}
		var template pod.PodTemplate
		nests := tekton.MakesContainers(&task.TaskSpec.TaskSpec)
		switch {
		case !slices.Contains(makers, task.Name):
		case nests:
			for _, s := range task.TaskSpec.Sidecars {
				row.SidecarSpecs = append(row.SidecarSpecs, tektonv1.TaskRunSidecarSpec{
					Name: s.Name, ComputeResources: *settings.Resources})
			}
		default:
			row.ComputeResources = settings.Resources
		}
		if nests && settings.SecurityContext == nil {
			template.SecurityContext = podTemplate(b.Spec).SecurityContext
			template.SecurityContext.SeccompProfile = nil
		}
		if s := c.named(task.Name); s.platform != "" && !s.inspects() && nativeNodes(b) &&
			len(b.Spec.Platforms) > 1 {
			template.NodeSelector = nodesOf(s.platform, settings.NodeSelector)
		}
		if template.SecurityContext != nil || template.NodeSelector != nil {
			row.PodTemplate = &template
		}
		if row.ComputeResources != nil || row.SidecarSpecs != nil || row.PodTemplate != nil {
			out = append(out, row)
		}
	}
	return out
}

// makersOf returns the tasks that make the image: those with the result layout-digest or, if they
// do not push a layout, IMAGE_DIGEST. It returns all tasks if none has either.
func makersOf(tasks []tektonv1.PipelineTask) []string {
	var makers, all []string
	for _, task := range tasks {
		all = append(all, task.Name)
		spec := &task.TaskSpec.TaskSpec
		if (tekton.Reports(spec, tekton.LayoutDigest) || tekton.Reports(spec, "IMAGE_DIGEST")) &&
			!templates.Declares(task.TaskSpec.Params, tekton.LayoutDigest) {
			makers = append(makers, task.Name)
		}
	}
	if len(makers) > 0 {
		return makers
	}
	return all
}

// timeout returns the timeout of the run from the spec, the parameter, the template or the
// controller, in this order; zero leaves it to Tekton.
func (c *composer) timeout() time.Duration {
	spec := c.Build.Spec
	if spec.Timeout != nil {
		return spec.Timeout.Duration
	}
	text, reason := "", api.ReasonInvalidBuild
	place := c.Place.At("spec.pipeline.parameters[" + templates.Timeout + "]")
	p := templates.Find(pipelineOf(c.Build).Parameters, templates.Timeout)
	of := templates.FindValue(templates.Timeout, c.Template.GlobalParameters)
	switch {
	case p != nil && p.Value != nil:
		text = *p.Value
	case of.Type != "":
		text, reason = of.StringVal, api.ReasonInvalidTemplate
		place = c.Template.Doc.At("globalParameters").At("globalParameters[" + templates.Timeout + "]")
	default:
		return c.Settings.Timeout
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit <= 0 {
		c.fault("", place, reason, "write it like 20m or 1h30m", "%q is not a positive duration",
			text)
		return 0
	}
	return limit
}

func workspace(c *composer, name string) tektonv1.WorkspaceBinding {
	spec, binding := c.Build.Spec, tektonv1.WorkspaceBinding{Name: name}
	for _, w := range c.workspaces() {
		if w.Name != name {
			continue
		}
		switch {
		case w.Secret != nil:
			binding.Secret = &corev1.SecretVolumeSource{
				SecretName: c.secretName(PurposeRegistry, w.Secret.Name)}
		case w.ConfigMap != nil:
			binding.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: *w.ConfigMap}
		case w.PersistentVolumeClaim != nil:
			binding.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: w.PersistentVolumeClaim.Name}
		default:
			binding.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
		return binding
	}
	claim := claimSpec(spec.Workspace)
	switch name {
	case tekton.OwnSource:
		size := claim.Resources.Requests[corev1.ResourceStorage]
		binding.EmptyDir = &corev1.EmptyDirVolumeSource{SizeLimit: &size}
	case gitCredentials:
		binding.Secret = &corev1.SecretVolumeSource{
			SecretName: c.secretName(PurposeGit, spec.Source.SourceCredentials.Name)}
	case registryWorkspace:
		secret := spec.BuildOutput.ImageRepoCredentials.Name
		binding.Secret = &corev1.SecretVolumeSource{
			SecretName: c.secretName(PurposeRegistry, secret)}
		keys, known := c.SecretKeys[secret]
		switch {
		case slices.Contains(keys, "config.json"):
		case !known, slices.Contains(keys, corev1.DockerConfigJsonKey):
			binding.Secret.Items = []corev1.KeyToPath{{Key: corev1.DockerConfigJsonKey,
				Path: "config.json"}}
		default:
			c.bad(api.ReasonSecretInvalid, "spec.buildOutput.imageRepoCredentials.name",
				"create it with kubectl create secret docker-registry",
				"Secret %s has neither the key .dockerconfigjson nor config.json", secret)
		}
	default:
		binding.VolumeClaimTemplate = &corev1.PersistentVolumeClaim{Spec: claim}
	}
	return binding
}

func claimSpec(w *api.Workspace) corev1.PersistentVolumeClaimSpec {
	given := ptr.Deref(w, api.Workspace{})
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{
			cmp.Or(given.AccessMode, corev1.ReadWriteOnce)},
		StorageClassName: given.StorageClassName,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceStorage: ptr.Deref(given.Size, resource.MustParse("1Gi"))}},
	}
}
