// Package asyncactor expands the AsyncActor of 004 to what the Asya operator made
// of it: the workload with its sidecar, the runtime script, scaling by KEDA, the
// addQueue as a declared resource, and what they need to be let in.
package asyncactor

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Names of 004, "Sidecar Injection" and "Runtime ConfigMap Injection".
const (
	Runtime = "asya-runtime" // the author's container, a volume and the ConfigMap
	Sidecar = "asya-sidecar"

	socketDir    = "/var/run/asya"
	socket       = socketDir + "/asya-runtime.sock"
	socketVolume = "socket-dir"
	tmpVolume    = "tmp"
	scriptName   = "asya_runtime.py"
	scriptPath   = "/opt/asya/" + scriptName

	happyEnd, errorEnd = "happy-end", "error-end" // until 0.5.0
	sink, sump         = "x-sink", "x-sump"       // since

	defaultProcessing = 300
	defaultShutdown   = 30
)

func (s *state) expand(r *expand.Resource, g *generation) {
	e := &expander{Resource: r, config: &s.config, generation: g, judged: s.judged}
	if !r.Decode("async-actor/field", &e.actor) {
		return
	}
	if g.short && !takeFlavors(e) {
		return
	}
	check(e)
	if r.Failed() {
		return
	}
	addWorkload(e)
	addRuntimeConfigMap(e)
	addServiceAccount(e)
	addQueue(e)
	addScaledObject(e)
}

type expander struct {
	*expand.Resource
	config     *api.AsyaSpec
	generation *generation
	actor      api.AsyncActor
	transport  *transport
	template   *yaml.RNode // of the pods, as the author wrote it

	merged map[string]any    // the spec with its flavors, nil without
	from   map[string]string // the flavor, by the path of a field below spec
	judged map[*krm.Object]bool
}

func (e *expander) error(rule, field, message, hint string) {
	if flavor := e.flavorOf(field); flavor != "" {
		message += ", by the flavor " + text.Shown(flavor)
	}
	e.Report(finding.Error, "async-actor/"+rule, field, message, hint)
}

// add adds an object of a component with a spec, and the labels of all of them.
func (e *expander) add(component, apiVersion, kind, name string, annotations map[string]string,
	spec fields) {
	labels := map[string]string{}
	for key, value := range e.actor.Labels {
		if component == "actor" || !strings.HasPrefix(key, e.Prefix+"/") { // those opt the workload in
			labels[key] = value
		}
	}
	labels["app.kubernetes.io/name"] = e.Name
	labels["app.kubernetes.io/component"] = component
	labels["app.kubernetes.io/part-of"] = "asya"
	o := expand.Object{APIVersion: apiVersion, Kind: kind, Name: name, Labels: labels,
		Annotations: annotations}
	if spec != nil {
		o.Body = object("spec", spec).node()
	}
	e.Add(o)
}

// addShared adds an object that the actors of a namespace have together.
func (e *expander) addShared(component, apiVersion, kind, name string, annotations map[string]string,
	body fields) {
	e.Add(expand.Object{
		APIVersion: apiVersion, Kind: kind, Name: name, Shared: true, Annotations: annotations,
		Body: body.node(),
		Labels: map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/component": component,
			"app.kubernetes.io/part-of": "asya"},
	})
}

// selector is what the generation selected pods by. It depends on nothing else
// that changes, because a selector is immutable.
func (e *expander) selector() map[string]string {
	if e.generation.short {
		return map[string]string{"app.kubernetes.io/name": e.Name}
	}
	return map[string]string{"app": e.Name, "asya.sh/asya": e.Name,
		"asya.sh/workload": strings.ToLower(e.kind())}
}

func (e *expander) kind() string {
	return cmp.Or(e.actor.Spec.Workload.Kind, "Deployment")
}

// endActor reports whether the actor ends the way of messages.
func (e *expander) endActor() bool { return slices.Contains(e.generation.ends.all, e.Name) }

