// Package agent expands the Agent of 000, "Agent Controller", to what its
// controller made of it: Deployment, Service, ServiceAccount and RBAC.
package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/skills"
)

// nameLabel selects an agent's pods. In generation document it is the only label
// that does, so that a change of the author's labels never touches a selector,
// which is immutable.
const nameLabel = "app.kubernetes.io/name"

// Expand makes the objects of an Agent.
func Expand(r *expand.Resource, g *generation) {
	e := expander{Resource: r, generation: g}
	if !r.Decode("agent/field", &e.agent) || !e.readTemplate() {
		return
	}
	e.checkGeneration()
	r.CheckReplicas("agent", "spec.replicas", e.agent.Spec.Replicas)
	e.images()
	e.labels()
	if g.completes {
		e.complete()
	}
	ports := e.servicePorts()
	account := e.serviceAccount()
	e.add("apps/v1", "Deployment", r.Name, e.annotations(), node.Map("spec", node.Map(
		"replicas", node.Given(e.agent.Spec.Replicas), "selector",
		node.Map("matchLabels", e.selector()), "template", e.template.YNode())))
	e.add("v1", "Service", g.service(r.Name), nil, node.Map("spec", node.Map(
		"selector", map[string]string{nameLabel: e.Name}, "ports", ports)))
	e.rbac(account)
	if e.asksFor("network-policy") {
		e.networkPolicy(ports)
	}
}

type expander struct {
	*expand.Resource
	generation *generation
	agent      api.Agent
	template   *yaml.RNode // of the pods, as the author wrote it
	spec       *yaml.RNode // in template
}

func (e *expander) error(rule, field, message, hint string) {
	e.Report(finding.Error, "agent/"+rule, field, message, hint)
}

// selector is the Deployment's. The operator selected by all labels of an Agent.
func (e *expander) selector() map[string]string {
	labels := make(map[string]string)
	if e.generation.selectsByAll {
		maps.Copy(labels, e.agent.Labels)
	}
	labels[nameLabel] = e.Name
	return labels
}

func (e *expander) add(apiVersion, kind, name string, annotations map[string]string, body node.Fields) {
	labels := e.authorLabels()
	if kind == "Deployment" {
		maps.Copy(labels, e.optIn())
	}
	o := expand.Object{APIVersion: apiVersion, Kind: kind, Name: name, Labels: labels,
		Annotations: annotations}
	if body != nil {
		o.Body = body.Node()
	}
	e.Add(o)
}

// authorLabels are the labels of every object: the author's, but for those that
// opt in, and the name.
func (e *expander) authorLabels() map[string]string {
	labels := map[string]string{"app": e.Name}
	maps.Copy(labels, e.agent.Labels)
	maps.Copy(labels, e.agent.Spec.Labels)
	for key := range e.optIn() {
		delete(labels, key)
	}
	labels[nameLabel] = e.Name
	return labels
}

// optIn are the labels by which a workload opts in. They belong to it alone.
func (e *expander) optIn() map[string]string {
	labels := make(map[string]string)
	for _, from := range []map[string]string{e.agent.Labels, e.agent.Spec.Labels} {
		for _, name := range []string{"inject", "spiffe", "spire"} {
			if value, ok := from[e.Prefix+"/"+name]; ok {
				labels[e.Prefix+"/"+name] = value
			}
		}
	}
	return labels
}

