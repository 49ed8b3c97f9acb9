package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	buildclient "github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/builds/client/delivery"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/workload"
	"github.com/armature-dev/armature/render/deliver/health"
	"github.com/armature-dev/armature/render/deliver/status"
)

// entryData is the content of the page of an agent or tool server.
type entryData struct {
	row
	Noun, List, ListName string
	Edit                 string // the address of its file in Git
	way
	Troubles []string
	reach
	Tools []toolForm
	Card  string
}

// way is how an agent got from a commit to its pods.
type way struct {
	Chain []delivery.Link
	Stop  string // the name of the link where it stops
	// Build is the path of its build's page, and Commit where the forge shows the commit.
	Build, Commit string
}

// reach is what an agent may call, and which agents may call a server.
type reach struct {
	Uses, UsedBy []binding
	Egress       []string
	EgressKnown  bool
}

// At returns the address of a path of the agent, quoted for a shell.
func (d entryData) At(path string) string {
	return text.Quote(strings.TrimSuffix(d.URL, "/") + path)
}

// Remedy returns what to do if the entry does not answer, or if its tools drifted.
func (d entryData) Remedy() string {
	if d.Health == store.Unknown || d.Health == store.Healthy && !d.Drifted() {
		return ""
	}
	return remedy(d.Entry)
}

// entryPage returns the page of an agent or tool server.
func entryPage(v *Visit) (*Page, error) {
	key := store.Key{Resource: v.PathValue("resource"), Namespace: v.PathValue("namespace"),
		Name: v.PathValue("name")}
	scope, err := v.Scope(map[string][]string{key.Resource: {key.Namespace}})
	if err != nil {
		return nil, err
	}
	if !scope.Allows(key) {
		return nil, store.ErrNotFound
	}
	e, err := v.Console.Store.Get(v.Context(), key)
	if err != nil {
		return nil, err
	}
	d := entryData{row: row{Entry: e}, Noun: noun(e), List: "/agents", ListName: "Agents",
		Card: resources.Pretty(e.Document)}
	parts := []string{"about", "chain", "offers", "call", "reach", "pods", "card"}
	if e.Type == store.Server {
		d.List, d.ListName = "/tools", "Tool servers"
		d.Tools = forms(e.Items)
		parts = []string{"about", "tools", "call", "users", "card"}
	}
	if err := d.readCluster(v); err != nil {
		return nil, err
	}
	page := &Page{Title: d.Label(), Section: d.List}
	for _, part := range parts {
		page.Parts = append(page.Parts, Part{part, "entry-" + part, d})
	}
	return page, nil
}

// readCluster adds the data of the cluster that the caller may list.
func (d *entryData) readCluster(v *Visit) error {
	c := v.Console.Cluster
	if c == nil {
		return nil
	}
	bindings, err := v.bindings()
	if err != nil {
		return err
	}
	for _, b := range bindings {
		if b.Agent == d.Key {
			d.Uses = append(d.Uses, b)
		}
		if b.serves(d.Entry) {
			d.UsedBy = append(d.UsedBy, b)
		}
	}
	if d.Type == store.Server {
		return nil
	}
	in := client.InNamespace(d.Namespace)
	builds, err := v.builds(in)
	if err != nil {
		return err
	}
	writes, err := v.ImageUpdates(in)
	if err != nil {
		return err
	}
	live, err := v.live(d.Namespace)
	if err != nil {
		return err
	}
	d.follow(live, values(builds), writes)
	return nil
}

// follow adds the way of the agent from the commit to its pods.
func (d *entryData) follow(live view, builds []api.AgentBuild, writes []updates.ImageUpdate) {
	var w delivery.Workload
	var b *api.AgentBuild
	if o := workloadOf(d.Entry, &live.Live); o != nil {
		w = delivery.WorkloadOf(o, status.Of(live.Live))
		b = delivery.BuildOf(w, builds)
		for _, pod := range live.PodsOf(o) {
			for _, t := range health.Troubles(pod) {
				d.Troubles = append(d.Troubles, t.String())
			}
		}
		d.Egress, d.EgressKnown = resources.Egress(o, live.policies), live.policiesRead
		d.Edit = resources.Origin(o)
	} else if i := slices.IndexFunc(builds, func(b api.AgentBuild) bool {
		return slices.ContainsFunc(d.Builds,
			func(made store.Build) bool { return made.Name == b.Name })
	}); i >= 0 {
		b = &builds[i]
	}
	if b == nil {
		if w.Name != "" {
			l := delivery.Link{Name: "pods", State: delivery.Done,
				What: fmt.Sprintf("%d of %d ready", w.Ready, w.Desired)}
			if w.Ready < w.Desired {
				l.State = delivery.Waiting
			}
			d.Chain = []delivery.Link{{Name: "workload", State: delivery.Done,
				What: w.Kind + "/" + w.Name}, l}
		}
		return
	}
	u := delivery.UpdateOf(b, writes)
	if w.Name == "" { // the workload may not be read: the way ends before it
		w.Images = []string{b.Status.BuiltImage}
	}
	links := delivery.Of(w, b, u)
	if w.Name == "" {
		links.Links = slices.DeleteFunc(links.Links,
			func(l delivery.Link) bool { return l.Name == "workload" || l.Name == "pods" })
	}
	d.Chain, d.Build = links.Links, buildPath(b.Namespace, b.Name)
	if stop := links.Stop(); stop != nil {
		d.Stop = stop.Name
	}
	if s := b.Status.Source; s != nil {
		d.Commit = resources.ForgeLink(b.Spec.Source.SourceRepository, "commit", s.Git.CommitSHA, "")
	}
	if d.Edit == "" && u != nil {
		d.Edit = resources.ForgeLink(u.Spec.Repository, "tree", u.Spec.Branch,
			strings.TrimSuffix(u.Spec.Path, "armature.lock"))
	}
}

