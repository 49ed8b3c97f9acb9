package asyncactor

import (
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/armature-dev/armature/functions/expand"
)

// onUpdate makes whoever applies leave an existing queue alone: 004, "Do NOT
// modify queue (preserve messages)". It is Flux's annotation, which `armature
// apply` heeds too.
const onUpdate = "kustomize.toolkit.fluxcd.io/ssa"

// Defaults of dead-letter queues.
const (
	defaultRetries   = 3
	defaultRetention = 14 // days
)

// defaultExchange is the sidecar's.
const defaultExchange = "asya"

// queue declares the queue for the operator that makes it: RabbitMQ's topology
// operator or AWS' controller for SQS.
func (e *expander) queue() {
	c := &e.transport.config
	e.Claim(fmt.Sprintf("queue %s of transport %s", e.queueName(), e.actor.Spec.Transport))
	switch {
	case c.Queues.AutoCreate != nil && !*c.Queues.AutoCreate:
	case e.transport.kind == sqs:
		e.sqsQueue()
	default:
		e.rabbitQueue()
	}
}

// addQueue adds an object that declares something of the transport.
func (e *expander) addQueue(apiVersion, kind, name string, annotations map[string]string, spec fields) {
	e.addTransport("queue", apiVersion, kind, name, annotations, spec)
}

// deadLetters is the component of queues that are not an actor's own.
const deadLetters = "dead-letters"

func (e *expander) addTransport(component, apiVersion, kind, name string, annotations map[string]string, spec fields) {
	e.add(expand.Object{APIVersion: apiVersion, Kind: kind, Name: name, Annotations: annotations, Body: object("spec", spec).node()}, component)
}

const sqsVersion = "sqs.services.k8s.aws/v1alpha1"

func (e *expander) sqsQueue() {
	c := &e.transport.config
	annotations := map[string]string{onUpdate: "IfNotPresent"}
	if c.Queues.DeletionPolicy == "retain" {
		annotations["services.k8s.aws/deletion-policy"] = "retain"
	}
	spec := object("queueName", e.queueName(), "visibilityTimeout", fmt.Sprint(e.visibility()))
	if c.Queues.DLQ.Enabled {
		spec = append(spec, object("redrivePolicy", fmt.Sprintf(`{"deadLetterTargetArn":"arn:%s:sqs:%s:%s:%s","maxReceiveCount":%d}`,
			partition(c.Region), c.Region, c.AccountID, e.sqsDLQ(), value(c.Queues.DLQ.MaxRetryCount, defaultRetries)))...)
	}
	tags := map[string]string{"asya.sh/actor": e.Name}
	if e.Namespace != "" {
		tags["asya.sh/namespace"] = e.Namespace
	}
	maps.Copy(tags, c.Tags)
	spec = append(spec, object("tags", tags)...)
	e.addQueue(sqsVersion, "Queue", "asya-"+e.Name, annotations, spec)
	if c.Queues.DLQ.Enabled {
		e.sharedDLQ()
	}
}

// partition is the part of AWS that a region is in, as ARNs name it.
func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

// sqsDLQ is the name of the dead-letter queue that actors share.
func (e *expander) sqsDLQ() string {
	if strings.Contains(e.generation.sqsDLQ, "%s") {
		return fmt.Sprintf(e.generation.sqsDLQ, e.Namespace)
	}
	return e.generation.sqsDLQ
}

// sharedDLQ declares it. Other namespaces, and messages that somebody has to look
// at, may be in it, so that it never goes with its object.
func (e *expander) sharedDLQ() {
	c := &e.transport.config
	tags := map[string]string{"asya.sh/type": "dlq"}
	maps.Copy(tags, c.Tags)
	const day = 24 * 60 * 60
	spec := object("queueName", e.sqsDLQ(), "messageRetentionPeriod", fmt.Sprint(value(c.Queues.DLQ.RetentionDays, defaultRetention)*day), "tags", tags)
	e.Add(expand.Object{
		APIVersion: sqsVersion, Kind: "Queue", Name: "asya-dead-letters", Shared: true,
		Labels:      map[string]string{"app.kubernetes.io/name": "asya-dead-letters", "app.kubernetes.io/component": deadLetters, "app.kubernetes.io/part-of": "asya"},
		Annotations: map[string]string{onUpdate: "IfNotPresent", "services.k8s.aws/deletion-policy": "retain"},
		Body:        object("spec", spec).node(),
	})
}

const rabbitVersion = "rabbitmq.com/v1beta1"

func (e *expander) rabbitQueue() {
	c := &e.transport.config
	cluster := object("name", c.Cluster.Name)
	if c.Cluster.Namespace != "" {
		cluster = append(cluster, object("namespace", c.Cluster.Namespace)...)
	}
	at := object("vhost", c.VHost, "rabbitmqClusterReference", cluster)
	annotations := map[string]string{onUpdate: "IfNotPresent"}
	name, dlq := e.queueName(), e.queueName()+"-dlq"
	declared := func(name string, arguments fields) fields {
		spec := object("name", name, "vhost", c.VHost, "durable", true, "autoDelete", false, "rabbitmqClusterReference", cluster)
		if len(arguments) > 0 {
			spec = append(spec, object("arguments", arguments)...)
		}
		if c.Queues.DeletionPolicy == "retain" {
			spec = append(spec, object("deletionPolicy", "retain")...)
		}
		return spec
	}
	if !e.generation.declares {
		var arguments fields
		if c.Queues.DLQ.Enabled && e.generation.arguments {
			arguments = object("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dlq)
		}
		e.addQueue(rabbitVersion, "Queue", "asya-"+e.Name, annotations, declared(name, arguments))
		// The sidecar sends to the exchange with the actor's name as the key. Without
		// the binding its messages reach nobody.
		binding := object("source", e.exchange(), "destination", name, "destinationType", "queue", "routingKey", e.Name)
		e.addQueue(rabbitVersion, "Binding", "asya-"+e.Name, nil, append(binding, at...))
	}
	if !c.Queues.DLQ.Enabled {
		return
	}
	e.Claim(fmt.Sprintf("queue %s of transport %s", dlq, e.actor.Spec.Transport))
	e.addTransport(deadLetters, rabbitVersion, "Queue", "asya-"+e.Name+"-dlq", annotations, declared(dlq, nil))
	if !e.generation.arguments { // which the sidecar's own declaration would not match
		policy := object("name", name, "pattern", "^"+regexp.QuoteMeta(name)+"$", "applyTo", "queues",
			"definition", object("dead-letter-exchange", "", "dead-letter-routing-key", dlq))
		e.addQueue(rabbitVersion, "Policy", "asya-"+e.Name, nil, append(policy, at...))
	}
}

// exchange is the one that sidecars declare and send to.
func (e *expander) exchange() string {
	if e.transport.config.Exchange != "" {
		return e.transport.config.Exchange
	}
	return defaultExchange
}
