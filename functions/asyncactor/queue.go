package asyncactor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/internal/node"
)

// onUpdate keeps Flux and `armature apply`, which read this annotation, from changing an
// existing queue: 004, "Do NOT modify queue (preserve messages)".
const onUpdate = "kustomize.toolkit.fluxcd.io/ssa"

// Defaults of dead-letter queues.
const (
	defaultRetries   = 3
	defaultRetention = 14 // days
)

// defaultExchange is the sidecar's.
const defaultExchange = "asya"

// addQueue declares the queue for the operator that makes it: RabbitMQ's topology
// operator or AWS' controller for SQS.
func addQueue(e *expander) {
	c := &e.transport.config
	e.Claim(fmt.Sprintf("queue %s of transport %s", e.queueName(), e.actor.Spec.Transport))
	switch {
	case c.Queues.AutoCreate != nil && !*c.Queues.AutoCreate:
	case e.transport.kind == sqs:
		addSQSQueue(e)
	default:
		addRabbitQueue(e)
	}
}

// deadLetters is the component of queues that are not an actor's own.
const deadLetters = "dead-letters"

const sqsVersion = "sqs.services.k8s.aws/v1alpha1"

func addSQSQueue(e *expander) {
	c := &e.transport.config
	annotations := map[string]string{onUpdate: "IfNotPresent"}
	if c.Queues.DeletionPolicy == "retain" {
		annotations["services.k8s.aws/deletion-policy"] = "retain"
	}
	var redrive any
	if c.Queues.DLQ.Enabled {
		redrive = fmt.Sprintf(`{"deadLetterTargetArn":"arn:%s:sqs:%s:%s:%s","maxReceiveCount":%d}`,
			partition(c.Region), c.Region, c.AccountID, e.sqsDLQ(),
			value(c.Queues.DLQ.MaxRetryCount, defaultRetries))
	}
	tags := map[string]string{keys.Asya + "/actor": e.Name}
	if e.Namespace != "" {
		tags[keys.Asya+"/namespace"] = e.Namespace
	}
	maps.Copy(tags, c.Tags)
	e.add("queue", sqsVersion, "Queue", "asya-"+e.Name, annotations,
		node.Map("queueName", e.queueName(), "visibilityTimeout", fmt.Sprint(e.visibility()),
			"redrivePolicy", redrive, "tags", tags))
	if c.Queues.DLQ.Enabled {
		addSharedDLQ(e)
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
	return strings.ReplaceAll(e.generation.sqsDLQ, "%s", e.Namespace)
}

// addSharedDLQ declares the dead-letter queue of all namespaces. Deleting the object does
// not delete the queue, because it may hold messages, also of other namespaces.
func addSharedDLQ(e *expander) {
	c := &e.transport.config
	tags := map[string]string{keys.Asya + "/type": "dlq"}
	maps.Copy(tags, c.Tags)
	const day = 24 * 60 * 60
	spec := node.Map("queueName", e.sqsDLQ(), "messageRetentionPeriod",
		fmt.Sprint(value(c.Queues.DLQ.RetentionDays, defaultRetention)*day), "tags", tags)
	e.addShared(deadLetters, sqsVersion, "Queue", "asya-dead-letters",
		map[string]string{onUpdate: "IfNotPresent", "services.k8s.aws/deletion-policy": "retain"},
		node.Map("spec", spec))
}

const rabbitVersion = "rabbitmq.com/v1beta1"

func addRabbitQueue(e *expander) {
	c := &e.transport.config
	cluster := node.Map("name", c.Cluster.Name, "namespace", node.Given(c.Cluster.Namespace))
	annotations := map[string]string{onUpdate: "IfNotPresent"}
	name, dlq := e.queueName(), e.queueName()+"-dlq"
	var retain any
	if c.Queues.DeletionPolicy == "retain" {
		retain = "retain"
	}
	declared := func(name string, arguments node.Fields) node.Fields {
		return node.Map("name", name, "vhost", c.VHost, "durable", true, "autoDelete", false,
			"rabbitmqClusterReference", cluster,
			"arguments", node.Given(arguments), "deletionPolicy", retain)
	}
	if !e.generation.short {
		var arguments node.Fields
		if c.Queues.DLQ.Enabled {
			arguments = node.Map("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dlq)
		}
		e.add("queue", rabbitVersion, "Queue", "asya-"+e.Name, annotations, declared(name, arguments))
		// The sidecar sends to the exchange with the actor's name as the key. Without
		// the binding its messages reach nobody.
		e.add("queue", rabbitVersion, "Binding", "asya-"+e.Name, nil,
			node.Map("source", cmp.Or(c.Exchange, defaultExchange), "destination", name,
				"destinationType", "queue", "routingKey", e.Name, "vhost", c.VHost,
				"rabbitmqClusterReference", cluster))
	}
	if !c.Queues.DLQ.Enabled {
		return
	}
	e.Claim(fmt.Sprintf("queue %s of transport %s", dlq, e.actor.Spec.Transport))
	e.add(deadLetters, rabbitVersion, "Queue", "asya-"+e.Name+"-dlq", annotations, declared(dlq, nil))
	if e.generation.short { // an argument, which the sidecar's own declaration would not match
		e.add("queue", rabbitVersion, "Policy", "asya-"+e.Name, nil,
			node.Map("name", name, "pattern", "^"+regexp.QuoteMeta(name)+"$", "applyTo", "queues",
				"definition", node.Map("dead-letter-exchange", "", "dead-letter-routing-key", dlq),
				"vhost", c.VHost, "rabbitmqClusterReference", cluster))
	}
}
