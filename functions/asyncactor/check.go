package asyncactor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/text"
)

const (
	templateAt  = "spec.workload.template"
	maxSQSQueue = 80
)

// check reports all errors of the actor and its transport. Source: 004, "Validation Rules".
func check(e *expander) {
	checkGeneration(e)
	checkNumbers(e)
	readTemplate(e)
	if e.template != nil {
		checkContainers(e)
		checkPods(e)
	}
	checkScaling(e)
	checkResiliency(e)
	checkStates(e)
	if k := e.kind(); k != "Deployment" && k != "StatefulSet" {
		e.Fail("workload-kind", "spec.workload.kind", "write Deployment or StatefulSet",
			"an AsyncActor cannot be a %s", k)
	}
	readTransport(e)
	if e.transport != nil {
		checkTransport(e)
		checkComposition(e)
	}
}

// readTemplate finds the pod template, whose order and comments are preserved.
func readTemplate(e *expander) {
	if e.generation.short {
		readShort(e)
		return
	}
	if e.has("spec.image") && e.actor.Spec.Workload.Template == nil {
		return // reported
	}
	tree, err := e.Parse()
	if e.FailIf(err != nil, "layout", "", "write the object in block style", "%v", err) {
		return
	}
	template := node.Get(tree, "spec", "workload", "template")
	if template == nil || template.YNode().Kind != yaml.MappingNode ||
		len(node.Items(template, "spec", "containers")) == 0 {
		e.Fail("no-template", templateAt,
			"set spec.workload.template.spec.containers, with one named asya-runtime",
			"an AsyncActor needs a pod template with containers")
		return
	}
	for key := range e.actor.Spec.Workload.Template {
		e.FailIf(key != "metadata" && key != "spec", "field", templateAt+"."+key,
			"remove or correct it: it has metadata and spec", "a pod template has no such field")
	}
	e.template = template
}

func (e *expander) runtimeContainer() *yaml.RNode {
	for _, c := range node.Items(e.template, "spec", "containers") {
		if node.Text(c, "name") == Runtime {
			return c
		}
	}
	return nil
}

// checkContainers applies 004's "Container Naming" and "Runtime Container Restrictions".
func checkContainers(e *expander) {
	found := 0
	for _, list := range [...]string{"initContainers", "containers"} {
		for i, c := range node.Items(e.template, "spec", list) {
			at := fmt.Sprintf("%s.%s[%d]", e.generation.podAt, list, i)
			if e.generation.short && list == "containers" {
				at = e.generation.podAt
				if i > 0 {
					at = fmt.Sprintf("spec.sidecars[%d]", i-1)
				}
			}
			switch name := node.Text(c, "name"); {
			case e.generation.short && at != e.generation.podAt && strings.HasPrefix(name, "asya-"):
				e.Fail("reserved-container", at+".name", "rename it",
					"names of containers that begin with asya- are those of Asya")
			case name == Sidecar:
				e.Fail("reserved-container", at+".name", "rename it",
					"asya-sidecar is the name of the container that is added")
			case name == Runtime && list == "containers":
				if found++; found > 1 {
					e.Fail("two-runtimes", at+".name",
						"keep one; it is the one that holds the handler",
						"a second container is named asya-runtime")
				}
				checkRuntime(e, c, at)
			}
		}
	}
	e.FailIf(found == 0, "no-runtime", templateAt+".spec.containers",
		"name the one that holds the handler asya-runtime", "no container is named asya-runtime")
}

func checkRuntime(e *expander, c *yaml.RNode, at string) {
	e.FailIf(node.Get(c, "command") != nil, "command", at+".command",
		"remove it; set spec.workload.pythonExecutable to choose Python, and the variable "+
			"ASYA_HANDLER to choose what runs",
		"asya-runtime starts the runtime script, so that it has no command of its own")
	for i, v := range node.Items(c, "env") {
		name := node.Text(v, "name")
		e.FailIf(name == "ASYA_SOCKET_DIR" || name == "ASYA_ENABLE_VALIDATION" && e.endActor() ||
			name == stateMounts && len(e.actor.Spec.StateProxy) > 0, "reserved-variable",
			fmt.Sprintf("%s.env[%d]", at, i), "remove it", "%s is set by what is added", name)
	}
	for i, m := range node.Items(c, "volumeMounts") {
		if path := node.Text(m, "mountPath"); path == socketDir ||
			path == scriptPath || path == stateDir && len(e.actor.Spec.StateProxy) > 0 {
			e.Fail("reserved-mount", fmt.Sprintf("%s.volumeMounts[%d].mountPath", at, i),
				"mount yours elsewhere", "%s is mounted by what is added", path)
		}
	}
}

