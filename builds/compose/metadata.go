package compose

import (
	"cmp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// objectMeta is shared by all that is made for the build.
func (c *composer) objectMeta(name string) metav1.ObjectMeta {
	b := c.Build
	meta := metav1.ObjectMeta{
		Name:      name,
		Namespace: b.Namespace,
		Labels: map[string]string{
			LabelManagedBy:  ManagedBy,
			keys.LabelBuild: LabelValue(b.Name),
			keys.LabelMode:  modeOf(b),
		},
	}
	if c.isolated() { // owners are of the same namespace
		meta.Namespace = c.Settings.BuildNamespace
		meta.Labels[keys.LabelInstance], meta.Labels[keys.AnnotationBuildUID] =
			c.Settings.Instance(c.Platform), string(b.UID)
	} else if b.UID != "" { // else it is composed without a cluster
		meta.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: api.GroupVersion(c.Settings.group()).String(), Kind: api.Kind,
			Name: b.Name, UID: b.UID, Controller: ptr.To(true),
		}}
	}
	return meta
}

func modeOf(b *api.AgentBuild) string { return cmp.Or(b.Spec.Mode, templates.UsualMode) }

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
