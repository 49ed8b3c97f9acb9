package kinds

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
)

// kagent1 is the version of kagent 1.0, whose types the catalog does not know.
var kagent1 = schema.GroupVersion{Group: keys.Kagent1, Version: "v1alpha3"}

// agent returns kagent's Agent, which kagent runs and asks.
func agent() Kind {
	gvk := kagent.V1alpha2.WithKind("Agent")
	return Kind{Resource: "agents." + keys.Kagent, GVK: gvk, New: untyped(gvk), read: readAgent}
}

func readAgent(e *store.Entry, o client.Object) {
	u := o.(*unstructured.Unstructured)
	e.Type, e.Title, e.Protocol = store.Agent, e.Name, "a2a"
	e.Description, _, _ = unstructured.NestedString(u.Object, "spec", "description")
	e.URL = fmt.Sprintf("http://%s.%s.svc:8080", e.Name, e.Namespace)
	for _, path := range [][]string{{"spec", "declarative", "a2aConfig", "skills"},
		{"spec", "a2aConfig", "skills"}} {
		list, _, _ := unstructured.NestedSlice(u.Object, path...)
		for _, one := range list {
			var s skill
			data, err := json.Marshal(one)
			if err != nil || json.Unmarshal(data, &s) != nil || s.Name+s.ID == "" {
				continue
			}
			e.Items = append(e.Items, s.item(data))
		}
	}
	readCondition(e, u, "Ready")
}

// agentOfKagent1 returns the Agent of kagent 1.0, which runs on Agent Substrate: it has no
// Service, and its callers name it to kagent's gateway.
func agentOfKagent1() Kind {
	gvk := kagent1.WithKind("Agent")
	return Kind{Resource: "agents." + keys.Kagent1, GVK: gvk, New: untyped(gvk),
		read: func(e *store.Entry, o client.Object) {
			u := o.(*unstructured.Unstructured)
			e.Type, e.Title, e.Protocol = store.Agent, e.Name, "a2a"
			e.Description, _, _ = unstructured.NestedString(u.Object, "spec", "template", "description")
			readCondition(e, u, "Ready")
		}}
}

// readCondition reads a condition of an object whose type is kagent's own.
func readCondition(e *store.Entry, u *unstructured.Unstructured, kind string) {
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
