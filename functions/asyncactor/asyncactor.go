// Package asyncactor expands the AsyncActor of 004 to what the Asya operator made
// of it: the workload with its sidecar, the runtime script, scaling by KEDA, the
// queue as a declared resource, and what they need to be let in.
package asyncactor

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/krm"
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

	defaultSidecarImage = "asya-sidecar:latest"
	defaultProcessing   = 300
	defaultShutdown     = 30
)

// expand makes the objects of an AsyncActor.
func (s *state) expand(r *expand.Resource, g *generation) {
	e := expander{Resource: r, config: &s.config, generation: g, judged: s.judged}
	if !r.Decode("async-actor/field", &e.actor) {
		return
	}
	if g.short && e.actor.Spec.Workload.Template == nil && !e.takeFlavors() {
		return
	}
	e.check()
	if r.Failed() {
		return
	}
	e.workload()
	e.governingService()
	e.runtimeConfigMap()
	e.serviceAccount()
	e.queue()
	e.scaledObject()
}

type expander struct {
	*expand.Resource
	config     *api.AsyaSpec
	generation *generation
	actor      api.AsyncActor
	transport  *transport
	template   *yaml.RNode // of the pods, as the author wrote it
	short      bool        // the actor has no spec.workload

	merged map[string]any    // the spec with its flavors, nil without
	from   map[string]string // the flavor, by the path of a field below spec
	judged map[*krm.Object]bool
}

func (e *expander) error(rule, field, message, hint string) {
	if flavor := e.flavorOf(field); flavor != "" {
		message += ", by the flavor " + krm.Shown(flavor)
	}
	e.Report(krm.Error, "async-actor/"+rule, field, message, hint)
}

// add adds an object with the labels of all of them.
func (e *expander) add(o expand.Object, component string) {
	labels := map[string]string{}
	for key, value := range e.actor.Labels {
		if component == "actor" || !strings.HasPrefix(key, e.Prefix+"/") { // those opt the workload in
			labels[key] = value
		}
	}
	labels["app.kubernetes.io/name"] = e.Name
	labels["app.kubernetes.io/component"] = component
	labels["app.kubernetes.io/part-of"] = "asya"
	o.Labels = labels
	e.Add(o)
}

// selector is what the generation selected pods by. It depends on nothing else
// that changes, because a selector is immutable.
func (e *expander) selector() map[string]string {
	if e.generation.short {
		return map[string]string{"app.kubernetes.io/name": e.Name}
	}
	return map[string]string{"app": e.Name, "asya.sh/asya": e.Name, "asya.sh/workload": strings.ToLower(e.kind())}
}

func (e *expander) kind() string {
	if e.actor.Spec.Workload.Kind == "" {
		return "Deployment"
	}
	return e.actor.Spec.Workload.Kind
}

// endActor reports whether the actor ends the way of messages.
func (e *expander) endActor() bool { return slices.Contains(e.generation.ends, e.Name) }

func value(p *int, fallback int) int {
	if p == nil {
		return fallback
	}
	return *p
}

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// workload is the Deployment or StatefulSet.
func (e *expander) workload() {
	e.runtime()
	e.addSidecar()
	e.podSpec()
	e.states()
	spec := object("selector", object("matchLabels", e.selector()))
	if e.kind() == "StatefulSet" {
		spec = object("serviceName", e.Name, "selector", object("matchLabels", e.selector()))
	}
	if !e.scales() { // otherwise KEDA owns the replicas
		spec = append(object("replicas", value(e.replicas(), 1)), spec...)
	}
	spec = append(spec, object("template", e.template.YNode())...)
	e.add(expand.Object{APIVersion: "apps/v1", Kind: e.kind(), Name: e.Name, Annotations: expand.Annotations(e.actor.Annotations), Body: object("spec", spec).node()}, "actor")
}

func (e *expander) replicas() *int {
	if e.short {
		return e.actor.Spec.Replicas
	}
	return e.actor.Spec.Workload.Replicas
}

// governingService is the headless one that a StatefulSet names.
func (e *expander) governingService() {
	if e.kind() != "StatefulSet" {
		return
	}
	spec := object("clusterIP", "None", "selector", e.selector())
	e.add(expand.Object{APIVersion: "v1", Kind: "Service", Name: e.Name, Body: object("spec", spec).node()}, "service")
}

// runtime completes the author's container.
func (e *expander) runtime() {
	c := e.runtimeContainer()
	python := e.actor.Spec.Workload.PythonExecutable
	if e.short {
		python = e.actor.Spec.PythonExecutable
	}
	if python == "" {
		python = "python3"
	}
	put(c, "command", []string{python, scriptPath})
	env := []fields{object("name", "ASYA_SOCKET_DIR", "value", socketDir)}
	if e.endActor() {
		env = append(env, object("name", "ASYA_ENABLE_VALIDATION", "value", "false"))
	}
	extend(c, "env", env...)
	mounts := []fields{object("name", socketVolume, "mountPath", socketDir)}
	if !mountsAt(c, "/tmp") {
		mounts = append(mounts, object("name", tmpVolume, "mountPath", "/tmp"))
	}
	mounts = append(mounts, object("name", Runtime, "mountPath", scriptPath, "subPath", scriptName, "readOnly", true))
	extend(c, "volumeMounts", mounts...)
	probe := func(name string, delay, period, timeout, failures int) {
		if lookup(c, name) == nil {
			put(c, name, object("exec", object("command", []string{"sh", "-c", "test -S " + socket}),
				"initialDelaySeconds", delay, "periodSeconds", period, "timeoutSeconds", timeout, "failureThreshold", failures))
		}
	}
	probe("startupProbe", 3, 2, 3, 150)
	probe("livenessProbe", 0, 30, 5, 3)
	probe("readinessProbe", 0, 10, 3, 3)
}

