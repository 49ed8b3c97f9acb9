package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
	kinds "github.com/armature-dev/armature/functions/workload"
	"github.com/armature-dev/armature/render/deliver/health"
)

// configMap returns the generated ConfigMap of a workload, and the name of the custom resource from
// which it was generated, or else of the workload.
func (l *Live) configMap(w *unstructured.Unstructured,
	name string) (cm *corev1.ConfigMap, resource string) {
	resource = w.GetName()
	for _, c := range l.ConfigMaps {
		if c.GetNamespace() != w.GetNamespace() || c.GetName() != name {
			continue
		}
		var source struct {
			Metadata struct{ Name string }
		}
		text := []byte(c.GetAnnotations()[keys.Source])
		var several []json.RawMessage // the TokenExchange, then an AgentRuntime
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

// component is a component of the identity infrastructure, over all pods of a workload.
type component struct{ present, ready bool }

// components returns the components in the pods with the configuration. A component is ready if it
// is ready in each pod.
func components(pods []*corev1.Pod) map[string]component {
	found := make(map[string]component)
	for _, name := range sidecars.All().Sidecars() {
		x := component{ready: len(pods) > 0}
		for _, p := range pods {
			x.present = x.present ||
				slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers),
					func(c corev1.Container) bool { return c.Name == name })
			// An init container that has ended is also ready.
			x.ready = x.ready && slices.ContainsFunc(health.Containers(p),
				func(c corev1.ContainerStatus) bool { return c.Name == name && c.Ready })
		}
		x.ready = x.present && x.ready
		found[name] = x
	}
	return found
}

// profileOf returns the first profile whose ConfigMap the pods of a workload have, or nil.
func profileOf(w *unstructured.Unstructured) *identity.Profile {
	for _, name := range sidecars.All().Names() {
		if p := sidecars.All().Named(name); templateMounts(w, p.ConfigMapName(w.GetName())) {
			return p
		}
	}
	return nil
}

// traceName returns the name of the ConfigMap for the tracing of a workload.
func traceName(w *unstructured.Unstructured) string {
	settings := identity.Settings{Subject: identity.Subject{Name: w.GetName()}}
	return settings.TraceName()
}

// templateMounts reports whether the pods of a workload have a volume from a ConfigMap.
func templateMounts(w *unstructured.Unstructured, configMap string) bool {
	var spec corev1.PodSpec
	fields, found, _ := unstructured.NestedMap(w.Object, kinds.SpecOf(w.GetKind())...)
	return found && runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &spec) == nil &&
		mounts(&spec, configMap)
}

// configured returns the pods that have a volume from a ConfigMap.
func configured(pods []*corev1.Pod, configMap string) []*corev1.Pod {
	return slices.DeleteFunc(running(pods),
		func(p *corev1.Pod) bool { return !mounts(&p.Spec, configMap) })
}

// phase returns the phase of a pillar from the generated ConfigMap, which may be nil, and the pods
// with its configuration. Without pods it is Active if there should be none: scaled to zero, or
// between two runs.
func phase(w *unstructured.Unstructured, cm *corev1.ConfigMap, name string,
	pods []*corev1.Pod) (phase, message string) {
	switch {
	case cm == nil:
		return Failed, "the ConfigMap " + name + " is missing: apply the package again"
	case len(pods) > 0:
		return Active, ""
	case number(w, ".spec.replicas", 1) == 0 || kinds.Ends(w.GetKind()):
		return Active, "no pod has the configuration"
	}
	return Pending, "no pod has the configuration"
}

// tokenExchange returns the TokenExchange status of 001 for the targeted workload.
func (l *Live) tokenExchange(w *unstructured.Unstructured, p *identity.Profile,
	pods []*corev1.Pod) TokenExchange {
	t := TokenExchange{Target: w.GetKind() + "/" + w.GetName()}
	t.ConfigMapName = p.ConfigMapName(w.GetName())
	cm, resource := l.configMap(w, t.ConfigMapName)
	t.Name = Name{w.GetNamespace(), resource}
	pods = configured(pods, t.ConfigMapName)
	t.ConfiguredPods = len(pods)
	c := components(pods)
	// AuthBridge has one proxy. The published generation has Envoy.
	inbound := cmp.Or(c[sidecars.AuthProxy], c[sidecars.EnvoyProxy], c[sidecars.AuthBridgeProxy])
	t.IdentityStatus = &api.IdentityStatus{
		SPIFFEEnabled: c[sidecars.SpiffeHelper].present,
		IDPRegistered: c[sidecars.ClientRegistration].ready, InboundProxyReady: inbound.ready,
		OutboundProxyReady: c[sidecars.EnvoyProxy].ready,
	}
	// One proxy serves both directions and holds the identity. No container of the pod registers
	// it.
	if !p.HasSidecar(sidecars.SpiffeHelper) {
		hasSVIDs := func(p *corev1.Pod) bool {
			return slices.ContainsFunc(p.Spec.Volumes,
				func(v corev1.Volume) bool { return v.Name == identity.SVIDVolume })
		}
		t.IdentityStatus = &api.IdentityStatus{
			SPIFFEEnabled:     inbound.present && slices.ContainsFunc(pods, hasSVIDs),
			InboundProxyReady: inbound.ready, OutboundProxyReady: inbound.ready,
		}
	}
	var waiting []string
	for _, name := range sidecars.All().Sidecars() {
		if x := c[name]; x.present && !x.ready {
			waiting = append(waiting, name)
		}
	}
	t.Phase, t.Message = phase(w, cm, t.ConfigMapName, pods)
	switch why := trouble(pods, sidecars.All().Sidecars()...); {
	case cm == nil || len(pods) == 0:
	case why != "":
		t.Phase, t.Message = Failed, why
	case len(waiting) > 0:
		t.Phase, t.Message = Pending, "not ready in all pods: "+strings.Join(waiting, ", ")
	default:
		t.Message = "Identity infrastructure configured"
	}
	return t
}

// agentTrace returns the AgentTrace status of 001.
func (l *Live) agentTrace(w *unstructured.Unstructured, pods []*corev1.Pod) AgentTrace {
	t := AgentTrace{Target: w.GetKind() + "/" + w.GetName()}
	t.AgentTraceStatus.ConfigMapName = traceName(w)
	cm, resource := l.configMap(w, traceName(w))
	t.Name = Name{w.GetNamespace(), resource}
	pods = configured(pods, traceName(w))
	t.ConfiguredPods = len(pods)
	t.Phase, t.Message = phase(w, cm, traceName(w), pods)
	return t
}

// agentCard returns the configuration of discovery. The cards themselves are in the catalog.
func (l *Live) agentCard(cm *corev1.ConfigMap, name string) AgentCard {
	c := AgentCard{Name: Name{cm.GetNamespace(), name}, Phase: Active, ConfigMapName: cm.GetName()}
	selector, found := cm.Data["selector"]
	if !found {
		return c
	}
	s, err := labels.Parse(selector)
	if err != nil {
		c.Phase, c.Message = Failed, fmt.Sprintf("the selector %q cannot be read: %v", selector, err)
		return c
	}
	for _, p := range l.Pods {
		if p.GetNamespace() == cm.GetNamespace() && !ended(p) &&
			s.Matches(labels.Set(p.GetLabels())) {
			c.Pods++
		}
	}
	return c
}
