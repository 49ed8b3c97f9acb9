package compose

import (
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

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// The workspaces that every build can have without binding them.
const (
	sharedWorkspace   = "shared-workspace"
	gitCredentials    = "git-credentials"
	registryWorkspace = "registry-credentials"
	pullCredentials   = "pull-credentials"
)

// workspaceAliases are other names that published steps give them.
var workspaceAliases = map[string]string{
	"source":        sharedWorkspace,
	"basic-auth":    gitCredentials,
	"ssh-directory": gitCredentials,
	"dockerconfig":  registryWorkspace,
}

// isShared reports whether a workspace is the volume that steps share.
func isShared(name string) bool {
	return name == sharedWorkspace || workspaceAliases[name] == sharedWorkspace
}

// chainsResults are the results that Tekton Chains reads from a pipeline.
var chainsResults = []string{"IMAGE_URL", "IMAGE_DIGEST", "CHAINS-GIT_URL", "CHAINS-GIT_COMMIT"}

// assemble the tasks, the parameters they use and the results.
func assemble(in Input, spec derived, steps []step) tektonv1.PipelineSpec {
	p := tektonv1.PipelineSpec{Description: in.Template.Description}
	for _, name := range sortedKeys(usedOf(spec, steps)) {
		p.Params = append(p.Params, tektonv1.ParamSpec{Name: name, Type: spec[name].Type})
	}
	for _, s := range steps {
		if s.row.Finally {
			p.Finally = append(p.Finally, s.task)
		} else {
			p.Tasks = append(p.Tasks, s.task)
		}
	}
	p.Results = results(in, p.Tasks)
	return p
}

// results hands the image and the commit on, under the names that Chains reads.
// Where two tasks can give one, as when a Dockerfile decides, each result has its
// task's name in front, which Chains understands too.
func results(in Input, tasks []tektonv1.PipelineTask) (out []tektonv1.PipelineResult) {
	names := chainsResults
	if len(in.Build.Spec.Platforms) > 0 {
		names = append(slices.Clone(names), PlatformDigests)
	}
	for _, name := range names {
		var from []string
		for _, task := range tasks {
			if tekton.Reports(&task.TaskSpec.TaskSpec, name) {
				from = append(from, task.Name)
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

// withWorkspaces is the pipeline with what its tasks declare tied to its workspaces.
func withWorkspaces(in Input, steps []step, p tektonv1.PipelineSpec,
	broken bool) (_ tektonv1.PipelineSpec, found faults) {
	spec := in.Build.Spec
	available := map[string]bool{
		sharedWorkspace:   true,
		gitCredentials:    spec.Source.SourceCredentials != nil,
		registryWorkspace: spec.BuildOutput != nil && spec.BuildOutput.ImageRepoCredentials != nil,
	}
	var bindings []api.WorkspaceBinding
	if spec.Pipeline != nil {
		bindings = spec.Pipeline.Workspaces
	}
	for _, w := range bindings {
		available[w.Name] = true
	}
	used := map[string]bool{}
	for task := range tekton.Tasks(&p) {
		s := named(steps, task.Name)
		for _, name := range sortedKeys(s.row.Workspaces) {
			if !tekton.HasWorkspace(&task.TaskSpec.TaskSpec, name) {
				found.of(task.Name,
					s.place.At(s.place.Field+".workspaces."+name).Fault(api.ReasonUnboundWorkspace,
						fmt.Sprintf("step %q has no workspace %q", task.Name, name),
						"correct the name or remove it"))
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
			switch {
			case available[target]:
				used[target] = true
				task.Workspaces = append(task.Workspaces,
					tektonv1.WorkspacePipelineTaskBinding{Name: w.Name, Workspace: target})
			case !w.Optional || mapped:
				hint := fmt.Sprintf("bind it in spec.pipeline.workspaces of %s, or map it to "+
					"shared-workspace in the template's steps[].workspaces", in.Place)
				switch target {
				case gitCredentials:
					hint = "set spec.source.sourceCredentials of " + in.Place.String()
				case registryWorkspace:
					hint = "set spec.buildOutput.imageRepoCredentials of " + in.Place.String()
				}
				found.of(task.Name,
					s.file.Doc.At(fmt.Sprintf("workspaces[%d]", i)).Fault(
						api.ReasonUnboundWorkspace,
						fmt.Sprintf("step %q needs the workspace %q, and nothing is bound to it",
							task.Name, w.Name), hint))
			}
		}
	}
	for _, name := range sortedKeys(used) {
		p.Workspaces = append(p.Workspaces, tektonv1.PipelineWorkspaceDeclaration{Name: name})
	}
	for i, w := range bindings {
		if !used[w.Name] && len(steps) > 0 && !broken {
			found.bad(in, api.ReasonUnboundWorkspace,
				fmt.Sprintf("spec.pipeline.workspaces[%d].name", i),
				fmt.Sprintf("no enabled step has a workspace %q", w.Name),
				"correct the name or remove the binding")
		}
	}
	return p, found
}

// ordered is a run, with its pipeline, and the claim of a workspace that is kept; else that is
// nil.
type ordered struct {
	pipeline *tektonv1.Pipeline
	run      *tektonv1.PipelineRun
	claim    *corev1.PersistentVolumeClaim
	texts    []string // what shapes the run: its spec, its pipeline, its annotations and labels
}

// order makes the run of a pipeline, whose text is its JSON.
func order(
	in Input, spec derived, steps []step, p tektonv1.PipelineSpec, text string,
) (o ordered, found faults) {
	b := in.Build
	run := &tektonv1.PipelineRun{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "PipelineRun"},
		ObjectMeta: objectMeta(in, ""),
	}
	for k, v := range b.Spec.Labels {
		if _, ours := run.Labels[k]; !ours {
			run.Labels[k] = v
		}
	}
	run.Annotations = runAnnotations(in, steps)
	for _, param := range p.Params {
		run.Spec.Params = append(run.Spec.Params,
			tektonv1.Param{Name: param.Name, Value: spec[param.Name].ParamValue})
	}
	run.Spec.TaskRunTemplate = tektonv1.PipelineTaskRunTemplate{
		ServiceAccountName: accountName(in),
		PodTemplate:        podTemplate(b.Spec),
	}
	if s := in.Settings; isolated(in) && s.RuntimeClass != "" {
		run.Spec.TaskRunTemplate.PodTemplate.RuntimeClassName = &s.RuntimeClass
	}
	if one := b.Spec.Platforms; len(one) == 1 && nativeNodes(b) { // all pods share a volume
		run.Spec.TaskRunTemplate.PodTemplate.NodeSelector = nodesOf(one[0],
			run.Spec.TaskRunTemplate.PodTemplate.NodeSelector)
	}
	run.Spec.TaskRunSpecs = taskRunSpecs(b, steps, p.Tasks)
	limit, found := timeout(in)
	if limit > 0 {
		run.Spec.Timeouts = &tektonv1.TimeoutFields{Pipeline: &metav1.Duration{Duration: limit}}
	}
	for _, w := range p.Workspaces {
		binding, faults := workspace(in, w.Name)
		found = append(found, faults...)
		if w.Name == sharedWorkspace && keepsWorkspace(b.Spec) {
			o.claim = &corev1.PersistentVolumeClaim{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
				ObjectMeta: objectMeta(in, objectName(b.Name)+"-workspace"),
				Spec:       claimSpec(b.Spec.Workspace),
			}
			binding = tektonv1.WorkspaceBinding{Name: w.Name,
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: o.claim.Name}}
		}
		run.Spec.Workspaces = append(run.Spec.Workspaces, binding)
	}
	if slices.ContainsFunc(p.Params, func(p tektonv1.ParamSpec) bool {
		return p.Name == recipe.Secrets
	}) {
		found = append(checkKeys(in), found...)
	}
	o.pipeline = &tektonv1.Pipeline{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "Pipeline"},
		ObjectMeta: objectMeta(in, objectName(b.Name)+"-"+fingerprint(text)[:10]),
		Spec:       p,
	}
	if isolated(in) { // it is the run's
		o.pipeline.Name = isolatedName(in, shorten(objectName(b.Name), 30), text,
			strconv.Itoa(int(in.Number)))
	}
	if in.Settings.PipelineObjects {
		run.Spec.PipelineRef = &tektonv1.PipelineRef{Name: o.pipeline.Name}
	}
	// Everything that shapes the run is in its name, and its number: going back to
	// an earlier spec makes a run of its own, and no name is used twice.
	o.texts = []string{tekton.JSON(run.Spec), text, tekton.JSON(run.Annotations), tekton.JSON(run.Labels)}
	named := o.texts
	if in.Number > 0 {
		run.Annotations[keys.AnnotationNumber], run.Annotations[keys.AnnotationSource] =
			strconv.Itoa(int(in.Number)), SourceHash(b, in.Template)
		named = append(slices.Clone(named), run.Annotations[keys.AnnotationNumber])
	}
	run.Name = objectName(b.Name) + "-" + fingerprint(named...)[:10]
	if isolated(in) {
		run.Name = isolatedName(in, shorten(objectName(b.Name), 30), named...)
	}
	if value, labelled := b.Labels[in.Settings.ShardLabel]; labelled { // it may change
		run.Labels[in.Settings.ShardLabel] = value
	}
	if in.Settings.ShardLabel != "" && isolated(in) {
		run.Labels[keys.AnnotationBuildNamespace] = b.Namespace
	}
	if !in.Settings.PipelineObjects {
		run.Spec.PipelineSpec = &o.pipeline.Spec
	}
	setIf(run.Annotations, keys.AnnotationTrigger, string(in.Trigger))
	if Attests(b, in.Template) {
		run.Annotations[keys.AnnotationRunDigest] = RunDigest(&run.Spec)
		if in.Settings.PipelineObjects {
			run.Annotations[keys.AnnotationPipelineDigest] = PipelineDigest(&o.pipeline.Spec)
		}
	}
	o.run = run
	return o, found
}

// runAnnotations are the build's, and what the run is an attempt of.
func runAnnotations(in Input, steps []step) map[string]string {
	b, out := in.Build, map[string]string{}
	maps.Copy(out, b.Spec.Annotations)
	out[keys.AnnotationBuild] = b.Name
	if isolated(in) {
		out[keys.AnnotationBuildNamespace], out[keys.AnnotationBuildUID] = b.Namespace, string(b.UID)
	}
	out[keys.AnnotationSpec], out[keys.AnnotationTemplate] = InputHashes(b, in.Template, in.Steps)
	out[keys.AnnotationAttempt] = strconv.Itoa(int(in.Attempt))
	setIf(out, keys.AnnotationCommit, in.Commit)
	setIf(out, keys.AnnotationRef, in.Ref)
	if len(in.Verified) > 0 {
		out[keys.AnnotationVerified] = tekton.JSON(in.Verified)
	}
	setIf(out, keys.AnnotationImage, Image(b))
	if Attests(b, in.Template) {
		out[keys.AnnotationMaterials] = tekton.JSON(materials(in, steps))
	}
	if b.Spec.Source.PullRequest != nil {
		out[ChainsSigned] = "failed"
	}
	setIf(out, keys.AnnotationRerun, b.Annotations[api.RerunAnnotation(in.Settings.group())])
	return out
}

// toApply are the objects that must exist before the run.
func toApply(in Input, o ordered) []Object {
	var out []Object
	if s := in.Settings; !isolated(in) && s.CreateServiceAccount && s.ServiceAccountName != "" &&
		in.Build.Spec.ServiceAccountName == "" {
		no := false
		out = append(out, &corev1.ServiceAccount{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			// All builds of the namespace share it, so none owns it.
			ObjectMeta: metav1.ObjectMeta{Name: s.ServiceAccountName,
				Namespace: in.Build.Namespace,
				Labels:    map[string]string{LabelManagedBy: ManagedBy}},
			AutomountServiceAccountToken: &no,
		})
	}
	if o.claim != nil {
		out = append(out, o.claim)
	}
	if in.Settings.PipelineObjects && !isolated(in) { // else the run owns it
		out = append(out, o.pipeline)
	}
	return out
}

func setIf(m map[string]string, key, value string) {
	if value != "" {
		m[key] = value
	}
}

// podTemplate sets for all pods of a run one group for the shared volume, the runtime's seccomp
// profile and no ServiceAccount token, unless the build says otherwise: a Dockerfile or a test
// could read the token. In a volume that is kept, each run sets the group again on folders that a
// step made as root, since the next run could not remove them.
func podTemplate(spec api.AgentBuildSpec) *pod.PodTemplate {
	settings := spec.Pod
	group, policy := int64(tekton.BuildGroup), corev1.FSGroupChangeOnRootMismatch
	if keepsWorkspace(spec) {
		policy = corev1.FSGroupChangeAlways
	}
	token := settings != nil && settings.AutomountServiceAccountToken
	t := &pod.PodTemplate{
		AutomountServiceAccountToken: &token,
		SecurityContext: &corev1.PodSecurityContext{
			FSGroup:             &group,
			FSGroupChangePolicy: &policy,
			SeccompProfile: &corev1.SeccompProfile{
				Type: corev1.SeccompProfileTypeRuntimeDefault},
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

// keepsWorkspace reports whether the volume that the steps share outlives the run.
func keepsWorkspace(spec api.AgentBuildSpec) bool {
	return spec.Workspace != nil && spec.Workspace.Keep
}

// taskRunSpecs give the build's resources to the task that makes the image, pods in
// which containers are made a security context that allows it, and those of a platform
// its nodes.
func taskRunSpecs(b *api.AgentBuild, steps []step,
	tasks []tektonv1.PipelineTask) []tektonv1.PipelineTaskRunSpec {
	settings := b.Spec.Pod
	var makers []string
	if settings != nil && settings.Resources != nil {
		makers = makersOf(tasks)
	}
	var out []tektonv1.PipelineTaskRunSpec
	for _, task := range tasks {
		row := tektonv1.PipelineTaskRunSpec{PipelineTaskName: task.Name}
		nests := tekton.MakesContainers(&task.TaskSpec.TaskSpec)
		if slices.Contains(makers, task.Name) {
			if row.ComputeResources = settings.Resources; nests {
				row.ComputeResources = nil
				for _, s := range task.TaskSpec.Sidecars {
					row.SidecarSpecs = append(row.SidecarSpecs,
						tektonv1.TaskRunSidecarSpec{Name: s.Name,
							ComputeResources: *settings.Resources})
				}
			}
		}
		if nests && (settings == nil || settings.SecurityContext == nil) {
			context := podTemplate(b.Spec).SecurityContext
			context.SeccompProfile = nil
			row.PodTemplate = &pod.PodTemplate{SecurityContext: context}
		}
		if s := named(steps, task.Name); s.platform != "" && !s.looks() && nativeNodes(b) &&
			len(b.Spec.Platforms) > 1 {
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

// makersOf returns the tasks that make the image: those with the result layout-digest or,
// if they do not push a layout, IMAGE_DIGEST; all tasks if there are no such tasks.
func makersOf(tasks []tektonv1.PipelineTask) []string {
	var makers, all []string
	for _, task := range tasks {
		all = append(all, task.Name)
		spec := &task.TaskSpec.TaskSpec
		if (tekton.Reports(spec, tekton.LayoutDigest) || tekton.Reports(spec, "IMAGE_DIGEST")) &&
			!recipe.Declares(task.TaskSpec.Params, tekton.LayoutDigest) {
			makers = append(makers, task.Name)
		}
	}
	if len(makers) > 0 {
		return makers
	}
	return all
}

// timeout of the run: the spec's, the parameter's, the template's, the
// controller's; zero leaves it to Tekton.
func timeout(in Input) (limit time.Duration, found faults) {
	spec := in.Build.Spec
	if spec.Timeout != nil {
		return spec.Timeout.Duration, nil
	}
	parsed := func(text string, place finding.Place, reason string) (time.Duration, faults) {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			found.add(place.Fault(reason, fmt.Sprintf("%q is not a positive duration", text),
				"write it like 20m or 1h30m"))
			return 0, found
		}
		return d, nil
	}
	if spec.Pipeline != nil {
		if p := recipe.Find(spec.Pipeline.Parameters, recipe.Timeout); p != nil && p.Value != nil {
			return parsed(*p.Value, in.Place.At("spec.pipeline.parameters["+recipe.Timeout+"]"),
				api.ReasonInvalidBuild)
		}
	}
	if p := recipe.FindDefault(in.Template.GlobalParameters, recipe.Timeout); p != nil && p.Value != nil {
		return parsed(p.Value.StringVal,
			in.Template.Doc.At("globalParameters").At("globalParameters["+recipe.Timeout+"]"),
			api.ReasonInvalidTemplate)
	}
	return in.Settings.Timeout, nil
}

func workspace(in Input, name string) (binding tektonv1.WorkspaceBinding, found faults) {
	spec := in.Build.Spec
	binding = tektonv1.WorkspaceBinding{Name: name}
	if spec.Pipeline != nil {
		for _, w := range spec.Pipeline.Workspaces {
			if w.Name != name {
				continue
			}
			switch {
			case w.Secret != nil:
				binding.Secret = &corev1.SecretVolumeSource{
					SecretName: secretName(in, PurposeRegistry, w.Secret.Name)}
			case w.ConfigMap != nil:
				binding.ConfigMap = &corev1.ConfigMapVolumeSource{
					LocalObjectReference: *w.ConfigMap}
			case w.PersistentVolumeClaim != nil:
				binding.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: w.PersistentVolumeClaim.Name}
			default:
				binding.EmptyDir = &corev1.EmptyDirVolumeSource{}
			}
			return binding, nil
		}
	}
	switch name {
	case tekton.OwnSource:
		size := claimSpec(spec.Workspace).Resources.Requests[corev1.ResourceStorage]
		binding.EmptyDir = &corev1.EmptyDirVolumeSource{SizeLimit: &size}
	case gitCredentials:
		binding.Secret = &corev1.SecretVolumeSource{SecretName: secretName(in, PurposeGit,
			spec.Source.SourceCredentials.Name)}
	case registryWorkspace:
		secret := spec.BuildOutput.ImageRepoCredentials.Name
		binding.Secret = &corev1.SecretVolumeSource{SecretName: secretName(in, PurposeRegistry, secret)}
		keys, known := in.SecretKeys[secret]
		switch {
		case slices.Contains(keys, "config.json"):
		case !known, slices.Contains(keys, corev1.DockerConfigJsonKey):
			binding.Secret.Items = []corev1.KeyToPath{{Key: corev1.DockerConfigJsonKey,
				Path: "config.json"}}
		default:
			found.bad(in, api.ReasonSecretInvalid, "spec.buildOutput.imageRepoCredentials.name",
				fmt.Sprintf("Secret %s has neither the key .dockerconfigjson nor config.json",
					secret),
				"create it with kubectl create secret docker-registry")
		}
	default:
		binding.VolumeClaimTemplate = &corev1.PersistentVolumeClaim{Spec: claimSpec(spec.Workspace)}
	}
	return binding, found
}

func claimSpec(w *api.Workspace) corev1.PersistentVolumeClaimSpec {
	size, mode := resource.MustParse("1Gi"), corev1.ReadWriteOnce
	var class *string
	if w != nil {
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
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
	}
}