// workloadOf returns the workload of an agent: the one whose pods answered, or else the one of
// its name.
func workloadOf(e store.Entry, live *status.Live) *unstructured.Unstructured {
	var named *unstructured.Unstructured
	for _, w := range live.Workloads {
		if w.GetNamespace() != e.Namespace {
			continue
		}
		if w.GetName() == e.Name {
			named = w
		}
		if slices.ContainsFunc(live.PodsOf(w), func(p *corev1.Pod) bool {
			return slices.ContainsFunc(e.Instances,
				func(i store.Instance) bool { return i.Pod == p.Name })
		}) {
			return w
		}
	}
	return named
}

// view is a namespace as it was last read.
type view struct {
	status.Live
	policies     []networkingv1.NetworkPolicy
	policiesRead bool
}

// viewTTL is how long a view is shared.
const viewTTL = 3 * time.Second

// viewKinds are read for the page of an agent.
var viewKinds = func() map[schema.GroupVersionResource]string {
	kinds := map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "pods"}:                                        "Pod",
		{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}: "NetworkPolicy",
	}
	for _, k := range workload.Kinds() {
		if group, version := k.GroupVersion(); k.Desired != "" {
			kinds[schema.GroupVersionResource{Group: group, Version: version,
				Resource: k.Resource}] = k.Name
		}
	}
	return kinds
}()

// readNamespace reads the objects of viewKinds, by resource. It omits kinds that the console may
// not list.
func (c *Cluster) readNamespace(ctx context.Context,
	namespace string) map[string][]unstructured.Unstructured {
	var mu sync.Mutex
	what := map[string][]unstructured.Unstructured{}
	var group errgroup.Group
	for kind := range viewKinds {
		group.Go(func() error {
			c.survive("reading a namespace", func() {
				objects, err := c.readKind(ctx, kind, namespace)
				if err != nil {
					c.log.V(1).Info("reading a namespace", "namespace", namespace, "resource",
						kind.Resource, "reason", err.Error())
					return
				}
				mu.Lock()
				defer mu.Unlock()
				what[kind.GroupResource().String()] = objects
			})
			return nil
		})
	}
	_ = group.Wait() // each has logged its own error
	return what
}

// maxView is the maximum number of bytes that are read of the objects of a kind in a namespace, for
// the pages of its agents.
const maxView = 8 << 20

// readKind reads the objects of a kind, without fields that no page shows.
func (c *Cluster) readKind(ctx context.Context, kind schema.GroupVersionResource,
	namespace string) (objects []unstructured.Unstructured, err error) {
	left := int64(maxView)
	err = c.objects.Each(ctx, kind, namespace, "", &left, func(raw []byte) error {
		var u unstructured.Unstructured
		if err := utiljson.Unmarshal(raw, &u.Object); err != nil {
			return err
		}
		u.SetManagedFields(nil)
		if u.GetKind() == "" { // items of a list of Kubernetes' own kinds have none
			u.SetGroupVersionKind(kind.GroupVersion().WithKind(viewKinds[kind]))
		}
		objects = append(objects, u)
		return nil
	})
	// The page shows the objects that were read before the limit.
	if errors.Is(err, resources.ErrSpent) || errors.Is(err, resources.ErrTooLarge) {
		c.log.Info("not all objects of a namespace are read", "namespace", namespace, "resource",
			kind.Resource, "reason", err.Error())
		err = nil
	}
	return objects, err
}

// live returns what the caller may list of a namespace.
func (v *Visit) live(namespace string) (out view, err error) {
	places := map[string][]string{}
	for kind := range viewKinds {
		places[kind.GroupResource().String()] = []string{namespace}
	}
	scope, err := v.Scope(places)
	if err != nil {
		return out, err
	}
	c := v.Console.Cluster
	what, err := buildclient.Share(v.Context(), c.builds, "namespace/"+namespace, viewTTL,
		func(ctx context.Context) (map[string][]unstructured.Unstructured, error) {
			return c.readNamespace(ctx, namespace), nil
		})
	if err != nil {
		return out, err
	}
	out.Now = v.Console.Now()
	for resource, objects := range what {
		if !scope.Allows(store.Key{Resource: resource, Namespace: namespace}) {
			continue
		}
		for i := range objects {
			switch resource {
			case "pods":
				var pod corev1.Pod
				if runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, &pod) == nil {
					out.Pods = append(out.Pods, &pod)
				}
			case "networkpolicies.networking.k8s.io":
				var policy networkingv1.NetworkPolicy
				if runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object,
					&policy) == nil {
					out.policies = append(out.policies, policy)
				}
			default:
				out.Workloads = append(out.Workloads, &objects[i])
			}
		}
		out.policiesRead = out.policiesRead || resource == "networkpolicies.networking.k8s.io"
	}
	return out, nil
}
