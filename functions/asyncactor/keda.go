package asyncactor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/text"
)

// triggerName is the trigger's in formulas.
const triggerName = "queue"

// maxScaled is how long a name may be, so that KEDA's HorizontalPodAutoscaler
// keda-hpa-<name> has 63 characters.
const maxScaled = 63 - len("keda-hpa-")

// checkScaling is what KEDA demands of a ScaledObject.
func checkScaling(e *expander) {
	a := e.actor.Spec.Scaling.Advanced
	const at = "spec.scaling.advanced"
	if min, max := e.bounds(); min > max && !e.FollowsFrom(e.Misread, "spec.scaling") {
		e.error("min-above-max", "spec.scaling.min"+e.generation.bound,
			fmt.Sprintf("%d is more than max%s, %d", min, e.generation.bound, max),
			"lower it, or raise max"+e.generation.bound)
	}
	if a != nil && a.MetricType != "" && a.MetricType != "AverageValue" && a.MetricType != "Value" {
		e.error("metric-type", at+".metricType", fmt.Sprintf("KEDA does not know %q", a.MetricType),
			"write AverageValue or Value")
	}
	if !e.scales() {
		return
	}
	checkTriggers(e)
	if len(e.Name) > maxScaled {
		e.error("name-length", "metadata.name",
			fmt.Sprintf("KEDA names an autoscaler keda-hpa-%s, which "+
				"has %d characters, and takes 63", e.Name, len(e.Name)+len("keda-hpa-")),
			fmt.Sprintf("shorten the name to %d characters, or disable scaling", maxScaled))
	}
	if a == nil {
		return
	}
	if a.Formula == "" {
		if a.Target != "" || a.ActivationTarget != "" || a.MetricType != "" {
			e.error("formula", at,
				"target, activationTarget and metricType belong to a formula, and there is none",
				"write spec.scaling.advanced.formula, such as "+triggerName+", or remove them")
		}
		return
	}
	if target, err := strconv.ParseFloat(a.Target, 64); err != nil || target <= 0 ||
		math.IsInf(target, 0) {
		e.error("formula", at+".target",
			"KEDA scales by a formula only towards a target above zero",
			`write a number in quotes, such as "5"`)
	}
	if n, err := strconv.ParseFloat(a.ActivationTarget, 64); a.ActivationTarget != "" &&
		(err != nil || n < 0 || math.IsInf(n, 0)) {
		e.error("formula", at+".activationTarget", "not a number of zero or more",
			`write a number in quotes, such as "1"`)
	}
	known := triggerNames(e)
	if names := unknownNames(a.Formula, known...); len(names) == 0 {
		return
	} else if have := strings.Join(known, ", "); len(known) == 1 {
		e.error("formula", at+".formula",
			fmt.Sprintf("the formula reads %s, and the only trigger is %s",
				strings.Join(names, ", "), have),
			"write the length of the queue as "+triggerName)
	} else {
		e.error("formula", at+".formula",
			fmt.Sprintf("the formula reads %s, and the triggers are %s",
				text.Shown(strings.Join(names, ", ")),
				have), "write the length of the queue as "+triggerName+
				", and of the others their names")
	}
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

// checkTriggers is what KEDA demands of triggers.
func checkTriggers(e *expander) {
	taken := []string{triggerName}
	for i, t := range e.actor.Spec.Scaling.AdditionalTriggers {
		at := fmt.Sprintf("spec.scaling.additionalTriggers[%d]", i)
		if (t.Type == "" || t.Metadata == nil) && !e.FollowsFrom(e.Misread, at) {
			e.error("trigger", at, "a trigger needs type and metadata",
				"write those of a scaler of KEDA")
		}
		switch a := e.actor.Spec.Scaling.Advanced; {
		case t.Name == "":
		case slices.Contains(taken, t.Name):
			e.error("trigger", at+".name",
				fmt.Sprintf("a second trigger is named %s", text.Shown(t.Name)),
				"rename it: "+triggerName+" is the trigger of the actor's queue")
		case a != nil && a.Formula != "" && !identifier().MatchString(t.Name):
			e.error("trigger", at+".name",
				fmt.Sprintf("a formula cannot read %q", text.Shown(t.Name)),
				"write letters, digits and _")
		}
		taken = append(taken, t.Name)
		if t.MetricType != "" && !slices.Contains([]string{"AverageValue", "Value", "Utilization"},
			t.MetricType) {
			e.error("metric-type", at+".metricType",
				fmt.Sprintf("KEDA does not know %q", text.Shown(t.MetricType)),
				"write AverageValue, Value or Utilization")
		}
		if r := t.AuthenticationRef; r != nil &&
			(r.Name == "" || r.Kind != "" && r.Kind != "TriggerAuthentication" &&
				r.Kind != "ClusterTriggerAuthentication") {
			e.error("trigger", at+".authenticationRef", "not a reference to what KEDA logs in with",
				"write name, and kind: TriggerAuthentication or ClusterTriggerAuthentication")
		}
	}
}

// formulaWords are the words of KEDA's expression language that are not names.
var formulaWords = []string{"and", "or", "not", "in", "if", "else", "true", "false", "nil",
	"matches", "contains", "startsWith", "endsWith", "let"}

// formulaTokens matches texts, numbers with their exponent or base, names with what they
// are members of or called by, and a let before a name.
var formulaTokens = text.Pattern("\"(?:\\\\.|[^\"\\\\])*\"?|'(?:\\\\.|[^'\\\\])*'?|`[^`]*`?|" +
	`\p{Nd}[\pL\p{Nd}_.]*|(\blet\s+)?(\.\s*)?([\pL_$][\pL\p{Nd}_$]*)(\s*\()?`)

// unknownNames returns the names in a formula that no trigger has, each once: what is
// neither called, nor bound by let, nor a member of something.
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
