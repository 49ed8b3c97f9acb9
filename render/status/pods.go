package status

import (
	"iter"
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

// failing says which container first keeps a pod from getting on, of those named
// or of all; "" where none does.
func failing(p *unstructured.Unstructured, names ...string) string {
	for name, c := range containers(p) {
		waiting, _, _ := unstructured.NestedMap(c, "state", "waiting")
		reason, _ := waiting["reason"].(string)
		if !slices.Contains(stuck, reason) || len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		why := "pod " + p.GetName() + ": " + name + ": " + reason
		if message, _ := waiting["message"].(string); message != "" {
			why += ": " + message
		}
		return why
	}
	return ""
}

// containers gives the names and statuses of a pod's containers, in their order.
// Sidecars are among the init containers.
func containers(p *unstructured.Unstructured) iter.Seq2[string, map[string]any] {
	return func(yield func(string, map[string]any) bool) {
		for _, field := range [...]string{"initContainerStatuses", "containerStatuses"} {
			list, _, _ := unstructured.NestedSlice(p.Object, "status", field)
			for _, c := range list {
				m, _ := c.(map[string]any)
				if name, ok := m["name"].(string); ok && !yield(name, m) {
					return
				}
			}
		}
	}
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
	for n, c := range containers(p) {
		if n == name {
			ready, _ := c["ready"].(bool)
			return ready
		}
	}
	return false
}
