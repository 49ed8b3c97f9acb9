package agent

import (
	"maps"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/node"
)

// serviceAccount is the one that the pods run as: the author's, or one of the
// agent's own.
func (e *expander) serviceAccount() string {
	if name := node.Text(e.spec, "serviceAccountName"); name != "" {
		return name
	}
	node.Set(e.spec, "serviceAccountName", e.Name)
	e.add("v1", "ServiceAccount", e.Name, nil, nil)
	return e.Name
}

// rbac lets the account read the ConfigMaps and Secrets that the pods name, and
// nothing else. Where they name none there is nothing to allow.
func (e *expander) rbac(account string) {
	configMaps, secrets := make(map[string]bool), make(map[string]bool)
	references(e.spec, configMaps, secrets)
	var rules []node.Fields
	for _, kind := range []struct {
		resource string
		names    map[string]bool
	}{{"configmaps", configMaps}, {"secrets", secrets}} {
		if names := slices.Sorted(maps.Keys(kind.names)); len(names) > 0 {
			rules = append(rules,
				node.Map("apiGroups", []string{""}, "resources", []string{kind.resource},
					"resourceNames", names, "verbs", []string{"get", "watch"}))
		}
	}
	if len(rules) == 0 {
		return
	}
	if e.Namespace == "" {
		e.Report(finding.Warning, "agent/no-namespace", "metadata",
			"no Role is generated for the ConfigMaps "+
				"and Secrets that it names, because a RoleBinding needs the namespace of its "+
				"ServiceAccount",
			"set metadata.namespace, if the agent reads them through the API")
		return
	}
	const group = "rbac.authorization.k8s.io"
	e.add(group+"/v1", "Role", e.Name, nil, node.Map("rules", rules))
	e.add(group+"/v1", "RoleBinding", e.Name, nil, node.Map(
		"roleRef", node.Map("apiGroup", group, "kind", "Role", "name", e.Name),
		"subjects",
		[]node.Fields{node.Map("kind", "ServiceAccount", "name", account, "namespace", e.Namespace)}))
}

// references gathers the ConfigMaps and Secrets that containers and volumes of
// a pod name.
func references(spec *yaml.RNode, configMaps, secrets map[string]bool) {
	note := func(names map[string]bool, n *yaml.RNode, key string) {
		if name := node.Text(n, key); name != "" {
			names[name] = true
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		for _, c := range node.Items(spec, list) {
			for _, env := range node.Items(c, "env") {
				note(configMaps, node.Get(env, "valueFrom", "configMapKeyRef"), "name")
				note(secrets, node.Get(env, "valueFrom", "secretKeyRef"), "name")
			}
			for _, from := range node.Items(c, "envFrom") {
				note(configMaps, node.Get(from, "configMapRef"), "name")
				note(secrets, node.Get(from, "secretRef"), "name")
			}
		}
	}
	for _, v := range node.Items(spec, "volumes") {
		note(configMaps, node.Get(v, "configMap"), "name")
		note(secrets, node.Get(v, "secret"), "secretName")
		for _, source := range node.Items(node.Get(v, "projected"), "sources") {
			note(configMaps, node.Get(source, "configMap"), "name")
			note(secrets, node.Get(source, "secret"), "name")
		}
	}
}
