package agent

import (
	"fmt"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/text"
)

// generation is the release of the operator whose objects an Agent becomes.
type generation struct {
	name   string
	suffix string // of the Service's name
	port   int    // of the Service where nobody names one
	// completes says that pods get ports, a cache and security contexts.
	completes bool
	// selectsByAll says that all labels of the Agent select its pods.
	selectsByAll bool
}

func (g *generation) service(agent string) string { return agent + g.suffix }

// The generations: 000's, with the port of the CRD that was published with it, and
// Kagenti's operator from December 2025 until it lost its Agents in February 2026.
var (
	document = generation{name: "document", suffix: "-svc", port: 8080}
	operator = generation{name: "operator", port: 8000, completes: true, selectsByAll: true}
)

// chosen returns the generation that a configuration names; nil if it does not exist.
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

// generationOf returns the generation of a package. One that does not exist fails
// the render.
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

// checkGeneration reports the fields that the generation does not know.
func (e *expander) checkGeneration() {
	if e.agent.Spec.Image != "" && !e.generation.completes {
		e.error("generation", "spec.image",
			"image is not supported in generation "+e.generation.name+" of Kagenti's Agents",
			"write spec.imageSource.image, or set spec.kagenti.generation: operator in "+
				"armature.yaml")
	}
}

// complete adds what the operator added to pods, where the author says nothing of
// it: a port, a writable cache, and security contexts.
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

// cache mounts an empty folder where agents keep what they have fetched.
func (e *expander) cache(containers []*yaml.RNode) {
	mounted := false
	for _, c := range containers {
		for _, m := range node.Items(c, "volumeMounts") {
			mounted = mounted || node.Text(m, "name") == cacheVolume
		}
	}
	if !mounted {
		node.Extend(containers[0], "volumeMounts",
			node.Map("name", cacheVolume, "mountPath", "/app/.cache"))
	}
	for _, v := range node.Items(e.spec, "volumes") {
		if node.Text(v, "name") == cacheVolume {
			return
		}
	}
	node.Extend(e.spec, "volumes", node.Map("name", cacheVolume, "emptyDir", node.Fields{}))
}
