package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
)

// configMap finds the generated ConfigMap of a workload, and the name of the
// custom resource that it was made from: the workload's where nobody wrote one.
func (l *Live) configMap(w *unstructured.Unstructured, name string) (cm *unstructured.Unstructured, resource string) {
	resource = w.GetName()
	for _, c := range l.ConfigMaps {
		if c.GetNamespace() != w.GetNamespace() || c.GetName() != name {
			continue
		}
		var source struct {
			Metadata struct{ Name string }
		}
		text := []byte(c.GetAnnotations()[keys.Source])
		var several []json.RawMessage // the TokenExchange, and the AgentRuntime beside it
		if json.Unmarshal(text, &several) == nil && len(several) > 0 {
			text = several[0]
		}
		if err := json.Unmarshal(text, &source); err == nil && source.Metadata.Name != "" {
			resource = source.Metadata.Name
		}
		return c, resource
	}
	return nil, resource
}

// component is one of the identity infrastructure, over all pods of a workload.
type component struct{ there, ready bool }

// components looks at the pods that have the configuration. One is ready where
// it is in each of them.
func components(pods []*unstructured.Unstructured) map[string]component {
	found := make(map[string]component)
	for _, name := range identity.Components() {
		x := component{ready: len(pods) > 0}
		for _, p := range pods {
			x.there = x.there || has(p, name)
			x.ready = x.ready && up(p, name)
		}
		x.ready = x.there && x.ready
		found[name] = x
	}
	return found
}

// identified reports whether a workload has any of the identity infrastructure, whose
// configuration its pods then have. A RenderConfig may turn all of it off.
func identified(w *unstructured.Unstructured) bool {
	settings := identity.Settings{Name: w.GetName()}
	return templateMounts(w, settings.TokenExchangeName()) || profileOf(w) == identity.ProfileAuthBridge
}

// templateMounts reports whether the pods of a workload have a volume from a ConfigMap.
func templateMounts(w *unstructured.Unstructured, configMap string) bool {
	for _, path := range [...][]string{{"spec"}, {"spec", "template", "spec"}, {"spec", "jobTemplate", "spec", "template", "spec"}} {
		if spec, found, _ := unstructured.NestedMap(w.Object, path...); found && mounts(&unstructured.Unstructured{Object: map[string]any{"spec": spec}}, configMap) {
			return true
		}
	}
	return false
}

// tokenExchange is 001's status of a TokenExchange, for the workload it targets.
func (l *Live) tokenExchange(w *unstructured.Unstructured, pods []*unstructured.Unstructured) TokenExchange {
	settings := identity.Settings{Name: w.GetName(), Profile: profileOf(w)}
	bridge := settings.Profile == identity.ProfileAuthBridge
	t := TokenExchange{Target: w.GetKind() + "/" + w.GetName()}
	cm, resource := l.configMap(w, settings.TokenExchangeName())
	t.Name = Name{w.GetNamespace(), resource}
	t.ConfigMapName = settings.TokenExchangeName()
	configured := slices.DeleteFunc(slices.Clone(pods), func(p *unstructured.Unstructured) bool { return ended(p) || !mounts(p, t.ConfigMapName) })
	t.ConfiguredPods = len(configured)
	c := components(configured)
	inbound := c[identity.AuthProxy]
	if !inbound.there {
		inbound = c[identity.EnvoyProxy] // the published generation
	}
	if bridge && !inbound.there {
		inbound = c[identity.AuthBridgeProxy]
	}
	t.IdentityStatus = &api.IdentityStatus{
		SPIFFEEnabled: c[identity.SpiffeHelper].there, IDPRegistered: c[identity.ClientRegistration].ready,
		InboundProxyReady: inbound.ready, OutboundProxyReady: c[identity.EnvoyProxy].ready,
	}
	if bridge { // one proxy both ways, which holds the identity; nothing in the pod registers
		t.IdentityStatus = &api.IdentityStatus{
			SPIFFEEnabled: inbound.there && slices.ContainsFunc(configured, hasSVIDs), InboundProxyReady: inbound.ready, OutboundProxyReady: inbound.ready,
		}
	}
	switch why := trouble(configured, identity.Components()); {
	case cm == nil:
		t.Phase, t.Message = Failed, "the ConfigMap "+t.ConfigMapName+" is missing: apply the package again"
	case why != "":
		t.Phase, t.Message = Failed, why
	case len(configured) == 0:
		t.Phase, t.Message = phaseWithoutPods(w), "no pod has the configuration"
	case waiting(c) != "":
		t.Phase, t.Message = Pending, "not ready in all pods: "+waiting(c)
	default:
		t.Phase, t.Message = Active, "Identity infrastructure configured"
	}
	return t
}

