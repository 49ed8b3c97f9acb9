package agent

import (
	_ "embed"
	"fmt"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// generation is the release of the operator whose objects are rendered for an Agent.
type generation struct {
	name   string
	suffix string // of the Service's name
	port   int    // the default port of the Service
	// completes says that pods get ports, a cache and security contexts, and that all labels of the
	// Agent select them.
	completes bool
}

func (g *generation) service(agent string) string { return agent + g.suffix }

// The generations: 000's, with the port of the CRD that was published with it, and Kagenti's
// operator from December 2025 until Agents were removed from it in February 2026.
var (
	document = generation{name: "document", suffix: "-svc", port: 8080}
	operator = generation{name: "operator", port: 8000, completes: true}
)

// chosen returns the generation that a configuration names, or nil if it does not exist.
func chosen(config *api.RenderConfigSpec) *generation {
	if config == nil || config.Kagenti == nil || config.Kagenti.Generation == nil {
		return &document
	}
	for _, g := range []*generation{&document, &operator} {
		if g.name == *config.Kagenti.Generation {
			return g
		}
	}
	return nil
}

// generationOf returns the generation of a package. An unknown one fails the render.
func generationOf(p *contract.Package) *generation {
	g := chosen(p.Config)
	if g != nil {
		return g
	}
	p.Misconfigured("config/kagenti", "spec.kagenti.generation",
		fmt.Sprintf("%q is not a supported generation of Kagenti's Agents",
			text.Shown(*p.Config.Kagenti.Generation)), `write "document" or "operator"`)
	return &document
}

// complete adds the operator's defaults to pods if the author did not set them: a port, a writable
// cache, and security contexts.
func (e *expander) complete() {
	containers := node.Items(e.spec, "containers")
	for _, c := range containers {
		if len(node.Items(c, "ports")) == 0 {
			node.Set(c, "ports", []node.Fields{
				node.Map("name", "http", "containerPort", e.generation.port, "protocol", "TCP")})
		}
	}
	e.cache(containers)
	if node.Get(e.spec, "securityContext") == nil {
		node.Set(e.spec, "securityContext",
			node.Map("runAsNonRoot", true, "runAsUser", 1000, "fsGroup", 1000,
				"seccompProfile", node.Map("type", "RuntimeDefault")))
	}
	for _, c := range containers {
		if node.Get(c, "securityContext") == nil {
			node.Set(c, "securityContext", node.Map("allowPrivilegeEscalation", false, "privileged",
				false, "readOnlyRootFilesystem", true, "capabilities",
				node.Map("drop", []string{"ALL"})))
		}
	}
}

const cacheVolume = "cache"

// cache mounts an empty folder for files that agents fetch.
func (e *expander) cache(containers []*yaml.RNode) {
	isCache := func(n *yaml.RNode) bool { return node.Text(n, "name") == cacheVolume }
	if !slices.ContainsFunc(containers, func(c *yaml.RNode) bool {
		return slices.ContainsFunc(node.Items(c, "volumeMounts"), isCache)
	}) {
		node.Extend(containers[0], "volumeMounts",
			node.Map("name", cacheVolume, "mountPath", "/app/.cache"))
	}
	if !slices.ContainsFunc(node.Items(e.spec, "volumes"), isCache) {
		node.Extend(e.spec, "volumes", node.Map("name", cacheVolume, "emptyDir", node.Fields{}))
	}
}

//go:embed migrate.txt
var moves string

// finish opts the Deployment of an Agent in, because an Agent had the platform's identity (001,
// "Migration Example").
func finish(tree *yaml.RNode, prefix string) error {
	if tree.GetKind() != "Deployment" || tree.GetLabels()[prefix+"/inject"] != "" {
		return nil
	}
	return tree.PipeE(yaml.Lookup("metadata", "labels"),
		yaml.SetField(prefix+"/inject", yaml.NewScalarRNode("enabled")))
}

// notes returns the consequences of an Agent's migration other than moved fields.
func notes(o *krm.Object, config *api.RenderConfigSpec, prefix string) (notes []foreign.Field) {
	first := true
	for c := range podSpec(o).Get("containers").Items() {
		image := c.Get("image")
		for _, source := range []string{"imageSource", "image"} {
			if image.Exists() && o.Get("spec", source).Exists() &&
				(first || placeholder(image.Text())) {
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

// card returns an AgentCard, which keeps the agent known to discovery.
func card(o *krm.Object, prefix string) []byte {
	text := "apiVersion: " + prefix + "/v1alpha1\nkind: AgentCard\nmetadata:\n  name: " +
		scalar.PlainText(o.Name+"-card") + "\n"
	if o.Namespace != "" {
		text += "  namespace: " + scalar.PlainText(o.Namespace) + "\n"
	}
	return []byte(text + "spec:\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: " +
		scalar.PlainText(o.Name) + "\n  syncPeriod: 30s\n")
}