// addSidecar adds the container last, so that the author's stay where they are.
func (e *expander) addSidecar() {
	spec := e.actor.Spec.Sidecar
	image, policy := e.sidecarImage()
	c := object("name", Sidecar, "image", image, "imagePullPolicy", policy, "env", e.sidecarEnv())
	if len(spec.Resources) > 0 {
		c = append(c, object("resources", spec.Resources)...)
	}
	c = append(c, object("volumeMounts", []fields{
		object("name", socketVolume, "mountPath", socketDir),
		object("name", tmpVolume, "mountPath", "/tmp"),
	})...)
	extend(lookup(e.template, "spec"), "containers", c)
}

// sidecarImage is the actor's, the configuration's or the generation's, and the policy
// by which it is pulled.
func (e *expander) sidecarImage() (image, policy string) {
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
func (e *expander) sidecarEnv() (env []any) {
	all := []fields{variable("ASYA_LOG_LEVEL", "info")}
	if url := e.gateway(); url != "" {
		all = append(all, variable("ASYA_GATEWAY_URL", url))
	}
	all = append(all, variable("ASYA_ACTOR_NAME", e.Name))
	g := e.generation
	if g.namespaced {
		all = append(all, variable("ASYA_NAMESPACE", e.Namespace))
	}
	all = append(all, variable(g.success.variable, g.success.actor), variable(g.failure.variable, g.failure.actor))
	if e.endActor() {
		all = append(all, variable("ASYA_IS_END_ACTOR", "true"))
	}
	for _, name := range g.timeouts {
		all = append(all, variable(name, e.timeout()))
	}
	all = append(all, e.resiliency()...)
	if t := e.actor.Spec.Tracing; t != nil && t.Endpoint != "" {
		all = append(all, variable("OTEL_EXPORTER_OTLP_ENDPOINT", t.Endpoint))
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
func (e *expander) gateway() string {
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

// podSpec completes what is around the containers.
func (e *expander) podSpec() {
	spec := lookup(e.template, "spec")
	extend(spec, "volumes",
		object("name", socketVolume, "emptyDir", fields{}),
		object("name", tmpVolume, "emptyDir", fields{}),
		object("name", Runtime, "configMap", object("name", Runtime, "defaultMode", 0o755)))
	if e.actor.Spec.Timeout.GracefulShutdown != nil || lookup(spec, "terminationGracePeriodSeconds") == nil {
		put(spec, "terminationGracePeriodSeconds", value(e.actor.Spec.Timeout.GracefulShutdown, defaultShutdown))
	}
	if e.transport.config.ActorRoleARN != "" {
		put(spec, "serviceAccountName", e.accountName())
	}
	if lookup(e.template, "metadata") == nil {
		prepend(e.template, "metadata", fields{})
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
	if e.generation.short {
		put(labels, "asya.sh/actor", e.Name)
	}
	if !e.short {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(e.actor.Labels)) { // of the actor's flow, team and so on
		prefix, _, _ := strings.Cut(key, "/")
		if prefix != "app.kubernetes.io" && prefix != "crossplane.io" && prefix != e.Prefix && key != "asya.sh/actor" {
			put(labels, key, e.actor.Labels[key])
		}
	}
}

// runtimeConfigMap holds the script. All actors of a namespace share it.
func (e *expander) runtimeConfigMap() {
	script := text(e.config.RuntimeScript)
	if script == "" {
		script = *e.generation.script
	}
	e.Add(expand.Object{
		APIVersion: "v1", Kind: "ConfigMap", Name: Runtime, Shared: true,
		Labels: map[string]string{"app.kubernetes.io/name": Runtime, "app.kubernetes.io/component": Runtime, "app.kubernetes.io/part-of": "asya"},
		Body:   object("data", object(scriptName, &yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Style: yaml.LiteralStyle, Value: script})).node(),
	})
}

func (e *expander) accountName() string { return "asya-" + e.Name }

// serviceAccount carries the IAM role (IRSA), for SQS on EKS.
func (e *expander) serviceAccount() {
	if role := e.transport.config.ActorRoleARN; role != "" {
		e.add(expand.Object{
			APIVersion: "v1", Kind: "ServiceAccount", Name: e.accountName(),
			Annotations: map[string]string{"eks.amazonaws.com/role-arn": role},
		}, "serviceaccount")
	}
}
