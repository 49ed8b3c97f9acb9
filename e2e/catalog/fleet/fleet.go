// Package fleet furnishes an API server with a small fleet of agents, tool servers, builds
// and a package, in which some things are wrong, for tests and the demo of the console.
package fleet

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/apply"
)

//go:embed fleet.yaml
var manifests []byte

//go:embed package.yaml
var applied []byte

// CRDs are the folders of the CRDs that it needs, from the root of the repository.
func CRDs() []string {
	return []string{"templates/crds", "templates/crds/catalog", "catalog/controller/testdata"}
}

// Furnish the API server with fleet.yaml, status included, and apply package.yaml. Then
// somebody edits one of its Deployments.
func Furnish(ctx context.Context, cfg *rest.Config) error {
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		return err
	}
	objects, err := ssautil.ReadObjects(bytes.NewReader(manifests))
	if err != nil {
		return err
	}
	for _, o := range objects {
		status := o.Object["status"]
		if err := c.Create(ctx, o); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if err := setStatus(ctx, c, o, status); err != nil {
			return err
		}
	}
	cluster, err := apply.Connect(cfg)
	if err != nil {
		return err
	}
	parts, err := apply.Read("package.yaml", applied)
	if err != nil {
		return err
	}
	if _, err := cluster.Apply(ctx, apply.Package{Namespace: "travel", Name: "travel"}, parts, apply.Options{}); err != nil {
		return err
	}
	// What the controller of Deployments would report.
	for name, status := range map[string]any{
		"weather": available(),
		"planner": available(),
		"concierge": map[string]any{"observedGeneration": int64(1), "replicas": int64(1), "updatedReplicas": int64(1), "unavailableReplicas": int64(1), "conditions": []any{
			map[string]any{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "ReplicaSet concierge-5d9f has timed out progressing"}}},
	} {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("apps/v1")
		o.SetKind("Deployment")
		if err := c.Get(ctx, types.NamespacedName{Namespace: "travel", Name: name}, o); err != nil {
			return err
		}
		if name == "weather" { // before its status, whose generation is then the next
			if err := edit(ctx, c, o); err != nil {
				return err
			}
			status.(map[string]any)["observedGeneration"] = o.GetGeneration()
		}
		if err := setStatus(ctx, c, o, status); err != nil {
			return err
		}
	}
	return nil
}

// available is the status of a Deployment whose pod is ready.
func available() map[string]any {
	return map[string]any{"observedGeneration": int64(1), "replicas": int64(1), "readyReplicas": int64(1), "updatedReplicas": int64(1), "availableReplicas": int64(1), "conditions": []any{
		map[string]any{"type": "Available", "status": "True"}, map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}}}
}

// edit a Deployment as kubectl edit does.
func edit(ctx context.Context, c client.Client, o *unstructured.Unstructured) error {
	patch := `{"spec":{"template":{"spec":{"containers":[{"name":"agent","env":[{"name":"UNITS","value":"imperial"}]}]}}}}`
	return c.Patch(ctx, o, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), client.FieldOwner("kubectl-edit"))
}

func setStatus(ctx context.Context, c client.Client, o *unstructured.Unstructured, status any) error {
	if status == nil {
		return nil
	}
	o.Object["status"] = status
	if err := c.Status().Update(ctx, o); err != nil {
		return fmt.Errorf("the status of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}
