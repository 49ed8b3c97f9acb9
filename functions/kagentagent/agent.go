// Package kagentagent expands the resources of kagent.dev to what its
// controllers made of them, with one difference: where those wrote the values of
// Secrets into their objects, these refer to them.
package kagentagent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/krm"
)

const (
	port       = 8080
	configHash = "kagent.dev/config-hash"
)

// agent expands an Agent.
func (s *settings) agent(r *expand.Resource) {
	e := expander{Resource: r, settings: s}
	if !r.Decode("kagent-agent/field", &e.agent) {
		return
	}
	s.checkFields(r)
	spec := &e.agent.Spec
	switch {
	case spec.Type == "BYO" && spec.BYO != nil && spec.BYO.Deployment != nil && spec.BYO.Deployment.Image != "":
		e.spec, e.at = spec.BYO.Deployment, "spec.byo.deployment"
		if e.spec.ImageRegistry != "" {
			e.error("field", e.at+".imageRegistry", "only a Declarative agent has an imageRegistry", "write it into image")
		}
		if e.generation == gen10 {
			e.files = map[string]string{"config.json": e.json(ordered{{"model", nil}, {"description", spec.Description}, {"instruction", ""}}), "agent-card.json": e.card(nil)}
		}
		if spec.Sandbox != nil && e.files == nil {
			e.files = map[string]string{"config.json": "", "agent-card.json": e.card(nil)}
		}
		if spec.Sandbox != nil {
			e.files[sandboxFile] = e.sandboxSettings()
		}
	case spec.Type == "BYO":
		e.error("no-image", "spec.byo", "a BYO agent needs an image", "say spec.byo.deployment.image")
	case (spec.Type == "Declarative" || spec.Type == "") && spec.Declarative != nil:
		e.spec, e.at = spec.Declarative.Deployment, "spec.declarative.deployment"
		if e.spec == nil {
			e.spec = &deploymentSpec{}
		}
		if e.spec.Image != "" || e.spec.Cmd != "" || e.spec.Args != nil || e.spec.WorkingDir != "" {
			e.error("field", e.at, "only a BYO agent has image, cmd, args and workingDir", "remove them")
		}
		e.declare(spec.Declarative)
	case e.FollowsFrom(e.Misread, "spec") && (spec.Type == "Declarative" || spec.Type == ""): // spec.declarative may be what is written wrong
	default:
		e.error("type", "spec.type", "neither a Declarative agent with spec.declarative nor a BYO agent with spec.byo", "correct spec.type")
	}
	if e.spec != nil {
		e.check()
	}
	if e.Failed() {
		return
	}
	e.build()
}

type expander struct {
	*expand.Resource
	*settings
	agent agent
	spec  *deploymentSpec
	at    string // of it

	files  map[string]string // of the configuration, nil for none
	env    []any
	filled []any // environment whose values go into the files at start

	skillsConfig    string // of the init container, "" for none
	isolated        bool   // runs code in a sandbox
	volumes, mounts []any
}

func (e *expander) error(rule, field, message, hint string) {
	e.Report(krm.Error, "kagent-agent/"+rule, field, message, hint)
}

// check reports what is wrong with the pod.
func (e *expander) check() {
	e.CheckReplicas(function, e.at+".replicas", e.spec.Replicas)
	switch {
	case e.spec.Image != "":
		e.CheckImage(function, e.at+".image", e.spec.Image)
	case e.spec.ImageRegistry != "":
		e.CheckImage(function, e.at+".imageRegistry", e.image())
	}
	seen := make(map[string]bool)
	for i, c := range e.spec.ExtraContainers {
		name, _ := c["name"].(string)
		if name == "" || name == "kagent" || seen[name] {
			e.error("container", fmt.Sprintf("%s.extraContainers[%d].name", e.at, i), "a further container needs a name of its own, and not kagent", "rename it")
		}
		seen[name] = true
	}
	if e.agent.Spec.Skills != nil {
		e.skills(e.agent.Spec.Skills)
	}
}

