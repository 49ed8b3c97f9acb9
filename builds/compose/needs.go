package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// Need is an object in the build's namespace that a run cannot do without.
type Need struct {
	Kind string // Secret, ConfigMap, ServiceAccount or PersistentVolumeClaim
	Name string
	// Place is the field that asks for it.
	Place finding.Place
	// Reason of the condition when it is missing.
	Reason string
	// Purpose of a Secret that is a login; empty for all else.
	Purpose Purpose
	// Addresses of repositories that a login is sent to.
	Addresses []string
}

// Purpose is what a login is for. Whoever may write an AgentBuild names a Secret
// and where its content is sent, so only Secrets that are meant for it are taken.
type Purpose string

// The purposes, which are the values of keys.LabelCredentials too.
const (
	PurposeGit      Purpose = "git"
	PurposeRegistry Purpose = "registry"
	PurposeBuild    Purpose = "build"
	PurposeSigning  Purpose = "signing"
)

// types of Secrets that say by themselves what they are for.
func (p Purpose) types() []corev1.SecretType {
	switch p {
	case PurposeGit:
		return []corev1.SecretType{corev1.SecretTypeBasicAuth, corev1.SecretTypeSSHAuth}
	case PurposeRegistry:
		return []corev1.SecretType{corev1.SecretTypeDockerConfigJson}
	}
	return nil
}

// Fits reports whether a Secret may be used for the purpose.
func (p Purpose) Fits(kind corev1.SecretType, labels map[string]string) bool {
	return p == "" || slices.Contains(p.types(), kind) || labels[keys.LabelCredentials] == string(p)
}

// Hint is how a Secret says that it is for the purpose.
func (p Purpose) Hint() string {
	types := ""
	for i, t := range p.types() {
		types += []string{"use one of type ", " or "}[i] + string(t)
	}
	if types != "" {
		types += ", or "
	}
	return fmt.Sprintf("%slabel it %s=%s", types, keys.LabelCredentials, p)
}

// Unfit is the problem that the Secret, of the type that it has, is not meant for
// its purpose.
func (n Need) Unfit(kind string) *finding.Finding {
	return n.Place.Fault(api.ReasonSecretPurpose,
		fmt.Sprintf("Secret %q is of type %s, and not marked as a login for %s", n.Name, kind,
			n.Purpose), n.Purpose.Hint())
}

// Missing is the problem that the need is not met.
func (n Need) Missing(namespace string) *finding.Finding {
	hints := map[string]string{
		"Secret":                "create the Secret, or correct the name",
		"ConfigMap":             "create the ConfigMap, or correct the name",
		"ServiceAccount":        "create the ServiceAccount, or set spec.serviceAccountName",
		"PersistentVolumeClaim": "create the claim, or correct the name",
	}
	return n.Place.Fault(n.Reason,
		fmt.Sprintf("%s %q does not exist in namespace %q", n.Kind, n.Name, namespace), hints[n.Kind])
}

// needs lists what the build and the steps' volumes and environments name, as
// far as it is known before the run.
func needs(in Input, steps []step) []Need {
	var out []Need
	seen := map[string]bool{}
	add := func(n Need) {
		key := n.Kind + "/" + n.Name + "/" + string(n.Purpose)
		if n.Name == "" || strings.Contains(n.Name, "$(") || seen[key] {
			return
		}
		seen[key] = true
		out = append(out, n)
	}
	spec := in.Build.Spec
	if s := spec.Source.SourceCredentials; s != nil {
		var addresses []string
		for address := range loginAddresses(in, steps) {
			if !slices.Contains(addresses, address) {
				addresses = append(addresses, address)
			}
		}
		add(Need{"Secret", s.Name, in.Place.At("spec.source.sourceCredentials.name"),
			api.ReasonSourceSecretNotFound, PurposeGit, addresses})
	}
	if o := spec.BuildOutput; o != nil && o.ImageRepoCredentials != nil {
		add(Need{"Secret", o.ImageRepoCredentials.Name,
			in.Place.At("spec.buildOutput.imageRepoCredentials.name"),
			api.ReasonOutputSecretNotFound, PurposeRegistry, nil})
	}
	for i, s := range spec.Secrets {
		add(Need{"Secret", s.Name, in.Place.At(fmt.Sprintf("spec.secrets[%d].name", i)),
			api.ReasonSecretNotFound, PurposeBuild, nil})
	}
	if s := in.Settings; !isolated(in) &&
		(!s.CreateServiceAccount || spec.ServiceAccountName != "") {
		add(Need{"ServiceAccount", cmp.Or(spec.ServiceAccountName, s.ServiceAccountName),
			in.Place.At("spec.serviceAccountName"), api.ReasonServiceAccount, "", nil})
	}
	if spec.Pipeline != nil {
		for i, w := range spec.Pipeline.Workspaces {
			field := fmt.Sprintf("spec.pipeline.workspaces[%d]", i)
			if w.Secret != nil {
				purpose := Purpose("")
				if w.Name == pullCredentials {
					purpose = PurposeRegistry
				}
				add(Need{"Secret", w.Secret.Name, in.Place.At(field + ".secret.name"),
					api.ReasonSecretNotFound, purpose, nil})
			}
			if w.ConfigMap != nil {
				add(Need{"ConfigMap", w.ConfigMap.Name, in.Place.At(field + ".configMap.name"),
					api.ReasonConfigMapNotFound, "", nil})
			}
			if w.PersistentVolumeClaim != nil {
				add(Need{"PersistentVolumeClaim", w.PersistentVolumeClaim.Name,
					in.Place.At(field + ".persistentVolumeClaim.name"), api.ReasonClaimNotFound, "", nil})
			}
		}
	}
	for _, s := range steps {
		stepNeeds(s, add)
	}
	return out
}

