package attesttest

import (
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/reconciler/volumeclaim"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// claim is the name that Tekton gives the volume of a workspace of a run.
func claim(workspace string, run types.UID) string {
	return volumeclaim.GeneratePVCNameFromWorkspaceBinding("", tektonv1.WorkspaceBinding{Name: workspace}, metav1.OwnerReference{UID: run})
}