// declare writes config.json and agent-card.json, which the agent reads.
func (e *expander) declare(d *declarative) {
	const at = "spec.declarative"
	if d.Runtime != "" && d.Runtime != "python" && d.Runtime != "go" {
		e.error("runtime", at+".runtime", fmt.Sprintf("%q is not a runtime", krm.Shown(d.Runtime)), "write python or go")
	}
	instruction := d.SystemMessage
	if d.SystemMessageFrom != nil {
		if instruction != "" {
			e.error("two-messages", at+".systemMessageFrom", "both systemMessage and systemMessageFrom", "keep one of them")
		}
		instruction = e.fill(*d.SystemMessageFrom, at+".systemMessageFrom")
	}
	model := e.model(d.ModelConfig, at+".modelConfig")
	if model == nil {
		model = &modelUse{}
	}
	http, sse, remote := e.tools(d.Tools)
	if d.PromptTemplate != nil && len(d.PromptTemplate.DataSources) > 0 {
		instruction = e.prompt(d, instruction, toolNames(http), toolNames(sse))
	}
	config := ordered{{"model", model.config}, {"description", e.agent.Spec.Description}, {"instruction", instruction}}
	for _, list := range []struct {
		key   string
		tools []ordered
	}{{"http_tools", http}, {"sse_tools", sse}, {"remote_agents", remote}} {
		if list.tools != nil || e.generation == gen07 {
			config.add(list.key, list.tools)
		}
	}
	if d.ExecuteCodeBlocks != nil && e.generation == gen07 {
		e.Report(krm.Info, "kagent-agent/ignored", at+".executeCodeBlocks", "kagent ignores this field", "")
	} else if d.ExecuteCodeBlocks != nil {
		config.add("execute_code", *d.ExecuteCodeBlocks)
		e.isolated = *d.ExecuteCodeBlocks
	}
	config.add("stream", d.Stream)
	e.remember(&config, d, model)
	if d.ShareTools {
		config.add("share_tools", true)
	}
	e.files = map[string]string{"config.json": e.json(config), "agent-card.json": e.card(d)}
	if e.isolated || e.agent.Spec.Skills != nil {
		e.files[sandboxFile] = e.sandboxSettings()
	}
}

// remember adds the agent's memory, network and context.
func (e *expander) remember(config *ordered, d *declarative, model *modelUse) {
	const at = "spec.declarative"
	if m := d.Memory; m != nil {
		memory := ordered{}
		memory.positive("ttl_days", m.TTLDays)
		if m.ModelConfig == "" {
			e.error("no-model", at+".memory.modelConfig", "memory needs a model for its vectors", "name a ModelConfig")
		} else if use := e.model(m.ModelConfig, at+".memory.modelConfig"); use != nil {
			embedding := ordered{{"provider", use.typ}, {"model", use.name}}
			embedding.text("base_url", use.baseURL)
			embedding = append(embedding, use.azure...)
			memory.add("embedding", embedding)
		}
		config.add("memory", memory)
	}
	if s := e.agent.Spec.Sandbox; s != nil && s.Network != nil {
		network := ordered{}
		network.list("allowed_domains", s.Network.AllowedDomains)
		config.add("network", network)
	}
	if d.Context == nil {
		return
	}
	all := ordered{}
	if c := d.Context.Compaction; c != nil {
		five, two := 5, 2
		compaction := ordered{{"compaction_interval", *cmp.Or(c.CompactionInterval, &five)}, {"overlap_size", *cmp.Or(c.OverlapSize, &two)}}
		if s := c.Summarizer; s != nil {
			use := model
			if s.ModelConfig != "" && s.ModelConfig != d.ModelConfig {
				use = e.model(s.ModelConfig, at+".context.compaction.summarizer.modelConfig")
			}
			if use != nil {
				compaction.add("summarizer_model", use.config)
			}
			compaction.text("prompt_template", s.PromptTemplate)
		}
		compaction.integer("token_threshold", c.TokenThreshold)
		compaction.integer("event_retention_size", c.EventRetentionSize)
		all.add("compaction", compaction)
	}
	config.add("context_config", all)
}

