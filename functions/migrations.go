package functions

import (
	"bytes"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/agent"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/migrate"
)

// Expands names the function that expands an object, "" for objects that stand
// for themselves.
func (p *Package) Expands(o *krm.Object) string {
	if kind, read := p.shared.Kinds.Find(o.APIVersion, o.Kind); read && kind.Use == contract.Expands {
		return p.rows[kind.Row].Name
	}
	return ""
}

// ExpandsRef is Expands for a reference.
func (p *Package) ExpandsRef(ref krm.Ref) string {
	return p.Expands(&krm.Object{Ref: ref})
}

// Plain gives the objects that a custom resource stands for, as manifests of
// their own: nothing in them says what they were made from.
func (p *Package) Plain(o *krm.Object) (texts [][]byte, err error) {
	function := p.Expands(o)
	made, _ := p.Expansions.Texts(o)
	for _, text := range made {
		tree, err := yaml.Parse(string(text))
		if err != nil {
			return nil, err
		}
		for _, key := range []string{krm.RenderedFor, expand.Source} {
			if err == nil {
				err = tree.PipeE(yaml.ClearAnnotation(key))
			}
		}
		if err == nil {
			err = yaml.ClearEmptyAnnotations(tree)
		}
		if err == nil && tree.GetLabels()[identity.ManagedBy] == "armature" {
			err = tree.PipeE(yaml.Lookup("metadata", "labels"), yaml.Clear(identity.ManagedBy))
		}
		if err == nil && function == "agent" && tree.GetKind() == "Deployment" && tree.GetLabels()[p.Prefix()+"/inject"] == "" {
			// 001, "Migration Example": an Agent had the platform's identity.
			err = tree.PipeE(yaml.Lookup("metadata", "labels"), yaml.SetField(p.Prefix()+"/inject", yaml.NewScalarRNode("enabled")))
		}
		if err != nil {
			return nil, err
		}
		plain, err := krm.BlockStyle(tree)
		if err != nil {
			return nil, err
		}
		texts = append(texts, bytes.TrimLeft(plain, "\n"))
	}
	if function == "agent" {
		texts = append(texts, p.card(o))
	}
	return texts, nil
}

// PlainNotes says what Plain does beside moving fields.
func (p *Package) PlainNotes(o *krm.Object) (notes []migrate.Field) {
	if p.Expands(o) != "agent" {
		return nil
	}
	spec := o.Get("spec", "podTemplateSpec")
	if short := spec.Get("containers"); !short.Exists() {
		spec = spec.Get("spec")
	}
	first := true
	for c := range spec.Get("containers").Items() {
		image := c.Get("image")
		if image.Exists() && o.Get("spec", "imageSource").Exists() && (first || agent.Placeholder(image.Text())) {
			notes = append(notes, migrate.Field{Path: image.Path(), Fate: migrate.Dropped, Reason: "spec.imageSource says the image"})
		}
		first = false
	}
	label := p.Prefix() + "/inject"
	if !o.Get("metadata", "labels", label).Exists() && !o.Get("spec", "labels", label).Exists() {
		notes = append(notes, migrate.Field{Path: "Deployment metadata.labels[" + label + "]", Fate: migrate.Added, Reason: "an Agent has the platform's identity; remove it where it should not"})
	}
	return append(notes, migrate.Field{Path: "AgentCard " + o.Name + "-card", Fate: migrate.Added, Reason: "keeps the agent known to discovery"})
}

// card is an AgentCard, by which the agent stays known to discovery.
func (p *Package) card(o *krm.Object) []byte {
	var b strings.Builder
	b.WriteString("apiVersion: " + p.Prefix() + "/v1alpha1\nkind: AgentCard\nmetadata:\n  name: " + o.Name + "-card\n")
	if o.Namespace != "" {
		b.WriteString("  namespace: " + o.Namespace + "\n")
	}
	b.WriteString("spec:\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: " + o.Name + "\n  syncPeriod: 30s\n")
	return []byte(b.String())
}
