package api

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
)

// The names under which AgentBuild is published. A renamed generation of the platform has another
// group, so callers pass the group on.
const (
	DefaultGroup = keys.Kagenti
	// DefaultNamespace is the namespace of the controller.
	DefaultNamespace = "armature-system"
	Version          = "v1alpha1"
	Kind             = "AgentBuild"
)

// GroupVersion returns the group and version of AgentBuild in group.
func GroupVersion(group string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: Version}
}

// Finalizer returns the finalizer of an AgentBuild of group until its runs are deleted.
func Finalizer(group string) string { return group + "/finalizer" }

// RerunAnnotation returns the annotation of an AgentBuild of group each new value of which starts
// the build again.
func RerunAnnotation(group string) string { return group + "/rerun" }

// AddToScheme registers AgentBuild under group.
func AddToScheme(scheme *runtime.Scheme, group string) {
	copies.AddKind[AgentBuild](scheme, GroupVersion(group))
}
