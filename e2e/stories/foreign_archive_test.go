package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// foreignArchiveIsRefused lets a tenant of another namespace name the story's archive in the
// status of a source of its own: it gets neither the content nor the digest.
func (f *fluxStory) foreignArchiveIsRefused(t *testing.T) {
	t.Helper()
	other := newStory(t, nil)
	tenant := other.asTenant(t)
	victim, err := f.object(t.Context(), "source.toolkit.fluxcd.io", "v1", "GitRepository", "fleet")
	must(t, err)
	artifact, _, err := unstructured.NestedMap(victim.Object, "status", "artifact")
	must(t, err)
	stolen, digest := artifact["url"].(string), artifact["digest"].(string)
	host, path, _ := strings.Cut(strings.TrimPrefix(stolen, "http://"), "/gitrepository/")

	for name, a := range map[string]struct{ url, digest string }{
		"known":   {stolen, digest},
		"guessed": {stolen, "sha256:" + strings.Repeat("0", 64)},
		"dots": {"http://" + host + "/gitrepository/" + other.namespace + "/dots/../../" + path,
			digest},
		"encoded": {"http://" + host + "/gitrepository/" + other.namespace +
			"/encoded/%2e%2e/%2e%2e/" + path, digest},
	} {
		source := object("source.toolkit.fluxcd.io/v1", "GitRepository", other.namespace, name)
		// nobody else writes its status
		source.Object["spec"] = map[string]any{"url": "https://git.example/fleet", "interval": "1m",
			"suspend": true}
		must(t, tenant.Create(t.Context(), source))
		before := source.DeepCopy()
		source.Object["status"] = map[string]any{"artifact": map[string]any{
			"url": a.url, "digest": a.digest, "path": artifact["path"],
			"revision": artifact["revision"], "lastUpdateTime": artifact["lastUpdateTime"],
		}}
		// source-controller writes its finalizer meanwhile
		must(t, tenant.Status().Patch(t.Context(), source, client.MergeFrom(before)))
		rendered := object("armature.dev/v1alpha1", "RenderedSource", other.namespace, name)
		rendered.Object["spec"] = map[string]any{"interval": "1m",
			"sourceRef": map[string]any{"kind": "GitRepository", "name": name}}
		must(t, tenant.Create(t.Context(), rendered))
		eventually(t, 2*time.Minute, "the archive of another namespace is refused: "+name,
			func(ctx context.Context) error {
				if err := tenant.Get(ctx, client.ObjectKeyFromObject(rendered), rendered); err != nil {
					return err
				}
				if ready := condition(rendered, "Ready"); !strings.HasPrefix(ready,
					"False AccessDenied") {
					return fmt.Errorf("Ready is %s", ready)
				}
				return nil
			})
		if text := fmt.Sprint(rendered.Object["status"]); strings.Contains(text,
			strings.TrimPrefix(digest, "sha256:")) {
			t.Errorf("%s: the status gives the digest away: %s", name, text)
		}
	}
	// Finalizers go while the controller runs.
	kubectl(t, nil, "delete", "--namespace="+other.namespace, "--timeout=1m", "--all", "renderedsources")
}

func object(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}
