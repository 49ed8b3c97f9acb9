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

// check finds all that is wrong with the actor and its transport. Source: 004,
// "Validation Rules".
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
		e.error("workload-kind", "spec.workload.kind",
			fmt.Sprintf("an AsyncActor cannot be a %s", k), "write Deployment or StatefulSet")
	}
	readTransport(e)
	if e.transport != nil {
		checkTransport(e)
		checkComposition(e)
	}
}

// readTemplate finds the pod template, whose order and comments stay.
func readTemplate(e *expander) {
	if e.generation.short {
		readShort(e)
		return
	}
	if e.has("spec.image") && e.actor.Spec.Workload.Template == nil {
		return // reported
	}
	tree, err := e.Parse()
	if err != nil {
		e.error("layout", "", err.Error(), "write the object in block style")
		return
	}
	template := node.Get(tree, "spec", "workload", "template")
	if template == nil || template.YNode().Kind != yaml.MappingNode ||
		len(node.Items(template, "spec", "containers")) == 0 {
		e.error("no-template", templateAt, "an AsyncActor needs a pod template with containers",
			"set spec.workload.template.spec.containers, with one named asya-runtime")
		return
	}
	for key := range e.actor.Spec.Workload.Template {
		if key != "metadata" && key != "spec" {
			e.error("field", templateAt+"."+key, "a pod template has no such field",
				"remove or correct it: it has metadata and spec")
		}
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

// checkContainers is 004's "Container Naming" and "Runtime Container
// Restrictions".
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
				e.error("reserved-container", at+".name",
					"names of containers that begin with asya- are those of Asya", "rename it")
			case name == Sidecar:
				e.error("reserved-container", at+".name",
					"asya-sidecar is the name of the container that is added", "rename it")
			case name == Runtime && list == "containers":
				if found++; found > 1 {
					e.error("two-runtimes", at+".name", "a second container is named asya-runtime",
						"keep one; it is the one that holds the handler")
				}
				checkRuntime(e, c, at)
			}
		}
	}
	if found == 0 {
		e.error("no-runtime", templateAt+".spec.containers", "no container is named asya-runtime",
			"name the one that holds the handler asya-runtime")
	}
}

func checkRuntime(e *expander, c *yaml.RNode, at string) {
	if node.Get(c, "command") != nil {
		e.error("command", at+".command",
			"asya-runtime starts the runtime script, so that it has no command of its own",
			"remove it; set spec.workload.pythonExecutable to choose Python, and the variable "+
				"ASYA_HANDLER to choose what runs")
	}
	for i, v := range node.Items(c, "env") {
		name := node.Text(v, "name")
		if name == "ASYA_SOCKET_DIR" || name == "ASYA_ENABLE_VALIDATION" && e.endActor() ||
			name == stateMounts && len(e.actor.Spec.StateProxy) > 0 {
			e.error("reserved-variable", fmt.Sprintf("%s.env[%d]", at, i),
				name+" is set by what is added", "remove it")
		}
	}
	for i, m := range node.Items(c, "volumeMounts") {
		if path := node.Text(m, "mountPath"); path == socketDir || path == scriptPath ||
			path == stateDir &&
				len(e.actor.Spec.StateProxy) > 0 {
			e.error("reserved-mount", fmt.Sprintf("%s.volumeMounts[%d].mountPath", at, i),
				path+" is mounted by what is added", "mount yours elsewhere")
		}
	}
}

// checkPods finds what clashes with what is added around the containers.
func checkPods(e *expander) {
	for i, v := range node.Items(e.template, "spec", "volumes") {
		if name := node.Text(v, "name"); slices.Contains(reservedVolumes(e), name) {
			e.error("reserved-volume", fmt.Sprintf("%s.volumes[%d].name", e.generation.podAt, i),
				fmt.Sprintf("%q is the name of a volume that is added", name), "rename it")
		}
	}
	selector := e.selector()
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if have := node.Get(e.template, "metadata", "labels"); have != nil &&
			node.Get(have, key) != nil &&
			node.Text(have, key) != selector[key] {
			e.error("reserved-label", templateAt+".metadata.labels",
				fmt.Sprintf("the label %s selects the pods: it is %s, not %s", key, selector[key],
					node.Text(have, key)), "remove it, or choose another key")
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
			e.error("out-of-range", n.field, fmt.Sprintf("%d is less than %d", *n.value, n.least),
				fmt.Sprintf("write %d or more", n.least))
		}
	}
	checkPullPolicy(e, "spec.sidecar.imagePullPolicy", spec.Sidecar.ImagePullPolicy)
}

