package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// Need is an object in the build's namespace that a run requires.
type Need struct {
	Kind string // Secret, ConfigMap, ServiceAccount or PersistentVolumeClaim
	Name string
	// Place is the field that names the object.
	Place finding.Place
	// Reason of the condition if the object is missing. If omitted, the kind decides.
	Reason string
	// Purpose of a Secret that is a login; empty for all other objects.
	Purpose Purpose
	// Addresses of repositories that receive a login.
	Addresses []string
}

// Purpose is the purpose of a login. The author of an AgentBuild names a Secret and the server that
// receives its content, so only Secrets that are marked for the purpose are accepted.
type Purpose string

// The purposes, which are also the values of keys.LabelCredentials.
const (
	PurposeGit      Purpose = "git"
	PurposeRegistry Purpose = "registry"
	PurposeBuild    Purpose = "build"
	PurposeSigning  Purpose = "signing"
)

// secretTypes lists the types of Secrets that need no label for a purpose.
var secretTypes = map[Purpose][]string{
	PurposeGit:      {string(corev1.SecretTypeBasicAuth), string(corev1.SecretTypeSSHAuth)},
	PurposeRegistry: {string(corev1.SecretTypeDockerConfigJson)},
}

// Fits reports whether a Secret may be used for the purpose.
func (p Purpose) Fits(kind corev1.SecretType, labels map[string]string) bool {
	return p == "" || slices.Contains(secretTypes[p], string(kind)) ||
		labels[keys.LabelCredentials] == string(p)
}

// Hint returns the remedy for a Secret that is not marked for the purpose.
func (p Purpose) Hint() string {
	label := fmt.Sprintf("label it %s=%s", keys.LabelCredentials, p)
	if types := secretTypes[p]; types != nil {
		return "use one of type " + strings.Join(types, " or ") + ", or " + label
	}
	return label
}

// Unfit returns the finding that a Secret of a type is not marked for its purpose.
func (n Need) Unfit(kind string) *finding.Finding {
	return n.Place.Fault(api.ReasonSecretPurpose,
		fmt.Sprintf("Secret %q is of type %s, and not marked as a login for %s", n.Name, kind,
			n.Purpose), n.Purpose.Hint())
}

// kinds has the reason and the hint for a missing object of each kind.
var kinds = map[string]struct{ reason, hint string }{
	"Secret":    {api.ReasonSecretNotFound, "create the Secret, or correct the name"},
	"ConfigMap": {api.ReasonConfigMapNotFound, "create the ConfigMap, or correct the name"},
	"ServiceAccount": {api.ReasonServiceAccount,
		"create the ServiceAccount, or set spec.serviceAccountName"},
	"PersistentVolumeClaim": {api.ReasonClaimNotFound, "create the claim, or correct the name"},
}

// Missing returns the finding that the object does not exist.
func (n Need) Missing(namespace string) *finding.Finding {
	kind := kinds[n.Kind]
	return n.Place.Fault(cmp.Or(n.Reason, kind.reason),
		fmt.Sprintf("%s %q does not exist in namespace %q", n.Kind, n.Name, namespace), kind.hint)
}

// needs returns the objects that the build and the volumes and environments of its steps name, as
// far as they are known before the run.
func needs(c *composer) (out []Need) {
	seen := map[string]bool{}
	add := func(n Need) {
		key := n.Kind + "/" + n.Name + "/" + string(n.Purpose)
		if n.Name != "" && !strings.Contains(n.Name, "$(") && !seen[key] {
			seen[key] = true
			out = append(out, n)
		}
	}
	spec := c.Build.Spec
	if s := spec.Source.SourceCredentials; s != nil {
		n := Need{Kind: "Secret", Name: s.Name, Reason: api.ReasonSourceSecretNotFound,
			Place: c.Place.At("spec.source.sourceCredentials.name"), Purpose: PurposeGit}
		for _, login := range c.logins() {
			if !slices.Contains(n.Addresses, login.address) {
				n.Addresses = append(n.Addresses, login.address)
			}
		}
		add(n)
	}
	of := func(kind, name, field string, purpose Purpose) {
		add(Need{Kind: kind, Name: name, Place: c.Place.At(field), Purpose: purpose})
	}
	if o := spec.BuildOutput; o != nil && o.ImageRepoCredentials != nil {
		add(Need{Kind: "Secret", Name: o.ImageRepoCredentials.Name,
			Place:  c.Place.At("spec.buildOutput.imageRepoCredentials.name"),
			Reason: api.ReasonOutputSecretNotFound, Purpose: PurposeRegistry})
	}
	for i, s := range spec.Secrets {
		of("Secret", s.Name, fmt.Sprintf("spec.secrets[%d].name", i), PurposeBuild)
	}
	if s := c.Settings; !c.isolated() &&
		(!s.CreateServiceAccount || spec.ServiceAccountName != "") {
		of("ServiceAccount", cmp.Or(spec.ServiceAccountName, s.ServiceAccountName),
			"spec.serviceAccountName", "")
	}
	for i, w := range c.workspaces() {
		field := fmt.Sprintf("spec.pipeline.workspaces[%d]", i)
		if w.Secret != nil {
			purpose := Purpose("")
			if w.Name == pullCredentials {
				purpose = PurposeRegistry
			}
			of("Secret", w.Secret.Name, field+".secret.name", purpose)
		}
		if w.ConfigMap != nil {
			of("ConfigMap", w.ConfigMap.Name, field+".configMap.name", "")
		}
		if w.PersistentVolumeClaim != nil {
			of("PersistentVolumeClaim", w.PersistentVolumeClaim.Name,
				field+".persistentVolumeClaim.name", "")
		}
	}
	for _, s := range c.steps {
		stepNeeds(s, add)
	}
	return out
}

