package asyncactor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
)

// shortFields are the fields below spec of actors without spec.workload.
var shortFields = []string{
	"actor", "flavors", "image", "handler", "imagePullPolicy", "env", "resources", "volumeMounts", "secretRefs", "pythonExecutable", "replicas",
	"tolerations", "nodeSelector", "volumes", "resiliency", "stateProxy", "scaling.minReplicaCount", "scaling.maxReplicaCount", "scaling.additionalTriggers",
}

// newestFields are the short fields of the newest generation, in which actors do not name
// a transport.
var newestFields = []string{"initContainers", "sidecars", "tracing"}

// besideWorkload are the short fields that are allowed together with spec.workload.
var besideWorkload = []string{"actor", "resiliency"}

// checkForms reports short fields of an actor with spec.workload.
func checkForms(e *expander) {
	for _, field := range slices.Concat(shortFields, newestFields) {
		if e.has("spec."+field) && !slices.Contains(besideWorkload, field) {
			e.error("two-forms", "spec."+field, fmt.Sprintf("%s is of actors without spec.workload, and has no effect beside it", field), "write it in spec.workload or in its template, or remove spec.workload")
		}
	}
}

// readShort makes the pod template of an actor that says its container's fields
// directly. The author's variables and mounts come first, so that their places in
// findings are the author's.
func readShort(e *expander) {
	spec := &e.actor.Spec
	e.form = &shortForm
	spec.Workload.Replicas, spec.Workload.PythonExecutable = spec.Replicas, spec.PythonExecutable
	spec.Scaling.MinReplicas, spec.Scaling.MaxReplicas = spec.Scaling.MinReplicaCount, spec.Scaling.MaxReplicaCount
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
	containers := []any{object("name", Runtime, "image", spec.Image, "imagePullPolicy", given(spec.ImagePullPolicy), "env", env,
		"resources", given(spec.Resources), "volumeMounts", given(spec.VolumeMounts))}
	for _, more := range spec.Sidecars {
		containers = append(containers, more)
	}
	e.template = yaml.NewRNode(object("spec", object("initContainers", given(spec.InitContainers), "containers", containers,
		"volumes", given(spec.Volumes), "nodeSelector", given(spec.NodeSelector), "tolerations", given(spec.Tolerations))).node())
}

// timeout is the time for one message, as the sidecar reads it.
func (e *expander) timeout() string {
	if r := e.actor.Spec.Resiliency; r != nil && r.ActorTimeout != "" {
		return r.ActorTimeout
	}
	return fmt.Sprintf("%ds", e.processing())
}

func checkResiliency(e *expander) {
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

// resiliencyEnv are the sidecar's variables of spec.resiliency.
func resiliencyEnv(e *expander) []fields {
	r := e.actor.Spec.Resiliency
	if r == nil {
		return nil
	}
	const prefix = "ASYA_RESILIENCY_"
	retry := r.Retry
	if retry == nil {
		retry = &api.AsyaRetry{}
	}
	coefficient := ""
	if retry.BackoffCoefficient != nil {
		coefficient = strconv.FormatFloat(*retry.BackoffCoefficient, 'f', -1, 64)
	}
	return variables(prefix+"RETRY_POLICY", retry.Policy, prefix+"RETRY_MAX_ATTEMPTS", written(retry.MaxAttempts),
		prefix+"RETRY_INITIAL_INTERVAL", retry.InitialInterval, prefix+"RETRY_MAX_INTERVAL", retry.MaxInterval,
		prefix+"RETRY_BACKOFF_COEFFICIENT", coefficient, prefix+"RETRY_JITTER", written(retry.Jitter),
		prefix+"NON_RETRYABLE_ERRORS", strings.Join(r.NonRetryableErrors, ","), prefix+"POLICIES", asJSON(r.Policies), prefix+"RULES", asJSON(r.Rules))
}

// asJSON writes a value that was read from JSON, so that it always can be; "" for an
// empty one.
func asJSON(value any) string {
	if given(value) == nil {
		return ""
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic("asyncactor: " + err.Error())
	}
	return string(data)
}
