// Package asyncactor expands the AsyncActor of 004 into the objects that the Asya operator created:
// the workload with its sidecar, the runtime script, scaling by KEDA, the queue as a declared
// resource, and the credentials and permissions that they need.
package asyncactor

import (
	"cmp"
	_ "embed"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/internal/node"
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
	r.Blame = e.blame
	if !r.Decode("field", &e.actor) {
		return
	}
	if g.short && !applyFlavors(e) {
		return
	}
	check(e)
	if r.Failed() {
		return
	}
	addWorkload(e)
	addRuntimeConfigMap(e)
	if role := e.transport.config.ActorRoleARN; role != "" { // of IRSA, for SQS on EKS
		e.add("serviceaccount", "v1", "ServiceAccount", e.accountName(),
			map[string]string{"eks.amazonaws.com/role-arn": role}, nil)
	}
	addQueue(e)
	addScaledObject(e)
}

type expander struct {
	*expand.Resource
	config     *api.AsyaSpec
	generation *generation
	actor      api.AsyncActor
	transport  *transport
	template   *yaml.RNode // of the pods

	merged map[string]any    // the spec with its flavors, nil without
	from   map[string]string // the flavor, by the path of a field below spec
	judged map[*krm.Object]bool
}

// add adds an object of a component with a spec, and the labels of all objects.
func (e *expander) add(component, apiVersion, kind, name string, annotations map[string]string,
	spec node.Fields) {
	labels := map[string]string{}
	for key, value := range e.actor.Labels {
		// Labels with the prefix opt the workload in.
		if component == "actor" || !strings.HasPrefix(key, e.Prefix+"/") {
			labels[key] = value
		}
	}
	labels["app.kubernetes.io/name"] = e.Name
	labels["app.kubernetes.io/component"] = component
	labels["app.kubernetes.io/part-of"] = "asya"
	o := expand.Object{APIVersion: apiVersion, Kind: kind, Name: name, Labels: labels,
		Annotations: annotations}
	if spec != nil {
		o.Body = node.Map("spec", spec).Node()
	}
	e.Add(o)
}

// addShared adds an object that the actors of a namespace share.
func (e *expander) addShared(component, apiVersion, kind, name string,
	annotations map[string]string, body node.Fields) {
	e.Add(expand.Object{
		APIVersion: apiVersion, Kind: kind, Name: name, Shared: true, Annotations: annotations,
		Body: body.Node(),
		Labels: map[string]string{"app.kubernetes.io/name": name,
			"app.kubernetes.io/component": component, "app.kubernetes.io/part-of": "asya"},
	})
}

// selector returns the generation's selector of pods. It depends on nothing else that changes,
// because a selector is immutable.
func (e *expander) selector() map[string]string {
	if e.generation.short {
		return map[string]string{"app.kubernetes.io/name": e.Name}
	}
	return map[string]string{"app": e.Name, keys.Asya + "/asya": e.Name,
		keys.Asya + "/workload": strings.ToLower(e.kind())}
}

func (e *expander) kind() string {
	return cmp.Or(e.actor.Spec.Workload.Kind, "Deployment")
}

// endActor reports whether messages end at the actor.
func (e *expander) endActor() bool { return slices.Contains(e.generation.endActors, e.Name) }

// addWorkload adds the Deployment or StatefulSet.
func addWorkload(e *expander) {
	completeRuntime(e)
	addSidecar(e)
	completePod(e)
	addStates(e)
	var replicas, service any
	if !e.scales() { // otherwise KEDA owns them
		replicas = node.Or(e.actor.Spec.Workload.Replicas, 1)
	}
	if e.kind() == "StatefulSet" {
		service = e.Name
	}
	e.add("actor", "apps/v1", e.kind(), e.Name, expand.Annotations(e.actor.Annotations),
		node.Map("replicas", replicas, "serviceName", service, "selector",
			node.Map("matchLabels", e.selector()), "template", e.template.YNode()))
	if service != nil { // the headless one that a StatefulSet names
		e.add("service", "v1", "Service", e.Name, nil,
			node.Map("clusterIP", "None", "selector", e.selector()))
	}
}

