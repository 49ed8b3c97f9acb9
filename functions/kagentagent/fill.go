package kagentagent

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/armature-dev/armature/functions/internal/node"
)

// fill returns a value of the package's ConfigMaps. For any other source it returns a placeholder
// that is replaced when the pod starts, so that no value of a Secret gets into a manifest.
func (e *expander) fill(from valueSource, field string) string {
	ref, known := map[string]string{"Secret": "secretKeyRef",
		"ConfigMap": "configMapKeyRef"}[from.Type]
	if e.FailIf(!known || from.Name == "" || from.Key == "", "value-source", field, "set all three",
		"a value needs type Secret or ConfigMap, name and key") {
		return ""
	}
	if o := e.Read("ConfigMap", e.Namespace, from.Name); o != nil && from.Type == "ConfigMap" {
		value, found := e.texts(o, "value-source", field)[from.Key]
		e.FailIf(!found && !e.Failed(), "value-source", field,
			"correct the key, or add it to the ConfigMap", "%s has no text %q", o.Ref, from.Key)
		return value
	}
	name := fmt.Sprintf("ARMATURE_VALUE_%d", len(e.filled))
	e.filled = append(e.filled,
		object{"name": name, "valueFrom": object{ref: object{"name": from.Name, "key": from.Key}}})
	return "$(" + name + ")" // Flux does not replace this form, unlike ${NAME}
}

// headers adds the headers of a tool to the given ones.
func (e *expander) headers(all object, field string, list []header) object {
	for i, h := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case h.Name == "" || (h.Value == "") == (h.ValueFrom == nil):
			e.Fail("header", at, "correct it",
				"a header needs a name, and either value or valueFrom")
		case h.ValueFrom != nil:
			all[h.Name] = e.fill(*h.ValueFrom, at)
		default:
			all[h.Name] = h.Value
		}
	}
	return all
}

// fillScript writes the given files with their values filled in. It splits $( because the kubelet
// expands that in a command.
const fillScript = `import json, os, sys
def fill(v):
    if isinstance(v, dict):
        return {k: fill(x) for k, x in v.items()}
    if isinstance(v, list):
        return [fill(x) for x in v]
    if isinstance(v, str) and v.startswith("$" "(ARMATURE_VALUE_") and v.endswith(")"):
        return os.environ[v[2:-1]]
    return v
for name in sys.argv[1:]:
    with open("/config-template/" + name) as template, open("/config/" + name, "w") as out:
        json.dump(fill(json.load(template)), out)
`

// pythonUser is the user of kagent's Python image, which sets it by name only: Kubernetes cannot
// tell that it is not root.
const pythonUser = 1001

// fillContainer returns the init container that runs the script: kagent's Python image, as Pod
// Security level restricted demands. It runs as the user of the agent's security contexts, but
// never as root.
func fillContainer(e *expander, resources any) object {
	security := object{
		"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
		"capabilities":   object{"drop": []string{"ALL"}},
		"seccompProfile": object{"type": "RuntimeDefault"},
	}
	if user, named := e.spec.PodSecurityContext["runAsUser"]; !named || isRoot(user) {
		security["runAsUser"] = pythonUser
	}
	for _, key := range []string{"runAsUser", "runAsGroup", "seLinuxOptions"} {
		if value, given := e.spec.SecurityContext[key]; given {
			security[key] = value
		}
	}
	if isRoot(security["runAsUser"]) {
		security["runAsUser"] = pythonUser
	}
	return object{
		"name": "config", "image": e.pythonImage(),
		"imagePullPolicy": pullPolicy(e.spec.ImagePullPolicy), "resources": resources,
		"command": append([]string{"python3", "-c", fillScript},
			slices.Sorted(maps.Keys(e.files))...),
		"env": e.filled, "securityContext": security,
		"volumeMounts": []any{
			object{"name": "config-template", "mountPath": "/config-template", "readOnly": true},
			object{"name": "config", "mountPath": "/config"},
		},
	}
}

func isRoot(user any) bool { return fmt.Sprint(user) == "0" }

// object is a mapping of a manifest.
type object = map[string]any

// given removes the values that are zero or empty.
func given(o object) object {
	maps.DeleteFunc(o, func(_ string, value any) bool { return node.Given(value) == nil })
	return o
}

// ordered is a JSON object whose fields keep their order.
type ordered = node.Fields

// some returns the fields with values that are neither empty nor numbers below zero.
func some(pairs ...any) ordered {
	for i := 1; i < len(pairs); i += 2 {
		if v := reflect.ValueOf(pairs[i]); v.CanInt() && v.Int() < 0 {
			pairs[i] = nil
		}
	}
	return node.Some(pairs...)
}
