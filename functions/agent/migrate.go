package agent

import (
	_ "embed"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/krm"
)

//go:embed migrate.txt
var moves string

// finish opts the Deployment of an Agent in. 001, "Migration Example": an Agent
// had the platform's identity.
func finish(tree *yaml.RNode, prefix string) error {
	if tree.GetKind() != "Deployment" || tree.GetLabels()[prefix+"/inject"] != "" {
		return nil
	}
	return tree.PipeE(yaml.Lookup("metadata", "labels"),
		yaml.SetField(prefix+"/inject", yaml.NewScalarRNode("enabled")))
}

// notes says what the migration of an Agent does beside moving fields.
func notes(o *krm.Object, config *api.RenderConfigSpec, prefix string) (notes []foreign.Field) {
	spec := o.Get("spec", "podTemplateSpec")
	if short := spec.Get("containers"); !short.Exists() {
		spec = spec.Get("spec")
	}
	first := true
	for c := range spec.Get("containers").Items() {
		image := c.Get("image")
		for _, source := range []string{"imageSource", "image"} {
			if image.Exists() && o.Get("spec", source).Exists() &&
				(first || Placeholder(image.Text())) {
				notes = append(notes,
					foreign.Field{Path: image.Path(), Fate: foreign.Dropped, Reason: "spec." + source +
						" sets the image"})
			}
		}
		first = false
	}
	label := prefix + "/inject"
	if !o.Get("metadata", "labels", label).Exists() && !o.Get("spec", "labels", label).Exists() {
		notes = append(notes,
			foreign.Field{Path: "Deployment metadata.labels[" + label + "]", Fate: foreign.Added,
				Reason: "an Agent has the platform's identity; remove the label if it should not"})
	}
	g := chosen(config)
	other := "spec.kagenti.generation: operator in armature.yaml names it " + operator.service(o.Name) +
		", as Kagenti's operator does since December 2025"
	if g == &operator {
		other = "spec.kagenti.generation: document in armature.yaml names it " + document.service(o.Name)
	}
	notes = append(notes, foreign.Field{Path: "Service " + g.service(o.Name), Fate: foreign.Added,
		Reason: "the name in generation " + g.name +
			", since the input has no objects that a controller made of the Agent; " + other})
	return append(notes, foreign.Field{Path: "AgentCard " + o.Name + "-card", Fate: foreign.Added,
		Reason: "keeps the agent known to discovery"})
}

// card is an AgentCard, by which the agent stays known to discovery.
func card(o *krm.Object, prefix string) []byte {
	text := "apiVersion: " + prefix + "/v1alpha1\nkind: AgentCard\nmetadata:\n  name: " + o.Name +
		"-card\n"
	if o.Namespace != "" {
		text += "  namespace: " + o.Namespace + "\n"
	}
	return []byte(text + "spec:\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: " + o.Name +
		"\n  syncPeriod: 30s\n")
}
