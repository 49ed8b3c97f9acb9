package kinds

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	publishedapi "github.com/armature-dev/armature/catalog/api/published"
	"github.com/armature-dev/armature/catalog/store"
	functionsapi "github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Of is what an object of the catalog's kinds says by itself: its spec, and
// the last good answer in its status. ok is false for other kinds. It
// makes no request.
func Of(u *unstructured.Unstructured) (e store.Entry, ok bool, err error) {
	if _, ok := kindOf(u.GroupVersionKind().GroupKind()); !ok {
		return e, false, nil
	}
	scheme, err := buildScheme()
	if err != nil {
		return e, true, err
	}
	var o Object = u
	switch known := scheme.VersionsForGroupKind(u.GroupVersionKind().GroupKind()); {
	case scheme.Recognizes(u.GroupVersionKind()):
		typed, err := scheme.New(u.GroupVersionKind())
		if err != nil {
			return e, true, err
		}
		ours := u.GroupVersionKind().Group != kagent.Group // of kagent's the catalog knows some fields alone
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, typed, ours); err != nil {
			return e, true, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
		o = typed.(Object)
	case len(known) > 0:
		return e, true, fmt.Errorf("%s %s: its apiVersion %s is unknown: use %s", u.GetKind(), u.GetName(), u.GetAPIVersion(), known[0])
	}
	e = New(o, store.Entry{})
	if e.UID == "" {
		e.UID = e.Resource + "/" + e.Namespace + "/" + e.Name
	}
	return e, true, nil
}

// New is what the catalog knows of an object before the first request:
// what it knew before, or what the object itself says.
func New(o Object, before store.Entry) store.Entry {
	e := before
	gvk := o.GetObjectKind().GroupVersionKind()
	if scheme, err := buildScheme(); err == nil {
		if known, _, err := scheme.ObjectKinds(o); err == nil {
			gvk = known[0] // objects from a cache do not say
		}
	}
	kind, _ := kindOf(gvk.GroupKind())
	e.Key = store.Key{Resource: kind.Resource, Namespace: o.GetNamespace(), Name: o.GetName()}
	e.UID, e.APIVersion, e.Kind = string(o.GetUID()), gvk.GroupVersion().String(), gvk.Kind
	e.Generation, e.Labels, e.Created = o.GetGeneration(), o.GetLabels(), o.GetCreationTimestamp().UTC()
	e.PublishedURL = o.GetAnnotations()[keys.PublishedURL]
	if before.UID == "" {
		e.Health = store.Unknown
		kind.read(&e, o)
	}
	return e
}

func fromRemoteServer(e *store.Entry, object Object) {
	o := object.(*kagent.RemoteMCPServer)
	e.Type, e.Description, e.URL, e.Protocol = store.Server, o.Spec.Description, o.Spec.URL, Protocol(o.Spec.Protocol == kagent.SSE)
	for _, t := range o.Status.DiscoveredTools {
		e.Items = append(e.Items, store.Item{Kind: store.Tool, Name: t.Name, Description: t.Description})
	}
	fromCondition(e, meta.FindStatusCondition(o.Status.Conditions, kagent.ConditionAccepted))
}

func fromServer(e *store.Entry, object Object) {
	o := object.(*kagent.MCPServer)
	e.Type, e.URL, e.Protocol = store.Server, ServiceOf(o), Protocol(false)
	fromCondition(e, meta.FindStatusCondition(o.Status.Conditions, api.ConditionDiscovered))
}

func fromCard(e *store.Entry, object Object) {
	spec, status := CardOf(object)
	e.Type, e.Title, e.Protocol = store.Agent, e.Name, "a2a"
	good := false
	for _, c := range status.Cards {
		i := store.Instance{Pod: c.PodName, URL: c.URL, Status: c.FetchStatus, Signature: c.Verdict, SignedBy: c.SignedBy}
		if c.LastFetchTime != nil {
			i.Fetched = c.LastFetchTime.UTC()
			if e.Fetched.Before(i.Fetched) {
				e.Fetched = i.Fetched
			}
		}
		e.Instances = append(e.Instances, i)
		if c.Card == nil || good {
			continue
		}
		if card, err := ReadCard(c.Card.Raw); err == nil {
			card.Fill(e)
			good = true
		}
	}
	if signed := meta.FindStatusCondition(status.Conditions, api.ConditionSigned); signed != nil {
		e.Signature = signed.Reason
		if len(e.Instances) > 0 && signed.Status == metav1.ConditionTrue {
			e.SignedBy = e.Instances[0].SignedBy
		}
	}
	Describe(e, spec.Metadata)
	if !good && spec.Metadata != nil {
		e.Title = cmp.Or(spec.Metadata.Name, e.Title)
	}
	e.Message = status.Message
	if h, ok := map[api.Phase]store.Health{api.PhaseActive: store.Healthy, api.PhaseDegraded: store.Degraded, api.PhaseFailed: store.Failing}[status.Phase]; ok {
		e.Health = h
	}
}

