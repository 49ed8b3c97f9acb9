package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
)

// A run of a template with attest: true or isolate: true is isolated: it is in a namespace of the
// platform where no tenant has rights. What cannot be touched there need not be checked. Nothing
// in it but copies of the Secrets that the build names comes from the build's namespace.

// BuildAccount is the ServiceAccount of all isolated runs. It has no rights, no Secrets and no
// token.
const BuildAccount = "armature-build"

// isolated reports whether a run is created in the platform's build namespace. Without a cluster
// there may be none.
func isolated(in Input) bool { return in.Settings.BuildNamespace != "" && in.Template.Isolates() }

// Instance names a controller among those that share a build namespace, by the namespace that
// it is in.
func (s Settings) Instance(namespace string) string {
	if s.group() != api.DefaultGroup {
		namespace += "." + s.group()
	}
	return LabelValue(namespace)
}

func accountName(in Input) string {
	if in.Template.Isolates() {
		return BuildAccount
	}
	return cmp.Or(in.Build.Spec.ServiceAccountName, in.Settings.ServiceAccountName)
}

// isolatedName of something that belongs to a build: a prefix that people read, and a hash of
// 128 bits.
func isolatedName(in Input, prefix string, of ...string) string {
	b := in.Build
	return prefix + "-" +
		fingerprint(append([]string{b.Namespace, b.Name, string(b.UID)}, of...)...)[:32]
}

// Copy is a Secret of the build's namespace that a run reads as a copy of its own.
type Copy struct {
	From, To string
	// Keys that are copied, of those that there are.
	Keys []string
}

// secretName is the name under which a run has a Secret of its build.
func secretName(in Input, purpose Purpose, name string) string {
	if !isolated(in) {
		return name
	}
	return isolatedName(in, string(purpose), strconv.Itoa(int(in.Number)), name)
}

// copies of the Secrets that a build needs.
func copies(in Input, needs []Need) (out []Copy) {
	if !isolated(in) {
		return nil
	}
	for _, n := range needs {
		if n.Kind != "Secret" {
			continue
		}
		c := Copy{From: n.Name, To: secretName(in, n.Purpose, n.Name)}
		switch n.Purpose {
		case PurposeGit:
			c.Keys = []string{corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey, "token",
				corev1.SSHAuthPrivateKey, "known_hosts"}
		case PurposeRegistry:
			c.Keys = []string{corev1.DockerConfigJsonKey, "config.json"}
		case PurposeBuild:
			for _, s := range in.Build.Spec.Secrets {
				if s.Name == n.Name {
					c.Keys = append(c.Keys, cmp.Or(s.Key, s.ID))
				}
			}
		}
		out = append(out, c)
	}
	return out
}

// checkIsolated returns a fault for each field of the build or the template that an isolated run
// must not have.
func checkIsolated(in Input, builder string, o ordered) (found faults) {
	if !in.Template.Isolates() {
		return nil
	}
	mode := modeOf(in.Build)
	if in.Platform != "" && in.Settings.BuildNamespace == "" {
		found.bad(in, api.ReasonBuildNamespaceMissing, "spec.mode",
			fmt.Sprintf("runs of mode %s are in a namespace of the platform, and the controller "+
				"has none for them", mode),
			"let the platform set buildNamespace in the values of `armature install` or of the "+
				"chart (--build-namespace of the controller), or use another mode")
	}
	if slices.Contains(recipe.Unisolated, builder) {
		found.bad(in, api.ReasonLocked, "spec.builder",
			fmt.Sprintf("%s runs the Dockerfile in the container that reports the digest, so "+
				"that mode %s cannot attest what it builds", builder, mode),
			"use buildkit")
	}
	if in.Build.Spec.ServiceAccountName != "" {
		found.bad(in, api.ReasonLocked, "spec.serviceAccountName",
			fmt.Sprintf(
				"runs of mode %s are in a namespace of the platform, with the ServiceAccount %s",
				mode, BuildAccount), "remove it")
	}
	if p := in.Build.Spec.Pod; p != nil && p.SecurityContext != nil {
		found.bad(in, api.ReasonLocked, "spec.pod.securityContext",
			fmt.Sprintf("runs of mode %s are in a namespace of the platform, whose template "+
				"describes their pods", mode), "remove it")
	}
	for task := range tekton.Tasks(&o.pipeline.Spec) {
		if task.TaskSpec == nil {
			continue
		}
		spec := task.TaskSpec.TaskSpec
		spec.Volumes = slices.DeleteFunc(slices.Clone(spec.Volumes),
			func(v corev1.Volume) bool { return v.Name == recipe.Secrets })
		names, text := forbiddenOf(&spec), tekton.JSON(spec)
		if strings.Contains(text, `"configMap":`) {
			names = append(names, "a ConfigMap as a volume")
		}
		if strings.Contains(text, `"configMapKeyRef":`) ||
			strings.Contains(text, `"configMapRef":`) {
			names = append(names, "a ConfigMap in its environment")
		}
		for _, name := range names {
			found.bad(in, api.ReasonLocked, "spec.mode",
				fmt.Sprintf("step %q has %s, and the namespace of isolated runs has nothing but "+
					"copies of the Secrets that the build names", task.Name, name),
				"let the step take what it needs as a workspace or a parameter")
		}
	}
	return found
}
