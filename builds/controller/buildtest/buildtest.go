// Package buildtest sets up an API server that knows AgentBuilds and Tekton's kinds for tests.
package buildtest

import (
	"path/filepath"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/multi"
)

// Install adds the CRDs of this repository and of Tekton to an API server, and returns a client of
// its administrator. It runs in a folder two levels below the repository's root.
func Install(plane *controlplane.ControlPlane) (client.Client, error) {
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	if err != nil {
		return nil, err
	}
	if err := plane.InstallCRDs(filepath.Join("..", "..", "templates", "crds"),
		filepath.Join(tekton, "config", "300-crds")); err != nil {
		return nil, err
	}
	return Client(plane.Admin.Config)
}

// Client returns a client with the kinds of this repository and of Tekton.
func Client(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := multi.Errors(clientgoscheme.AddToScheme(scheme), tektonv1.AddToScheme(scheme),
		updates.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	api.AddToScheme(scheme, api.DefaultGroup)
	return client.New(config, client.Options{Scheme: scheme})
}