// profileOf reports whether a workload was rendered with AuthBridge, which has a
// ConfigMap of another name; "" is any other profile.
func profileOf(w *unstructured.Unstructured) string {
	if templateMounts(w, identity.AuthBridgeName(w.GetName())) {
		return identity.ProfileAuthBridge
	}
	return ""
}

// hasSVIDs reports whether a pod of AuthBridge has a place for its SVIDs.
func hasSVIDs(p *unstructured.Unstructured) bool {
	volumes, _, _ := unstructured.NestedSlice(p.Object, "spec", "volumes")
	return slices.ContainsFunc(volumes, func(v any) bool {
		m, _ := v.(map[string]any)
		return m["name"] == identity.SVIDVolume
	})
}

// phaseWithoutPods is Active where there should be none: scaled to zero, or
// between two runs.
func phaseWithoutPods(w *unstructured.Unstructured) string {
	replicas, found, _ := unstructured.NestedInt64(w.Object, "spec", "replicas")
	if found && replicas == 0 || w.GetKind() == "Job" || w.GetKind() == "CronJob" {
		return Active
	}
	return Pending
}

// trouble says why a component of the identity infrastructure does not get on.
func trouble(pods []*unstructured.Unstructured, names [6]string) string {
	for _, p := range pods {
		if why := failing(p, names[:]...); why != "" {
			return why
		}
	}
	return ""
}

func waiting(c map[string]component) string {
	var names []string
	for _, name := range identity.Components() {
		if x := c[name]; x.there && !x.ready {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// agentTrace is 001's status of an AgentTrace.
func (l *Live) agentTrace(w *unstructured.Unstructured, pods []*unstructured.Unstructured) AgentTrace {
	settings := identity.Settings{Name: w.GetName()}
	t := AgentTrace{Target: w.GetKind() + "/" + w.GetName()}
	cm, resource := l.configMap(w, settings.TraceName())
	t.Name = Name{w.GetNamespace(), resource}
	t.AgentTraceStatus.ConfigMapName = settings.TraceName()
	for _, p := range pods {
		if !ended(p) && mounts(p, settings.TraceName()) {
			t.ConfiguredPods++
		}
	}
	switch {
	case cm == nil:
		t.Phase, t.Message = Failed, "the ConfigMap "+settings.TraceName()+" is missing: apply the package again"
	case t.ConfiguredPods == 0:
		t.Phase, t.Message = phaseWithoutPods(w), "no pod has the configuration"
	default:
		t.Phase = Active
	}
	return t
}

// agentCard reports what discovery is based on. The cards themselves are in the
// catalog.
func (l *Live) agentCard(cm *unstructured.Unstructured, name string) AgentCard {
	c := AgentCard{Name: Name{cm.GetNamespace(), name}, Phase: Active, ConfigMapName: cm.GetName()}
	selector, found, _ := unstructured.NestedString(cm.Object, "data", "selector")
	if !found {
		return c
	}
	s, err := labels.Parse(selector)
	if err != nil {
		c.Phase, c.Message = Failed, fmt.Sprintf("the selector %q cannot be read: %v", selector, err)
		return c
	}
	for _, p := range l.Pods {
		if p.GetNamespace() == cm.GetNamespace() && !ended(p) && s.Matches(labels.Set(p.GetLabels())) {
			c.Pods++
		}
	}
	return c
}
