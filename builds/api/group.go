package api

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
)

// The names under which AgentBuild is published. A renamed generation of the
// platform has another group, so callers pass the group on.
const (
	DefaultGroup = keys.Kagenti
	// DefaultNamespace is the controller's.
	DefaultNamespace = "armature-system"
	Version          = "v1alpha1"
	Kind             = "AgentBuild"
)

// GroupVersion of AgentBuild in group.
func GroupVersion(group string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: Version}
}

// Finalizer that holds an AgentBuild of group until its runs are gone.
func Finalizer(group string) string { return group + "/finalizer" }

// RerunAnnotation on an AgentBuild of group: each new value starts the build
// once more.
func RerunAnnotation(group string) string { return group + "/rerun" }

// AddToScheme registers AgentBuild under group.
func AddToScheme(scheme *runtime.Scheme, group string) {
	copies.AddKind[AgentBuild](scheme, GroupVersion(group))
}
