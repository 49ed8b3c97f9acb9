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

// configMap finds the generated ConfigMap of a workload, and the name of the
// custom resource that it was made from: the workload's if there is none.
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
func components(pods []*corev1.Pod) map[string]component {
	found := make(map[string]component)
	for _, name := range sidecars.All().Sidecars() {
		x := component{ready: len(pods) > 0}
		for _, p := range pods {
			x.there = x.there ||
				slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers),
					func(c corev1.Container) bool { return c.Name == name })
			// Ready, or, for an init container that ends, done.
			x.ready = x.ready && slices.ContainsFunc(health.Containers(p),
				func(c corev1.ContainerStatus) bool { return c.Name == name && c.Ready })
		}
		x.ready = x.there && x.ready
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

// traceName names the ConfigMap of the tracing of a workload.
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

// phase returns that of a pillar, by the generated ConfigMap, which may be nil, and the pods that
// have it. Without pods it is Active where there should be none: scaled to zero, or between two
// runs.
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

// tokenExchange is 001's status of a TokenExchange, for the workload it targets.
func (l *Live) tokenExchange(w *unstructured.Unstructured, p *identity.Profile,
	pods []*corev1.Pod) TokenExchange {
	t := TokenExchange{Target: w.GetKind() + "/" + w.GetName()}
	t.ConfigMapName = p.ConfigMapName(w.GetName())
	cm, resource := l.configMap(w, t.ConfigMapName)
	t.Name = Name{w.GetNamespace(), resource}
	pods = configured(pods, t.ConfigMapName)
	t.ConfiguredPods = len(pods)
	c := components(pods)
	// The proxy of AuthBridge is alone, and Envoy is in the published generation.
	inbound := cmp.Or(c[sidecars.AuthProxy], c[sidecars.EnvoyProxy], c[sidecars.AuthBridgeProxy])
	t.IdentityStatus = &api.IdentityStatus{
		SPIFFEEnabled: c[sidecars.SpiffeHelper].there,
		IDPRegistered: c[sidecars.ClientRegistration].ready, InboundProxyReady: inbound.ready,
		OutboundProxyReady: c[sidecars.EnvoyProxy].ready,
	}
	// one proxy both ways, which holds the identity; nothing in the pod registers
	if !p.HasSidecar(sidecars.SpiffeHelper) {
		hasSVIDs := func(p *corev1.Pod) bool {
			return slices.ContainsFunc(p.Spec.Volumes,
				func(v corev1.Volume) bool { return v.Name == identity.SVIDVolume })
		}
		t.IdentityStatus = &api.IdentityStatus{
			SPIFFEEnabled:     inbound.there && slices.ContainsFunc(pods, hasSVIDs),
			InboundProxyReady: inbound.ready, OutboundProxyReady: inbound.ready,
		}
	}
	var waiting []string
	for _, name := range sidecars.All().Sidecars() {
		if x := c[name]; x.there && !x.ready {
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

// agentTrace is 001's status of an AgentTrace.
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

// agentCard reports what discovery is based on. The cards themselves are in the
// catalog.
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