func checkPullPolicy(e *expander, field, p string) {
	if p != "" && p != "Always" && p != "IfNotPresent" && p != "Never" {
		e.error("pull-policy", field, fmt.Sprintf("%q is not a policy", text.Shown(p)),
			"write Always, IfNotPresent or Never")
	}
}

// readTransport is 004's "Transport Validation". The actor's finding says where the
// configuration is wrong, which all actors share.
func readTransport(e *expander) {
	if e.generation.short && !platformTransport(e) {
		return
	}
	name := e.actor.Spec.Transport
	t, known := e.config.Transports[name]
	names := strings.Join(slices.Sorted(maps.Keys(e.config.Transports)), ", ")
	switch {
	case name == "":
		e.error("no-transport", "spec.transport", "no transport",
			"name one of spec.asya.transports in the configuration")
	case !known && names == "":
		e.error("unknown-transport", "spec.transport",
			fmt.Sprintf("the configuration has no transport %q, nor any other", name),
			"add spec.asya.transports."+name+
				" to armature.yaml: {enabled: true, type: rabbitmq, config: {…}}")
	case !known:
		e.error("unknown-transport", "spec.transport",
			fmt.Sprintf("the configuration has no transport %q", name), "choose from "+names)
	case !t.Enabled:
		e.error("transport-disabled", "spec.transport",
			fmt.Sprintf("the transport %q is disabled in the configuration", name),
			"set spec.asya.transports."+name+".enabled: true in armature.yaml")
	case t.Type != rabbitMQ && t.Type != sqs:
		e.misconfigured("type", fmt.Sprintf("%q is not a type of transport", t.Type), "rabbitmq or sqs")
	default:
		e.transport = &transport{kind: t.Type, config: t.Config}
	}
}

