// Package fleet furnishes an API server with a small fleet of agents, tool servers, builds
// and a package, in which some things are wrong, for tests and the demo of the console.
package fleet

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/deliver/apply"
)

//go:embed fleet.yaml
var manifests []byte

//go:embed package.yaml
var applied []byte

// CRDs returns the folders of the CRDs that the fleet needs, from the root of the repository.
func CRDs() []string {
	return []string{"templates/crds", "templates/crds/catalog", "catalog/controller/testdata"}
}

// Written is the time that fleet.yaml describes.
var Written = time.Date(2026, 1, 13, 17, 10, 0, 0, time.UTC)

// Fleet has clients for the objects of an API server.
type Fleet struct {
	Client  client.Client
	Kubelet *Kubelet
}

// Furnish creates the objects of fleet.yaml in an API server, with their times moved to now, with
// status and with the runs of its builds, and applies package.yaml. Then it edits one of the
// package's Deployments.
func Furnish(ctx context.Context, plane *controlplane.ControlPlane, now time.Time) (*Fleet, error) {
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	if err != nil {
		return nil, err
	}
	if err := plane.InstallCRDs(filepath.Join(tekton, "config", "300-crds")); err != nil {
		return nil, err
	}
	f := &Fleet{}
	if f.Client, err = buildtest.Client(plane.Admin.Config); err != nil {
		return nil, err
	}
	if f.Kubelet, err = startKubelet(ctx, f.Client); err != nil {
		return nil, err
	}
	if err := f.furnish(ctx, plane.Admin.Config, now); err != nil {
		return nil, err
	}
	return f, f.runs(ctx)
}

// runs creates the runs of the builds that have a history.
func (f *Fleet) runs(ctx context.Context) error {
	var builds api.AgentBuildList
	if err := f.Client.List(ctx, &builds); err != nil {
		return err
	}
	for i := range builds.Items {
		b := &builds.Items[i]
		h, ok := history[b.Name]
		if !ok {
			continue
		}
		if err := f.Run(ctx, b, h.last, h.state); err != nil {
			return fmt.Errorf("the run of build %s: %w", b.Name, err)
		}
		for step, text := range h.logs {
			task, name, _ := strings.Cut(step, "/")
			f.Log(b, task, name, text)
		}
	}
	return nil
}

// Log sets the output of a step of a build's run.
func (f *Fleet) Log(b *api.AgentBuild, task, step, text string) {
	f.Kubelet.Log(b.Status.PipelineRunName+"-"+task+"-pod", "step-"+step, text)
}

var times = regexp.MustCompile(`"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"`)

// moved returns the manifests with their times moved to now.
func moved(now time.Time) []byte {
	return times.ReplaceAllFunc(manifests, func(text []byte) []byte {
		at, err := time.Parse(`"`+time.RFC3339+`"`, string(text))
		if err != nil {
			return text
		}
		return []byte(at.Add(now.Sub(Written)).UTC().Format(`"` + time.RFC3339 + `"`))
	})
}

func (f *Fleet) furnish(ctx context.Context, cfg *rest.Config, now time.Time) error {
	c := f.Client
	objects, err := ssautil.ReadObjects(bytes.NewReader(moved(now)))
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
	if _, err := cluster.Apply(ctx, apply.Package{Namespace: "travel", Name: "travel"}, parts,
		apply.Options{}); err != nil {
		return err
	}
	// The status that the controller of Deployments would write.
	for name, status := range map[string]any{
		"weather": available(),
		"planner": available(),
		"concierge": map[string]any{"observedGeneration": int64(1), "replicas": int64(1),
			"updatedReplicas": int64(1), "unavailableReplicas": int64(1), "conditions": []any{
				map[string]any{"type": "Progressing", "status": "False",
					"reason":  "ProgressDeadlineExceeded",
					"message": "ReplicaSet concierge-5d9f has timed out progressing"}}},
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

// available returns the status of a Deployment whose pod is ready.
func available() map[string]any {
	return map[string]any{"observedGeneration": int64(1), "replicas": int64(1),
		"readyReplicas": int64(1), "updatedReplicas": int64(1), "availableReplicas": int64(1),
		"conditions": []any{
			map[string]any{"type": "Available", "status": "True"},
			map[string]any{"type": "Progressing",
				"status": "True", "reason": "NewReplicaSetAvailable"}}}
}

// edit edits a Deployment as kubectl edit does.
func edit(ctx context.Context, c client.Client, o *unstructured.Unstructured) error {
	patch := `{"spec":{"template":{"spec":{"containers":[{"name":"agent","env":[{"name":"UNITS","value":"imperial"}]}]}}}}`
	return c.Patch(ctx, o, client.RawPatch(types.StrategicMergePatchType, []byte(patch)),
		client.FieldOwner("kubectl-edit"))
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