// readTemplate finds the pod template, whose comments and order stay.
func (e *expander) readTemplate() (ok bool) {
	tree, err := e.Parse()
	if err != nil {
		e.error("layout", "", err.Error(), "write the object in block style")
		return false
	}
	at := "spec.podTemplateSpec"
	e.template = node.Get(tree, "spec", "podTemplateSpec")
	if e.template == nil || e.template.YNode().Kind != yaml.MappingNode {
		e.error("no-pod-template", at, "an Agent needs a pod template",
			"set spec.podTemplateSpec.spec.containers")
		return false
	}
	if node.Get(e.template, "containers") != nil { // the short form of 001
		e.template = yaml.NewRNode(node.Map("spec", e.template.YNode()).Node())
	}
	for i, key := range e.template.YNode().Content {
		if field := key.Value; i%2 == 0 && field != "metadata" && field != "spec" {
			e.error("field", at+"."+field, "a pod template has no such field",
				"remove or correct it: it has metadata and spec")
		}
	}
	e.spec = node.Get(e.template, "spec")
	if len(node.Items(e.spec, "containers")) == 0 {
		e.error("no-containers", at+".spec", "no containers", "name at least one container")
		return false
	}
	return true
}

// Placeholder reports whether an image is missing: left out, or a note in angle brackets,
// as in published manifests.
func Placeholder(image string) bool {
	return image == "" || strings.HasPrefix(image, "<") && strings.HasSuffix(image, ">")
}

// images puts the image of the source into the first container and into those
// without one.
func (e *expander) images() {
	image := e.image()
	for i, c := range node.Items(e.spec, "containers") {
		have := node.Text(c, "image")
		if image != "" && (i == 0 || Placeholder(have)) {
			if !Placeholder(have) && have != image {
				e.Report(finding.Info, "agent/image-replaced",
					fmt.Sprintf("spec.podTemplateSpec.spec.containers[%d].image", i),
					fmt.Sprintf("%s is replaced by %s of %s", have, image, e.imageField()), "")
			}
			node.Set(c, "image", image)
		} else if Placeholder(have) && e.agent.Spec.ImageSource == nil {
			e.error("no-image", "spec",
				fmt.Sprintf("the container %s has no image", node.Text(c, "name")),
				"set spec.imageSource.image or spec.imageSource.buildRef")
		}
	}
}

// imageField is where the image of the source is written.
func (e *expander) imageField() string {
	if e.agent.Spec.ImageSource == nil {
		return "spec.image"
	}
	return "spec.imageSource"
}

// image is that of the source, "" where a finding says why there is none.
func (e *expander) image() string {
	source, at := e.agent.Spec.ImageSource, "spec.imageSource"
	switch {
	case source == nil && e.agent.Spec.Image != "":
		e.CheckImage("agent", "spec.image", e.agent.Spec.Image)
		return e.agent.Spec.Image
	case source == nil:
	case e.agent.Spec.Image != "":
		e.error("two-images", "spec.image", "both image and imageSource", "keep one of them")
	case source.Image != "" && source.BuildRef != nil:
		e.error("two-images", at, "both image and buildRef", "keep one of them")
	case source.BuildRef != nil:
		if image, found := e.BuiltImage(e.Namespace, source.BuildRef.Name); found {
			return image
		}
		e.error("build-unresolved", at+".buildRef",
			fmt.Sprintf("the image of the AgentBuild %s is not known", source.BuildRef.Name),
			"run `armature pin-builds` once the build is done")
	case Placeholder(source.Image):
		e.error("no-image", at, "neither image nor buildRef", "set one of them")
	default:
		e.CheckImage("agent", at+".image", source.Image)
		return source.Image
	}
	return ""
}

// labels copies the author's labels to the pods, but for those that the template
// says otherwise, and the one that selects them.
func (e *expander) labels() {
	metadata := node.Ensure(e.template, "metadata")
	labels := node.Ensure(metadata, "labels")
	for key, value := range e.authorLabels() {
		if node.Get(labels, key) == nil || key == nameLabel {
			node.Set(labels, key, value)
		}
	}
	for key, value := range e.selector() {
		node.Set(labels, key, value)
	}
	sortFields(labels)
	node.First(e.template, "metadata")
}

func sortFields(n *yaml.RNode) {
	all := slices.Collect(slices.Chunk(n.YNode().Content, 2))
	slices.SortStableFunc(all, func(a, b []*yaml.Node) int {
		return strings.Compare(a[0].Value, b[0].Value)
	})
	n.YNode().Content = slices.Concat(all...)
}