// checkComposition compares the transport with the one whose Composition the actor
// chooses.
func checkComposition(e *expander) {
	other := func(field, kind string) {
		if kind != "" && kind != e.transport.kind {
			e.error("composition", field,
				fmt.Sprintf("the Composition is that of %s, and the transport %s "+
					"is of type %s", text.Shown(kind), e.actor.Spec.Transport, e.transport.kind),
				"remove it, or enable a transport of that type in armature.yaml")
		}
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

// platformTransport is the only transport that is enabled, where no actor names
// one.
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
	if len(enabled) != 1 {
		e.error("platform-transport", "spec",
			fmt.Sprintf("actors of generation %s use the one transport "+
				"that is enabled, and there are %d: %s", e.generation.name, len(enabled),
				strings.Join(enabled, ", ")),
			"enable one of spec.asya.transports in armature.yaml")
		return false
	}
	e.actor.Spec.Transport = enabled[0]
	return true
}

// misconfigured reports a mistake in the configuration of the actor's transport.
func (e *expander) misconfigured(field, message, want string) {
	e.error("transport-config", "spec.transport", message,
		fmt.Sprintf("in armature.yaml, spec.asya.transports.%s.%s: write %s",
			e.actor.Spec.Transport, field, want))
}

// fault is a mistake in the configuration of a transport, where wrong says so.
type fault struct {
	wrong                bool
	field, message, want string
}

func checkTransport(e *expander) {
	c := &e.transport.config
	faults := sqsFaults
	if e.transport.kind == rabbitMQ {
		faults = rabbitFaults
	}
	all := faults(e, c)
	for _, s := range e.transport.secrets() {
		all = append(all,
			fault{s.ref.Name == "" || s.ref.Key == "", "config", "a reference to a Secret " +
				"needs name and key", "both"})
	}
	policy, dlq := c.Queues.DeletionPolicy, c.Queues.DLQ
	badDLQ := value(dlq.MaxRetryCount, 1) < 1 || value(dlq.RetentionDays, 1) < 1 ||
		value(dlq.RetentionDays, 1) > 14
	all = append(all,
		fault{policy != "" && policy != "delete" && policy != "retain",
			"config.queues.deletionPolicy", fmt.Sprintf("%q is not a policy", policy),
			"delete or retain"},
		fault{badDLQ, "config.queues.dlq", "a number that a dead-letter queue does not take",
			"maxRetryCount of 1 or more, and retentionDays from 1 to 14"})
	for _, f := range all {
		if f.wrong {
			e.misconfigured(f.field, f.message, f.want)
		}
	}
	if c.Queues.ForceRecreate {
		e.Report(finding.Warning, "async-actor/force-recreate", "spec.transport",
			"forceRecreate has no effect: a render never deletes queues, as the operator did not",
			fmt.Sprintf(
				"remove spec.asya.transports.%s.config.queues.forceRecreate from armature.yaml",
				e.actor.Spec.Transport))
	}
	if e.Namespace == "" {
		e.error("no-namespace", "metadata",
			"the queue is named after the actor's namespace, which the manifest does not say",
			"set metadata.namespace")
	}
	if e.transport.kind == sqs {
		checkSQSNames(e, c)
	}
}

// rabbitFaults completes the configuration of a broker, and returns what is wrong with it.
func rabbitFaults(_ *expander, c *api.AsyaTransportConfig) []fault {
	c.Port, c.Username, c.VHost = cmp.Or(c.Port, 5672), cmp.Or(c.Username, "guest"), cmp.Or(c.VHost, "/")
	if c.Cluster == nil {
		c.Cluster = clusterOf(c.Host)
	}
	ofSQS := c.Region != "" || c.AccountID != "" || c.ActorRoleARN != "" || c.Endpoint != "" ||
		c.VisibilityTimeout != 0 || c.WaitTimeSeconds != 0 || c.Credentials != nil || c.Tags != nil
	nowhere := c.Host != "" && (c.Cluster == nil || c.Cluster.Name == "") &&
		value(c.Queues.AutoCreate, true)
	return []fault{
		{ofSQS, "config", "a transport of type rabbitmq has settings of sqs",
			"host, port, username, passwordSecretRef, exchange, vhost, rabbitmqClusterReference " +
				"and queues only"},
		{c.Host == "", "config.host", "no host of RabbitMQ", "the name of its Service"},
		{c.Port < 0 || c.Port > 65535, "config.port", fmt.Sprintf("%d is not a port", c.Port),
			"a port from 1 to 65535"},
		{nowhere, "config.rabbitmqClusterReference",
			fmt.Sprintf("%s does not say in which RabbitmqCluster to create the queue", c.Host),
			"{name: …, namespace: …}, or queues: {autoCreate: false}"},
	}
}

var (
	roleARN   = text.Pattern(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$`)
	accountID = text.Pattern(`^[0-9]{12}$`)
	sqsName   = text.Pattern(`^[A-Za-z0-9_-]+$`)
)

func sqsFaults(e *expander, c *api.AsyaTransportConfig) []fault {
	ofRabbitMQ := c.Host != "" || c.Port != 0 || c.Username != "" || c.PasswordSecretRef != nil ||
		c.Exchange != "" || c.VHost != "" || c.Cluster != nil
	return []fault{
		{ofRabbitMQ, "config", "a transport of type sqs has settings of rabbitmq",
			"region, accountId, actorRoleArn, endpoint, visibilityTimeout, waitTimeSeconds, " +
				"credentials, tags and queues only"},
		{c.Region == "", "config.region", "no AWS region", "one such as eu-central-1"},
		{c.AccountID != "" && !accountID().MatchString(c.AccountID), "config.accountId",
			fmt.Sprintf("%q is not an AWS account", c.AccountID), "its twelve digits, in quotes"},
		{c.ActorRoleARN != "" && !roleARN().MatchString(c.ActorRoleARN), "config.actorRoleArn",
			fmt.Sprintf("%q is not a role", c.ActorRoleARN), "arn:aws:iam::<account>:role/<name>"},
		{c.VisibilityTimeout < 0 || c.WaitTimeSeconds < 0 || c.WaitTimeSeconds > 20 ||
			e.visibility() > 43200,
			"config", "a time that SQS does not take",
			"visibilityTimeout up to 43200 and waitTimeSeconds up to 20"},
		{c.Credentials != nil &&
			(c.Credentials.AccessKeyID == nil || c.Credentials.SecretAccessKey == nil),
			"config.credentials",
			"credentials need accessKeyIdSecretRef and secretAccessKeySecretRef", "both"},
		{c.Queues.DLQ.Enabled && c.AccountID == "", "config.accountId",
			"a queue names its dead-letter queue by the AWS account",
			"its twelve digits, in quotes, or queues.dlq.enabled: false"},
	}
}

// checkSQSNames finds names of the actor that SQS or IRSA does not take.
func checkSQSNames(e *expander, c *api.AsyaTransportConfig) {
	name := e.queueName()
	if name == e.sqsDLQ() {
		e.error("queue-name", "metadata.name",
			fmt.Sprintf("%s is the name of the dead-letter queue", name), "rename the actor")
	}
	if len(name) > maxSQSQueue || !sqsName().MatchString(name) {
		e.error("queue-name", "metadata.name",
			fmt.Sprintf("SQS takes no queue named %s: at most %d "+
				"letters, digits, - and _", name, maxSQSQueue),
			"shorten the name, or take the dots out of it")
	}
	if account := node.Get(e.template, "spec", "serviceAccountName"); account != nil &&
		c.ActorRoleARN != "" {
		e.error("service-account", templateAt+".spec.serviceAccountName",
			"the role of the transport is bound to a ServiceAccount of its own, "+e.accountName(),
			"remove it, or take actorRoleArn out of the configuration")
	}
}
