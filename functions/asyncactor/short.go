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

// readShort builds the pod template of an actor that has its container's fields directly in the
// spec. The author's variables and mounts come first, so that findings have the author's indexes.
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
		e.FailIf(f.value == "" && !e.FollowsFrom(e.Misread, "spec."+f.name), "required",
			"spec."+f.name, "write spec.image and spec.handler",
			"an AsyncActor without spec.workload needs %s", f.name)
	}
	e.FailIf(spec.Actor != "" && spec.Actor != e.Name, "actor-name", "spec.actor",
		"name both the same: the objects are named after the resource",
		"the actor %s is in a resource of another name, %s", spec.Actor, e.Name)
	for _, field := range []string{"minReplicas", "maxReplicas"} {
		e.FailIf(e.has("spec.scaling."+field), "field", "spec.scaling."+field,
			"write "+field[:3]+"ReplicaCount",
			"an AsyncActor without spec.workload has no such field")
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
	containers := []any{node.Some("name", Runtime, "image", node.Encode(spec.Image),
		"imagePullPolicy", spec.ImagePullPolicy, "env", env, "resources", spec.Resources,
		"volumeMounts", spec.VolumeMounts)}
	for _, more := range spec.Sidecars {
		containers = append(containers, more)
	}
	e.template = yaml.NewRNode(node.Map("spec", node.Some("initContainers", spec.InitContainers,
		"containers", containers, "volumes", spec.Volumes, "nodeSelector", spec.NodeSelector,
		"tolerations", spec.Tolerations)).Node())
}

// timeout returns the time for one message in the sidecar's format.
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
	d, err := time.ParseDuration(r.ActorTimeout)
	e.FailIf(r.ActorTimeout != "" && (err != nil || d <= 0), "duration", at,
		"write it as 500ms, 30s or 5m", "not a duration above zero")
	e.FailIf(r.ActorTimeout != "" && e.actor.Spec.Timeout.Processing != nil, "two-timeouts", at,
		"keep one of them", "beside spec.timeout.processing, which says the same")
}

// asJSON writes a value that was read from JSON, which always marshals; "" for an empty one.
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
