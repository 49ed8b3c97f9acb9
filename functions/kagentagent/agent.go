// Package kagentagent expands the resources of kagent.dev to what its
// controllers made of them, with one difference: where those wrote the values of
// Secrets into their objects, these refer to them.
package kagentagent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/krm"
)

// Defaults of the published charts.
const (
	defaultImage      = "cr.kagent.dev/kagent-dev/kagent/app:0.7.4"
	defaultController = "http://kagent-controller.kagent:8083"
	defaultModel      = "default-model-config"
	port              = 8080
	configHash        = "kagent.dev/config-hash"
)

// Agent expands an Agent.
func Agent(r *expand.Resource) {
	e := expander{Resource: r}
	if !r.Decode("kagent-agent/field", &e.agent) {
		return
	}
	spec := &e.agent.Spec
	if spec.Skills != nil {
		e.error("unsupported", "spec.skills", "skills from images and repositories are not expanded", "put them into the image of a BYO agent, or keep the controller for this one")
	}
	switch {
	case spec.Type == "BYO" && spec.BYO != nil && spec.BYO.Deployment != nil && spec.BYO.Deployment.Image != "":
		e.spec, e.at = spec.BYO.Deployment, "spec.byo.deployment"
		if e.spec.ImageRegistry != "" {
			e.error("field", e.at+".imageRegistry", "only a Declarative agent has an imageRegistry", "write it into image")
		}
	case spec.Type == "BYO":
		e.error("no-image", "spec.byo", "a BYO agent needs an image", "say spec.byo.deployment.image")
	case (spec.Type == "Declarative" || spec.Type == "") && spec.Declarative != nil:
		e.spec, e.at = spec.Declarative.Deployment, "spec.declarative.deployment"
		if e.spec == nil {
			e.spec = &deploymentSpec{}
		}
		if e.spec.Image != "" || e.spec.Cmd != "" || e.spec.Args != nil {
			e.error("field", e.at, "only a BYO agent has image, cmd and args", "remove them")
		}
		e.declare(spec.Declarative)
	case e.FollowsFrom(e.Misread, "spec") && (spec.Type == "Declarative" || spec.Type == ""): // spec.declarative may be what is written wrong
	default:
		e.error("type", "spec.type", "neither a Declarative agent with spec.declarative nor a BYO agent with spec.byo", "correct spec.type")
	}
	if e.spec != nil {
		r.CheckReplicas(function, e.at+".replicas", e.spec.Replicas)
		if e.spec.Image != "" {
			r.CheckImage(function, e.at+".image", e.spec.Image)
		}
	}
	if e.Failed() {
		return
	}
	e.build()
}

type expander struct {
	*expand.Resource
	agent agent
	spec  *deploymentSpec
	at    string // of it

	files  map[string]string // of the configuration, nil for BYO
	env    []any
	filled []any // environment whose values go into the files at start

	volumes, mounts []any
}

// object is a mapping of a manifest.
type object = map[string]any

func (e *expander) error(rule, field, message, hint string) {
	e.Report(krm.Error, "kagent-agent/"+rule, field, message, hint)
}

// declare writes config.json and agent-card.json, which the agent reads.
func (e *expander) declare(d *declarative) {
	if d.ExecuteCodeBlocks != nil {
		e.Report(krm.Info, "kagent-agent/ignored", "spec.declarative.executeCodeBlocks", "kagent ignores this field", "")
	}
	instruction := d.SystemMessage
	if d.SystemMessageFrom != nil {
		if instruction != "" {
			e.error("two-messages", "spec.declarative.systemMessageFrom", "both systemMessage and systemMessageFrom", "keep one of them")
		}
		instruction = e.fill(*d.SystemMessageFrom, "spec.declarative.systemMessageFrom")
	}
	config := ordered{
		{"model", e.model(d.ModelConfig)},
		{"description", e.agent.Spec.Description},
		{"instruction", instruction},
	}
	http, sse, remote := e.tools(d.Tools)
	config = append(config, pair{"http_tools", http}, pair{"sse_tools", sse}, pair{"remote_agents", remote}, pair{"stream", d.Stream})
	skills := []json.RawMessage{}
	if d.A2AConfig != nil {
		skills = append(skills, d.A2AConfig.Skills...)
	}
	card := ordered{
		{"name", identifier(e.Name)},
		{"description", e.agent.Spec.Description},
		{"url", address(e.Name, e.Namespace, port)},
		{"version", ""},
		{"capabilities", ordered{{"streaming", true}, {"pushNotifications", false}, {"stateTransitionHistory", true}}},
		{"defaultInputModes", []string{"text"}},
		{"defaultOutputModes", []string{"text"}},
		{"skills", skills},
	}
	e.files = make(map[string]string)
	for name, value := range map[string]ordered{"config.json": config, "agent-card.json": card} {
		text, err := json.Marshal(value)
		if err != nil {
			e.error("field", "spec.declarative", err.Error(), "")
		}
		e.files[name] = string(text) + "\n"
	}
}

// address is a Service's as pods reach it. Without a namespace it is that of
// the caller.
func address(name, namespace string, port int) string {
	if namespace != "" {
		name += "." + namespace
	}
	return fmt.Sprintf("http://%s:%d", name, port)
}

