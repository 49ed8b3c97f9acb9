package compose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
)

// buildSecrets is the array parameter of a step that takes spec.secrets, each
// id=ID,src=FILE, and the name of the volume that has the files.
const buildSecrets = "build-secrets"

// secretsFolder is where steps that take spec.secrets find them.
const secretsFolder = "/run/build-secrets"

// mountSecrets into the containers of a task that refer to the parameter. Sidecars get none: a
// builder's daemon is sent a secret when the Dockerfile asks for it.
func (c *composition) mountSecrets(s *plannedStep) {
	secrets, spec := c.in.Build.Spec.Secrets, s.task.TaskSpec
	if len(secrets) == 0 || !declares(spec.Params, buildSecrets) {
		return
	}
	mode := int32(0o440)
	volume := &corev1.ProjectedVolumeSource{DefaultMode: &mode}
	for i, secret := range secrets {
		key := firstOf(secret.Key, secret.ID)
		if keys, known := c.in.SecretKeys[secret.Name]; known && !slices.Contains(keys, key) {
			c.bad(api.ReasonSecretInvalid, fmt.Sprintf("spec.secrets[%d].key", i), fmt.Sprintf("Secret %s has no key %s", secret.Name, key),
				"name one of its keys")
		}
		volume.Sources = append(volume.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret.Name},
			Items:                []corev1.KeyToPath{{Key: key, Path: secret.ID}},
		}})
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: buildSecrets, VolumeSource: corev1.VolumeSource{Projected: volume}})
	for i := range spec.Steps {
		if !strings.Contains(mustJSON(spec.Steps[i]), "$(params."+buildSecrets) {
			continue
		}
		spec.Steps[i].VolumeMounts = append(spec.Steps[i].VolumeMounts, corev1.VolumeMount{Name: buildSecrets, MountPath: secretsFolder, ReadOnly: true})
	}
}
