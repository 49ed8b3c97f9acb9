package asyncactor

import (
	"fmt"
	"net/url"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/expand"
)

const defaultQueueLength = 5

// scalingDefaults are those of the operator, and of actors without spec.workload.
type scalingDefaults struct {
	enabled                     bool
	min, max, polling, cooldown int
}

func (e *expander) scalingDefaults() scalingDefaults {
	if e.short {
		return scalingDefaults{enabled: true, min: 0, max: 10, polling: 30, cooldown: 300}
	}
	return scalingDefaults{enabled: false, min: 0, max: 50, polling: 10, cooldown: 60}
}

func (e *expander) scales() bool {
	if enabled := e.actor.Spec.Scaling.Enabled; enabled != nil {
		return *enabled
	}
	return e.scalingDefaults().enabled
}

// bounds are the numbers of replicas between which KEDA scales.
func (e *expander) bounds() (least, most int) {
	s, d := &e.actor.Spec.Scaling, e.scalingDefaults()
	if e.short {
		return value(s.MinReplicaCount, d.min), value(s.MaxReplicaCount, d.max)
	}
	return value(s.MinReplicas, d.min), value(s.MaxReplicas, d.max)
}

// boundName is the name of a bound, "min" or "max", in the form of the actor.
func (e *expander) boundName(bound string) string {
	if e.short {
		return bound + "ReplicaCount"
	}
	return bound + "Replicas"
}

// scaledObject has KEDA scale the workload by the length of its queue. Source:
// 004, "KEDA Integration".
func (e *expander) scaledObject() {
	s := &e.actor.Spec.Scaling
	if !e.scales() {
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
	least, most := e.bounds()
	d := e.scalingDefaults()
	spec := object("scaleTargetRef", target,
		"minReplicaCount", least, "maxReplicaCount", most,
		"pollingInterval", value(s.PollingInterval, d.polling), "cooldownPeriod", value(s.CooldownPeriod, d.cooldown),
		"advanced", advanced(s.Advanced), "triggers", append([]fields{trigger}, e.additionalTriggers()...))
	e.add(expand.Object{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: e.Name, Body: object("spec", spec).node()}, "scaling")
}

// advanced is KEDA's, with the behaviour of its HorizontalPodAutoscaler as the
// operator wrote it: up at once, down by one pod in a minute.
func advanced(a *api.AsyaAdvanced) (f fields) {
	policy := func(kind string, count int) fields {
		return object("type", kind, "value", count, "periodSeconds", 60)
	}
	behavior := object(
		"scaleDown", object("stabilizationWindowSeconds", 300, "selectPolicy", "Max", "policies", []fields{policy("Pods", 1)}),
		"scaleUp", object("stabilizationWindowSeconds", 0, "selectPolicy", "Max", "policies", []fields{policy("Pods", 10), policy("Percent", 100)}))
	hpa := object("horizontalPodAutoscalerConfig", object("behavior", behavior))
	if a == nil {
		return hpa
	}
	if a.RestoreToOriginalReplicaCount {
		f = append(f, object("restoreToOriginalReplicaCount", true)...)
	}
	f = append(f, hpa...)
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
		name = triggerName
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
		if c.PasswordSecretRef == nil { // KEDA takes a username only with a password, but for this
			host = fmt.Sprintf("amqp://%s@%s:%d", url.PathEscape(c.Username), c.Host, c.Port)
		}
		metadata = object("host", host, "vhostName", c.VHost, "queueName", e.queueName(), "protocol", "amqp", "mode", "QueueLength", "value", length)
	}
	trigger := object("type", kind, "metadata", metadata)
	if name != "" {
		trigger = append(object("name", name), trigger...)
	}
	return trigger
}

// additionalTriggers are the author's.
func (e *expander) additionalTriggers() (all []fields) {
	for _, t := range e.actor.Spec.Scaling.AdditionalTriggers {
		f := object("type", t.Type, "metadata", t.Metadata)
		if t.Name != "" {
			f = append(object("name", t.Name), f...)
		}
		if r := t.AuthenticationRef; r != nil {
			ref := object("name", r.Name)
			if r.Kind != "" {
				ref = append(ref, field{"kind", r.Kind})
			}
			f = append(f, field{"authenticationRef", ref})
		}
		if t.MetricType != "" {
			f = append(f, field{"metricType", t.MetricType})
		}
		if t.UseCachedMetrics != nil {
			f = append(f, field{"useCachedMetrics", *t.UseCachedMetrics})
		}
		all = append(all, f)
	}
	return all
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

// triggerAuthentication lets KEDA look at the queue, and gives its name, "" for
// none. It refers to Secrets, and never holds one.
func (e *expander) triggerAuthentication() string {
	c := &e.transport.config
	var spec fields
	var secrets []fields
	for _, s := range e.transport.secrets() {
		secrets = append(secrets, object("parameter", s.parameter, "name", s.ref.Name, "key", s.ref.Key))
	}
	switch {
	case e.transport.kind == rabbitMQ && c.PasswordSecretRef == nil:
		return ""
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
