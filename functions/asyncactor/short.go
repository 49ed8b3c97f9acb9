package asyncactor

import (
	"encoding/json"
	"fmt"
	"time"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/internal/node"
)

// shortFields are the fields below spec of actors without spec.workload.
var shortFields = []string{
	"initContainers", "sidecars", "tracing",
	"actor", "flavors", "image", "handler", "imagePullPolicy", "env", "resources", "volumeMounts",
	"secretRefs", "pythonExecutable", "replicas",
	"tolerations", "nodeSelector", "volumes", "resiliency", "stateProxy", "scaling.minReplicaCount",
	"scaling.maxReplicaCount", "scaling.additionalTriggers",
}

// readShort makes the pod template of an actor that says its container's fields
// directly. The author's variables and mounts come first, so that their places in
// findings are the author's.
func readShort(e *expander) {
	spec := &e.actor.Spec
	spec.Workload.Replicas, spec.Workload.PythonExecutable = spec.Replicas, spec.PythonExecutable
	spec.Scaling.MinReplicas, spec.Scaling.MaxReplicas = spec.Scaling.MinReplicaCount,
		spec.Scaling.MaxReplicaCount
	if e.has("spec.workload") {
		return // reported
	}
	for _, f := range [...]struct{ name, value string }{{"image", spec.Image},
		{"handler", spec.Handler}} {
		if f.value == "" && !e.FollowsFrom(e.Misread, "spec."+f.name) {
			e.error("required", "spec."+f.name,
				fmt.Sprintf("an AsyncActor without spec.workload needs %s", f.name),
				"write spec.image and spec.handler")
		}
	}
	if spec.Actor != "" && spec.Actor != e.Name {
		e.error("actor-name", "spec.actor",
			fmt.Sprintf("the actor %s is in a resource of another name, %s", spec.Actor, e.Name),
			"name both the same: the objects are named after the resource")
	}
	for _, field := range []string{"minReplicas", "maxReplicas"} {
		if e.has("spec.scaling." + field) {
			e.error("field", "spec.scaling."+field,
				"an AsyncActor without spec.workload has no such field",
				"write "+field[:3]+"ReplicaCount")
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
	containers := []any{node.Map("name", Runtime, "image", spec.Image, "imagePullPolicy",
		node.Given(spec.ImagePullPolicy), "env", env,
		"resources", node.Given(spec.Resources), "volumeMounts", node.Given(spec.VolumeMounts))}
	for _, more := range spec.Sidecars {
		containers = append(containers, more)
	}
	e.template = yaml.NewRNode(
		node.Map("spec", node.Map("initContainers", node.Given(spec.InitContainers), "containers",
			containers, "volumes", node.Given(spec.Volumes), "nodeSelector",
			node.Given(spec.NodeSelector), "tolerations", node.Given(spec.Tolerations))).Node())
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
	const at = "spec.resiliency.actorTimeout"
	if d, err := time.ParseDuration(r.ActorTimeout); r.ActorTimeout != "" && (err != nil || d <= 0) {
		e.error("duration", at, "not a duration above zero", "write it as 500ms, 30s or 5m")
	}
	if r.ActorTimeout != "" && e.actor.Spec.Timeout.Processing != nil {
		e.error("two-timeouts", at, "beside spec.timeout.processing, which says the same",
			"keep one of them")
	}
}

// resiliencyEnv are the sidecar's variables of spec.resiliency.
func resiliencyEnv(e *expander) []node.Fields {
	r := e.actor.Spec.Resiliency
	if r == nil {
		return nil
	}
	return variables("ASYA_RESILIENCY_POLICIES", asJSON(r.Policies), "ASYA_RESILIENCY_RULES",
		asJSON(r.Rules))
}

// asJSON writes a value that was read from JSON, so that it always can be; "" for an
// empty one.
func asJSON(value any) string {
	if node.Given(value) == nil {
		return ""
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic("asyncactor: " + err.Error())
	}
	return string(data)
}
