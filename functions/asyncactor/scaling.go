package asyncactor

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/text"
)

const (
	kedaVersion        = "keda.sh/v1alpha1"
	defaultQueueLength = 5
)

// form is the form of an actor: with spec.workload, as the operator's, or without.
type form struct {
	podAt string // the field with the pod's settings
	bound string // the suffix of the fields for replicas: minReplicas
	// The defaults of scaling.
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
	return node.Or(e.actor.Spec.Scaling.Enabled, e.generation.enabled)
}

// bounds returns the numbers of replicas between which KEDA scales.
func (e *expander) bounds() (least, most int) {
	s := &e.actor.Spec.Scaling
	return node.Or(s.MinReplicas, e.generation.min), node.Or(s.MaxReplicas, e.generation.max)
}

// addScaledObject adds the object that scales the workload by the length of its queue. Source: 004,
// "KEDA Integration".
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
		"pollingInterval", node.Or(s.PollingInterval, e.generation.polling), "cooldownPeriod",
		node.Or(s.CooldownPeriod, e.generation.cooldown),
		"advanced", advanced(e.advanced()), "triggers", triggers(e, auth)))
}

// advanced returns the author's settings of scaling.
func (e *expander) advanced() *api.AsyaAdvanced {
	return cmp.Or(e.actor.Spec.Scaling.Advanced, &api.AsyaAdvanced{})
}

// advanced returns KEDA's settings, with the behavior of its HorizontalPodAutoscaler that the
// operator wrote: it scales up immediately, and down by one pod per minute.
func advanced(a *api.AsyaAdvanced) node.Fields {
	policy := func(kind string, count int) node.Fields {
		return node.Map("type", kind, "value", count, "periodSeconds", 60)
	}
	behavior := node.Map(
		"scaleDown", node.Map("stabilizationWindowSeconds", 300, "selectPolicy", "Max", "policies",
			[]node.Fields{policy("Pods", 1)}),
		"scaleUp", node.Map("stabilizationWindowSeconds", 0, "selectPolicy", "Max", "policies",
			[]node.Fields{policy("Pods", 10), policy("Percent", 100)}))
	return node.Some("restoreToOriginalReplicaCount", a.RestoreToOriginalReplicaCount,
		"horizontalPodAutoscalerConfig", node.Map("behavior", behavior), "scalingModifiers",
		node.Some("formula", a.Formula, "target", a.Target, "activationTarget",
			a.ActivationTarget, "metricType", a.MetricType))
}

// triggers returns KEDA's triggers: the queue, with the authentication auth unless that is "", and
// the author's.
func triggers(e *expander, auth string) (all []node.Fields) {
	c, s := &e.transport.config, &e.actor.Spec.Scaling
	length := fmt.Sprint(node.Or(s.QueueLength, defaultQueueLength))
	name := "" // only a formula needs one
	if e.advanced().Formula != "" {
		name = triggerName
	}
	kind, metadata := "aws-sqs-queue", node.Map("queueURL", queueURL(e), "queueLength", length,
		"awsRegion", c.Region, "awsEndpoint", node.Given(c.Endpoint))
	if e.transport.kind == rabbitMQ {
		host := fmt.Sprintf("amqp://%s:%d", c.Host, c.Port)
		if c.PasswordSecretRef == nil { // otherwise KEDA accepts a username only with a password
			host = fmt.Sprintf("amqp://%s@%s:%d", url.PathEscape(c.Username), c.Host, c.Port)
		}
		kind, metadata = "rabbitmq", node.Map("host", host, "vhostName", c.VHost, "queueName",
			e.queueName(), "protocol", "amqp", "mode", "QueueLength", "value", length)
	}
	all = append(all, node.Some("name", name, "type", kind, "metadata", metadata,
		"authenticationRef", node.Some("name", auth)))
	for _, t := range s.AdditionalTriggers {
		var ref node.Fields
		if r := t.AuthenticationRef; r != nil {
			ref = node.Some("name", r.Name, "kind", r.Kind)
		}
		all = append(all, node.Some("name", t.Name, "type", t.Type,
			"metadata", node.Encode(t.Metadata), "authenticationRef", ref,
			"metricType", t.MetricType, "useCachedMetrics", t.UseCachedMetrics))
	}
	return all
}

// queueURL returns the URL of the queue, or its name if the account is not known.
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

// addTriggerAuthentication adds KEDA's authentication at the queue, and returns its name, or "" if
// none is needed. It refers to Secrets and contains none.
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
	spec = append(spec, node.Some("secretTargetRef", secrets)...)
	name := e.Name + "-trigger-auth"
	e.add("scaling", kedaVersion, "TriggerAuthentication", name, nil, spec)
	return name
}

// triggerName is the name of the queue's trigger in formulas.
const triggerName = "queue"

// maxScaled is the maximum length of a name, so that the name of KEDA's HorizontalPodAutoscaler,
// keda-hpa-<name>, has 63 characters.
const maxScaled = 63 - len("keda-hpa-")

