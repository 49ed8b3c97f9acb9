package asyncactor

import (
	"fmt"
	"net/url"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/node"
)

const (
	kedaVersion        = "keda.sh/v1alpha1"
	defaultQueueLength = 5
)

// form is how an actor is written: as the operator's, with spec.workload, or without.
type form struct {
	podAt string // the field with what the pod has
	bound string // how the numbers of replicas end: minReplicas
	// What scaling is without settings of the author.
	enabled                     bool
	min, max, polling, cooldown int
}

var (
	longForm = form{podAt: templateAt + ".spec", bound: "Replicas", min: 0, max: 50, polling: 10,
		cooldown: 60}
	shortForm = form{podAt: "spec", bound: "ReplicaCount", enabled: true, min: 0, max: 10,
		polling: 30, cooldown: 300}
)

// scales reports whether KEDA owns the replicas.
func (e *expander) scales() bool {
	return value(e.actor.Spec.Scaling.Enabled, e.generation.enabled)
}

// bounds are the numbers of replicas between which KEDA scales.
func (e *expander) bounds() (least, most int) {
	s := &e.actor.Spec.Scaling
	return value(s.MinReplicas, e.generation.min), value(s.MaxReplicas, e.generation.max)
}

// addScaledObject has KEDA scale the workload by the length of its queue. Source:
// 004, "KEDA Integration".
func addScaledObject(e *expander) {
	s := &e.actor.Spec.Scaling
	if !e.scales() {
		return
	}
	auth := addTriggerAuthentication(e)
	target := node.Map("name", e.Name)
	if e.kind() != "Deployment" { // KEDA's default
		target = node.Map("apiVersion", "apps/v1", "kind", e.kind(), "name", e.Name)
	}
	least, most := e.bounds()
	e.add("scaling", kedaVersion, "ScaledObject", e.Name, nil, node.Map("scaleTargetRef", target,
		"minReplicaCount", least, "maxReplicaCount", most,
		"pollingInterval", value(s.PollingInterval, e.generation.polling), "cooldownPeriod",
		value(s.CooldownPeriod, e.generation.cooldown),
		"advanced", advanced(s.Advanced), "triggers", triggers(e, auth)))
}

// advanced is KEDA's, with the behaviour of its HorizontalPodAutoscaler as the
// operator wrote it: up at once, down by one pod in a minute.
func advanced(a *api.AsyaAdvanced) node.Fields {
	policy := func(kind string, count int) node.Fields {
		return node.Map("type", kind, "value", count, "periodSeconds", 60)
	}
	behavior := node.Map(
		"scaleDown", node.Map("stabilizationWindowSeconds", 300, "selectPolicy", "Max", "policies",
			[]node.Fields{policy("Pods", 1)}),
		"scaleUp", node.Map("stabilizationWindowSeconds", 0, "selectPolicy", "Max", "policies",
			[]node.Fields{policy("Pods", 10), policy("Percent", 100)}))
	if a == nil {
		a = &api.AsyaAdvanced{}
	}
	return node.Map("restoreToOriginalReplicaCount", node.Given(a.RestoreToOriginalReplicaCount),
		"horizontalPodAutoscalerConfig", node.Map("behavior", behavior),
		"scalingModifiers",
		node.Given(node.Map("formula", node.Given(a.Formula), "target", node.Given(a.Target),
			"activationTarget", node.Given(a.ActivationTarget), "metricType", node.Given(a.MetricType))))
}

// triggers are what KEDA measures: the queue, for which it logs in with auth unless
// that is "", and what the author adds.
func triggers(e *expander, auth string) (all []node.Fields) {
	c, s := &e.transport.config, &e.actor.Spec.Scaling
	length := fmt.Sprint(value(s.QueueLength, defaultQueueLength))
	name := "" // a formula needs one
	if s.Advanced != nil && s.Advanced.Formula != "" {
		name = triggerName
	}
	kind, metadata := "rabbitmq", node.Fields(nil)
	if e.transport.kind == sqs {
		kind = "aws-sqs-queue"
		metadata = node.Map("queueURL", queueURL(e), "queueLength", length, "awsRegion", c.Region,
			"awsEndpoint", node.Given(c.Endpoint))
	} else {
		host := fmt.Sprintf("amqp://%s:%d", c.Host, c.Port)
		if c.PasswordSecretRef == nil { // KEDA takes a username only with a password, but for this
			host = fmt.Sprintf("amqp://%s@%s:%d", url.PathEscape(c.Username), c.Host, c.Port)
		}
		metadata = node.Map("host", host, "vhostName", c.VHost, "queueName", e.queueName(),
			"protocol", "amqp", "mode", "QueueLength", "value", length)
	}
	all = append(all, node.Map("name", node.Given(name), "type", kind, "metadata", metadata,
		"authenticationRef", node.Given(node.Map("name", node.Given(auth)))))
	for _, t := range s.AdditionalTriggers {
		var ref node.Fields
		if r := t.AuthenticationRef; r != nil {
			ref = node.Map("name", r.Name, "kind", node.Given(r.Kind))
		}
		all = append(all, node.Map("name", node.Given(t.Name), "type", t.Type, "metadata",
			t.Metadata, "authenticationRef", node.Given(ref),
			"metricType", node.Given(t.MetricType), "useCachedMetrics",
			node.Given(t.UseCachedMetrics)))
	}
	return all
}

// queueURL is the queue's, or its name where the account is not known.
func queueURL(e *expander) string {
	c := &e.transport.config
	switch {
	case c.AccountID == "":
		return e.queueName()
	case c.Endpoint != "":
		return fmt.Sprintf("%s/%s/%s", c.Endpoint, c.AccountID, e.queueName())
	}
	return fmt.Sprintf("https://sqs.%s.amazonaws.com/%s/%s", c.Region, c.AccountID, e.queueName())
}

// addTriggerAuthentication lets KEDA look at the queue, and returns its name, "" for
// none. It refers to Secrets, and never holds one.
func addTriggerAuthentication(e *expander) string {
	c := &e.transport.config
	var spec node.Fields
	var secrets []node.Fields
	for _, s := range e.transport.secrets() {
		secrets = append(secrets, node.Map("parameter", s.parameter, "name", s.ref.Name, "key",
			s.ref.Key))
	}
	switch {
	case e.transport.kind == rabbitMQ && c.PasswordSecretRef == nil:
		return ""
	case e.transport.kind == rabbitMQ:
		spec = node.Map("env",
			[]node.Fields{node.Map("parameter", "username", "name", "ASYA_RABBITMQ_USERNAME",
				"containerName", Sidecar)})
	case len(secrets) == 0 && c.ActorRoleARN != "":
		spec = node.Map("podIdentity", node.Map("provider", "aws", "identityOwner", "workload"))
	case len(secrets) == 0:
		spec = node.Map("podIdentity", node.Map("provider", "aws"))
	}
	if len(secrets) > 0 {
		spec = append(spec, node.Map("secretTargetRef", secrets)...)
	}
	name := e.Name + "-trigger-auth"
	e.add("scaling", kedaVersion, "TriggerAuthentication", name, nil, spec)
	return name
}
