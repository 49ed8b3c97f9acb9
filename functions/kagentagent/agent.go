// Package kagentagent expands the resources of kagent.dev to what its
// controllers made of them, with one difference: where those wrote the values of
// Secrets into their objects, these refer to them.
package kagentagent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

const (
	port       = 8080
	configHash = keys.Kagent + "/config-hash"
)

// agent expands an Agent.
func (s *settings) agent(r *expand.Resource) {
	e := &expander{Resource: r, settings: s}
	if !r.Decode("kagent-agent/field", &e.agent) {
		return
	}
	spec := &e.agent.Spec
	switch {
	case spec.Type == "BYO" && spec.BYO != nil && spec.BYO.Deployment != nil &&
		spec.BYO.Deployment.Image != "":
		e.spec, e.at = spec.BYO.Deployment, "spec.byo.deployment"
		if e.spec.ImageRegistry != "" {
			e.error("field", e.at+".imageRegistry", "only a Declarative agent has an imageRegistry",
				"write it into image")
		}
		e.files = map[string]string{"config.json": e.json(
			ordered{{"model", nil}, {"description", spec.Description}, {"instruction", ""}}),
			"agent-card.json": agentCard(e, nil)}
		if spec.Sandbox != nil {
			e.files[sandboxFile] = sandboxSettings(e)
		}
	case spec.Type == "BYO":
		e.error("no-image", "spec.byo", "a BYO agent needs an image",
			"set spec.byo.deployment.image")
	case (spec.Type == "Declarative" || spec.Type == "") && spec.Declarative != nil:
		e.spec, e.at = spec.Declarative.Deployment, "spec.declarative.deployment"
		if e.spec == nil {
			e.spec = &deploymentSpec{}
		}
		if e.spec.Image != "" || e.spec.Cmd != "" || e.spec.Args != nil || e.spec.WorkingDir != "" {
			e.error("field", e.at, "only a BYO agent has image, cmd, args and workingDir", "remove them")
		}
		declare(e, spec.Declarative)
	// spec.declarative may be what is written wrong
	case e.FollowsFrom(e.Misread, "spec") && (spec.Type == "Declarative" || spec.Type == ""):
	default:
		e.error("type", "spec.type",
			"neither a Declarative agent with spec.declarative nor a BYO agent with spec.byo",
			"correct spec.type")
	}
	if e.spec != nil {
		e.check()
	}
	if e.Failed() {
		return
	}
	build(e)
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

	skillsConfig string // of the init container, "" for none
	// images of skills, as annotations: what verifies images finds them there
	skills          map[string]string
	isolated        bool // runs code in a sandbox
	volumes, mounts []any
}

func (e *expander) error(rule, field, message, hint string) {
	e.Report(finding.Error, "kagent-agent/"+rule, field, message, hint)
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
			e.error("container", fmt.Sprintf("%s.extraContainers[%d].name", e.at, i),
				"a further container needs a name of its own, and not kagent", "rename it")
		}
		seen[name] = true
	}
	if e.agent.Spec.Skills != nil {
		writeSkills(e, e.agent.Spec.Skills)
	}
}

// declare writes config.json and agent-card.json, which the agent reads.
func declare(e *expander, d *declarative) {
	const at = "spec.declarative"
	if d.Runtime != "" && d.Runtime != "python" && d.Runtime != "go" {
		e.error("runtime", at+".runtime", fmt.Sprintf("%q is not a runtime", text.Shown(d.Runtime)),
			"write python or go")
	}
	instruction := d.SystemMessage
	if d.SystemMessageFrom != nil {
		if instruction != "" {
			e.error("two-messages", at+".systemMessageFrom",
				"both systemMessage and systemMessageFrom", "keep one of them")
		}
		instruction = e.fill(*d.SystemMessageFrom, at+".systemMessageFrom")
		if d.PromptTemplate != nil && len(e.filled) > 0 {
			e.error("unsupported", at+".promptTemplate",
				"a template is rendered from texts of the package only: nothing is read "+
					"from Secrets",
				"write the message into systemMessage, or add its ConfigMap to the package")
		}
	}
	model := e.model(d.ModelConfig, at+".modelConfig")
	if model == nil {
		model = &modelUse{}
	}
	http, sse, remote := toolsOf(e, d.Tools)
	if d.PromptTemplate != nil && len(d.PromptTemplate.DataSources) > 0 && !e.Failed() {
		instruction = promptOf(e, d, instruction, toolNames(http), toolNames(sse))
	}
	config := ordered{{"model", model.config}, {"description", e.agent.Spec.Description},
		{"instruction", instruction}}
	config.set("http_tools", http)
	config.set("sse_tools", sse)
	config.set("remote_agents", remote)
	if d.ExecuteCodeBlocks != nil {
		config.add("execute_code", *d.ExecuteCodeBlocks)
		e.isolated = *d.ExecuteCodeBlocks
	}
	config.add("stream", d.Stream)
	remember(e, &config, d, model)
	config.set("share_tools", d.ShareTools)
	e.files = map[string]string{"config.json": e.json(config), "agent-card.json": agentCard(e, d)}
	if e.isolated || e.agent.Spec.Skills != nil {
		e.files[sandboxFile] = sandboxSettings(e)
	}
}

