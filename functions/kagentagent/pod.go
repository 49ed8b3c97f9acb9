package kagentagent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	fetch "github.com/armature-dev/armature/functions/skills"
)

// labelSet returns the labels of an object: kagent's, those of the configuration and those of the
// author. The selector's cannot be changed.
func (e *expander) labelSet() map[string]string {
	own := map[string]string{"app.kubernetes.io/name": e.Name,
		"app.kubernetes.io/part-of": "kagent"}
	return merged(own, e.settings.spec.Labels, e.spec.Labels, e.selector())
}

// merged returns the entries of maps. If two have the same key, the last one wins.
func merged(from ...map[string]string) map[string]string {
	all := make(map[string]string)
	for _, m := range from {
		maps.Copy(all, m)
	}
	return all
}

func (e *expander) selector() map[string]string {
	return map[string]string{"app": "kagent", "kagent": e.Name}
}

// build adds the objects.
func build(e *expander) {
	account, annotations := cmp.Or(e.spec.ServiceAccountName, e.account),
		expand.Annotations(e.agent.Annotations)
	e.FailIf(e.spec.ServiceAccountName != "" && e.spec.ServiceAccountConfig != nil, "two-accounts",
		e.at+".serviceAccountConfig", "keep one of them",
		"both serviceAccountName and serviceAccountConfig")
	if account == "" || account == e.Name {
		account = e.Name
		c := cmp.Or(e.spec.ServiceAccountConfig, &accountConfig{})
		e.Add(expand.Object{APIVersion: "v1", Kind: "ServiceAccount", Name: e.Name,
			Labels:      merged(e.labelSet(), c.Labels),
			Annotations: merged(annotations, c.Annotations)})
	}
	if e.files != nil {
		e.Add(expand.Object{APIVersion: "v1", Kind: "ConfigMap", Name: e.Name, Labels: e.labelSet(),
			Annotations: annotations, Body: object{"data": e.files}})
	}
	if e.skillsConfig != "" {
		e.Add(expand.Object{APIVersion: "v1", Kind: "ConfigMap", Name: e.Name + skillsSuffix,
			Labels: e.labelSet(), Annotations: e.skills,
			Body: object{"data": object{fetch.ConfigFile: e.skillsConfig}}})
	}
	description := make(map[string]string)
	if does := e.agent.Spec.Description; does != "" {
		description[e.Prefix+"/description"] = does
	}
	e.Add(expand.Object{
		APIVersion: "apps/v1", Kind: "Deployment", Name: e.Name,
		Body:        object{"spec": deployment(e, account)},
		Labels:      merged(e.labelSet(), e.OptIn(e.agent.Labels)), // other objects do not opt in
		Annotations: merged(annotations, description, e.spec.DeploymentAnnotations),
	})
	http := object{"name": "http", "port": port, "targetPort": port}
	d := e.agent.Spec.Declarative
	if d != nil && d.A2AConfig != nil || e.agent.Spec.Type == "BYO" {
		http["appProtocol"] = "kgateway.dev/a2a"
	}
	e.Add(expand.Object{APIVersion: "v1", Kind: "Service", Name: e.Name, Labels: e.labelSet(),
		Annotations: annotations, Body: object{"spec": object{
			"selector": e.selector(), "ports": []any{http},
		}}})
}

func deployment(e *expander, account string) object {
	metadata := object{"labels": e.labelSet()}
	annotations := merged(e.spec.Annotations)
	if e.files != nil || e.skillsConfig != "" {
		// The hash covers the rendered files only, not the values that are filled in later.
		all := sha256.New()
		for _, name := range []string{"config.json", "agent-card.json", sandboxFile} {
			all.Write([]byte(e.files[name]))
		}
		all.Write([]byte(e.skillsConfig))
		annotations[configHash] = fmt.Sprint(binary.BigEndian.Uint64(all.Sum(nil)))
	}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	spec := object{
		"selector": object{"matchLabels": e.selector()},
		"strategy": object{"type": "RollingUpdate",
			"rollingUpdate": object{"maxSurge": 1, "maxUnavailable": 0}},
		"template": object{"metadata": metadata, "spec": podOf(e, account)},
	}
	set(spec, object{"replicas": e.spec.Replicas})
	return spec
}

func podOf(e *expander, account string) object {
	container := containerOf(e)
	pod := object{"serviceAccountName": account}
	var volumes, mounts, inits []any
	if e.files != nil {
		mounts = append(mounts, object{"name": "config", "mountPath": "/config"})
		template := object{"name": "config", "configMap": object{"name": e.Name}}
		volumes = append(volumes, template)
		if len(e.filled) > 0 {
			template["name"] = "config-template"
			volumes = append(volumes,
				object{"name": "config", "emptyDir": object{"medium": "Memory"}})
			inits = append(inits, fillContainer(e, container["resources"]))
		}
	}
	volumes = append(append(volumes, e.spec.Volumes...), e.volumes...)
	mounts = append(append(mounts, e.spec.VolumeMounts...), e.mounts...)
	if e.skillsConfig != "" {
		init, more := skillsContainer(e)
		inits, volumes = append(inits, init), append(volumes, more...)
		mounts = append(mounts, object{"name": "kagent-skills", "mountPath": "/skills", "readOnly": true})
	}
	token := object{"serviceAccountToken": object{"audience": "kagent", "expirationSeconds": 3600,
		"path": "kagent-token"}}
	pod["volumes"] = append(volumes,
		object{"name": "kagent-token", "projected": object{"sources": []any{token}}})
	container["volumeMounts"] = append(mounts,
		object{"name": "kagent-token", "mountPath": "/var/run/secrets/tokens"})
	containers := []any{container}
	for _, c := range e.spec.ExtraContainers {
		containers = append(containers, c)
	}
	pod["containers"] = containers
	set(pod, object{"initContainers": inits})
	e.spec.complete(pod)
	return pod
}

