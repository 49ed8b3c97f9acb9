package compose

import (
	"cmp"
	"fmt"
	"slices"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
)

// secretsFolder is where steps that take spec.secrets find them.
const secretsFolder = "/run/build-secrets"

// mountSecrets into the containers of a task that refer to the parameter. Sidecars get none: a
// builder's daemon is sent a secret when the Dockerfile asks for it.
func mountSecrets(in Input, task *tektonv1.TaskSpec) {
	secrets := in.Build.Spec.Secrets
	if len(secrets) == 0 || !recipe.Declares(task.Params, recipe.Secrets) {
		return
	}
	mode := int32(0o440)
	volume := &corev1.ProjectedVolumeSource{DefaultMode: &mode}
	for _, secret := range secrets {
		key := cmp.Or(secret.Key, secret.ID)
		volume.Sources = append(volume.Sources,
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: secretName(in, PurposeBuild,
					secret.Name)},
				Items: []corev1.KeyToPath{{Key: key, Path: secret.ID}},
			}})
	}
	task.Volumes = append(task.Volumes,
		corev1.Volume{Name: recipe.Secrets, VolumeSource: corev1.VolumeSource{Projected: volume}})
	for i := range task.Steps {
		if tekton.Contains(task.Steps[i], "$(params."+recipe.Secrets) {
			task.Steps[i].VolumeMounts = append(task.Steps[i].VolumeMounts,
				corev1.VolumeMount{Name: recipe.Secrets, MountPath: secretsFolder, ReadOnly: true})
		}
	}
}

// checkKeys refuses keys that the Secrets of a build do not have.
func checkKeys(in Input) (found faults) {
	for i, secret := range in.Build.Spec.Secrets {
		key := cmp.Or(secret.Key, secret.ID)
		if keys, known := in.SecretKeys[secret.Name]; known && !slices.Contains(keys, key) {
			found.bad(in, api.ReasonSecretInvalid, fmt.Sprintf("spec.secrets[%d].key", i),
				fmt.Sprintf("Secret %s has no key %s", secret.Name, key), "name one of its keys")
		}
	}
	return found
}
