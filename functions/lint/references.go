package lint

import (
	"fmt"
	"iter"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
)

// reference is where a pod names a ConfigMap or Secret.
type reference struct {
	kind string
	name krm.Node
	// keys are the required keys; empty if the reference uses all keys.
	keys     []krm.Node
	optional bool
}

// references yields those of a pod template.
func references(template krm.PodTemplate) iter.Seq[reference] {
	return func(yield func(reference) bool) {
		spec := template.Spec()
		for _, list := range [...]string{"initContainers", "containers"} {
			for c := range spec.Get(list).Items() {
				for _, r := range environment(c) {
					if !yield(r) {
						return
					}
				}
			}
		}
		for _, r := range volumes(spec) {
			if !yield(r) {
				return
			}
		}
		for s := range spec.Get("imagePullSecrets").Items() {
			if !yield(reference{kind: "Secret", name: s.Get("name")}) {
				return
			}
		}
	}
}

func environment(c krm.Node) (found []reference) {
	for e := range c.Get("env").Items() {
		for field, kind := range map[string]string{"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"} {
			if r := e.Get("valueFrom", field); r.IsMap() {
				found = append(found, reference{kind, r.Get("name"), []krm.Node{r.Get("key")}, r.Get("optional").Is("true")})
			}
		}
	}
	for e := range c.Get("envFrom").Items() {
		for field, kind := range map[string]string{"configMapRef": "ConfigMap", "secretRef": "Secret"} {
			if r := e.Get(field); r.IsMap() {
				found = append(found, reference{kind: kind, name: r.Get("name"), optional: r.Get("optional").Is("true")})
			}
		}
	}
	return found
}

func volumes(spec krm.Node) (found []reference) {
	add := func(source krm.Node, kind, name string) {
		if !source.IsMap() {
			return
		}
		r := reference{kind: kind, name: source.Get(name), optional: source.Get("optional").Is("true")}
		for item := range source.Get("items").Items() {
			r.keys = append(r.keys, item.Get("key"))
		}
		found = append(found, r)
	}
	for v := range spec.Get("volumes").Items() {
		add(v.Get("configMap"), "ConfigMap", "name")
		add(v.Get("secret"), "Secret", "secretName")
		for s := range v.Get("projected", "sources").Items() {
			add(s.Get("configMap"), "ConfigMap", "name")
			add(s.Get("secret"), "Secret", "name")
		}
	}
	return found
}

func missingKey(c *checker) {
	if !c.isPod {
		return
	}
	for r := range references(c.pod) {
		facts := c.objects[key(r.kind, c.Namespace, r.name.Text())]
		if facts == nil || facts.open || r.optional || c.generated(r.kind, r.name.Text()) {
			continue
		}
		for _, at := range r.keys {
			if !facts.keys[at.Text()] {
				c.report(at, fmt.Sprintf("the %s %s has no key %q", r.kind, r.name.Text(), at.Text()), hintKeys(facts))
			}
		}
	}
}

func hintKeys(facts *object) string {
	if len(facts.keys) == 0 {
		return "add the key; the object has none"
	}
	var keys []string
	for key := range facts.keys {
		keys = append(keys, key)
	}
	return "add the key, or name one that it has: " + join(keys)
}

func missingConfigMap(c *checker) {
	c.missing("ConfigMap", "add it to the package; if something in the cluster makes it, say so with spec.lint.missing-configmap or the annotation "+keys.LintIgnore)
}

func missingSecret(c *checker) {
	c.missing("Secret", "nothing to do if it is made in the cluster, which is where Secrets belong; pods wait until it is there")
}

func (c *checker) missing(kind, hint string) {
	if !c.isPod {
		return
	}
	for r := range references(c.pod) {
		name := r.name.Text()
		if r.kind != kind || name == "" || r.optional || c.found(kind, c.Namespace, name) {
			continue
		}
		called := name
		if !identity.ValidName(name) { // and perhaps what is in one
			called = "of this name"
		}
		c.once(c.Namespace+"/"+name, r.name, fmt.Sprintf("the package has no %s %s%s", kind, called, more(c.unresolved[key(kind, c.Namespace, name)], "reference")), hint)
	}
}

func danglingReference(c *checker) {
	if c.isPod {
		c.podReferences()
	}
	switch c.Kind {
	case "Service":
		c.service()
	case "RoleBinding", "ClusterRoleBinding":
		c.binding()
	case "HorizontalPodAutoscaler", "ScaledObject":
		if target := scaled(c.Object); target.name != "" && !c.found(target.kind, target.namespace, target.name) {
			c.dangling(c.Get("spec", "scaleTargetRef", "name"), target.kind, target.name)
		}
		for t := range c.Get("spec", "triggers").Items() {
			if ref := t.Get("authenticationRef"); ref.Get("kind").Text() != "ClusterTriggerAuthentication" {
				c.named(ref.Get("name"), "TriggerAuthentication")
			}
		}
	case "PodDisruptionBudget":
		if labels := c.Get("spec", "selector", "matchLabels"); labels.Len() > 0 && c.selectsNone(labels) {
			c.report(labels, "selects no pod of the package", "correct the labels: they are those of the pod template")
		}
	case "Ingress":
		c.ingress()
	}
}

