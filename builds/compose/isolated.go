package compose

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// A run of a template with attest: true or isolate: true is isolated: it is created in a namespace
// of the platform where no tenant has rights, so its objects need no check for changes by tenants.
// Only copies of the Secrets that the build names come from the build's namespace.

// BuildAccount is the ServiceAccount of all isolated runs. It has no rights, Secrets or token.
const BuildAccount = "armature-build"

// isolated reports whether the run is created in the platform's build namespace. A plan without a
// cluster may have none.
func (c *composer) isolated() bool {
	return c.Settings.BuildNamespace != "" && c.Template.Isolates()
}

// Instance returns a name that distinguishes the controller in a namespace from other controllers
// with the same build namespace.
func (s Settings) Instance(namespace string) string {
	if s.group() != api.DefaultGroup {
		namespace += "." + s.group()
	}
	return LabelValue(namespace)
}

// isolatedName returns the name of an object that belongs to a build: a readable prefix and a hash
// of 128 bits.
func (c *composer) isolatedName(prefix string, of ...string) string {
	b := c.Build
	return prefix + "-" +
		fingerprint(append([]string{b.Namespace, b.Name, string(b.UID)}, of...)...)[:32]
}

// Copy is a Secret From the build's namespace that a run reads as its own copy, To.
type Copy struct {
	From, To string
	// Keys are copied if the Secret has them.
	Keys []string
}

// secretName returns the name under which a run reads a Secret of its build.
func (c *composer) secretName(purpose Purpose, name string) string {
	if !c.isolated() {
		return name
	}
	return c.isolatedName(string(purpose), strconv.Itoa(int(c.Number)), name)
}

// copies returns the Secrets to copy for an isolated run.
func copies(c *composer, needs []Need) (out []Copy) {
	if !c.isolated() {
		return nil
	}
	for _, n := range needs {
		if n.Kind != "Secret" {
			continue
		}
		one := Copy{From: n.Name, To: c.secretName(n.Purpose, n.Name)}
		switch n.Purpose {
		case PurposeGit:
			one.Keys = []string{corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey, "token",
				corev1.SSHAuthPrivateKey, "known_hosts"}
		case PurposeRegistry:
			one.Keys = []string{corev1.DockerConfigJsonKey, "config.json"}
		case PurposeBuild:
			for _, s := range c.Build.Spec.Secrets {
				if s.Name == n.Name {
					one.Keys = append(one.Keys, cmp.Or(s.Key, s.ID))
				}
			}
		}
		out = append(out, one)
	}
	return out
}

// checkIsolated adds a finding for each setting that an isolated run must not have.
func checkIsolated(c *composer, o *Output) {
	if !c.Template.Isolates() {
		return
	}
	mode := modeOf(c.Build)
	locked := func(field, hint, format string, args ...any) {
		c.bad(api.ReasonLocked, field, hint, format, args...)
	}
	if c.Platform != "" && c.Settings.BuildNamespace == "" {
		c.bad(api.ReasonBuildNamespaceMissing, "spec.mode",
			"let the platform set buildNamespace in the values of `armature install` or of the "+
				"chart (--build-namespace of the controller), or use another mode",
			"runs of mode %s are in a namespace of the platform, and the controller has none for "+
				"them", mode)
	}
	if slices.Contains(templates.Unisolated, c.builder) {
		locked("spec.builder", "use buildkit", "%s runs the Dockerfile in the container that "+
			"reports the digest, so that mode %s cannot attest what it builds", c.builder, mode)
	}
	if c.Build.Spec.ServiceAccountName != "" {
		locked("spec.serviceAccountName", "remove it", "runs of mode %s are in a namespace of the "+
			"platform, with the ServiceAccount %s", mode, BuildAccount)
	}
	if p := c.Build.Spec.Pod; p != nil && p.SecurityContext != nil {
		locked("spec.pod.securityContext", "remove it", "runs of mode %s are in a namespace of "+
			"the platform, whose template describes their pods", mode)
	}
	for task := range tekton.Tasks(&o.Pipeline.Spec) {
		spec := task.TaskSpec.TaskSpec
		spec.Volumes = slices.DeleteFunc(slices.Clone(spec.Volumes),
			func(v corev1.Volume) bool { return v.Name == templates.Secrets })
		names, text := forbiddenOf(&spec), tekton.JSON(spec)
		if strings.Contains(text, `"configMap":`) {
			names = append(names, "a ConfigMap as a volume")
		}
		if strings.Contains(text, `"configMapKeyRef":`) ||
			strings.Contains(text, `"configMapRef":`) {
			names = append(names, "a ConfigMap in its environment")
		}
		for _, name := range names {
			locked("spec.mode", "let the step take what it needs as a workspace or a parameter",
				"step %q has %s, and the namespace of isolated runs has nothing but copies of the "+
					"Secrets that the build names", task.Name, name)
		}
	}
}