// stepNeeds adds the objects that a step mounts or reads into its environment.
func stepNeeds(s step, add func(Need)) {
	at := func(path, kind, name string, optional *bool) {
		if !ptr.Deref(optional, false) {
			add(Need{Kind: kind, Name: filled(name, s.known), Place: s.file.Doc.At(path)})
		}
	}
	for i, v := range s.task.TaskSpec.Volumes {
		path := fmt.Sprintf("volumes[%d]", i)
		if v.Secret != nil {
			at(path, "Secret", v.Secret.SecretName, v.Secret.Optional)
		}
		if v.ConfigMap != nil {
			at(path, "ConfigMap", v.ConfigMap.Name, v.ConfigMap.Optional)
		}
		if v.PersistentVolumeClaim != nil {
			at(path, "PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName, nil)
		}
		if v.Projected == nil || v.Name == templates.Secrets { // needs has spec.secrets already
			continue
		}
		for _, source := range v.Projected.Sources {
			if s := source.Secret; s != nil {
				at(path, "Secret", s.Name, s.Optional)
			}
			if m := source.ConfigMap; m != nil {
				at(path, "ConfigMap", m.Name, m.Optional)
			}
		}
	}
	env := func(path string, env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			value := ptr.Deref(e.ValueFrom, corev1.EnvVarSource{})
			if s := value.SecretKeyRef; s != nil {
				at(path+".env", "Secret", s.Name, s.Optional)
			}
			if m := value.ConfigMapKeyRef; m != nil {
				at(path+".env", "ConfigMap", m.Name, m.Optional)
			}
		}
		for _, f := range from {
			if s := f.SecretRef; s != nil {
				at(path+".envFrom", "Secret", s.Name, s.Optional)
			}
			if m := f.ConfigMapRef; m != nil {
				at(path+".envFrom", "ConfigMap", m.Name, m.Optional)
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

// filled returns a text in which known parameters are replaced by their values.
func filled(text string, known map[string]tektonv1.ParamValue) string {
	values := tekton.NewValues(nil, nil)
	for name, v := range known {
		values.Set("params", name, v)
	}
	return values.Put(*tektonv1.NewStructuredValues(text)).StringVal
}

// secretsFolder is the mount path of spec.secrets in steps that take them.
const secretsFolder = "/run/build-secrets"

// mountSecrets mounts spec.secrets in the steps of a task that refer to the parameter. Sidecars get
// none: a step sends a secret to a builder's daemon when the Dockerfile asks for it.
func mountSecrets(c *composer, task *tektonv1.TaskSpec) {
	secrets := c.Build.Spec.Secrets
	if len(secrets) == 0 || !templates.Declares(task.Params, templates.Secrets) {
		return
	}
	volume := &corev1.ProjectedVolumeSource{DefaultMode: ptr.To(int32(0o440))}
	for _, secret := range secrets {
		key := cmp.Or(secret.Key, secret.ID)
		volume.Sources = append(volume.Sources,
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{
					Name: c.secretName(PurposeBuild, secret.Name)},
				Items: []corev1.KeyToPath{{Key: key, Path: secret.ID}},
			}})
	}
	task.Volumes = append(task.Volumes,
		corev1.Volume{Name: templates.Secrets, VolumeSource: corev1.VolumeSource{Projected: volume}})
	for i := range task.Steps {
		if tekton.Contains(task.Steps[i], "$(params."+templates.Secrets) {
			task.Steps[i].VolumeMounts = append(task.Steps[i].VolumeMounts,
				corev1.VolumeMount{Name: templates.Secrets, MountPath: secretsFolder, ReadOnly: true})
		}
	}
}

// checkKeys refuses entries of spec.secrets whose key the Secret does not have.
func checkKeys(c *composer) {
	for i, secret := range c.Build.Spec.Secrets {
		key := cmp.Or(secret.Key, secret.ID)
		if keys, known := c.SecretKeys[secret.Name]; known && !slices.Contains(keys, key) {
			c.bad(api.ReasonSecretInvalid, fmt.Sprintf("spec.secrets[%d].key", i),
				"name one of its keys", "Secret %s has no key %s", secret.Name, key)
		}
	}
}