// complete adds the author's settings of the pod itself.
func (s *PodSettings) complete(pod object) {
	set(pod, object{
		"imagePullSecrets": s.ImagePullSecrets, "tolerations": s.Tolerations,
		"affinity": s.Affinity, "nodeSelector": s.NodeSelector,
		"securityContext": s.PodSecurityContext,
	})
}

// set adds the fields that the author wrote.
func set(to, fields object) {
	for key, value := range fields {
		if data, err := json.Marshal(value); err == nil && !bytes.Equal(data, []byte("null")) {
			to[key] = value
		}
	}
}

// command returns the command of a container for one program, or nil for the image's own.
func command(program string) []string {
	if program == "" {
		return nil
	}
	return []string{program}
}

// goRuntime reports whether a Declarative agent runs on Go, which is the default.
func (e *expander) goRuntime() bool {
	d := e.agent.Spec.Declarative
	return e.agent.Spec.Type != "BYO" && d != nil && (d.Runtime == "go" || d.Runtime == "")
}

// pythonImage returns the image of kagent's Python runtime.
func (e *expander) pythonImage() string {
	override := e.agent.Annotations[keys.KagentImage]
	if override == "" || e.goRuntime() {
		return e.settings.image(e.spec.ImageRegistry, "app")
	}
	if e.spec.ImageRegistry != "" {
		_, rest, _ := strings.Cut(override, "/")
		return e.spec.ImageRegistry + "/" + rest
	}
	return override
}

func (e *expander) image() string {
	image, override := e.pythonImage(), e.agent.Annotations[keys.KagentImage]
	switch {
	case e.spec.Image != "":
		return e.spec.Image
	case e.goRuntime() && override != "":
		return override
	case e.goRuntime():
		image = e.settings.image(e.spec.ImageRegistry, "golang-adk")
	}
	if override == "" && e.files[sandboxFile] != "" {
		image += "-full"
	}
	return image
}

// pullPolicy returns the author's pull policy, or the default of kagent's containers.
func pullPolicy(author string) string { return cmp.Or(author, "IfNotPresent") }

// defaultResources returns the resources of containers that set none.
func defaultResources() object {
	return object{"requests": object{"cpu": "100m", "memory": "384Mi"},
		"limits": object{"cpu": "2", "memory": "1Gi"}}
}

func containerOf(e *expander) object {
	controller := e.controller
	if override := e.agent.Annotations[keys.KagentURL]; override != "" {
		controller = override
	}
	env := append(append(append([]any{}, e.spec.Env...), e.env...),
		object{"name": "KAGENT_NAMESPACE",
			"valueFrom": object{"fieldRef": object{"fieldPath": "metadata.namespace"}}},
		object{"name": "KAGENT_NAME", "value": e.Name},
		object{"name": "KAGENT_URL", "value": controller})
	if e.skillsConfig != "" {
		env = append(env, object{"name": "KAGENT_SKILLS_FOLDER", "value": "/skills"})
	}
	if e.files[sandboxFile] != "" {
		env = append(env,
			object{"name": "KAGENT_SRT_SETTINGS_PATH", "value": "/config/" + sandboxFile})
	}
	probe := object{"httpGet": object{"path": "/.well-known/agent-card.json", "port": "http"},
		"initialDelaySeconds": 15, "periodSeconds": 15, "timeoutSeconds": 15}
	if e.goRuntime() {
		probe["initialDelaySeconds"], probe["periodSeconds"], probe["timeoutSeconds"] = 1, 1, 5
	}
	c := object{
		"name": "kagent", "image": e.image(), "imagePullPolicy": pullPolicy(e.spec.ImagePullPolicy),
		"ports": []any{object{"name": "http", "containerPort": port}},
		"env":   env, "readinessProbe": probe, "resources": defaultResources(),
	}
	if e.agent.Spec.Type != "BYO" {
		c["args"] = []string{"--host", "0.0.0.0", "--port", fmt.Sprint(port), "--filepath", "/config"}
	}
	if e.spec.WorkingDir != "" {
		c["workingDir"] = e.spec.WorkingDir
	}
	set(c, object{"command": command(e.spec.Cmd), "args": e.spec.Args, "envFrom": e.spec.EnvFrom,
		"resources": e.spec.Resources, "securityContext": e.securityContext()})
	return c
}

// securityContext returns the author's. Code in a sandbox needs privileges, unless the author
// forbids privilege escalation.
func (e *expander) securityContext() map[string]any {
	if !e.isolated {
		return e.spec.SecurityContext
	}
	context := maps.Clone(e.spec.SecurityContext)
	if context == nil {
		context = make(map[string]any)
	}
	if context["allowPrivilegeEscalation"] != false {
		context["privileged"] = true
	}
	return context
}
