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

// objectMeta returns the metadata of an object that is created for the build.
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
	if c.isolated() { // owner references do not cross namespaces
		meta.Namespace = c.Settings.BuildNamespace
		meta.Labels[keys.LabelInstance], meta.Labels[keys.AnnotationBuildUID] =
			c.Settings.Instance(c.Platform), string(b.UID)
	} else if b.UID != "" { // it is empty without a cluster
		meta.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: api.GroupVersion(c.Settings.group()).String(), Kind: api.Kind,
			Name: b.Name, UID: b.UID, Controller: ptr.To(true),
		}}
	}
	return meta
}

func modeOf(b *api.AgentBuild) string { return cmp.Or(b.Spec.Mode, templates.UsualMode) }

// LabelValue returns the label value for a build's name: the name, or its start and a hash if it is
// longer than a label value may be.
func LabelValue(name string) string { return shorten(name, 63) }

// objectName returns a DNS label that begins with a build's name and leaves room for a suffix.
func objectName(build string) string {
	label := strings.ReplaceAll(build, ".", "-")
	if label != build { // a.b is not a-b
		label = shorten(label, 43) + "-" + fingerprint(build)[:8]
	}
	return shorten(label, 52)
}

// shorten returns a name of at most limit bytes. A shortened name ends with a hash, so that names
// stay distinct.
func shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	return strings.TrimRight(name[:limit-9], "-.") + "-" + fingerprint(name)[:8]
}