// stepNeeds finds what a step mounts or reads into its environment.
func stepNeeds(s step, add func(Need)) {
	at := func(path, kind, name, reason string, optional *bool) {
		if optional != nil && *optional {
			return
		}
		add(Need{kind, filled(name, s.known), s.file.Doc.At(path), reason, "", nil})
	}
	for i, v := range s.task.TaskSpec.Volumes {
		path := fmt.Sprintf("volumes[%d]", i)
		if v.Secret != nil {
			at(path, "Secret", v.Secret.SecretName, api.ReasonSecretNotFound, v.Secret.Optional)
		}
		if v.ConfigMap != nil {
			at(path, "ConfigMap", v.ConfigMap.Name, api.ReasonConfigMapNotFound, v.ConfigMap.Optional)
		}
		if v.PersistentVolumeClaim != nil {
			at(path, "PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName,
				api.ReasonClaimNotFound, nil)
		}
		if v.Projected != nil && v.Name != recipe.Secrets { // ours are among the needs of the build
			for _, source := range v.Projected.Sources {
				if source.Secret != nil {
					at(path, "Secret", source.Secret.Name, api.ReasonSecretNotFound,
						source.Secret.Optional)
				}
				if source.ConfigMap != nil {
					at(path, "ConfigMap", source.ConfigMap.Name, api.ReasonConfigMapNotFound,
						source.ConfigMap.Optional)
				}
			}
		}
	}
	env := func(path string, env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				at(path+".env", "Secret", e.ValueFrom.SecretKeyRef.Name, api.ReasonSecretNotFound,
					e.ValueFrom.SecretKeyRef.Optional)
			}
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				at(path+".env", "ConfigMap", e.ValueFrom.ConfigMapKeyRef.Name,
					api.ReasonConfigMapNotFound, e.ValueFrom.ConfigMapKeyRef.Optional)
			}
		}
		for _, f := range from {
			if f.SecretRef != nil {
				at(path+".envFrom", "Secret", f.SecretRef.Name, api.ReasonSecretNotFound,
					f.SecretRef.Optional)
			}
			if f.ConfigMapRef != nil {
				at(path+".envFrom", "ConfigMap", f.ConfigMapRef.Name, api.ReasonConfigMapNotFound,
					f.ConfigMapRef.Optional)
			}
		}
	}
	for i, step := range s.task.TaskSpec.Steps {
		env(fmt.Sprintf("steps[%d]", i), step.Env, step.EnvFrom)
	}
	for i, sidecar := range s.task.TaskSpec.Sidecars {
		env(fmt.Sprintf("sidecars[%d]", i), sidecar.Env, sidecar.EnvFrom)
	}
	if t := s.task.TaskSpec.StepTemplate; t != nil {
		env("stepTemplate", t.Env, t.EnvFrom)
	}
}

// filled is a text with the parameters whose value is known beforehand.
func filled(text string, known map[string]tektonv1.ParamValue) string {
	values := tekton.NewValues(nil, nil)
	for name, v := range known {
		values.Set("params", name, v)
	}
	return values.Put(*tektonv1.NewStructuredValues(text)).StringVal
}