// checkScaling reports settings that KEDA refuses in a ScaledObject.
func checkScaling(e *expander) {
	const at = "spec.scaling.advanced"
	a, bound := e.advanced(), e.generation.bound
	least, most := e.bounds()
	e.FailIf(least > most && !e.FollowsFrom(e.Misread, "spec.scaling"), "min-above-max",
		"spec.scaling.min"+bound, "lower it, or raise max"+bound,
		"%d is more than max%s, %d", least, bound, most)
	e.FailIf(a.MetricType != "" && a.MetricType != "AverageValue" && a.MetricType != "Value",
		"metric-type", at+".metricType", "write AverageValue or Value", "KEDA does not know %q",
		a.MetricType)
	if !e.scales() {
		return
	}
	checkTriggers(e)
	e.FailIf(len(e.Name) > maxScaled, "name-length", "metadata.name",
		fmt.Sprintf("shorten the name to %d characters, or disable scaling", maxScaled),
		"KEDA names an autoscaler keda-hpa-%s, which has %d characters, and takes 63", e.Name,
		len(e.Name)+len("keda-hpa-"))
	if a.Formula == "" {
		e.FailIf(a.Target != "" || a.ActivationTarget != "" || a.MetricType != "", "formula", at,
			"write spec.scaling.advanced.formula, such as "+triggerName+", or remove them",
			"target, activationTarget and metricType belong to a formula, and there is none")
		return
	}
	target, err := strconv.ParseFloat(a.Target, 64)
	e.FailIf(err != nil || target <= 0 || math.IsInf(target, 0), "formula", at+".target",
		`write a number in quotes, such as "5"`,
		"KEDA scales by a formula only towards a target above zero")
	target, err = strconv.ParseFloat(cmp.Or(a.ActivationTarget, "0"), 64)
	e.FailIf(err != nil || target < 0 || math.IsInf(target, 0), "formula", at+".activationTarget",
		`write a number in quotes, such as "1"`, "not a number of zero or more")
	known := triggerNames(e)
	unknown := strings.Join(unknownNames(a.Formula, known...), ", ")
	hint, is := "write the length of the queue as "+triggerName, "the only trigger is "
	if len(known) > 1 {
		hint, is = hint+", and of the others their names", "the triggers are "
	}
	e.FailIf(unknown != "", "formula", at+".formula", hint, "the formula reads %s, and %s", unknown,
		is+strings.Join(known, ", "))
}

var identifier = text.Pattern(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// triggerNames returns the triggers that a formula can read. KEDA does not pass the metrics of CPU
// and memory triggers to a formula.
func triggerNames(e *expander) []string {
	names := []string{triggerName}
	for _, t := range e.actor.Spec.Scaling.AdditionalTriggers {
		if identifier().MatchString(t.Name) && t.Name != triggerName && t.Type != "cpu" &&
			t.Type != "memory" {
			names = append(names, t.Name)
		}
	}
	return names
}

// checkTriggers reports triggers that KEDA refuses.
func checkTriggers(e *expander) {
	taken := []string{triggerName}
	for i, t := range e.actor.Spec.Scaling.AdditionalTriggers {
		at := fmt.Sprintf("spec.scaling.additionalTriggers[%d]", i)
		e.FailIf((t.Type == "" || t.Metadata == nil) && !e.FollowsFrom(e.Misread, at), "trigger",
			at, "write those of a scaler of KEDA", "a trigger needs type and metadata")
		switch {
		case t.Name == "":
		case slices.Contains(taken, t.Name):
			e.Fail("trigger", at+".name",
				"rename it: "+triggerName+" is the trigger of the actor's queue",
				"a second trigger is named %s", t.Name)
		case e.advanced().Formula != "" && !identifier().MatchString(t.Name):
			e.Fail("trigger", at+".name", "write letters, digits and _", "a formula cannot read %q",
				t.Name)
		}
		taken = append(taken, t.Name)
		e.FailIf(t.MetricType != "" && !slices.Contains([]string{"AverageValue", "Value",
			"Utilization"}, t.MetricType), "metric-type", at+".metricType",
			"write AverageValue, Value or Utilization", "KEDA does not know %q", t.MetricType)
		r := t.AuthenticationRef
		e.FailIf(r != nil && (r.Name == "" || r.Kind != "" && r.Kind != "TriggerAuthentication" &&
			r.Kind != "ClusterTriggerAuthentication"), "trigger", at+".authenticationRef",
			"write name, and kind: TriggerAuthentication or ClusterTriggerAuthentication",
			"not a reference to what KEDA logs in with")
	}
}

// formulaWords are the words of KEDA's expression language that are not names.
var formulaWords = []string{"and", "or", "not", "in", "if", "else", "true", "false", "nil",
	"matches", "contains", "startsWith", "endsWith", "let"}

// formulaTokens matches texts, numbers with their exponent or base, names with a preceding dot or a
// following parenthesis, and a let before a name.
var formulaTokens = text.Pattern("\"(?:\\\\.|[^\"\\\\])*\"?|'(?:\\\\.|[^'\\\\])*'?|`[^`]*`?|" +
	`\p{Nd}[\pL\p{Nd}_.]*|(\blet\s+)?(\.\s*)?([\pL_$][\pL\p{Nd}_$]*)(\s*\()?`)

// unknownNames returns the distinct names in a formula that no trigger has. Functions, members and
// names bound by let do not count.
func unknownNames(formula string, triggers ...string) (unknown []string) {
	known := slices.Concat(triggers, formulaWords)
	for _, token := range formulaTokens().FindAllStringSubmatch(formula, -1) {
		let, member, name, called := token[1] != "", token[2] != "", token[3], token[4] != ""
		switch {
		case let:
			known = append(known, name)
		case name != "" && !member && !called && !slices.Contains(known, name) &&
			!slices.Contains(unknown, name):
			unknown = append(unknown, name)
		}
	}
	return unknown
}