// json is a configuration on one line.
func (e *expander) json(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		e.error("field", "spec.declarative", err.Error(), "")
	}
	return string(text)
}

// card gives agent-card.json. d is nil for a BYO agent.
func (e *expander) card(d *declarative) string {
	skills := []ordered{}
	if d != nil && d.A2AConfig != nil {
		for _, s := range d.A2AConfig.Skills {
			skill := ordered{{"description", s.Description}}
			skill.list("examples", s.Examples)
			skill.add("id", s.ID)
			skill.list("inputModes", s.InputModes)
			skill.add("name", s.Name)
			skill.list("outputModes", s.OutputModes)
			skill.add("tags", append([]string{}, s.Tags...))
			skills = append(skills, skill)
		}
	}
	url, modes := address(e.Name, e.Namespace, port), []string{"text"}
	if e.generation == gen07 {
		return e.json(ordered{
			{"name", identifier(e.Name)}, {"description", e.agent.Spec.Description}, {"url", url}, {"version", ""},
			{"capabilities", ordered{{"streaming", true}, {"pushNotifications", false}, {"stateTransitionHistory", true}}},
			{"defaultInputModes", modes}, {"defaultOutputModes", modes}, {"skills", skills},
		})
	}
	speaks := func(version string) ordered {
		return ordered{{"url", url}, {"protocolBinding", "JSONRPC"}, {"protocolVersion", version}}
	}
	spec := &e.agent.Spec
	card := ordered{{"defaultInputModes", modes}, {"defaultOutputModes", modes}, {"description", spec.Description}}
	card.text("documentationUrl", spec.DocumentationURL)
	card.text("iconUrl", spec.IconURL)
	card.add("name", identifier(e.Name))
	if p := spec.Provider; p != nil {
		card.add("provider", ordered{{"organization", p.Organization}, {"url", p.URL}})
	}
	card = append(card, ordered{
		{"version", spec.Version}, {"skills", skills}, {"capabilities", ordered{{"streaming", true}}},
		{"supportedInterfaces", []ordered{speaks("0.3"), speaks("1.0")}},
		{"url", url}, {"protocolVersion", "0.3"}, {"preferredTransport", "JSONRPC"},
	}...)
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(e.json(card)), "", "  "); err != nil {
		e.error("field", "spec", err.Error(), "")
	}
	return b.String()
}

// sandboxFile configures the sandbox in which code runs.
const sandboxFile = "srt-settings.json"

func (e *expander) sandboxSettings() string {
	domains := []string{}
	if s := e.agent.Spec.Sandbox; s != nil && s.Network != nil {
		domains = append(domains, s.Network.AllowedDomains...)
	}
	none := []string{}
	return e.json(ordered{
		{"filesystem", ordered{{"allowWrite", []string{".", "/tmp"}}, {"denyRead", none}, {"denyWrite", none}}},
		{"network", ordered{{"allowedDomains", domains}, {"deniedDomains", none}}},
	})
}

// address is a Service's as pods reach it. Without a namespace it is that of
// the caller.
func address(name, namespace string, port int) string {
	if namespace != "" {
		name += "." + namespace
	}
	return fmt.Sprintf("http://%s:%d", name, port)
}

// identifier is a name as Python takes it.
func identifier(name string) string { return strings.ReplaceAll(name, "-", "_") }

// fileNames gives the files of the configuration in the order of their checksum.
func (e *expander) fileNames() (names []string) {
	for _, name := range []string{"config.json", "agent-card.json", sandboxFile} {
		if _, has := e.files[name]; has {
			names = append(names, name)
		}
	}
	return slices.Clip(names)
}
