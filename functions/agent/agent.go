// Package agent expands the Agent of 000, "Agent Controller", into the objects that its controller
// created: Deployment, Service, ServiceAccount and RBAC.
package agent

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/skills"
)

// nameLabel selects an agent's pods. In generation document it is the only label of the selector,
// so that a change of the author's labels never changes a selector, which is immutable.
const nameLabel = "app.kubernetes.io/name"

// Expand adds the objects of an Agent.
func Expand(r *expand.Resource, g *generation) {
	e := expander{Resource: r, generation: g}
	if !r.Decode("field", &e.agent) || !e.readTemplate() {
		return
	}
	e.FailIf(e.agent.Spec.Image != "" && !g.completes, "generation", "spec.image",
		"write spec.imageSource.image, or set spec.kagenti.generation: operator in armature.yaml",
		"image is not supported in generation %s of Kagenti's Agents", g.name)
	r.CheckReplicas("spec.replicas", e.agent.Spec.Replicas)
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

// selector returns the Deployment's selector. The operator selected by all labels of an Agent.
func (e *expander) selector() map[string]string {
	labels := make(map[string]string)
	if e.generation.completes {
		maps.Copy(labels, e.agent.Labels)
	}
	labels[nameLabel] = e.Name
	return labels
}

func (e *expander) add(apiVersion, kind, name string,
	annotations map[string]string, body node.Fields) {
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

// authorLabels returns the labels of every object: the author's without those that opt in, and the
// name.
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

// optIn returns the labels by which a workload opts in. Other objects do not get them.
func (e *expander) optIn() map[string]string {
	return e.OptIn(e.agent.Labels, e.agent.Spec.Labels)
}

// readTemplate finds the pod template, whose comments and order are preserved.
func (e *expander) readTemplate() (ok bool) {
	tree, err := e.Parse()
	if e.FailIf(err != nil, "layout", "", "write the object in block style", "%v", err) {
		return false
	}
	at := "spec.podTemplateSpec"
	e.template = node.Get(tree, "spec", "podTemplateSpec")
	if e.FailIf(e.template == nil || e.template.YNode().Kind != yaml.MappingNode, "no-pod-template",
		at, "set spec.podTemplateSpec.spec.containers", "an Agent needs a pod template") {
		return false
	}
	if node.Get(e.template, "containers") != nil { // the short form of 001
		e.template = yaml.NewRNode(node.Map("spec", e.template.YNode()).Node())
	}
	for i, key := range e.template.YNode().Content {
		if field := key.Value; i%2 == 0 && field != "metadata" && field != "spec" {
			e.Fail("field", at+"."+field, "remove or correct it: it has metadata and spec",
				"a pod template has no such field")
		}
	}
	e.spec = node.Get(e.template, "spec")
	return !e.FailIf(len(node.Items(e.spec, "containers")) == 0, "no-containers", at+".spec",
		"name at least one container", "no containers")
}

// placeholder reports whether an image is missing: omitted, or a note in angle brackets, as in
// published manifests.
func placeholder(image string) bool {
	return image == "" || strings.HasPrefix(image, "<") && strings.HasSuffix(image, ">")
}

// images sets the image of the source in the first container and in those without one.
func (e *expander) images() {
	image, at := e.image(), "spec.image"
	if e.agent.Spec.ImageSource != nil {
		at = "spec.imageSource"
	}
	for i, c := range node.Items(e.spec, "containers") {
		have := node.Text(c, "image")
		if image != "" && (i == 0 || placeholder(have)) {
			if !placeholder(have) && have != image {
				e.Report(finding.Info, "agent/image-replaced",
					fmt.Sprintf("spec.podTemplateSpec.spec.containers[%d].image", i),
					"", "%s is replaced by %s of %s", have, image, at)
			}
			node.Set(c, "image", image)
		} else if placeholder(have) && e.agent.Spec.ImageSource == nil {
			e.Fail("no-image", "spec", "set spec.imageSource.image or spec.imageSource.buildRef",
				"the container %s has no image", node.Text(c, "name"))
		}
	}
}

// image returns the image of the source, or "" after a finding.
func (e *expander) image() string {
	source, at := e.agent.Spec.ImageSource, "spec.imageSource"
	switch {
	case source == nil && e.agent.Spec.Image != "":
		e.CheckImage("spec.image", e.agent.Spec.Image)
		return e.agent.Spec.Image
	case source == nil:
	case e.agent.Spec.Image != "":
		e.Fail("two-images", "spec.image", "keep one of them", "both image and imageSource")
	case source.Image != "" && source.BuildRef != nil:
		e.Fail("two-images", at, "keep one of them", "both image and buildRef")
	case source.BuildRef != nil:
		if image, found := e.Built(e.Namespace, source.BuildRef.Name); found {
			return image
		}
		e.Fail("build-unresolved", at+".buildRef",
			"run `armature pin-builds` once the build is done",
			"the image of the AgentBuild %s is not known", source.BuildRef.Name)
	case placeholder(source.Image):
		e.Fail("no-image", at, "set one of them", "neither image nor buildRef")
	default:
		e.CheckImage(at+".image", source.Image)
		return source.Image
	}
	return ""
}

// labels copies the author's labels to the pods, except those that the template overrides, and sets
// the selector's.
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
	all := slices.SortedStableFunc(slices.Chunk(labels.YNode().Content, 2),
		func(a, b []*yaml.Node) int { return strings.Compare(a[0].Value, b[0].Value) })
	labels.YNode().Content = slices.Concat(all...)
	node.First(e.template, "metadata")
}

// annotations returns the Deployment's annotations.
func (e *expander) annotations() map[string]string {
	annotations := expand.Annotations(e.agent.Annotations, e.agent.Spec.Annotations)
	if e.agent.Spec.Description != "" {
		annotations[e.Prefix+"/description"] = e.agent.Spec.Description
	}
	for i, s := range e.agent.Spec.Skills {
		field := fmt.Sprintf("spec.skills[%d]", i)
		key := keys.SkillPrefix + cmp.Or(s.Name, skills.Folder(s.Ref))
		if problem, hint := skills.Check(key[len(keys.SkillPrefix):], s.Ref); problem != "" {
			e.Fail("skill", field, hint, "%v", errors.New(problem))
		} else if _, twice := annotations[key]; twice {
			e.Fail("skill", field, "remove it, or set another name", "a second skill is named %q",
				key[len(keys.SkillPrefix):])
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
	e.FailIf(value != "" && value != "enabled" && value != "disabled", "annotation",
		"metadata.annotations", "correct the value",
		"the annotation %s takes enabled or disabled, not %q", key, value)
	return value == "enabled"
}

// servicePorts returns the author's ports, or one for the first port that a container declares.
func (e *expander) servicePorts() []api.ServicePort {
	ports := e.agent.Spec.ServicePorts
	if len(ports) == 0 {
		port := e.generation.port
		for _, c := range node.Items(e.spec, "containers") {
			declared := node.Items(c, "ports")
			if len(declared) == 0 || e.generation.completes { // the operator ignores them
				continue
			}
			if n, ok := scalar.Int(node.Text(declared[0], "containerPort")); ok {
				port = n
			}
			break
		}
		return []api.ServicePort{{Name: "http", Protocol: "TCP", Port: port, TargetPort: port}}
	}
	names := make(map[string]bool)
	for i := range ports {
		p := &ports[i]
		at := fmt.Sprintf("spec.servicePorts[%d]", i)
		e.FailIf(p.Port < 1 || p.Port > 65535, "port", at+".port", "use 1 to 65535",
			"%d is not a port", p.Port)
		e.FailIf(p.Name == "" && len(ports) > 1, "port", at, "name it: Kubernetes demands it",
			"one of several ports has no name")
		e.FailIf(names[p.Name], "port", at+".name", "rename one of the two",
			"a second port is named %q", p.Name)
		names[p.Name] = true
		switch p.TargetPort.(type) {
		case nil, string, int64:
		default:
			e.Fail("port", at+".targetPort", "correct the value", "neither a number nor a name")
		}
	}
	return ports
}

// networkPolicy permits ingress only from the pods of the namespace, at the Service's ports.
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

//go:embed README.md
var page string

const function = "agent"

// Function expands Agents.
func Function() contract.Function {
	groups := append(contract.Agents[:2:2], contract.Pillars...)
	return contract.Function{
		Name: function,
		Summary: "expand Agent (agent.kagenti.dev) into Deployment, Service, ServiceAccount and " +
			"least-privilege RBAC",
		Page: page,
		Kinds: []contract.Kind{
			{Name: "Agent", Groups: groups, Versions: []string{"v1alpha1"}, Use: contract.Expands,
				Fields: api.Agent{}, Config: "spec.kagenti"},
			{Name: "AgentBuild", Groups: contract.Agents, Versions: []string{"v1alpha1"},
				Use: contract.Elsewhere},
		},
		Migration: contract.Migration{Fields: moves, Finish: finish, Notes: notes, Beside: card},
		New: func(p *contract.Package) contract.Steps {
			g := generationOf(p)
			return contract.Steps{Expand: func(r *expand.Resource) { Expand(r, g) }}
		},
	}
}

// serviceAccount returns the account of the pods: the author's, or a generated one.
func (e *expander) serviceAccount() string {
	if name := node.Text(e.spec, "serviceAccountName"); name != "" {
		return name
	}
	node.Set(e.spec, "serviceAccountName", e.Name)
	e.add("v1", "ServiceAccount", e.Name, nil, nil)
	return e.Name
}

// rbac adds a Role for the account that permits only reading the ConfigMaps and Secrets that the
// pods name. It adds none if they name none.
func (e *expander) rbac(account string) {
	var all []krm.Reference
	spec := podSpec(e.Object)
	for _, list := range []string{"initContainers", "containers"} {
		for c := range spec.Get(list).Items() {
			all = append(all, krm.EnvironmentReferences(c)...)
		}
	}
	for v := range spec.Get("volumes").Items() {
		all = append(all, krm.VolumeReferences(v)...)
	}
	names := make(map[string][]string)
	for _, r := range all {
		if name := r.Name.Text(); name != "" {
			names[r.Kind] = append(names[r.Kind], name)
		}
	}
	var rules []node.Fields
	for _, kind := range slices.Sorted(maps.Keys(names)) {
		slices.Sort(names[kind])
		rules = append(rules, node.Map("apiGroups", []string{""},
			"resources", []string{strings.ToLower(kind) + "s"},
			"resourceNames", slices.Compact(names[kind]), "verbs", []string{"get", "watch"}))
	}
	if len(rules) == 0 {
		return
	}
	if e.Namespace == "" {
		e.Report(finding.Warning, "agent/no-namespace",
			"metadata", "set metadata.namespace, if the agent reads them through the API",
			"no Role is generated for the ConfigMaps and Secrets "+
				"that it names, because a RoleBinding needs the namespace of its ServiceAccount")
		return
	}
	const group = "rbac.authorization.k8s.io"
	e.add(group+"/v1", "Role", e.Name, nil, node.Map("rules", rules))
	e.add(group+"/v1", "RoleBinding", e.Name, nil, node.Map(
		"roleRef", node.Map("apiGroup", group, "kind", "Role", "name", e.Name),
		"subjects",
		[]node.Fields{node.Map("kind", "ServiceAccount", "name", account, "namespace", e.Namespace)}))
}

// podSpec returns the author's specification of the pods, which may replace the template.
func podSpec(o *krm.Object) krm.Node {
	spec := o.Get("spec", "podTemplateSpec")
	if short := spec.Get("containers"); short.Exists() {
		return spec
	}
	return spec.Get("spec")
}
