package asyncactor

import (
	"fmt"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/expand"
)

// Defaults of scaling.
const (
	defaultMin         = 0
	defaultMax         = 50
	defaultPolling     = 10
	defaultCooldown    = 60
	defaultQueueLength = 5
)

// scaledObject has KEDA scale the workload by the length of its queue. Source:
// 004, "KEDA Integration".
func (e *expander) scaledObject() {
	s := &e.actor.Spec.Scaling
	if !s.Enabled {
		return
	}
	auth := e.triggerAuthentication()
	target := object("name", e.Name)
	if e.kind() != "Deployment" { // KEDA's default
		target = object("apiVersion", "apps/v1", "kind", e.kind(), "name", e.Name)
	}
	trigger := e.trigger()
	if auth != "" {
		trigger = append(trigger, object("authenticationRef", object("name", auth))...)
	}
	spec := object("scaleTargetRef", target,
		"minReplicaCount", value(s.MinReplicas, defaultMin), "maxReplicaCount", value(s.MaxReplicas, defaultMax),
		"pollingInterval", value(s.PollingInterval, defaultPolling), "cooldownPeriod", value(s.CooldownPeriod, defaultCooldown))
	if advanced := advanced(s.Advanced); len(advanced) > 0 {
		spec = append(spec, object("advanced", advanced)...)
	}
	spec = append(spec, object("triggers", []fields{trigger})...)
	e.add(expand.Object{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: e.Name, Body: object("spec", spec).node()}, "scaling")
}

func advanced(a *api.AsyaAdvanced) (f fields) {
	if a == nil {
		return nil
	}
	if a.RestoreToOriginalReplicaCount {
		f = append(f, object("restoreToOriginalReplicaCount", true)...)
	}
	var modifiers fields
	for _, m := range [...]struct{ key, value string }{
		{"formula", a.Formula}, {"target", a.Target}, {"activationTarget", a.ActivationTarget}, {"metricType", a.MetricType},
	} {
		if m.value != "" {
			modifiers = append(modifiers, field{m.key, m.value})
		}
	}
	if len(modifiers) > 0 {
		f = append(f, field{"scalingModifiers", modifiers})
	}
	return f
}

// trigger is what KEDA measures.
func (e *expander) trigger() fields {
	c := &e.transport.config
	length := fmt.Sprint(value(e.actor.Spec.Scaling.QueueLength, defaultQueueLength))
	name := "" // a formula needs one
	if a := e.actor.Spec.Scaling.Advanced; a != nil && a.Formula != "" {
		name = "queue"
	}
	kind, metadata := "rabbitmq", fields(nil)
	if e.transport.kind == sqs {
		kind = "aws-sqs-queue"
		metadata = object("queueURL", e.queueURL(), "queueLength", length, "awsRegion", c.Region)
		if c.Endpoint != "" {
			metadata = append(metadata, object("awsEndpoint", c.Endpoint)...)
		}
	} else {
		host := fmt.Sprintf("amqp://%s:%d", c.Host, c.Port)
		metadata = object("host", host, "vhostName", c.VHost, "queueName", e.queueName(), "protocol", "amqp", "mode", "QueueLength", "value", length)
	}
	trigger := object("type", kind, "metadata", metadata)
	if name != "" {
		trigger = append(object("name", name), trigger...)
	}
	return trigger
}

// queueURL is the queue's, or its name where the account is not known.
func (e *expander) queueURL() string {
	c := &e.transport.config
	switch {
	case c.AccountID == "":
		return e.queueName()
	case c.Endpoint != "":
		return fmt.Sprintf("%s/%s/%s", c.Endpoint, c.AccountID, e.queueName())
	}
	return fmt.Sprintf("https://sqs.%s.amazonaws.com/%s/%s", c.Region, c.AccountID, e.queueName())
}

// triggerAuthentication lets KEDA look at the queue, and gives its name. It refers
// to Secrets, and never holds one.
func (e *expander) triggerAuthentication() string {
	c := &e.transport.config
	var spec fields
	var secrets []fields
	for _, s := range e.transport.secrets() {
		secrets = append(secrets, object("parameter", s.parameter, "name", s.ref.Name, "key", s.ref.Key))
	}
	switch {
	case e.transport.kind == rabbitMQ:
		spec = object("env", []fields{object("parameter", "username", "name", "ASYA_RABBITMQ_USERNAME", "containerName", Sidecar)})
	case len(secrets) == 0 && c.ActorRoleARN != "":
		spec = object("podIdentity", object("provider", "aws", "identityOwner", "workload"))
	case len(secrets) == 0:
		spec = object("podIdentity", object("provider", "aws"))
	}
	if len(secrets) > 0 {
		spec = append(spec, object("secretTargetRef", secrets)...)
	}
	name := e.Name + "-trigger-auth"
	e.add(expand.Object{APIVersion: "keda.sh/v1alpha1", Kind: "TriggerAuthentication", Name: name, Body: object("spec", spec).node()}, "scaling")
	return name
}