func fromCondition(e *store.Entry, c *metav1.Condition) {
	if c == nil {
		return
	}
	e.Health = store.Failing
	if c.Status == metav1.ConditionTrue {
		e.Health, e.Fetched = store.Healthy, c.LastTransitionTime.UTC()
		return
	}
	e.Message = c.Message
}

// fromAgent reads kagent's Agent, whose type is kagent's own.
func fromAgent(e *store.Entry, object Object) {
	u := object.(*unstructured.Unstructured)
	e.Type, e.Title, e.Protocol = store.Agent, e.Name, "a2a"
	e.Description, _, _ = unstructured.NestedString(u.Object, "spec", "description")
	e.URL = fmt.Sprintf("http://%s.%s.svc:8080", e.Name, e.Namespace)
	for _, path := range [][]string{{"spec", "declarative", "a2aConfig", "skills"}, {"spec", "a2aConfig", "skills"}} {
		list, _, _ := unstructured.NestedSlice(u.Object, path...)
		for _, one := range list {
			var s struct {
				ID, Name, Description string
				Tags                  []string
			}
			data, err := json.Marshal(one)
			if err != nil || json.Unmarshal(data, &s) != nil || s.Name+s.ID == "" {
				continue
			}
			e.Items = append(e.Items, store.Item{Kind: store.Skill, Name: cmp.Or(s.Name, s.ID), Description: s.Description, Tags: s.Tags, Document: data})
		}
	}
	fromUntyped(e, u, "Ready")
}

// fromSuccessor reads an Agent of kagent 1.0, which runs on Agent Substrate: it has no
// Service, and its callers name it to kagent's gateway.
func fromSuccessor(e *store.Entry, object Object) {
	u := object.(*unstructured.Unstructured)
	e.Type, e.Title, e.Protocol = store.Agent, e.Name, "a2a"
	e.Description, _, _ = unstructured.NestedString(u.Object, "spec", "template", "description")
	fromUntyped(e, u, "Ready")
}

// fromSuccessorServer reads a RemoteMCPServer of kagent 1.0, which kagent asks for its tools.
func fromSuccessorServer(e *store.Entry, object Object) {
	u := object.(*unstructured.Unstructured)
	protocol, _, _ := unstructured.NestedString(u.Object, "spec", "protocol")
	e.Type, e.Protocol = store.Server, Protocol(protocol == string(kagent.SSE))
	e.Description, _, _ = unstructured.NestedString(u.Object, "spec", "description")
	e.URL, _, _ = unstructured.NestedString(u.Object, "spec", "url")
	fromUntyped(e, u, kagent.ConditionAccepted)
}

// fromUntyped reads a condition of an object whose type is kagent's own.
func fromUntyped(e *store.Entry, u *unstructured.Unstructured, kind string) {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, one := range conditions {
		if c, ok := one.(map[string]any); ok && c["type"] == kind {
			e.Health = store.Failing
			if e.Message, _ = c["message"].(string); c["status"] == "True" {
				e.Health, e.Message = store.Healthy, ""
			}
		}
	}
}

// Describe an agent by the AgentCard where its own card is silent.
func Describe(e *store.Entry, m *api.CardMetadata) {
	if m == nil {
		return
	}
	e.Title = cmp.Or(e.Title, m.Name)
	e.Description = cmp.Or(e.Description, m.Description)
	e.Tags = m.Tags
}

// CardOf gives the parts of an AgentCard of either group.
func CardOf(o Object) (*api.AgentCardSpec, *api.AgentCardStatus) {
	if c, ok := o.(*publishedapi.AgentCard); ok {
		return &c.Spec, &c.Status
	}
	c := o.(*api.AgentCard)
	return &c.Spec, &c.Status
}

// Published reports whether an object is an AgentCard of the published group.
func Published(o Object) bool {
	_, ok := o.(*publishedapi.AgentCard)
	return ok
}

// ToolServer names the server that an object is, as the lock of its package does.
func ToolServer(o Object) functionsapi.ToolServer {
	server := functionsapi.ToolServer{Namespace: o.GetNamespace(), Name: o.GetName()}
	if scheme, err := buildScheme(); err == nil {
		if known, _, err := scheme.ObjectKinds(o); err == nil {
			server.Group, server.Kind = known[0].Group, known[0].Kind
		}
	}
	return server
}

// Protocol of an MCP server, which speaks server-sent events or streams.
func Protocol(sse bool) string {
	if sse {
		return "mcp+sse"
	}
	return "mcp"
}

// ServiceOf is where an MCPServer listens in the cluster.
func ServiceOf(o *kagent.MCPServer) string {
	port, path := cmp.Or(o.Spec.Deployment.Port, 3000), cmp.Or(o.Spec.HTTPTransport.TargetPath, "/mcp")
	return fmt.Sprintf("http://%s.%s.svc:%d/%s", o.Name, o.Namespace, port, strings.TrimPrefix(path, "/"))
}
