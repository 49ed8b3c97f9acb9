package asyncactor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/node"
)

// The types of transports.
const (
	rabbitMQ = "rabbitmq"
	sqs      = "sqs"
)

// transport is a configured transport that has been checked, with its defaults.
type transport struct {
	kind   string
	config api.AsyaTransportConfig
}

// secret is a variable of the sidecar whose value is in a Secret of the actor's
// namespace, and how KEDA calls it.
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

// env is the sidecar's environment for the transport of an actor.
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

// visibility is how long SQS hides a message that somebody works on, in seconds.
func (e *expander) visibility() int {
	if v := e.transport.config.VisibilityTimeout; v > 0 {
		return v
	}
	return 2 * e.processing()
}

// queueName is the queue's in the transport.
func (e *expander) queueName() string {
	return "asya-" + e.Namespace + "-" + e.Name
}

// clusterOf reads a RabbitmqCluster from the name of its Service.
func clusterOf(host string) *api.ClusterRef {
	parts := strings.Split(host, ".")
	if len(parts) < 3 || parts[2] != "svc" || parts[0] == "" || parts[1] == "" {
		return nil
	}
	return &api.ClusterRef{Name: parts[0], Namespace: parts[1]}
}

func variable(name, value string) node.Fields { return node.Map("name", name, "value", value) }

// variables are those of names and values in turn, but for values that are empty.
func variables(pairs ...string) (env []node.Fields) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			env = append(env, variable(pair[0], pair[1]))
		}
	}
	return env
}

// secretVariable is a variable whose value is a key of a Secret.
func secretVariable(name, secret, key string) node.Fields {
	return node.Map("name", name, "valueFrom",
		node.Map("secretKeyRef", node.Map("name", secret, "key", key)))
}