// identifier is a name as Python takes it.
func identifier(name string) string { return strings.ReplaceAll(name, "-", "_") }

// fill gives the placeholder in the configuration of a value that is filled in
// when the pod starts, so that it never gets into a manifest.
func (e *expander) fill(from valueSource, field string) string {
	ref, known := map[string]string{"Secret": "secretKeyRef", "ConfigMap": "configMapKeyRef"}[from.Type]
	if !known || from.Name == "" || from.Key == "" {
		e.error("value-source", field, "a value needs type Secret or ConfigMap, name and key", "say all three")
		return ""
	}
	name := fmt.Sprintf("ARMATURE_VALUE_%d", len(e.filled))
	e.filled = append(e.filled, object{"name": name, "valueFrom": object{ref: object{"name": from.Name, "key": from.Key}}})
	return "${" + name + "}"
}

// headers gives the headers of a tool; later ones win.
func (e *expander) headers(field string, lists ...[]header) object {
	all := make(object)
	for _, list := range lists {
		for i, h := range list {
			at := fmt.Sprintf("%s[%d]", field, i)
			switch {
			case h.Name == "" || (h.Value == "") == (h.ValueFrom == nil):
				e.error("header", at, "a header needs a name, and either value or valueFrom", "correct it")
			case h.ValueFrom != nil:
				all[h.Name] = e.fill(*h.ValueFrom, at)
			default:
				all[h.Name] = h.Value
			}
		}
	}
	return all
}

// fillScript writes the configuration with its values filled in.
const fillScript = `import json, os
def fill(v):
    if isinstance(v, dict):
        return {k: fill(x) for k, x in v.items()}
    if isinstance(v, list):
        return [fill(x) for x in v]
    if isinstance(v, str) and v.startswith("${ARMATURE_VALUE_") and v.endswith("}"):
        return os.environ[v[2:-1]]
    return v
for name in ("config.json", "agent-card.json"):
    with open("/config-template/" + name) as template, open("/config/" + name, "w") as out:
        json.dump(fill(json.load(template)), out)
`

// labels of an object. Only the first two select pods.
func (e *expander) labels() map[string]string {
	labels := make(map[string]string)
	maps.Copy(labels, e.agent.Labels)
	for key := range e.optIn() {
		delete(labels, key)
	}
	labels["app.kubernetes.io/name"], labels["app.kubernetes.io/part-of"] = e.Name, "kagent"
	maps.Copy(labels, e.selector())
	return labels
}

func (e *expander) selector() map[string]string {
	return map[string]string{"app": "kagent", "kagent": e.Name}
}

// optIn are the labels by which a workload opts in. They belong to it alone.
func (e *expander) optIn() map[string]string {
	labels := make(map[string]string)
	for _, name := range []string{"inject", "spiffe", "spire"} {
		if value, ok := e.agent.Labels[e.Prefix+"/"+name]; ok {
			labels[e.Prefix+"/"+name] = value
		}
	}
	return labels
}

// annotations are those of the resource, but for the books of tools.
func (e *expander) annotations() map[string]string {
	annotations := expand.Annotations(e.agent.Annotations)
	if e.agent.Spec.Description != "" {
		annotations[e.Prefix+"/description"] = e.agent.Spec.Description
	}
	return annotations
}

// build adds the objects.
func (e *expander) build() {
	account := e.spec.ServiceAccountName
	if account == "" {
		account = e.Name
		labels, annotations := e.labels(), map[string]string(nil)
		if c := e.spec.ServiceAccountConfig; c != nil {
			maps.Copy(labels, c.Labels)
			annotations = c.Annotations
		}
		e.Add(expand.Object{APIVersion: "v1", Kind: "ServiceAccount", Name: e.Name, Labels: labels, Annotations: annotations})
	} else if e.spec.ServiceAccountConfig != nil {
		e.error("two-accounts", e.at+".serviceAccountConfig", "both serviceAccountName and serviceAccountConfig", "keep one of them")
	}
	if e.files != nil {
		e.Add(expand.Object{APIVersion: "v1", Kind: "ConfigMap", Name: e.Name, Labels: e.labels(), Body: object{"data": e.files}})
	}
	labels := e.labels()
	maps.Copy(labels, e.optIn())
	e.Add(expand.Object{APIVersion: "apps/v1", Kind: "Deployment", Name: e.Name, Labels: labels, Annotations: e.annotations(), Body: object{"spec": e.deployment(account)}})
	e.Add(expand.Object{APIVersion: "v1", Kind: "Service", Name: e.Name, Labels: e.labels(), Body: object{"spec": object{
		"selector": e.selector(),
		"ports":    []any{object{"name": "http", "port": port, "targetPort": port, "appProtocol": "kgateway.dev/a2a"}},
	}}})
}

