package lintrules

import (
	_ "embed"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
)

func missingKey(c *checker) {
	for _, r := range c.pod.References() {
		facts := c.collected.objects[key(r.Kind, c.Namespace, r.Name.Text())]
		if facts == nil || facts.open || r.Optional {
			continue
		}
		for _, at := range r.Keys {
			if !facts.keys[at.Text()] {
				c.report(at, hintKeys(facts),
					"the %s %s has no key %q", r.Kind, r.Name.Text(), at.Text())
			}
		}
	}
}

func hintKeys(facts *object) string {
	if len(facts.keys) == 0 {
		return "add the key; the object has none"
	}
	return "add the key, or name one that it has: " +
		strings.Join(slices.Sorted(maps.Keys(facts.keys)), ", ")
}

// missing returns the check of references to objects of a kind that the package does not have.
func missing(kind, hint string) func(*checker) {
	return func(c *checker) {
		for _, r := range c.pod.References() {
			name := r.Name.Text()
			if r.Kind != kind || name == "" || r.Optional || c.found(kind, c.Namespace, name) {
				continue
			}
			called := name
			if !identity.ValidName(name) { // the text may be a secret
				called = "of this name"
			}
			c.once(c.Namespace+"/"+name, r.Name, hint, "the package has no %s %s%s", kind, called,
				more(c.collected.unresolved[key(kind, c.Namespace, name)], "reference"))
		}
	}
}

func danglingReference(c *checker) {
	if c.isPod {
		c.podReferences()
	}
	switch c.Kind {
	case "Service":
		if !c.Get("spec", "type").Is("ExternalName") {
			c.selects(c.Get("spec", "selector"))
		}
	case "RoleBinding", "ClusterRoleBinding":
		c.binding()
	case "HorizontalPodAutoscaler", "ScaledObject":
		if target := scaled(c.Object); target.name != "" &&
			!c.found(target.kind, target.namespace, target.name) {
			c.dangling(c.Get("spec", "scaleTargetRef", "name"),
				target.kind, c.Namespace, target.name)
		}
		for t := range c.Get("spec", "triggers").Items() {
			if ref := t.Get("authenticationRef"); ref.Get(
				"kind").Text() != "ClusterTriggerAuthentication" {
				c.named(ref.Get("name"), "TriggerAuthentication")
			}
		}
	case "PodDisruptionBudget":
		c.selects(c.Get("spec", "selector", "matchLabels"))
	case "Ingress":
		c.references()
	case "Agent", "AgentTemplate", "Harness":
		if c.Group() == keys.Kagent1 {
			c.references()
		}
	}
}

func (c *checker) dangling(at krm.Node, kind, namespace, name string) {
	if namespace != "" {
		name += " in namespace " + namespace
	}
	c.report(at, "correct the name, or add the object to the package",
		"the package has no %s %s", kind, name)
}

// found reports whether a referenced object exists: in the package or one beside it, in every
// cluster, or possibly in a chart or a file that cannot be read. A name that another tool completes
// counts as found.
func (c *checker) found(kind, namespace, name string) bool {
	if c.Open || builtIn(kind, namespace, name) || images.HasVariable(name) ||
		c.charted(namespace) {
		return true
	}
	claim, ordinal := strings.CutSuffix(anyOrdinal(name), "-*")
	for _, p := range append(c.Beside, c.Package) {
		if p.has(kind, namespace, name) || kind == "PersistentVolumeClaim" &&
			ordinal && p.has(claimTemplate, namespace, claim) {
			return true
		}
	}
	return c.mayHold(map[string]string{"kind": kind, "name": name})
}

// named reports a reference to an object of a kind that does not exist.
func (c *checker) named(at krm.Node, kind string) {
	if name := at.Text(); name != "" && !c.found(kind, c.Namespace, name) {
		c.dangling(at, kind, c.Namespace, name)
	}
}

func (c *checker) podReferences() {
	spec := c.pod.Spec()
	c.named(spec.Get("serviceAccountName"), "ServiceAccount")
	declared := make(map[string]bool)
	for v := range c.Get("spec", "volumeClaimTemplates").Items() {
		declared[v.Get("metadata", "name").Text()] = true
	}
	for v := range spec.Get("volumes").Items() {
		// A claim template replaces the volume of its name.
		if name := v.Get("name").Text(); !declared[name] {
			c.named(v.Get("persistentVolumeClaim", "claimName"), "PersistentVolumeClaim")
		}
	}
	for v := range spec.Get("volumes").Items() {
		declared[v.Get("name").Text()] = true
	}
	for _, x := range c.facts.containers {
		// In a patch, the manifest that it changes has the volumes.
		if !x.node.Get("image").Exists() {
			continue
		}
		for m := range x.node.Get("volumeMounts").Items() {
			if name := m.Get("name"); !declared[name.Text()] {
				c.report(name, "declare it among the pod's volumes, or correct the name",
					"the pod has no volume %s", name.Text())
			}
		}
	}
	if c.Kind == "StatefulSet" {
		c.named(c.Get("spec", "serviceName"), "Service")
	}
}

// selects reports a selector that selects no pod.
func (c *checker) selects(selector krm.Node) {
	if selector.Len() > 0 && c.selectsNone(selector) {
		c.report(selector, "correct the labels: they are those of the pod template",
			"selects no pod of the package")
	}
}

func (c *checker) binding() {
	ref := c.Get("roleRef")
	switch name := ref.Get("name").Text(); {
	case ref.Get("kind").Is("Role"):
		c.named(ref.Get("name"), "Role")
	case ref.Get("kind").Is("ClusterRole") && !c.found("ClusterRole", "", name):
		c.dangling(ref.Get("name"), "ClusterRole", "", name)
	}
	for s := range c.Get("subjects").Items() {
		if !s.Get("kind").Is("ServiceAccount") {
			continue
		}
		namespace, name := s.Get("namespace").Text(), s.Get("name").Text()
		if namespace == "" {
			namespace = c.Namespace // kustomize adds it
		}
		// A binding has to name a namespace, but a ServiceAccount may leave it to kubectl -n.
		anywhere := slices.ContainsFunc(append(c.Beside, c.Package), func(p *Package) bool {
			account := p.collected.objects[key("ServiceAccount", "", name)]
			return account != nil && account.anywhere
		})
		if !anywhere && !c.found("ServiceAccount", namespace, name) {
			c.dangling(s.Get("name"), "ServiceAccount", namespace, name)
		}
	}
}

// referenceFields are fields that name an object of the namespace: a kind, the path in its
// specification, in which [] is each item of a list, and the kind of the object. An Agent of kagent
// 1.0 contains an AgentTemplate and a Harness.
//
//go:embed references.txt
var referenceFields string

// references reports dangling references in fields of the table.
func (c *checker) references() {
	specs := map[string]krm.Node{c.Kind: c.Get("spec")}
	if c.Kind == "Agent" {
		specs["AgentTemplate"], specs["Harness"] = c.Get("spec", "template"),
			c.Get("spec", "harness")
	}
	for line := range strings.Lines(referenceFields) {
		words := strings.Fields(line)
		each(specs[words[0]], words[1], func(at krm.Node) { c.named(at, words[2]) })
	}
}

// each calls visit for the values at a path, in which [] is each item of a list.
func each(n krm.Node, path string, visit func(krm.Node)) {
	keys, rest, list := strings.Cut(path, "[].")
	n = n.Get(strings.Split(keys, ".")...)
	if !list {
		visit(n)
		return
	}
	for item := range n.Items() {
		each(item, rest, visit)
	}
}
