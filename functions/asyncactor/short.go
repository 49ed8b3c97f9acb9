package asyncactor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// shortFields are those of actors without spec.workload, below spec.
var shortFields = []string{
	"actor", "flavors", "image", "handler", "imagePullPolicy", "env", "resources", "volumeMounts", "secretRefs", "pythonExecutable", "replicas",
	"tolerations", "nodeSelector", "volumes", "resiliency", "stateProxy", "scaling.minReplicaCount", "scaling.maxReplicaCount", "scaling.additionalTriggers",
}

// newestFields are those of them that came with the generation that no actor names a
// transport for.
var newestFields = []string{"initContainers", "sidecars", "tracing"}

// besideWorkload are those of them that an actor with spec.workload may have.
var besideWorkload = []string{"actor", "resiliency"}

// checkForms reports what an actor with spec.workload says the other way.
func (e *expander) checkForms() {
	for _, field := range slices.Concat(shortFields, newestFields) {
		if e.has("spec."+field) && !slices.Contains(besideWorkload, field) {
			e.error("two-forms", "spec."+field, fmt.Sprintf("%s is of actors without spec.workload, and has no effect beside it", field), "write it in spec.workload or in its template, or remove spec.workload")
		}
	}
}

// readShort makes the pod template of an actor that says its container's fields
// directly. The author's variables and mounts come first, so that their places in
// findings are the author's.
func (e *expander) readShort() {
	spec := &e.actor.Spec
	e.short = true
	if e.has("spec.workload") {
		e.error("no-template", templateAt, "an AsyncActor needs a pod template with containers", "write spec.workload.template.spec.containers, or spec.image and spec.handler without spec.workload")
		return
	}
	for _, f := range [...]struct{ name, value string }{{"image", spec.Image}, {"handler", spec.Handler}} {
		if f.value == "" && !e.FollowsFrom(e.Misread, "spec."+f.name) {
			e.error("required", "spec."+f.name, fmt.Sprintf("an AsyncActor without spec.workload needs %s", f.name), "write spec.image and spec.handler")
		}
	}
	if spec.Actor != "" && spec.Actor != e.Name {
		e.error("actor-name", "spec.actor", fmt.Sprintf("the actor %s is in a resource of another name, %s", spec.Actor, e.Name), "name both the same: the objects are named after the resource")
	}
	for _, field := range []string{"minReplicas", "maxReplicas"} {
		if e.has("spec.scaling." + field) {
			e.error("field", "spec.scaling."+field, "an AsyncActor without spec.workload has no such field", "write "+field[:3]+"ReplicaCount")
		}
	}
	c := object("name", Runtime, "image", spec.Image)
	if spec.ImagePullPolicy != "" {
		c = append(c, object("imagePullPolicy", spec.ImagePullPolicy)...)
	}
	env := make([]any, 0, len(spec.Env)+1)
	for _, v := range spec.Env {
		env = append(env, v)
	}
	env = append(env, variable("ASYA_HANDLER", spec.Handler))
	for _, ref := range spec.SecretRefs {
		for _, key := range ref.Keys {
			env = append(env, secretVariable(key.EnvVar, ref.SecretName, key.Key))
		}
	}
	c = append(c, object("env", env)...)
	if len(spec.Resources) > 0 {
		c = append(c, object("resources", spec.Resources)...)
	}
	if len(spec.VolumeMounts) > 0 {
		c = append(c, object("volumeMounts", spec.VolumeMounts)...)
	}
	containers := []any{c}
	for _, more := range spec.Sidecars {
		containers = append(containers, more)
	}
	pod := object("containers", containers)
	if len(spec.InitContainers) > 0 {
		pod = append(object("initContainers", spec.InitContainers), pod...)
	}
	if len(spec.Volumes) > 0 {
		pod = append(pod, object("volumes", spec.Volumes)...)
	}
	if len(spec.NodeSelector) > 0 {
		pod = append(pod, object("nodeSelector", spec.NodeSelector)...)
	}
	if len(spec.Tolerations) > 0 {
		pod = append(pod, object("tolerations", spec.Tolerations)...)
	}
	e.template = yaml.NewRNode(object("spec", pod).node())
}

// timeout is the time for one message, as the sidecar reads it.
func (e *expander) timeout() string {
	if r := e.actor.Spec.Resiliency; r != nil && r.ActorTimeout != "" {
		return r.ActorTimeout
	}
	return fmt.Sprintf("%ds", e.processing())
}

func (e *expander) checkResiliency() {
	r := e.actor.Spec.Resiliency
	if r == nil {
		return
	}
	const at = "spec.resiliency"
	duration := func(field, value string) {
		if d, err := time.ParseDuration(value); value != "" && (err != nil || d <= 0) {
			e.error("duration", at+"."+field, "not a duration above zero", "write it as 500ms, 30s or 5m")
		}
	}
	duration("actorTimeout", r.ActorTimeout)
	if r.ActorTimeout != "" && e.actor.Spec.Timeout.Processing != nil {
		e.error("two-timeouts", at+".actorTimeout", "beside spec.timeout.processing, which says the same", "keep one of them")
	}
	if r.Retry == nil {
		return
	}
	duration("retry.initialInterval", r.Retry.InitialInterval)
	duration("retry.maxInterval", r.Retry.MaxInterval)
	if p := r.Retry.Policy; p != "" && p != "constant" && p != "exponential" {
		e.error("retry-policy", at+".retry.policy", fmt.Sprintf("%q is not a policy", p), "write constant or exponential")
	}
	if n := r.Retry.MaxAttempts; n != nil && *n < 0 {
		e.error("out-of-range", at+".retry.maxAttempts", fmt.Sprintf("%d is less than 0", *n), "write 0 or more")
	}
	if n := r.Retry.BackoffCoefficient; n != nil && *n < 1 {
		e.error("out-of-range", at+".retry.backoffCoefficient", "less than 1", "write 1 or more")
	}
}

// resiliency are the sidecar's variables of spec.resiliency.
func (e *expander) resiliency() (env []fields) {
	r := e.actor.Spec.Resiliency
	if r == nil {
		return nil
	}
	add := func(name, value string) {
		if value != "" {
			env = append(env, variable("ASYA_RESILIENCY_"+name, value))
		}
	}
	if retry := r.Retry; retry != nil {
		add("RETRY_POLICY", retry.Policy)
		if retry.MaxAttempts != nil {
			add("RETRY_MAX_ATTEMPTS", strconv.Itoa(*retry.MaxAttempts))
		}
		add("RETRY_INITIAL_INTERVAL", retry.InitialInterval)
		add("RETRY_MAX_INTERVAL", retry.MaxInterval)
		if retry.BackoffCoefficient != nil {
			add("RETRY_BACKOFF_COEFFICIENT", strconv.FormatFloat(*retry.BackoffCoefficient, 'f', -1, 64))
		}
		if retry.Jitter != nil {
			add("RETRY_JITTER", strconv.FormatBool(*retry.Jitter))
		}
	}
	add("NON_RETRYABLE_ERRORS", strings.Join(r.NonRetryableErrors, ","))
	if len(r.Policies) > 0 {
		add("POLICIES", asJSON(r.Policies))
	}
	if len(r.Rules) > 0 {
		add("RULES", asJSON(r.Rules))
	}
	return env
}

// asJSON writes a value that was read from JSON, so that it always can be.
func asJSON(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic("asyncactor: " + err.Error())
	}
	return string(data)
}
