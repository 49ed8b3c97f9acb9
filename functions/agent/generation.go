package agent

import (
	"fmt"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
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
			"write spec.imageSource.image, or set spec.kagenti.generation: operator in armature.yaml")
	}
}

// complete adds what the operator added to pods, where the author says nothing of
// it: a port, a writable cache, and security contexts.
func (e *expander) complete() {
	containers := elements(e.spec, "containers")
	for _, c := range containers {
		if len(elements(c, "ports")) == 0 {
			put(c, "ports", encode([]containerPort{{"http", e.generation.port, "TCP"}}))
		}
	}
	e.cache(containers)
	if lookup(e.spec, "securityContext") == nil {
		put(e.spec, "securityContext",
			encode(podSecurity{RunAsNonRoot: true, RunAsUser: 1000, FSGroup: 1000,
				Seccomp: seccomp{"RuntimeDefault"}}))
	}
	for _, c := range containers {
		if lookup(c, "securityContext") == nil {
			put(c, "securityContext",
				encode(security{ReadOnlyRootFilesystem: true, Capabilities: capabilities{[]string{"ALL"}}}))
		}
	}
}

const cacheVolume = "cache"

// cache mounts an empty folder where agents keep what they have fetched.
func (e *expander) cache(containers []*yaml.RNode) {
	mounted := false
	for _, c := range containers {
		for _, m := range elements(c, "volumeMounts") {
			mounted = mounted || textOf(m, "name") == cacheVolume
		}
	}
	if !mounted {
		extend(containers[0], "volumeMounts", volumeMount{cacheVolume, "/app/.cache"})
	}
	for _, v := range elements(e.spec, "volumes") {
		if textOf(v, "name") == cacheVolume {
			return
		}
	}
	extend(e.spec, "volumes", emptyVolume{Name: cacheVolume})
}

type containerPort struct {
	Name          string `yaml:"name"`
	ContainerPort int    `yaml:"containerPort"`
	Protocol      string `yaml:"protocol"`
}

type volumeMount struct {
	Name      string `yaml:"name"`
	MountPath string `yaml:"mountPath"`
}

type emptyVolume struct {
	Name     string   `yaml:"name"`
	EmptyDir struct{} `yaml:"emptyDir"`
}

type podSecurity struct {
	RunAsNonRoot bool    `yaml:"runAsNonRoot"`
	RunAsUser    int     `yaml:"runAsUser"`
	FSGroup      int     `yaml:"fsGroup"`
	Seccomp      seccomp `yaml:"seccompProfile"`
}

type seccomp struct {
	Type string `yaml:"type"`
}

type security struct {
	AllowPrivilegeEscalation bool         `yaml:"allowPrivilegeEscalation"`
	Privileged               bool         `yaml:"privileged"`
	ReadOnlyRootFilesystem   bool         `yaml:"readOnlyRootFilesystem"`
	Capabilities             capabilities `yaml:"capabilities"`
}

type capabilities struct {
	Drop []string `yaml:"drop"`
}