// checkPods reports clashes with the volumes and labels that are added to the pod.
func checkPods(e *expander) {
	added := []string{socketVolume, tmpVolume, Runtime}
	if len(e.actor.Spec.StateProxy) > 0 {
		added = append(added, stateVolume)
	}
	for i, v := range node.Items(e.template, "spec", "volumes") {
		if name := node.Text(v, "name"); slices.Contains(added, name) {
			e.Fail("reserved-volume", fmt.Sprintf("%s.volumes[%d].name", e.generation.podAt, i),
				"rename it", "%q is the name of a volume that is added", name)
		}
	}
	selector := e.selector()
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if have := node.Get(e.template, "metadata", "labels"); have != nil &&
			node.Get(have, key) != nil && node.Text(have, key) != selector[key] {
			e.Fail("reserved-label", templateAt+".metadata.labels",
				"remove it, or choose another key",
				"the label %s selects the pods: it is %s, not %s", key, selector[key],
				node.Text(have, key))
		}
	}
}

func checkNumbers(e *expander) {
	spec := &e.actor.Spec
	for _, n := range [...]struct {
		field string
		value *int
		least int
	}{
		{"spec.timeout.processing", spec.Timeout.Processing, 1},
		{"spec.timeout.gracefulShutdown", spec.Timeout.GracefulShutdown, 1},
		{"spec.scaling.minReplicas", spec.Scaling.MinReplicas, 0},
		{"spec.scaling.maxReplicas", spec.Scaling.MaxReplicas, 1},
		{"spec.scaling.minReplicaCount", spec.Scaling.MinReplicaCount, 0},
		{"spec.scaling.maxReplicaCount", spec.Scaling.MaxReplicaCount, 1},
		{"spec.scaling.pollingInterval", spec.Scaling.PollingInterval, 1},
		{"spec.scaling.cooldownPeriod", spec.Scaling.CooldownPeriod, 0},
		{"spec.scaling.queueLength", spec.Scaling.QueueLength, 1},
		{"spec.workload.replicas", spec.Workload.Replicas, 0},
		{"spec.replicas", spec.Replicas, 0},
	} {
		if n.value != nil && *n.value < n.least {
			e.Fail("out-of-range", n.field, fmt.Sprintf("write %d or more", n.least),
				"%d is less than %d", *n.value, n.least)
		}
	}
	checkPullPolicy(e, "spec.sidecar.imagePullPolicy", spec.Sidecar.ImagePullPolicy)
}

func checkPullPolicy(e *expander, field, p string) {
	e.FailIf(p != "" && p != "Always" && p != "IfNotPresent" && p != "Never", "pull-policy", field,
		"write Always, IfNotPresent or Never", "%q is not a policy", p)
}

// readTransport applies 004's "Transport Validation". The finding about the actor names the field
// in the configuration, which all actors share.
func readTransport(e *expander) {
	if e.generation.short && !platformTransport(e) {
		return
	}
	name := e.actor.Spec.Transport
	t, known := e.config.Transports[name]
	names := strings.Join(slices.Sorted(maps.Keys(e.config.Transports)), ", ")
	switch {
	case name == "":
		e.Fail("no-transport", "spec.transport",
			"name one of spec.asya.transports in the configuration", "no transport")
	case !known && names == "":
		e.Fail("unknown-transport", "spec.transport", "add spec.asya.transports."+
			name+" to armature.yaml: {enabled: true, type: rabbitmq, config: {…}}",
			"the configuration has no transport %q, nor any other", name)
	case !known:
		e.Fail("unknown-transport", "spec.transport", "choose from "+names,
			"the configuration has no transport %q", name)
	case !t.Enabled:
		e.Fail("transport-disabled", "spec.transport",
			"set spec.asya.transports."+name+".enabled: true in armature.yaml",
			"the transport %q is disabled in the configuration", name)
	case t.Type != rabbitMQ && t.Type != sqs:
		e.misconfigured(true, "type", "rabbitmq or sqs", "%q is not a type of transport", t.Type)
	default:
		e.transport = &transport{kind: t.Type, config: t.Config}
	}
}