func completeRuntime(e *expander) {
	c := e.runtimeContainer()
	node.Set(c, "command", []string{cmp.Or(e.actor.Spec.Workload.PythonExecutable, "python3"),
		scriptPath})
	env := []node.Fields{node.Map("name", "ASYA_SOCKET_DIR", "value", socketDir)}
	if e.endActor() {
		env = append(env, node.Map("name", "ASYA_ENABLE_VALIDATION", "value", "false"))
	}
	node.Extend(c, "env", env...)
	mounts := []node.Fields{node.Map("name", socketVolume, "mountPath", socketDir)}
	if !slices.ContainsFunc(node.Items(c, "volumeMounts"),
		func(m *yaml.RNode) bool { return node.Text(m, "mountPath") == "/tmp" }) {
		mounts = append(mounts, node.Map("name", tmpVolume, "mountPath", "/tmp"))
	}
	mounts = append(mounts, node.Map("name", Runtime, "mountPath", scriptPath, "subPath",
		scriptName, "readOnly", true))
	node.Extend(c, "volumeMounts", mounts...)
	probe := func(name string, delay, period, timeout, failures int) {
		if node.Get(c, name) == nil {
			node.Set(c, name,
				node.Map("exec", node.Map("command", []string{"sh", "-c", "test -S " + socket}),
					"initialDelaySeconds", delay, "periodSeconds", period, "timeoutSeconds",
					timeout, "failureThreshold", failures))
		}
	}
	probe("startupProbe", 3, 2, 3, 150)
	probe("livenessProbe", 0, 30, 5, 3)
	probe("readinessProbe", 0, 10, 3, 3)
}

// addSidecar adds the container last, so that the indexes of the author's do not change.
func addSidecar(e *expander) {
	spec := e.actor.Spec.Sidecar
	image, policy := sidecarImage(e)
	mounts := []node.Fields{node.Map("name", socketVolume, "mountPath", socketDir),
		node.Map("name", tmpVolume, "mountPath", "/tmp")}
	node.Extend(node.Get(e.template, "spec"), "containers",
		node.Map("name", Sidecar, "image", image, "imagePullPolicy", policy, "env", sidecarEnv(e),
			"resources", node.Given(spec.Resources), "volumeMounts", mounts))
}

// sidecarImage returns the actor's image, the configuration's or the generation's, and the pull
// policy.
func sidecarImage(e *expander) (image, policy string) {
	image, policy = node.Or(e.config.SidecarImage, e.generation.image), "IfNotPresent"
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

// sidecarEnv returns 004's "Injected environment variables" in the form of the generation, followed
// by the author's, which override those of the same name.
func sidecarEnv(e *expander) (env []any) {
	g := e.generation
	all := variables("ASYA_LOG_LEVEL", "info", "ASYA_GATEWAY_URL", gateway(e), "ASYA_ACTOR_NAME",
		e.Name, "ASYA_NAMESPACE", e.Namespace)
	all = append(all, variables(g.ends...)...)
	if e.endActor() {
		all = append(all, variable("ASYA_IS_END_ACTOR", "true"))
	}
	all = append(all, variable(g.timeout, e.timeout()))
	if r := e.actor.Spec.Resiliency; r != nil {
		all = append(all, variables("ASYA_RESILIENCY_POLICIES", asJSON(r.Policies),
			"ASYA_RESILIENCY_RULES", asJSON(r.Rules))...)
	}
	if t := e.actor.Spec.Tracing; t != nil {
		all = append(all, variables("OTEL_EXPORTER_OTLP_ENDPOINT", t.Endpoint)...)
	}
	all = append(all, e.transport.env(e)...)
	all = append(all, variable("ASYA_SOCKET_DIR", socketDir))
	for _, v := range all {
		overridden := func(have map[string]any) bool { return have["name"] == v[0].Value }
		if !slices.ContainsFunc(e.actor.Spec.Sidecar.Env, overridden) {
			env = append(env, v)
		}
	}
	for _, v := range e.actor.Spec.Sidecar.Env {
		env = append(env, v)
	}
	return env
}

func (e *expander) processing() int {
	return node.Or(e.actor.Spec.Timeout.Processing, defaultProcessing)
}

// gateway returns the configured gateway, or that of the author's container.
func gateway(e *expander) string {
	if e.config.GatewayURL != nil {
		return *e.config.GatewayURL
	}
	for _, v := range node.Items(e.runtimeContainer(), "env") {
		if node.Text(v, "name") == "ASYA_GATEWAY_URL" {
			return node.Text(v, "value")
		}
	}
	return ""
}

// completePod adds the volumes, labels and settings of the pod.
func completePod(e *expander) {
	spec := node.Get(e.template, "spec")
	node.Extend(spec, "volumes",
		node.Map("name", socketVolume, "emptyDir", node.Fields{}),
		node.Map("name", tmpVolume, "emptyDir", node.Fields{}),
		node.Map("name", Runtime, "configMap", node.Map("name", Runtime, "defaultMode", 0o755)))
	if e.actor.Spec.Timeout.GracefulShutdown != nil ||
		node.Get(spec, "terminationGracePeriodSeconds") == nil {
		node.Set(spec, "terminationGracePeriodSeconds",
			node.Or(e.actor.Spec.Timeout.GracefulShutdown, defaultShutdown))
	}
	if e.transport.config.ActorRoleARN != "" {
		node.Set(spec, "serviceAccountName", e.accountName())
	}
	if node.Get(e.template, "metadata") == nil {
		node.Set(e.template, "metadata", node.Fields{})
		node.First(e.template, "metadata")
	}
	labels := node.Ensure(node.Get(e.template, "metadata"), "labels")
	selector := e.selector()
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		node.Set(labels, key, selector[key])
	}
	if !e.generation.short {
		return
	}
	node.Set(labels, keys.Asya+"/actor", e.Name)
	// Copy the labels of the actor's flow, team and so on.
	for _, key := range slices.Sorted(maps.Keys(e.actor.Labels)) {
		prefix, _, _ := strings.Cut(key, "/")
		if prefix != "app.kubernetes.io" && prefix != "crossplane.io" && prefix != e.Prefix &&
			key != keys.Asya+"/actor" {
			node.Set(labels, key, e.actor.Labels[key])
		}
	}
}

