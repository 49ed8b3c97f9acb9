package asyncactor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/internal/node"
)

// The types of transports.
const (
	rabbitMQ = "rabbitmq"
	sqs      = "sqs"
)

// transport is a checked transport of the configuration, with its defaults.
type transport struct {
	kind   string
	config api.AsyaTransportConfig
}

// secret is a variable of the sidecar with a value from a Secret in the actor's namespace, and
// KEDA's name for it.
type secret struct {
	variable, parameter string
	ref                 *api.SecretKey
}

func (t *transport) secrets() (all []secret) {
	add := func(variable, parameter string, ref *api.SecretKey) {
		if ref != nil {
			all = append(all, secret{variable, parameter, ref})
		}
	}
	add("ASYA_RABBITMQ_PASSWORD", "password", t.config.PasswordSecretRef)
	if c := t.config.Credentials; c != nil {
		add("AWS_ACCESS_KEY_ID", "awsAccessKeyID", c.AccessKeyID)
		add("AWS_SECRET_ACCESS_KEY", "awsSecretAccessKey", c.SecretAccessKey)
	}
	return all
}

// env returns the sidecar's environment for the transport of an actor.
func (t *transport) env(e *expander) (env []node.Fields) {
	c := &t.config
	if t.kind == rabbitMQ {
		env = variables("ASYA_TRANSPORT", t.kind, "ASYA_RABBITMQ_HOST", c.Host,
			"ASYA_RABBITMQ_PORT", fmt.Sprint(c.Port),
			"ASYA_RABBITMQ_USERNAME", c.Username, "ASYA_RABBITMQ_EXCHANGE", c.Exchange)
	} else {
		wait := ""
		if c.WaitTimeSeconds > 0 {
			wait = fmt.Sprint(c.WaitTimeSeconds)
		}
		env = variables("ASYA_TRANSPORT", t.kind, "ASYA_AWS_REGION", c.Region, "ASYA_SQS_ENDPOINT",
			c.Endpoint, "ASYA_SQS_VISIBILITY_TIMEOUT", fmt.Sprint(e.visibility()),
			"ASYA_SQS_WAIT_TIME_SECONDS", wait)
	}
	for _, s := range t.secrets() {
		env = append(env, secretVariable(s.variable, s.ref.Name, s.ref.Key))
	}
	return env
}

// visibility returns how long SQS hides a message that is being processed, in seconds.
func (e *expander) visibility() int {
	if v := e.transport.config.VisibilityTimeout; v > 0 {
		return v
	}
	return 2 * e.processing()
}

// queueName returns the name of the queue in the transport.
func (e *expander) queueName() string {
	return "asya-" + e.Namespace + "-" + e.Name
}

// clusterOf derives a RabbitmqCluster from the host name of its Service.
func clusterOf(host string) *api.ClusterRef {
	parts := strings.Split(host, ".")
	if len(parts) < 3 || parts[2] != "svc" || parts[0] == "" || parts[1] == "" {
		return nil
	}
	return &api.ClusterRef{Name: parts[0], Namespace: parts[1]}
}

func variable(name, value string) node.Fields { return node.Map("name", name, "value", value) }

// variables returns variables from alternating names and values, without empty values.
func variables(pairs ...string) (env []node.Fields) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			env = append(env, variable(pair[0], pair[1]))
		}
	}
	return env
}

// secretVariable returns a variable with a value from a key of a Secret.
func secretVariable(name, secret, key string) node.Fields {
	return node.Map("name", name, "valueFrom",
		node.Map("secretKeyRef", node.Map("name", secret, "key", key)))
}

// onUpdate keeps Flux and `armature apply`, which read this annotation, from changing an
// existing queue: 004, "Do NOT modify queue (preserve messages)".
const onUpdate = "kustomize.toolkit.fluxcd.io/ssa"

// Defaults of dead-letter queues.
const (
	defaultRetries   = 3
	defaultRetention = 14 // days
)

// defaultExchange is the sidecar's default.
const defaultExchange = "asya"

// addQueue declares the queue for the operator that creates it: RabbitMQ's topology operator or
// AWS' controller for SQS.
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

// deadLetters is the component of dead-letter queues.
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
			node.Or(c.Queues.DLQ.MaxRetryCount, defaultRetries))
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

// partition returns the AWS partition of a region, as in ARNs.
func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

// sqsDLQ returns the name of the dead-letter queue that actors share.
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
		fmt.Sprint(node.Or(c.Queues.DLQ.RetentionDays, defaultRetention)*day), "tags", tags)
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
		// The sidecar sends to the exchange with the actor's name as the key. Without the binding
		// its messages are lost.
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
	if e.generation.short { // an argument would not match the sidecar's own declaration
		e.add("queue", rabbitVersion, "Policy", "asya-"+e.Name, nil,
			node.Map("name", name, "pattern", "^"+regexp.QuoteMeta(name)+"$", "applyTo", "queues",
				"definition", node.Map("dead-letter-exchange", "", "dead-letter-routing-key", dlq),
				"vhost", c.VHost, "rabbitmqClusterReference", cluster))
	}
}
