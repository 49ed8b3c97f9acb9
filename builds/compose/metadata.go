package compose

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/functions/api/keys"
)

// objectMeta is shared by all that is made for the build.
func objectMeta(in Input, name string) metav1.ObjectMeta {
	b := in.Build
	meta := metav1.ObjectMeta{
		Name:      name,
		Namespace: b.Namespace,
		Labels: map[string]string{
			LabelManagedBy:  ManagedBy,
			keys.LabelBuild: LabelValue(b.Name),
			keys.LabelMode:  modeOf(b),
		},
		OwnerReferences: owner(in),
	}
	if isolated(in) { // owners are of the same namespace
		meta.Namespace, meta.OwnerReferences = in.Settings.BuildNamespace, nil
		meta.Labels[keys.LabelInstance], meta.Labels[keys.AnnotationBuildUID] =
			in.Settings.Instance(in.Platform), string(b.UID)
	}
	return meta
}

func modeOf(b *api.AgentBuild) string {
	return strings.TrimPrefix(recipe.TemplateName(b.Spec.Mode), recipe.TemplatePrefix)
}

func owner(in Input) []metav1.OwnerReference {
	b := in.Build
	if b.UID == "" {
		return nil // composed without a cluster
	}
	yes := true
	return []metav1.OwnerReference{{
		APIVersion: api.GroupVersion(in.Settings.group()).String(),
		Kind:       api.Kind,
		Name:       b.Name,
		UID:        b.UID,
		Controller: &yes,
	}}
}

// LabelValue of a build's name: the name, or its start and a hash where it is
// longer than a label may be.
func LabelValue(name string) string { return shorten(name, 63) }

// objectName is a DNS label that begins with a build's name and leaves room for
// an ending.
func objectName(build string) string {
	label := strings.ReplaceAll(build, ".", "-")
	if label != build { // a.b is not a-b
		label = shorten(label, 43) + "-" + fingerprint(build)[:8]
	}
	return shorten(label, 52)
}

// shorten a name to limit, with a hash so that two never become one.
func shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	return strings.TrimRight(name[:limit-9], "-.") + "-" + fingerprint(name)[:8]
}
