package identity

import (
	"fmt"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

// OptIn is what labels say about a workload.
type OptIn struct {
	// Inject says whether the workload gets the identity infrastructure.
	Inject bool
	// Refused says that a label says no, and not only nothing.
	Refused bool
	// NoSPIFFELabel says that the label that the configuration demands is missing.
	NoSPIFFELabel bool
	// Spiffe says whether it gets a SPIFFE identity.
	Spiffe bool
}

// optIn reads the opt-in of a workload from its own labels and those of its
// pod template: <prefix>/inject, and <prefix>/spiffe or its alias
// <prefix>/spire, each "enabled" or "disabled". Labels that contradict each
// other, and other values, are errors. A workload that an AgentRuntime asks for opts in
// unless a label says no.
//
// Source: 001 "Key Design Decisions"; the labels on pod templates and the alias
// are those of published manifests.
func optIn(o *krm.Object, pod krm.PodTemplate, prefix string, requireSpiffe,
	asked bool) (OptIn, []finding.Finding) {
	var findings []finding.Finding
	read := func(names ...string) (value string) {
		var first krm.Node
		for _, labels := range []krm.Node{o.Get("metadata", "labels"),
			pod.Template.Get("metadata", "labels")} {
			for _, name := range names {
				n := labels.Get(name)
				if !n.Exists() {
					continue
				}
				text := "disabled"
				if n.Is("enabled") {
					text = "enabled"
				}
				switch {
				case !n.IsScalar():
					findings = append(findings, o.Finding(finding.Error, "inject/label-value", n,
						fmt.Sprintf(
							"the label %s takes enabled or disabled, and no collection or null",
							name),
						"correct the value or remove the label"))
				case !n.Is(text):
					text = n.Text()
					findings = append(findings, o.Finding(finding.Error, "inject/label-value", n,
						fmt.Sprintf("the label %s takes enabled or disabled, not %q", name, text),
						"correct the value or remove the label"))
				case value != "" && value != text:
					findings = append(findings, o.Finding(finding.Error, "inject/label-conflict", n,
						fmt.Sprintf("is %s, but line %d has %s", text, first.Line(), value),
						"keep one of the two labels"))
				default:
					value, first = text, n
				}
			}
			if pod.Path == "" {
				break // a Pod is its own template
			}
		}
		return value
	}
	for _, labels := range []krm.Node{o.Get("metadata", "labels"),
		pod.Template.Get("metadata", "labels")} {
		if !labels.IsMap() && !labels.IsNull() && o.Contains(prefix+"/inject") {
			findings = append(findings, o.Finding(finding.Error, "inject/labels-type", labels,
				"the labels are not a mapping, so nothing reads them",
				fmt.Sprintf(
					"write them as %s/inject: enabled, without a dash or quotes around the whole",
					prefix)))
			if pod.Path == "" {
				break // a Pod is its own template
			}
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
	labels := ns.Get("metadata", "labels")
	var label krm.Node
	for _, name := range []string{prefix + "/injection", "kagenti-enabled"} {
		n := labels.Get(name)
		if !n.Exists() {
			continue
		}
		var off bool
		switch n.Text() {
		case "disabled", "false":
			off = true
		case "enabled", "true":
		default:
			findings = append(findings, ns.Finding(finding.Error, "inject/label-value", n,
				fmt.Sprintf("the label %s takes enabled or disabled, not %q", name, n.Text()),
				"correct the value or remove the label"))
			continue
		}
		if label.Exists() && off != out {
			findings = append(findings, ns.Finding(finding.Error, "inject/label-conflict", n,
				fmt.Sprintf("contradicts %s in line %d", label.Key(), label.Line()),
				"keep one of the two labels"))
		}
		out, label = off, n
	}
	return out, label, findings
}

// Injected reports whether an object carries the record of an injection.
func Injected(o *krm.Object) bool {
	return o.Get("metadata", "annotations", keys.Injected).Exists()
}