// remember adds the agent's memory, network and context.
func remember(e *expander, config *ordered, d *declarative, model *modelUse) {
	const at = "spec.declarative"
	if m := d.Memory; m != nil {
		memory := ordered{}
		memory.set("ttl_days", m.TTLDays)
		if m.ModelConfig == "" {
			e.error("no-model", at+".memory.modelConfig", "memory needs a model for its vectors",
				"name a ModelConfig")
		} else if use := e.model(m.ModelConfig, at+".memory.modelConfig"); use != nil {
			embedding := ordered{{"provider", use.typ}, {"model", use.name}}
			if url := use.config.get("base_url"); url != nil {
				embedding.set("base_url", url)
			}
			embedding = append(embedding, use.azure...)
			memory.add("embedding", embedding)
		}
		config.add("memory", memory)
	}
	if s := e.agent.Spec.Sandbox; s != nil && s.Network != nil {
		network := ordered{}
		network.set("allowed_domains", s.Network.AllowedDomains)
		config.add("network", network)
	}
	if d.Context == nil {
		return
	}
	all := ordered{}
	if c := d.Context.Compaction; c != nil {
		five, two := 5, 2
		compaction := ordered{{"compaction_interval", *cmp.Or(c.CompactionInterval, &five)},
			{"overlap_size", *cmp.Or(c.OverlapSize, &two)}}
		if s := c.Summarizer; s != nil {
			use := model
			if s.ModelConfig != "" && s.ModelConfig != d.ModelConfig {
				use = e.model(s.ModelConfig, at+".context.compaction.summarizer.modelConfig")
			}
			if use != nil {
				compaction.add("summarizer_model", use.config)
			}
			compaction.set("prompt_template", s.PromptTemplate)
		}
		compaction.set("token_threshold", c.TokenThreshold)
		compaction.set("event_retention_size", c.EventRetentionSize)
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

// agentCard returns agent-card.json. d is nil for a BYO agent.
func agentCard(e *expander, d *declarative) string {
	skills := []cardSkill{}
	if d != nil && d.A2AConfig != nil {
		for _, s := range d.A2AConfig.Skills {
			s.Tags = append([]string{}, s.Tags...) // never null
			skills = append(skills, s)
		}
	}
	url, modes := address(e.Name, e.Namespace, port), []string{"text"}
	speaks := func(version string) ordered {
		return ordered{{"url", url}, {"protocolBinding", "JSONRPC"}, {"protocolVersion", version}}
	}
	spec := &e.agent.Spec
	card := ordered{{"defaultInputModes", modes}, {"defaultOutputModes", modes},
		{"description", spec.Description}}
	card.set("documentationUrl", spec.DocumentationURL)
	card.set("iconUrl", spec.IconURL)
	card.add("name", identifier(e.Name))
	card.set("provider", spec.Provider)
	card = append(card, ordered{
		{"version", spec.Version}, {"skills", skills},
		{"capabilities", ordered{{"streaming", true}}},
		{"supportedInterfaces", []ordered{speaks("0.3"), speaks("1.0")}},
		{"url", url}, {"protocolVersion", "0.3"}, {"preferredTransport", "JSONRPC"},
	}...)
	var b bytes.Buffer
	err := json.Indent(&b, []byte(e.json(card)), "", "  ")
	signed, known, problem := e.SignCard(b.Bytes())
	switch err = cmp.Or(err, problem); {
	case err != nil:
		e.error("field", "spec", err.Error(), "")
	case !known:
		e.Report(finding.Warning, "kagent-agent/card", "",
			"the lock has no signature of this agent's card", "run `armature card sign`")
	}
	return string(signed)
}

// sandboxFile configures the sandbox in which code runs.
const sandboxFile = "srt-settings.json"

func sandboxSettings(e *expander) string {
	domains := []string{}
	if s := e.agent.Spec.Sandbox; s != nil && s.Network != nil {
		domains = append(domains, s.Network.AllowedDomains...)
	}
	none := []string{}
	return e.json(ordered{
		{"filesystem", ordered{{"allowWrite", []string{".", "/tmp"}}, {"denyRead", none},
			{"denyWrite", none}}},
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

// fileNames returns the files of the configuration in the order of their checksum.
func fileNames(e *expander) (names []string) {
	for _, name := range []string{"config.json", "agent-card.json", sandboxFile} {
		if _, has := e.files[name]; has {
			names = append(names, name)
		}
	}
	return names
}