func (e *expander) deployment(account string) object {
	podLabels := e.labels()
	for key, value := range e.spec.Labels {
		if _, selects := e.selector()[key]; !selects {
			podLabels[key] = value
		}
	}
	metadata := object{"labels": podLabels}
	annotations := make(map[string]string)
	maps.Copy(annotations, e.spec.Annotations)
	if e.files != nil {
		// The hash covers the rendered files only, not what is filled in later.
		sum := sha256.Sum256([]byte(e.files["config.json"] + e.files["agent-card.json"]))
		annotations[configHash] = hex.EncodeToString(sum[:8])
	}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	spec := object{
		"selector": object{"matchLabels": e.selector()},
		"strategy": object{"type": "RollingUpdate", "rollingUpdate": object{"maxSurge": 1, "maxUnavailable": 0}},
		"template": object{"metadata": metadata, "spec": e.pod(account)},
	}
	if e.spec.Replicas != nil {
		spec["replicas"] = *e.spec.Replicas
	}
	return spec
}

func (e *expander) pod(account string) object {
	token := object{"serviceAccountToken": object{"audience": "kagent", "expirationSeconds": 3600, "path": "kagent-token"}}
	volumes := []any{object{"name": "kagent-token", "projected": object{"sources": []any{token}}}}
	mounts := []any{object{"name": "kagent-token", "mountPath": "/var/run/secrets/tokens"}}
	container := e.container()
	pod := object{"serviceAccountName": account}
	if e.files != nil {
		mounts = append([]any{object{"name": "config", "mountPath": "/config"}}, mounts...)
		template := object{"name": "config", "configMap": object{"name": e.Name}}
		if len(e.filled) > 0 {
			template["name"] = "config-template"
			volumes = append(volumes, object{"name": "config", "emptyDir": object{"medium": "Memory"}})
			pod["initContainers"] = []any{object{
				"name": "config", "image": container["image"], "imagePullPolicy": container["imagePullPolicy"],
				"command": []string{"python3", "-c", fillScript}, "env": e.filled,
				"volumeMounts": []any{
					object{"name": "config-template", "mountPath": "/config-template", "readOnly": true},
					object{"name": "config", "mountPath": "/config"},
				},
			}}
		}
		volumes = append([]any{template}, volumes...)
	}
	container["volumeMounts"] = append(append(mounts, e.mounts...), e.spec.VolumeMounts...)
	pod["containers"] = []any{container}
	pod["volumes"] = append(append(volumes, e.volumes...), e.spec.Volumes...)
	for key, value := range map[string]any{
		"imagePullSecrets": e.spec.ImagePullSecrets, "tolerations": e.spec.Tolerations, "affinity": e.spec.Affinity,
		"nodeSelector": e.spec.NodeSelector, "securityContext": e.spec.PodSecurityContext,
	} {
		if data, err := json.Marshal(value); err == nil && !bytes.Equal(data, []byte("null")) {
			pod[key] = value
		}
	}
	return pod
}

func (e *expander) container() object {
	image := e.spec.Image
	if image == "" {
		image = defaultImage
		if override := e.agent.Annotations[keys.KagentImage]; override != "" {
			image = override
		}
		if e.spec.ImageRegistry != "" {
			_, rest, _ := strings.Cut(image, "/")
			image = e.spec.ImageRegistry + "/" + rest
		}
	}
	controller := defaultController
	if override := e.agent.Annotations[keys.KagentURL]; override != "" {
		controller = override
	}
	c := object{
		"name": "kagent", "image": image, "imagePullPolicy": "IfNotPresent",
		"ports": []any{object{"name": "http", "containerPort": port}},
		"env": append(append(append([]any{}, e.spec.Env...), e.env...),
			object{"name": "KAGENT_NAMESPACE", "valueFrom": object{"fieldRef": object{"fieldPath": "metadata.namespace"}}},
			object{"name": "KAGENT_NAME", "value": e.Name},
			object{"name": "KAGENT_URL", "value": controller}),
		"readinessProbe": object{
			"httpGet":             object{"path": "/.well-known/agent-card.json", "port": "http"},
			"initialDelaySeconds": 15, "periodSeconds": 15, "timeoutSeconds": 15,
		},
		"resources": object{"requests": object{"cpu": "100m", "memory": "384Mi"}, "limits": object{"cpu": "2", "memory": "1Gi"}},
	}
	if e.files != nil {
		c["args"] = []string{"--host", "0.0.0.0", "--port", fmt.Sprint(port), "--filepath", "/config"}
	}
	if e.spec.Cmd != "" {
		c["command"] = []string{e.spec.Cmd}
	}
	if e.spec.Args != nil {
		c["args"] = e.spec.Args
	}
	if e.spec.ImagePullPolicy != "" {
		c["imagePullPolicy"] = e.spec.ImagePullPolicy
	}
	if e.spec.Resources != nil {
		c["resources"] = e.spec.Resources
	}
	if e.spec.SecurityContext != nil {
		c["securityContext"] = e.spec.SecurityContext
	}
	return c
}

// ordered is a JSON object whose fields keep their order.
type ordered []pair

type pair struct {
	key   string
	value any
}

// MarshalJSON writes the fields in order.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err1 := json.Marshal(p.key)
		value, err2 := json.Marshal(p.value)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("writing %s: %w", p.key, err2)
		}
		b.Write(append(append(key, ':'), value...))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