// checkComposition compares the transport with that of the Composition that the actor chooses.
func checkComposition(e *expander) {
	other := func(field, kind string) {
		e.FailIf(kind != "" && kind != e.transport.kind, "composition", field,
			"remove it, or enable a transport of that type in armature.yaml",
			"the Composition is that of %s, and the transport %s is of type %s", kind,
			e.actor.Spec.Transport, e.transport.kind)
	}
	if s := e.actor.Spec.CompositionSelector; s != nil {
		const transport = keys.Asya + "/transport"
		other("spec.compositionSelector.matchLabels["+transport+"]", s.MatchLabels[transport])
	}
	if r := e.actor.Spec.CompositionRef; r != nil {
		if kind, asyas := strings.CutPrefix(r.Name, "asyncactor-"); asyas {
			other("spec.compositionRef.name", kind)
		}
	}
}

// platformTransport chooses the only enabled transport, in a generation whose actors name none.
func platformTransport(e *expander) (found bool) {
	if e.actor.Spec.Transport != "" {
		return false // reported
	}
	var enabled []string
	for _, name := range slices.Sorted(maps.Keys(e.config.Transports)) {
		if e.config.Transports[name].Enabled {
			enabled = append(enabled, name)
		}
	}
	if e.FailIf(len(enabled) != 1, "platform-transport", "spec",
		"enable one of spec.asya.transports in armature.yaml",
		"actors of generation %s use the one transport that is enabled, and there are %d: %s",
		e.generation.name, len(enabled), strings.Join(enabled, ", ")) {
		return false
	}
	e.actor.Spec.Transport = enabled[0]
	return true
}

// misconfigured reports an error in the configuration of the actor's transport, with the field.
func (e *expander) misconfigured(wrong bool, field, want, message string, values ...any) {
	e.FailIf(wrong, "transport-config", "spec.transport",
		fmt.Sprintf("in armature.yaml, spec.asya.transports.%s.%s: write %s",
			e.actor.Spec.Transport, field, want), message, values...)
}

func checkTransport(e *expander) {
	c := &e.transport.config
	if e.transport.kind == rabbitMQ {
		checkRabbitMQ(e, c)
	} else {
		checkSQS(e, c)
	}
	for _, s := range e.transport.secrets() {
		e.misconfigured(s.ref.Name == "" || s.ref.Key == "", "config", "both",
			"a reference to a Secret needs name and key")
	}
	policy, dlq := c.Queues.DeletionPolicy, c.Queues.DLQ
	e.misconfigured(policy != "" && policy != "delete" && policy != "retain",
		"config.queues.deletionPolicy", "delete or retain", "%q is not a policy", policy)
	e.misconfigured(node.Or(dlq.MaxRetryCount, 1) < 1 || node.Or(dlq.RetentionDays, 1) < 1 ||
		node.Or(dlq.RetentionDays, 1) > 14, "config.queues.dlq",
		"maxRetryCount of 1 or more, and retentionDays from 1 to 14",
		"a number that a dead-letter queue does not take")
	if c.Queues.ForceRecreate {
		e.Report(finding.Warning, "async-actor/force-recreate", "spec.transport", fmt.Sprintf(
			"remove spec.asya.transports.%s.config.queues.forceRecreate from armature.yaml",
			e.actor.Spec.Transport),
			"forceRecreate has no effect: a render never deletes queues, as the operator did not")
	}
	e.FailIf(e.Namespace == "", "no-namespace", "metadata", "set metadata.namespace",
		"the queue is named after the actor's namespace, which the manifest does not say")
	if e.transport.kind == sqs {
		checkSQSNames(e, c)
	}
}

