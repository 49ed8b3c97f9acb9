package kagentagent

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
)

const (
	defaultServerPort = 3000

	adapterImage = "ghcr.io/agentgateway/agentgateway:0.9.0-musl"
	serverHash   = "kmcp." + keys.Kagent + "/mcpserver-config-hash"
)

// commandImages are the default images for the commands of servers.
var commandImages = map[string]string{"uvx": "ghcr.io/astral-sh/uv:debian", "npx": "node:24-alpine3.21"}

// server expands an MCPServer. A server on standard streams runs under the agentgateway, which an
// init container copies into the pod.
func (s *settings) server(r *expand.Resource) {
	var m mcpServer
	if !r.Decode("field", &m) {
		return
	}
	d := &m.Spec.Deployment
	image := cmp.Or(d.Image, commandImages[d.Cmd])
	r.FailIf(image == "", "no-image", "spec.deployment",
		"set spec.deployment.image, or run the server with uvx or npx", "no image")
	d.Port = cmp.Or(d.Port, defaultServerPort)
	r.FailIf(d.Port < 1 || d.Port > 65535, "port", "spec.deployment.port",
		"set it to the port of the server", "%d is not a port", d.Port)
	r.FailIf(d.ServiceAccount != nil && d.ServiceAccountName != "", "two-accounts",
		"spec.deployment.serviceAccount", "keep one of them",
		"both serviceAccount and serviceAccountName")
	r.CheckReplicas("spec.deployment.replicas", d.Replicas)
	if d.Image != "" {
		r.CheckImage("spec.deployment.image", d.Image)
	}
	target := object{"name": r.Name}
	switch http := m.Spec.HTTPTransport; {
	case m.Spec.TransportType == "stdio":
		r.FailIf(d.Cmd == "", "no-command", "spec.deployment.cmd", "set spec.deployment.cmd",
			"a server on standard streams needs a command")
		run := object{"cmd": d.Cmd, "args": d.Args}
		if values := plainValues(d.Env); len(values) > 0 {
			run["env"] = values
		}
		target["stdio"] = run
	case m.Spec.TransportType != "http":
		r.Fail("transport", "spec.transportType", "use stdio or http", "%q is not a transport",
			m.Spec.TransportType)
	case http == nil || http.TargetPort == 0:
		r.Fail("transport", "spec.httpTransport.targetPort",
			"set it to the port on which the server listens", "no target port")
	default:
		if http.TargetPort != d.Port {
			r.Report(finding.Warning, "kagent-agent/port",
				"spec.httpTransport.targetPort", "set spec.deployment.port "+
					"to the same: a server of the transport http has no gateway before it",
				"the server listens on %d, and its Service leads to %d, where nothing listens",
				http.TargetPort, d.Port)
		}
		if http.TLS != nil {
			r.Report(finding.Info, "kagent-agent/ignored",
				"spec.httpTransport.tls", "", "kmcp ignores this field")
		}
		target["sse"] = object{"host": "localhost", "port": http.TargetPort, "path": http.Path}
	}
	env := environment(r, d.Env)
	config, err := yaml.Marshal(gateway(d.Port, target))
	r.FailIf(err != nil, "field", "spec", "", "%v", err)
	if !r.Failed() {
		buildServer(r, &m, image, string(config), env)
	}
}

// buildServer adds the objects of a server.
func buildServer(r *expand.Resource, m *mcpServer, image, config string, env []any) {
	d := &m.Spec.Deployment
	selector := map[string]string{"app.kubernetes.io/name": r.Name,
		"app.kubernetes.io/instance": r.Name}
	labels := merged(m.Labels, selector)
	if d.ServiceAccountName == "" {
		c := cmp.Or(d.ServiceAccount, &accountConfig{})
		r.Add(expand.Object{APIVersion: "v1", Kind: "ServiceAccount", Name: r.Name,
			Labels: merged(labels, c.Labels), Annotations: c.Annotations})
	}
	r.Add(expand.Object{APIVersion: "v1", Kind: "ConfigMap", Name: r.Name, Labels: labels,
		Body: object{"data": map[string]string{"local.yaml": config}}})
	sum := sha256.Sum256([]byte(config))
	hash := map[string]string{serverHash: fmt.Sprintf("%x", sum[:4])}
	metadata := object{"labels": merged(labels, d.Labels, selector),
		"annotations": merged(d.Annotations, hash)}
	spec := object{
		"selector": object{"matchLabels": selector},
		"template": object{"metadata": metadata, "spec": serverPod(r.Name, &m.Spec, image, env)},
	}
	set(spec, object{"replicas": d.Replicas})
	r.Add(expand.Object{APIVersion: "apps/v1", Kind: "Deployment", Name: r.Name, Labels: labels,
		Body: object{"spec": spec}})
	http := object{"name": "http", "protocol": "TCP", "port": d.Port, "targetPort": d.Port,
		"appProtocol": "kgateway.dev/mcp"}
	r.Add(expand.Object{APIVersion: "v1", Kind: "Service", Name: r.Name, Labels: labels,
		Body: object{"spec": object{"selector": selector, "ports": []any{http}}}})
}

