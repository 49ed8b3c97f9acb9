package identity

import (
	"fmt"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

// OptIn is the opt-in of a workload according to its labels.
type OptIn struct {
	// Inject says whether the workload gets the identity infrastructure.
	Inject bool
	// Refused says that a label opts out explicitly.
	Refused bool
	// NoSPIFFELabel says that the label that the configuration requires is missing.
	NoSPIFFELabel bool
	// Spiffe says whether it gets a SPIFFE identity.
	Spiffe bool
}

// optIn reads the opt-in of a workload from its own labels and those of its pod template:
// <prefix>/inject, and <prefix>/spiffe or its alias <prefix>/spire, each "enabled" or "disabled".
// Contradicting labels, and other values, are errors. A workload of an AgentRuntime opts in unless
// a label opts out.
//
// Source: 001 "Key Design Decisions"; the labels on pod templates and the alias are those of
// published manifests.
func optIn(o *krm.Object, pod krm.PodTemplate, prefix string, requireSpiffe,
	asked bool) (OptIn, []finding.Finding) {
	var findings []finding.Finding
	report := func(rule string, at krm.Node, message, hint string) {
		findings = append(findings, o.Finding(finding.Error, "inject/"+rule, at, message, hint))
	}
	both := pod.Metadata(o, "labels")
	read := func(names ...string) (value string) {
		const hint = "correct the value or remove the label"
		var first krm.Node
		for _, labels := range both {
			for _, name := range names {
				n := labels.Get(name)
				text := "disabled"
				if n.Is("enabled") {
					text = "enabled"
				}
				switch {
				case !n.Exists():
				case !n.IsScalar():
					report("label-value", n, fmt.Sprintf("the label %s takes enabled or disabled, "+
						"and no collection or null", name), hint)
				case !n.Is(text):
					report("label-value", n, fmt.Sprintf(
						"the label %s takes enabled or disabled, not %q", name, n.Text()), hint)
				case value != "" && value != text:
					report("label-conflict", n, fmt.Sprintf("is %s, but line %d has %s", text,
						first.Line(), value), "keep one of the two labels")
				default:
					value, first = text, n
				}
			}
		}
		return value
	}
	for _, labels := range both {
		if !labels.IsMap() && !labels.IsNull() && o.Contains(prefix+"/inject") {
			report("labels-type", labels, "the labels are not a mapping, so nothing reads them",
				fmt.Sprintf("write them as %s/inject: enabled, without a dash or quotes around "+
					"the whole", prefix))
		}
	}
	inject := read(prefix + "/inject")
	if inject != "enabled" && !(asked && inject == "") {
		return OptIn{Refused: inject == "disabled"}, findings
	}
	spiffe := read(prefix+"/spiffe", prefix+"/spire")
	if requireSpiffe && spiffe == "" && !asked {
		findings = append(findings,
			o.Finding(finding.Info, "inject/spiffe-label-missing", o.Get("metadata", "labels"),
				fmt.Sprintf("not injected: the configuration requires the label %s/spiffe as well",
					prefix),
				fmt.Sprintf("add %s/spiffe: enabled", prefix)))
		return OptIn{NoSPIFFELabel: true}, findings
	}
	return OptIn{Inject: true, Spiffe: spiffe != "disabled"}, findings
}

// NamespaceOptsOut reads the labels of a Namespace: <prefix>/injection
// "disabled" or "false" (001), or the published kagenti-enabled "false".
func NamespaceOptsOut(ns *krm.Object,
	prefix string) (out bool, at krm.Node, findings []finding.Finding) {
	var label krm.Node
	report := func(rule string, n krm.Node, message, hint string) {
		findings = append(findings, ns.Finding(finding.Error, "inject/"+rule, n, message, hint))
	}
	for _, name := range []string{prefix + "/injection", "kagenti-enabled"} {
		n := ns.Get("metadata", "labels", name)
		off := n.Is("disabled") || n.Is("false")
		if !n.Exists() {
			continue
		}
		if !off && !n.Is("enabled") && !n.Is("true") {
			report("label-value", n, fmt.Sprintf("the label %s takes enabled or disabled, not %q",
				name, n.Text()), "correct the value or remove the label")
			continue
		}
		if label.Exists() && off != out {
			report("label-conflict", n, fmt.Sprintf("contradicts %s in line %d", label.Key(),
				label.Line()), "keep one of the two labels")
		}
		out, label = off, n
	}
	return out, label, findings
}

// Injected reports whether an object carries the record of an injection.
func Injected(o *krm.Object) bool {
	return o.Get("metadata", "annotations", keys.Injected).Exists()
}
