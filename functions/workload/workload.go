// Package workload has the table of the kinds whose objects run pods.
package workload

import (
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/text"
)

// Kind is a Kubernetes kind whose objects run pods.
type Kind struct {
	Name, APIVersion string
	// Resource is the name of the kind in URLs of the API server.
	Resource string
	// Template is the path of the pod template, "" if the object is a pod itself.
	Template string
	// Immutable are the fields that the API server refuses to change, in addition to those of a
	// Pod.
	Immutable []string
	// Ends reports whether the pods end by themselves.
	Ends bool
	// Reported reports whether a report of the status of a namespace lists objects of the kind.
	Reported bool
	// Ready and Desired are the fields that count the ready pods and those that there should be,
	// "" if the object does not count them.
	Ready, Desired string
}

// GroupVersion returns the API group and the version of the kind.
func (k Kind) GroupVersion() (group, version string) {
	group, version, found := strings.Cut(k.APIVersion, "/")
	if !found {
		return "", group
	}
	return group, version
}

const (
	template    = "spec.template"
	jobTemplate = "spec.jobTemplate.spec.template"

	replicas, readyReplicas = "spec.replicas", "status.readyReplicas"
)

var kinds = []Kind{
	{Name: "Deployment", APIVersion: "apps/v1", Resource: "deployments", Template: template,
		Immutable: []string{"spec.selector"}, Reported: true, Ready: readyReplicas,
		Desired: replicas},
	{Name: "StatefulSet", APIVersion: "apps/v1", Resource: "statefulsets", Template: template,
		Immutable: []string{"spec.selector", "spec.serviceName", "spec.podManagementPolicy",
			"spec.volumeClaimTemplates"}, Reported: true, Ready: readyReplicas, Desired: replicas},
	{Name: "DaemonSet", APIVersion: "apps/v1", Resource: "daemonsets", Template: template,
		Immutable: []string{"spec.selector"}, Reported: true, Ready: "status.numberReady",
		Desired: "status.desiredNumberScheduled"},
	{Name: "ReplicaSet", APIVersion: "apps/v1", Resource: "replicasets", Template: template,
		Immutable: []string{"spec.selector"}},
	{Name: "ReplicationController", APIVersion: "v1", Resource: "replicationcontrollers",
		Template: template},
	{Name: "Job", APIVersion: "batch/v1", Resource: "jobs", Template: template,
		Immutable: []string{"spec.template", "spec.selector", "spec.completionMode"}, Ends: true,
		Reported: true},
	{Name: "CronJob", APIVersion: "batch/v1", Resource: "cronjobs", Template: jobTemplate, Ends: true,
		Reported: true},
	{Name: "Pod", APIVersion: "v1", Resource: "pods"},
}

// Kinds returns the rows of the table. The caller does not change them.
func Kinds() []Kind { return kinds }

// Template is a path at which kinds have their pod template.
type Template struct {
	Path string
	Keys []string
}

// Templates returns the paths of pod templates in the kinds of the table and in kinds of other
// projects.
func Templates() []Template { return templates }

var templates = []Template{
	{template, []string{"spec", "template"}},
	{jobTemplate, []string{"spec", "jobTemplate", "spec", "template"}},
	{"spec.podTemplate", []string{"spec", "podTemplate"}},
}

// Find returns the row of a kind, or nil if the table does not have it.
func Find(name string) *Kind {
	for i := range kinds {
		if kinds[i].Name == name {
			return &kinds[i]
		}
	}
	return nil
}

// SpecOf returns the path of the pod specification of a kind. For a kind that the table does not
// have, it returns the most common path.
func SpecOf(name string) []string {
	at := template
	if k := Find(name); k != nil {
		at = k.Template
	}
	return strings.Split(strings.TrimPrefix(at+".spec", "."), ".")
}

// Is reports whether Kubernetes runs pods for objects of a kind.
func Is(name string) bool { return Find(name) != nil }

// Ends reports whether the pods of a kind end by themselves.
func Ends(name string) bool {
	k := Find(name)
	return k != nil && k.Ends
}

// Immutable reports whether the API server refuses to change a field, such as
// spec.selector.matchLabels, of an object of a kind.
func Immutable(name, field string) bool {
	k := Find(name)
	return k != nil && slices.ContainsFunc(k.Immutable, func(of string) bool {
		return text.Inside(field, of)
	})
}

// Names returns the names of the kinds in alphabetical order.
func Names() []string {
	names := make([]string, 0, len(kinds))
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return names
}