// gateway returns the configuration of the agentgateway.
func gateway(port int, target object) object {
	path := func(prefix string) object { return object{"path": object{"pathPrefix": prefix}} }
	route := object{
		"name": "mcp", "matches": []any{path("/sse"), path("/mcp")},
		"backends": []any{object{"weight": 100, "mcp": object{"targets": []any{target}}}},
	}
	listener := object{"name": "default", "protocol": "HTTP", "routes": []any{route}}
	return object{"config": object{},
		"binds": []any{object{"port": port, "listeners": []any{listener}}}}
}

func serverPod(name string, m *mcpSpec, image string, env []any) object {
	d := &m.Deployment
	mounts := []any{object{"name": "config", "mountPath": "/config"}}
	volumes := []any{object{"name": "config", "configMap": object{"name": name}}}
	container := object{"name": "mcp-server", "image": image,
		"imagePullPolicy": pullPolicy(d.ImagePullPolicy)}
	pod := object{"serviceAccountName": cmp.Or(d.ServiceAccountName, name)}
	set(container, object{"resources": d.Resources, "securityContext": d.SecurityContext})
	d.complete(pod)
	if m.TransportType == "stdio" {
		adapter, adapterPolicy := adapterImage, ""
		if d.InitContainer != nil && d.InitContainer.Image != "" {
			adapter, adapterPolicy = d.InitContainer.Image, d.InitContainer.ImagePullPolicy
		}
		binary := object{"name": "binary", "mountPath": "/adapterbin"}
		init := object{
			"name": "copy-binary", "image": adapter, "imagePullPolicy": pullPolicy(adapterPolicy),
			"args":         []string{"--copy-self", "/adapterbin/agentgateway"},
			"volumeMounts": []any{binary},
		}
		set(init, object{"securityContext": d.SecurityContext})
		if c := d.InitContainer; c != nil {
			set(init, object{"securityContext": c.SecurityContext, "resources": c.Resources})
		}
		pod["initContainers"] = []any{init}
		mounts, volumes = append(mounts, binary),
			append(volumes, object{"name": "binary", "emptyDir": object{}})
		container["command"], container["args"] = []string{"/adapterbin/agentgateway"},
			[]string{"-f", "/config/local.yaml"}
	} else {
		set(container, object{"command": command(d.Cmd), "args": d.Args})
	}
	for _, ref := range d.ConfigMapRefs {
		volumes = append(volumes,
			object{"name": "cm-" + ref.Name, "configMap": object{"name": ref.Name}})
		mounts = append(mounts,
			object{"name": "cm-" + ref.Name, "mountPath": "/configmaps/" + ref.Name,
				"readOnly": true})
	}
	var from []any
	for _, ref := range d.SecretRefs {
		from = append(from, object{"secretRef": object{"name": ref.Name}})
	}
	set(container, object{"envFrom": from, "env": env})
	container["volumeMounts"] = append(mounts, d.VolumeMounts...)
	pod["containers"] = append([]any{container}, d.Sidecars...)
	pod["volumes"] = append(volumes, d.Volumes...)
	return pod
}

// plainValues returns the variables whose values the author wrote; those of Secrets reach the
// server through the environment.
func plainValues(env map[string]any) map[string]string {
	plain := make(map[string]string)
	for name, value := range env {
		if o, ok := value.(map[string]any); ok {
			value = o["value"]
		}
		if text, ok := value.(string); ok {
			plain[name] = text
		}
	}
	return plain
}

func environment(r *expand.Resource, env map[string]any) (list []any) {
	plain := plainValues(env)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		o, _ := env[name].(map[string]any)
		value, hasValue := plain[name]
		from, hasSource := o["valueFrom"]
		r.FailIf(hasValue == hasSource, "env", "spec.deployment.env."+name, "correct it",
			"a variable needs either a value or valueFrom")
		if hasValue {
			list = append(list, object{"name": name, "value": value})
		} else {
			list = append(list, object{"name": name, "valueFrom": from})
		}
	}
	return list
}