// checkRabbitMQ adds defaults to the configuration of a broker, and reports its errors.
func checkRabbitMQ(e *expander, c *api.AsyaTransportConfig) {
	c.Port, c.Username = cmp.Or(c.Port, 5672), cmp.Or(c.Username, "guest")
	c.VHost = cmp.Or(c.VHost, "/")
	if c.Cluster == nil {
		c.Cluster = clusterOf(c.Host)
	}
	e.misconfigured(c.Region != "" || c.AccountID != "" || c.ActorRoleARN != "" ||
		c.Endpoint != "" || c.VisibilityTimeout != 0 || c.WaitTimeSeconds != 0 ||
		c.Credentials != nil || c.Tags != nil, "config",
		"host, port, username, passwordSecretRef, exchange, vhost, rabbitmqClusterReference "+
			"and queues only", "a transport of type rabbitmq has settings of sqs")
	e.misconfigured(c.Host == "", "config.host", "the name of its Service", "no host of RabbitMQ")
	e.misconfigured(c.Port < 0 || c.Port > 65535, "config.port", "a port from 1 to 65535",
		"%d is not a port", c.Port)
	e.misconfigured(c.Host != "" && (c.Cluster == nil || c.Cluster.Name == "") &&
		node.Or(c.Queues.AutoCreate, true), "config.rabbitmqClusterReference",
		"{name: …, namespace: …}, or queues: {autoCreate: false}",
		"%s does not say in which RabbitmqCluster to create the queue", c.Host)
}

var (
	roleARN   = text.Pattern(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$`)
	accountID = text.Pattern(`^[0-9]{12}$`)
	sqsName   = text.Pattern(`^[A-Za-z0-9_-]+$`)
)

func checkSQS(e *expander, c *api.AsyaTransportConfig) {
	e.misconfigured(c.Host != "" || c.Port != 0 || c.Username != "" || c.PasswordSecretRef != nil ||
		c.Exchange != "" || c.VHost != "" || c.Cluster != nil, "config",
		"region, accountId, actorRoleArn, endpoint, visibilityTimeout, waitTimeSeconds, "+
			"credentials, tags and queues only", "a transport of type sqs has settings of rabbitmq")
	e.misconfigured(c.Region == "", "config.region", "one such as eu-central-1", "no AWS region")
	e.misconfigured(c.AccountID != "" && !accountID().MatchString(c.AccountID),
		"config.accountId", "its twelve digits, in quotes", "%q is not an AWS account", c.AccountID)
	e.misconfigured(c.ActorRoleARN != "" && !roleARN().MatchString(c.ActorRoleARN),
		"config.actorRoleArn", "arn:aws:iam::<account>:role/<name>", "%q is not a role",
		c.ActorRoleARN)
	e.misconfigured(c.VisibilityTimeout < 0 || c.WaitTimeSeconds < 0 || c.WaitTimeSeconds > 20 ||
		e.visibility() > 43200, "config",
		"visibilityTimeout up to 43200 and waitTimeSeconds up to 20",
		"a time that SQS does not take")
	e.misconfigured(c.Credentials != nil && (c.Credentials.AccessKeyID == nil ||
		c.Credentials.SecretAccessKey == nil), "config.credentials",
		"both", "credentials need accessKeyIdSecretRef and secretAccessKeySecretRef")
	e.misconfigured(c.Queues.DLQ.Enabled && c.AccountID == "", "config.accountId",
		"its twelve digits, in quotes, or queues.dlq.enabled: false",
		"a queue names its dead-letter queue by the AWS account")
}

// checkSQSNames reports names of the actor that SQS or IRSA refuses.
func checkSQSNames(e *expander, c *api.AsyaTransportConfig) {
	name := e.queueName()
	e.FailIf(name == e.sqsDLQ(), "queue-name", "metadata.name", "rename the actor",
		"%s is the name of the dead-letter queue", name)
	e.FailIf(len(name) > maxSQSQueue || !sqsName().MatchString(name), "queue-name", "metadata.name",
		"shorten the name, or take the dots out of it",
		"SQS takes no queue named %s: at most %d letters, digits, - and _", name, maxSQSQueue)
	account := node.Get(e.template, "spec", "serviceAccountName")
	e.FailIf(account != nil && c.ActorRoleARN != "", "service-account", templateAt+
		".spec.serviceAccountName", "remove it, or take actorRoleArn out of the configuration",
		"the role of the transport is bound to a ServiceAccount of its own, %s", e.accountName())
}