func value[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

func textOf(p *string) string { return value(p, "") }

// addWorkload is the Deployment or StatefulSet.
func addWorkload(e *expander) {
	completeRuntime(e)
	addSidecar(e)
	completePod(e)
	addStates(e)
	var replicas, service any
	if !e.scales() { // otherwise KEDA owns them
		replicas = value(e.actor.Spec.Workload.Replicas, 1)
	}
	if e.kind() == "StatefulSet" {
		service = e.Name
	}
	e.add("actor", "apps/v1", e.kind(), e.Name, expand.Annotations(e.actor.Annotations),
		object("replicas", replicas, "serviceName", service, "selector", object("matchLabels", e.selector()),
			"template", e.template.YNode()))
	if service != nil { // the headless one that a StatefulSet names
		e.add("service", "v1", "Service", e.Name, nil, object("clusterIP", "None", "selector", e.selector()))
	}
}

func completeRuntime(e *expander) {
	c := e.runtimeContainer()
	put(c, "command", []string{cmp.Or(e.actor.Spec.Workload.PythonExecutable, "python3"), scriptPath})
	env := []fields{object("name", "ASYA_SOCKET_DIR", "value", socketDir)}
	if e.endActor() {
		env = append(env, object("name", "ASYA_ENABLE_VALIDATION", "value", "false"))
	}
	extend(c, "env", env...)
	mounts := []fields{object("name", socketVolume, "mountPath", socketDir)}
	if !slices.ContainsFunc(elements(c, "volumeMounts"),
		func(m *yaml.RNode) bool { return scalarOf(m, "mountPath") == "/tmp" }) {
		mounts = append(mounts, object("name", tmpVolume, "mountPath", "/tmp"))
	}
	mounts = append(mounts, object("name", Runtime, "mountPath", scriptPath, "subPath", scriptName,
		"readOnly", true))
	extend(c, "volumeMounts", mounts...)
	probe := func(name string, delay, period, timeout, failures int) {
		if lookup(c, name) == nil {
			put(c, name, object("exec", object("command", []string{"sh", "-c", "test -S " + socket}),
				"initialDelaySeconds", delay, "periodSeconds", period, "timeoutSeconds", timeout,
				"failureThreshold", failures))
		}
	}
	probe("startupProbe", 3, 2, 3, 150)
	probe("livenessProbe", 0, 30, 5, 3)
	probe("readinessProbe", 0, 10, 3, 3)
}

// addSidecar adds the container last, so that the author's stay where they are.
func addSidecar(e *expander) {
	spec := e.actor.Spec.Sidecar
	image, policy := sidecarImage(e)
	mounts := []fields{object("name", socketVolume, "mountPath", socketDir),
		object("name", tmpVolume, "mountPath", "/tmp")}
	extend(lookup(e.template, "spec"), "containers",
		object("name", Sidecar, "image", image, "imagePullPolicy", policy, "env", sidecarEnv(e), "resources",
			given(spec.Resources), "volumeMounts", mounts))
}

// sidecarImage is the actor's, the configuration's or the generation's, and the policy
// by which it is pulled.
func sidecarImage(e *expander) (image, policy string) {
	image, policy = e.generation.image, "IfNotPresent"
	if e.config.SidecarImage != nil {
		image = *e.config.SidecarImage
	}
	spec := &e.actor.Spec.Sidecar
	parts, mapping, _ := spec.Image.Parts() // checked
	switch {
	case !mapping && spec.Image != "":
		image = string(spec.Image)
	case parts.Repository != "" || parts.Tag != "":
		repository, tag, _ := strings.Cut(e.generation.image, ":")
		image = cmp.Or(parts.Repository, repository) + ":" + cmp.Or(parts.Tag, tag)
	}
	return image, cmp.Or(parts.PullPolicy, spec.ImagePullPolicy, policy)
}

// sidecarEnv is 004's "Injected environment variables" as the generation has them,
// followed by the author's, which replace those of the same name.
func sidecarEnv(e *expander) (env []any) {
	g, ends := e.generation, ""
	if e.endActor() {
		ends = "true"
	}
	all := variables("ASYA_LOG_LEVEL", "info", "ASYA_GATEWAY_URL", gateway(e), "ASYA_ACTOR_NAME", e.Name,
		"ASYA_NAMESPACE", e.Namespace,
		g.success.variable, g.success.actor, g.failure.variable, g.failure.actor, "ASYA_IS_END_ACTOR", ends)
	all = append(all, variable(g.timeout, e.timeout()))
	all = append(all, resiliencyEnv(e)...)
	if t := e.actor.Spec.Tracing; t != nil {
		all = append(all, variables("OTEL_EXPORTER_OTLP_ENDPOINT", t.Endpoint)...)
	}
	all = append(all, e.transport.env(e)...)
	all = append(all, variable("ASYA_SOCKET_DIR", socketDir))
	for _, v := range all {
		theirs := func(have map[string]any) bool { return have["name"] == v[0].value }
		if !slices.ContainsFunc(e.actor.Spec.Sidecar.Env, theirs) {
			env = append(env, v)
		}
	}
	for _, v := range e.actor.Spec.Sidecar.Env {
		env = append(env, v)
	}
	return env
}

func (e *expander) processing() int {
	return value(e.actor.Spec.Timeout.Processing, defaultProcessing)
}

// gateway is the configured one, or that of the author's container.
func gateway(e *expander) string {
	if e.config.GatewayURL != nil {
		return *e.config.GatewayURL
	}
	for _, v := range elements(e.runtimeContainer(), "env") {
		if scalarOf(v, "name") == "ASYA_GATEWAY_URL" {
			return scalarOf(v, "value")
		}
	}
	return ""
}

// completePod completes what is around the containers.
func completePod(e *expander) {
	spec := lookup(e.template, "spec")
	extend(spec, "volumes",
		object("name", socketVolume, "emptyDir", fields{}),
		object("name", tmpVolume, "emptyDir", fields{}),
		object("name", Runtime, "configMap", object("name", Runtime, "defaultMode", 0o755)))
	if e.actor.Spec.Timeout.GracefulShutdown != nil || lookup(spec, "terminationGracePeriodSeconds") == nil {
		put(spec, "terminationGracePeriodSeconds",
			value(e.actor.Spec.Timeout.GracefulShutdown, defaultShutdown))
	}
	if e.transport.config.ActorRoleARN != "" {
		put(spec, "serviceAccountName", e.accountName())
	}
	if lookup(e.template, "metadata") == nil { // it comes first
		e.template.YNode().Content = append([]*yaml.Node{encode("metadata"), fields{}.node()},
			e.template.YNode().Content...)
	}
	metadata := lookup(e.template, "metadata")
	if lookup(metadata, "labels") == nil {
		put(metadata, "labels", fields{})
	}
	labels := lookup(metadata, "labels")
	selector := e.selector()
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		put(labels, key, selector[key])
	}
	if !e.generation.short {
		return
	}
	put(labels, "asya.sh/actor", e.Name)
	for _, key := range slices.Sorted(maps.Keys(e.actor.Labels)) { // of the actor's flow, team and so on
		prefix, _, _ := strings.Cut(key, "/")
		if prefix != "app.kubernetes.io" && prefix != "crossplane.io" && prefix != e.Prefix &&
			key != "asya.sh/actor" {
			put(labels, key, e.actor.Labels[key])
		}
	}
}

// addRuntimeConfigMap holds the script. All actors of a namespace share it.
func addRuntimeConfigMap(e *expander) {
	script := textOf(e.config.RuntimeScript)
	if script == "" {
		script = *e.generation.script
	}
	e.addShared(Runtime, "v1", "ConfigMap", Runtime, nil,
		object("data", object(scriptName,
			&yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Style: yaml.LiteralStyle,
				Value: script})))
}

func (e *expander) accountName() string { return "asya-" + e.Name }

// addServiceAccount carries the IAM role (IRSA), for SQS on EKS.
func addServiceAccount(e *expander) {
	if role := e.transport.config.ActorRoleARN; role != "" {
		e.add("serviceaccount", "v1", "ServiceAccount", e.accountName(),
			map[string]string{"eks.amazonaws.com/role-arn": role}, nil)
	}
}