// addRuntimeConfigMap adds the ConfigMap with the script, which all actors of a namespace share.
func addRuntimeConfigMap(e *expander) {
	script := cmp.Or(node.Or(e.config.RuntimeScript, ""), *e.generation.script)
	e.addShared(Runtime, "v1", "ConfigMap", Runtime, nil,
		node.Map("data", node.Map(scriptName,
			&yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Style: yaml.LiteralStyle,
				Value: script})))
}

func (e *expander) accountName() string { return "asya-" + e.Name }

//go:embed README.md
var page string

const function = "async-actor"

// Function expands AsyncActors.
func Function() contract.Function {
	return contract.Function{
		Name: function,
		Summary: "expand AsyncActor (asya.sh) into its workload with sidecar and script, queue and " +
			"scaling by KEDA",
		Page: page,
		Kinds: []contract.Kind{{
			Name: "AsyncActor", Groups: []contract.Group{{Name: keys.Asya}},
			Versions: []string{"v1alpha1"}, Use: contract.Expands, Fields: api.AsyncActor{},
			Config: "spec.asya", Own: true,
		}, {
			Name: flavorKind, Groups: []contract.Group{{Name: flavorGroup, Open: true}},
			Versions: flavorVersions, Use: contract.Refers, Shared: true, Cluster: true,
		}},
		Migration: contract.Migration{Fields: "moved spec: the objects of the actor"},
		New:       begin,
	}
}

type state struct {
	pkg    *contract.Package
	config api.AsyaSpec
	judged map[*krm.Object]bool // flavors whose findings are reported
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, judged: make(map[*krm.Object]bool)}
	s.config = node.Or(p.Config.Asya, s.config)
	g := generationOf(p, &s.config)
	steps := contract.Steps{Expand: func(r *expand.Resource) { s.expand(r, g) }}
	if file := node.Or(s.config.RuntimeScriptFile, ""); file != "" {
		steps.File = &contract.File{Name: file, Take: s.script}
	}
	return steps
}

// maxScript bounds the script, which has to fit into a ConfigMap with its metadata.
const maxScript = 1<<20 - 8<<10

// script receives the text of the runtime script that the configuration names.
func (s *state) script(content []byte) {
	problem := ""
	switch {
	case s.config.RuntimeScript != nil:
		problem = "is named beside a runtimeScript: keep one of them"
	case content == nil:
		problem = "is not a file of the package"
	case !utf8.Valid(content):
		problem = "is not text"
	case len(content) > maxScript:
		problem = "does not fit a ConfigMap"
	}
	if problem != "" {
		s.pkg.Misconfigured("config/runtime-script", "spec.asya.runtimeScriptFile",
			text.Shown(*s.config.RuntimeScriptFile)+" "+problem,
			"correct the path, which is relative to the package; where a host passes manifests "+
				"only, write the text to spec.asya.runtimeScript")
	}
	script := string(content)
	s.config.RuntimeScript, s.config.RuntimeScriptFile = &script, nil
}
