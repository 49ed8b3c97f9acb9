package status

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func ended(p *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(p.Object, "status", "phase")
	return phase == "Succeeded" || phase == "Failed" || p.GetDeletionTimestamp() != nil
}

// condition gives the status of a condition, "" where there is none.
func condition(o *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			status, _ := m["status"].(string)
			return status
		}
	}
	return ""
}

// stuck are the reasons for which a container waits that do not go by themselves.
var stuck = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError",
}

// failing says what keeps a pod from getting on, "" where nothing does.
func failing(p *unstructured.Unstructured) string {
	for name, c := range containers(p) {
		waiting, _, _ := unstructured.NestedMap(c, "state", "waiting")
		if reason, _ := waiting["reason"].(string); slices.Contains(stuck, reason) {
			why := "pod " + p.GetName() + ": " + name + ": " + reason
			if message, _ := waiting["message"].(string); message != "" {
				why += ": " + message
			}
			return why
		}
	}
	return ""
}

// containers gives the statuses of a pod's containers by name. Sidecars are
// among the init containers.
func containers(p *unstructured.Unstructured) map[string]map[string]any {
	found := make(map[string]map[string]any)
	for _, field := range [...]string{"initContainerStatuses", "containerStatuses"} {
		list, _, _ := unstructured.NestedSlice(p.Object, "status", field)
		for _, c := range list {
			if m, ok := c.(map[string]any); ok {
				name, _ := m["name"].(string)
				found[name] = m
			}
		}
	}
	return found
}

// has reports whether a pod's specification has a container.
func has(p *unstructured.Unstructured, name string) bool {
	for _, field := range [...]string{"initContainers", "containers"} {
		list, _, _ := unstructured.NestedSlice(p.Object, "spec", field)
		for _, c := range list {
			if m, ok := c.(map[string]any); ok && m["name"] == name {
				return true
			}
		}
	}
	return false
}

// mounts reports whether a pod has a volume from a ConfigMap.
func mounts(p *unstructured.Unstructured, configMap string) bool {
	volumes, _, _ := unstructured.NestedSlice(p.Object, "spec", "volumes")
	for _, v := range volumes {
		m, _ := v.(map[string]any)
		if name, _, _ := unstructured.NestedString(m, "configMap", "name"); name == configMap {
			return true
		}
	}
	return false
}

// up reports whether a container of a pod serves: ready, or, for an init
// container that ends, done.
func up(p *unstructured.Unstructured, name string) bool {
	c := containers(p)[name]
	ready, _ := c["ready"].(bool)
	return ready
}
