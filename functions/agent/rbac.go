package agent

import (
	"maps"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
)

// serviceAccount is the one that the pods run as: the author's, or one of the
// agent's own.
func (e *expander) serviceAccount() string {
	if name := textOf(e.spec, "serviceAccountName"); name != "" {
		return name
	}
	set(e.spec, "serviceAccountName", e.Name)
	e.add("v1", "ServiceAccount", e.Name, nil, nil)
	return e.Name
}

type role struct {
	Rules []rule `yaml:"rules"`
}

type rule struct {
	APIGroups     []string `yaml:"apiGroups"`
	Resources     []string `yaml:"resources"`
	ResourceNames []string `yaml:"resourceNames"`
	Verbs         []string `yaml:"verbs"`
}

type roleBinding struct {
	RoleRef  roleRef   `yaml:"roleRef"`
	Subjects []subject `yaml:"subjects"`
}

type roleRef struct {
	APIGroup string `yaml:"apiGroup"`
	Kind     string `yaml:"kind"`
	Name     string `yaml:"name"`
}

type subject struct {
	Kind      string `yaml:"kind"`
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace"`
}

// rbac lets the account read the ConfigMaps and Secrets that the pods name, and
// nothing else. Where they name none there is nothing to allow.
func (e *expander) rbac(account string) {
	configMaps, secrets := make(map[string]bool), make(map[string]bool)
	references(e.spec, configMaps, secrets)
	var rules []rule
	for _, kind := range []struct {
		resource string
		names    map[string]bool
	}{{"configmaps", configMaps}, {"secrets", secrets}} {
		if names := slices.Sorted(maps.Keys(kind.names)); len(names) > 0 {
			rules = append(rules, rule{[]string{""}, []string{kind.resource}, names, []string{"get", "watch"}})
		}
	}
	if len(rules) == 0 {
		return
	}
	if e.Namespace == "" {
		e.Report(finding.Warning, "agent/no-namespace", "metadata", "no Role is generated for the ConfigMaps "+
			"and Secrets that it names, because a RoleBinding needs the namespace of its ServiceAccount",
			"set metadata.namespace, if the agent reads them through the API")
		return
	}
	const group = "rbac.authorization.k8s.io"
	e.add(group+"/v1", "Role", e.Name, nil, role{rules})
	e.add(group+"/v1", "RoleBinding", e.Name, nil, roleBinding{
		RoleRef:  roleRef{group, "Role", e.Name},
		Subjects: []subject{{"ServiceAccount", account, e.Namespace}},
	})
}

// references gathers the ConfigMaps and Secrets that containers and volumes of
// a pod name.
func references(spec *yaml.RNode, configMaps, secrets map[string]bool) {
	note := func(names map[string]bool, n *yaml.RNode, key string) {
		if name := textOf(n, key); name != "" {
			names[name] = true
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		for _, c := range elements(spec, list) {
			for _, env := range elements(c, "env") {
				note(configMaps, lookup(env, "valueFrom", "configMapKeyRef"), "name")
				note(secrets, lookup(env, "valueFrom", "secretKeyRef"), "name")
			}
			for _, from := range elements(c, "envFrom") {
				note(configMaps, lookup(from, "configMapRef"), "name")
				note(secrets, lookup(from, "secretRef"), "name")
			}
		}
	}
	for _, v := range elements(spec, "volumes") {
		note(configMaps, lookup(v, "configMap"), "name")
		note(secrets, lookup(v, "secret"), "secretName")
		for _, source := range elements(lookup(v, "projected"), "sources") {
			note(configMaps, lookup(source, "configMap"), "name")
			note(secrets, lookup(source, "secret"), "name")
		}
	}
}