// annotations are the Deployment's.
func (e *expander) annotations() map[string]string {
	annotations := expand.Annotations(e.agent.Annotations, e.agent.Spec.Annotations)
	if e.agent.Spec.Description != "" {
		annotations[e.Prefix+"/description"] = e.agent.Spec.Description
	}
	for i, s := range e.agent.Spec.Skills {
		field := fmt.Sprintf("spec.skills[%d]", i)
		key := keys.SkillPrefix + cmp.Or(s.Name, skills.Folder(s.Ref))
		if problem, hint := skills.Check(key[len(keys.SkillPrefix):], s.Ref); problem != "" {
			e.error("skill", field, problem, hint)
		} else if _, twice := annotations[key]; twice {
			e.error("skill", field,
				fmt.Sprintf("a second skill is named %q", key[len(keys.SkillPrefix):]),
				"remove it, or set another name")
		}
		annotations[key] = s.Ref
	}
	return annotations
}

func (e *expander) asksFor(feature string) bool {
	key := e.Prefix + "/" + feature
	value := e.agent.Spec.Annotations[key]
	if value == "" {
		value = e.agent.Annotations[key]
	}
	if value != "" && value != "enabled" && value != "disabled" {
		e.error("annotation", "metadata.annotations",
			fmt.Sprintf("the annotation %s takes enabled or disabled, not %q", key, value),
			"correct the value")
	}
	return value == "enabled"
}

// servicePorts are the author's, or one for what the containers declare.
func (e *expander) servicePorts() []api.ServicePort {
	ports := e.agent.Spec.ServicePorts
	if len(ports) == 0 && e.generation.completes { // the operator does not look at the containers
		return []api.ServicePort{{Name: "http", Protocol: "TCP", Port: e.generation.port,
			TargetPort: e.generation.port}}
	}
	if len(ports) == 0 {
		port := e.generation.port
		for _, c := range node.Items(e.spec, "containers") {
			if declared := node.Items(c, "ports"); len(declared) > 0 {
				if n, ok := scalar.Int(node.Text(declared[0], "containerPort")); ok {
					port = n
				}
				break
			}
		}
		return []api.ServicePort{{Name: "http", Protocol: "TCP", Port: port, TargetPort: port}}
	}
	names := make(map[string]bool)
	for i := range ports {
		p := &ports[i]
		at := fmt.Sprintf("spec.servicePorts[%d]", i)
		if p.Port < 1 || p.Port > 65535 {
			e.error("port", at+".port", fmt.Sprintf("%d is not a port", p.Port), "use 1 to 65535")
		}
		if p.Name == "" && len(ports) > 1 {
			e.error("port", at, "one of several ports has no name",
				"name it: Kubernetes demands it")
		}
		if names[p.Name] {
			e.error("port", at+".name", fmt.Sprintf("a second port is named %q", p.Name),
				"rename one of the two")
		}
		names[p.Name] = true
		switch p.TargetPort.(type) {
		case nil, string, int64:
		default:
			e.error("port", at+".targetPort", "neither a number nor a name", "correct the value")
		}
	}
	return ports
}

// networkPolicy lets the pods of the namespace in, at the Service's ports, and
// nobody else.
func (e *expander) networkPolicy(ports []api.ServicePort) {
	var open []node.Fields
	for _, p := range ports {
		if p.TargetPort == nil {
			p.TargetPort = p.Port
		}
		open = append(open, node.Map("protocol", cmp.Or(p.Protocol, "TCP"), "port", p.TargetPort))
	}
	e.add("networking.k8s.io/v1", "NetworkPolicy", e.Name, nil, node.Map("spec", node.Map(
		"podSelector", node.Map("matchLabels", e.selector()), "policyTypes", []string{"Ingress"},
		"ingress", []node.Fields{node.Map(
			"from", []node.Fields{node.Map("podSelector", node.Fields{})}, "ports", open)})))
}
