package overcommit

import (
	"fmt"
	"regexp"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/quantity"
	"github.com/armature-dev/armature/functions/krm"
)

// Class is a checked OvercommitClass.
type Class struct {
	name, place string
	cpu, memory quantity.Ratio
	excluded    *regexp.Regexp // namespaces that the class skips, or nil
}

// Annotations of pods whose requests follow from a class.
const (
	appliedAnnotation = api.OvercommitGroup + "/applied" // the class's name
	cpuAnnotation     = api.OvercommitGroup + "/cpu"     // its ratios, with four decimals
	memoryAnnotation  = api.OvercommitGroup + "/memory"
)

// remembered returns the class that an earlier render applied to an object, from the annotations of
// its pods, or nil.
func remembered(o *krm.Object) *Class {
	if !krm.ChangedBy(o, function) {
		return nil
	}
	pod, _ := o.PodTemplate()
	name, _ := pod.Annotation(appliedAnnotation)
	cpu, _ := pod.Annotation(cpuAnnotation)
	memory, _ := pod.Annotation(memoryAnnotation)
	c := &Class{name: name}
	var err1, err2 error
	c.cpu, err1 = quantity.ParseRatio(cpu)
	c.memory, err2 = quantity.ParseRatio(memory)
	if name == "" || err1 != nil || err2 != nil {
		return nil // the annotations were edited
	}
	return c
}

// apply notes the requests of all containers of a workload, including init containers, and the
// annotations of its pods. It reports whether any container has a limit to which the class applies;
// a pod without one is not changed.
//
// Source: 003, "Resource Management". Requests at ratio 1 are not changed.
func (c *Class) apply(u *contract.Unit) (limited bool) {
	pod, _ := u.Object.PodTemplate()
	for _, list := range [...]string{"initContainers", "containers"} {
		seen := make(map[string]bool)
		for container := range pod.Spec().Get(list).Items() {
			name := container.Get("name")
			if container.Get("resources", "limits").IsNull() {
				continue
			}
			if !name.IsScalar() || seen[name.Text()] {
				u.Report(finding.Error, "overcommit/container-name", container,
					"a container without a name of its own", "name it: Kubernetes demands it")
				continue
			}
			seen[name.Text()] = true
			cpu := request(u, container, "cpu", c.cpu, quantity.CPU)
			memory := request(u, container, "memory", c.memory, quantity.Memory)
			limited = limited || cpu || memory
		}
	}
	if !limited || finding.Failed(u.Findings) {
		return limited
	}
	for _, a := range [...]struct{ key, value string }{{appliedAnnotation, c.name},
		{cpuAnnotation, c.cpu.String()}, {memoryAnnotation, c.memory.String()}} {
		u.Changes.Set(function, pod.Template, []string{"metadata", "annotations"}, a.key,
			`"`+a.value+`"`)
	}
	return limited
}

// request notes one request of a container that has a limit.
func request(u *contract.Unit, container krm.Node, name string, ratio quantity.Ratio,
	of func(string, quantity.Ratio) (string, error)) (limited bool) {
	limit := container.Get("resources", "limits", name)
	if limit.IsNull() {
		return false
	}
	request, err := of(limit.Text(), ratio)
	switch {
	case err != nil:
		u.Report(finding.Error, "overcommit/bad-limit", limit, err.Error(),
			"write a quantity, such as 500m or 512Mi")
		return true
	case ratio.Whole():
		return true
	case request == "0" && limit.Text() != "0":
		u.Report(finding.Warning, "overcommit/nothing-requested", limit,
			fmt.Sprintf("%s of %s is less than the smallest unit: nothing is requested", ratio,
				limit.Text()), "raise the limit, or choose another class")
	}
	u.Changes.Set(function, container, []string{"resources", "requests"}, name, request)
	return true
}