func (c *checker) dangling(at krm.Node, kind, name string) {
	message := fmt.Sprintf("the package has no %s %s", kind, name)
	if c.Namespace != "" {
		message += " in namespace " + c.Namespace
	}
	c.report(at, message, "correct the name, or add the object to the package")
}

// found reports whether an object that the one at hand names is there: in the
// package, in what kustomizations make of it, in every cluster, or perhaps in a
// file that cannot be read.
func (c *checker) found(kind, namespace, name string) bool {
	if c.has(kind, namespace, name) || builtIn(kind, namespace, name) || c.built(kind, namespace, name) {
		return true
	}
	if claim, ordinal := strings.CutSuffix(anyOrdinal(name), "-*"); kind == "PersistentVolumeClaim" && ordinal && c.has(claimTemplate, namespace, claim) {
		return true
	}
	return c.mayHold(map[string]string{"kind": kind, "name": name})
}

// named reports a name of an object of a kind that is not there.
func (c *checker) named(at krm.Node, kind string) {
	if name := at.Text(); name != "" && !c.found(kind, c.Namespace, name) {
		c.dangling(at, kind, name)
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
		if name := v.Get("name").Text(); !declared[name] { // a claim template takes the place of its volume
			c.named(v.Get("persistentVolumeClaim", "claimName"), "PersistentVolumeClaim")
		}
	}
	for v := range spec.Get("volumes").Items() {
		declared[v.Get("name").Text()] = true
	}
	for _, x := range c.facts.containers {
		for m := range x.node.Get("volumeMounts").Items() {
			if name := m.Get("name"); !declared[name.Text()] {
				c.report(name, fmt.Sprintf("the pod has no volume %s", name.Text()), "declare it among the pod's volumes, or correct the name")
			}
		}
	}
	if c.Kind == "StatefulSet" {
		c.named(c.Get("spec", "serviceName"), "Service")
	}
}

func (c *checker) service() {
	selector := c.Get("spec", "selector")
	if selector.Len() == 0 || c.Get("spec", "type").Is("ExternalName") {
		return
	}
	if c.selectsNone(selector) {
		c.report(selector, "selects no pod of the package", "correct the labels: they are those of the pod template")
		return
	}
	for p := range c.Get("spec", "ports").Items() {
		target := p.Get("targetPort")
		if _, number := target.Int(); !target.IsScalar() || number {
			continue
		}
		for _, pod := range c.selected(c.Namespace, selector) {
			if _, _, ok := pod.target(target.Text()); !ok {
				c.report(target, fmt.Sprintf("%s has no container port named %s", pod.ref, target.Text()), "name a port of a container, or write its number")
				break
			}
		}
	}
}

// target resolves a Service's target port to a number and its container.
func (p *pod) target(name string) (number int, owner string, ok bool) {
	for _, c := range p.containers {
		for _, port := range c.ports {
			if c.runs && (port.name == name || itoa(port.number) == name) {
				return port.number, c.name, true
			}
		}
	}
	return 0, "", false
}

func (c *checker) binding() {
	ref := c.Get("roleRef")
	switch name := ref.Get("name").Text(); {
	case ref.Get("kind").Is("Role"):
		c.named(ref.Get("name"), "Role")
	case ref.Get("kind").Is("ClusterRole") && !c.found("ClusterRole", "", name):
		c.report(ref.Get("name"), "the package has no ClusterRole "+name, "correct the name, or add the object to the package")
	}
	for s := range c.Get("subjects").Items() {
		if !s.Get("kind").Is("ServiceAccount") {
			continue
		}
		namespace, name := s.Get("namespace").Text(), s.Get("name").Text()
		if namespace == "" {
			namespace = c.Namespace // which kustomize fills in
		}
		// A binding has to name a namespace; a ServiceAccount may leave it to
		// kubectl -n.
		account := c.objects[key("ServiceAccount", "", name)]
		if !c.found("ServiceAccount", namespace, name) && (account == nil || !account.anywhere) {
			c.report(s.Get("name"), fmt.Sprintf("the package has no ServiceAccount %s in namespace %s", name, namespace), "correct the name, or add the object to the package")
		}
	}
}

func (c *checker) ingress() {
	c.named(c.Get("spec", "defaultBackend", "service", "name"), "Service")
	for rule := range c.Get("spec", "rules").Items() {
		for p := range rule.Get("http", "paths").Items() {
			c.named(p.Get("backend", "service", "name"), "Service")
		}
	}
}
