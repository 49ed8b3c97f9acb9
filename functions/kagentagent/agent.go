// Package kagentagent expands the resources of kagent.dev into the objects that its controllers
// created, with one difference: these objects refer to Secrets, while the controllers copied the
// values of Secrets.
package kagentagent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/node"
)

const (
	port       = 8080
	configHash = keys.Kagent + "/config-hash"
)

// agent expands an Agent.
func (s *settings) agent(r *expand.Resource) {
	e := &expander{Resource: r, settings: s}
	if !r.Decode("field", &e.agent) {
		return
	}
	spec := &e.agent.Spec
	switch {
	case spec.Type == "BYO" && spec.BYO != nil && spec.BYO.Deployment != nil &&
		spec.BYO.Deployment.Image != "":
		e.spec, e.at = spec.BYO.Deployment, "spec.byo.deployment"
		e.FailIf(e.spec.ImageRegistry != "", "field", e.at+".imageRegistry", "write it into image",
			"only a Declarative agent has an imageRegistry")
		e.files = map[string]string{"config.json": e.json(
			node.Map("model", json.RawMessage("null"), "description", spec.Description,
				"instruction", "")),
			"agent-card.json": agentCard(e, nil)}
		if spec.Sandbox != nil {
			e.files[sandboxFile] = sandboxSettings(e)
		}
	case spec.Type == "BYO":
		e.Fail("no-image", "spec.byo", "set spec.byo.deployment.image",
			"a BYO agent needs an image")
	case (spec.Type == "Declarative" || spec.Type == "") && spec.Declarative != nil:
		e.spec, e.at = spec.Declarative.Deployment, "spec.declarative.deployment"
		if e.spec == nil {
			e.spec = &deploymentSpec{}
		}
		e.FailIf(
			e.spec.Image != "" || e.spec.Cmd != "" || e.spec.Args != nil || e.spec.WorkingDir != "",
			"field", e.at, "remove them", "only a BYO agent has image, cmd, args and workingDir")
		declare(e, spec.Declarative)
	// spec.declarative may be misspelt.
	case e.FollowsFrom(e.Misread, "spec") && (spec.Type == "Declarative" || spec.Type == ""):
	default:
		e.Fail("type", "spec.type", "correct spec.type",
			"neither a Declarative agent with spec.declarative nor a BYO agent with spec.byo")
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
	at    string // the path of spec

	files  map[string]string // of the configuration, nil for none
	env    []any
	filled []any // environment whose values go into the files at start

	skillsConfig string // of the init container, or ""
	// skills are the images of skills, as annotations, in which verification finds them.
	skills          map[string]string
	isolated        bool // runs code in a sandbox
	volumes, mounts []any
}

// check reports errors of the pod.
func (e *expander) check() {
	e.CheckReplicas(e.at+".replicas", e.spec.Replicas)
	switch {
	case e.spec.Image != "":
		e.CheckImage(e.at+".image", e.spec.Image)
	case e.spec.ImageRegistry != "":
		e.CheckImage(e.at+".imageRegistry", e.image())
	}
	seen := make(map[string]bool)
	for i, c := range e.spec.ExtraContainers {
		name, _ := c["name"].(string)
		e.FailIf(name == "" || name == "kagent" || seen[name], "container",
			fmt.Sprintf("%s.extraContainers[%d].name", e.at, i), "rename it",
			"a further container needs a name of its own, and not kagent")
		seen[name] = true
	}
	if e.agent.Spec.Skills != nil {
		writeSkills(e, e.agent.Spec.Skills)
	}
}

// declare writes config.json and agent-card.json for the agent.
func declare(e *expander, d *declarative) {
	const at = "spec.declarative"
	e.FailIf(d.Runtime != "" && d.Runtime != "python" && d.Runtime != "go", "runtime",
		at+".runtime", "write python or go", "%q is not a runtime", d.Runtime)
	instruction := d.SystemMessage
	if d.SystemMessageFrom != nil {
		e.FailIf(instruction != "", "two-messages", at+".systemMessageFrom", "keep one of them",
			"both systemMessage and systemMessageFrom")
		instruction = e.fill(*d.SystemMessageFrom, at+".systemMessageFrom")
		e.FailIf(d.PromptTemplate != nil && len(e.filled) > 0, "unsupported", at+".promptTemplate",
			"write the message into systemMessage, or add its ConfigMap to the package",
			"a template is rendered from texts of the package only: nothing is read from Secrets")
	}
	model := e.model(d.ModelConfig, at+".modelConfig")
	if model == nil {
		model = &modelUse{}
	}
	http, sse, remote := toolsOf(e, d.Tools)
	if d.PromptTemplate != nil && len(d.PromptTemplate.DataSources) > 0 && !e.Failed() {
		instruction = promptOf(e, d, instruction, toolNames(http), toolNames(sse))
	}
	config := slices.Concat(
		node.Map("model", model.config, "description", e.agent.Spec.Description,
			"instruction", instruction),
		some("http_tools", http, "sse_tools", sse, "remote_agents", remote,
			"execute_code", d.ExecuteCodeBlocks),
		node.Map("stream", d.Stream), remember(e, d, model), some("share_tools", d.ShareTools))
	e.isolated = node.Or(d.ExecuteCodeBlocks, false)
	e.files = map[string]string{"config.json": e.json(config), "agent-card.json": agentCard(e, d)}
	if e.isolated || e.agent.Spec.Skills != nil {
		e.files[sandboxFile] = sandboxSettings(e)
	}
}

// remember returns the agent's memory, network and context.
func remember(e *expander, d *declarative, model *modelUse) (config ordered) {
	const at = "spec.declarative"
	add := func(key string, value ordered) { config = append(config, node.Map(key, value)...) }
	if m := d.Memory; m != nil {
		memory := some("ttl_days", m.TTLDays)
		if m.ModelConfig == "" {
			e.Fail("no-model", at+".memory.modelConfig", "name a ModelConfig",
				"memory needs a model for its vectors")
		} else if use := e.model(m.ModelConfig, at+".memory.modelConfig"); use != nil {
			memory = append(memory, node.Map("embedding", slices.Concat(
				node.Map("provider", use.typ, "model", use.name),
				some("base_url", use.config.Get("base_url")), use.azure))...)
		}
		add("memory", memory)
	}
	if s := e.agent.Spec.Sandbox; s != nil && s.Network != nil {
		add("network", some("allowed_domains", s.Network.AllowedDomains))
	}
	if d.Context == nil {
		return config
	}
	all := ordered{}
	if c := d.Context.Compaction; c != nil {
		compaction := node.Map("compaction_interval", node.Or(c.CompactionInterval, 5),
			"overlap_size", node.Or(c.OverlapSize, 2))
		if s := c.Summarizer; s != nil {
			use := model
			if s.ModelConfig != "" && s.ModelConfig != d.ModelConfig {
				use = e.model(s.ModelConfig, at+".context.compaction.summarizer.modelConfig")
			}
			if use != nil {
				compaction = append(compaction, node.Map("summarizer_model", use.config)...)
			}
			compaction = append(compaction, some("prompt_template", s.PromptTemplate)...)
		}
		all = node.Map("compaction", append(compaction, some("token_threshold", c.TokenThreshold,
			"event_retention_size", c.EventRetentionSize)...))
	}
	add("context_config", all)
	return config
}

// json returns a configuration on one line.
func (e *expander) json(value any) string {
	text, err := json.Marshal(value)
	e.FailIf(err != nil, "field", "spec.declarative", "", "%v", err)
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
		return node.Map("url", url, "protocolBinding", "JSONRPC", "protocolVersion", version)
	}
	spec := &e.agent.Spec
	card := slices.Concat(
		node.Map("defaultInputModes", modes, "defaultOutputModes", modes,
			"description", spec.Description),
		some("documentationUrl", spec.DocumentationURL, "iconUrl", spec.IconURL,
			"name", identifier(e.Name), "provider", spec.Provider),
		node.Map("version", spec.Version, "skills", skills,
			"capabilities", node.Map("streaming", true),
			"supportedInterfaces", []ordered{speaks("0.3"), speaks("1.0")},
			"url", url, "protocolVersion", "0.3", "preferredTransport", "JSONRPC"))
	var b bytes.Buffer
	err := json.Indent(&b, []byte(e.json(card)), "", "  ")
	signed, known, problem := e.SignCard(b.Bytes())
	switch err = cmp.Or(err, problem); {
	case err != nil:
		e.Fail("field", "spec", "", "%v", err)
	case !known:
		e.Report(finding.Warning, "kagent-agent/card",
			"", "run `armature card sign`", "the lock has no signature of this agent's card")
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
	return e.json(node.Map(
		"filesystem", node.Map("allowWrite", []string{".", "/tmp"}, "denyRead", none,
			"denyWrite", none),
		"network", node.Map("allowedDomains", domains, "deniedDomains", none)))
}

// address returns the address of a Service for pods. Without a namespace the Service is in the
// caller's.
func address(name, namespace string, port int) string {
	if namespace != "" {
		name += "." + namespace
	}
	return fmt.Sprintf("http://%s:%d", name, port)
}

// identifier returns a name as a Python identifier.
func identifier(name string) string { return strings.ReplaceAll(name, "-", "_") }
