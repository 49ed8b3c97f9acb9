package policies

import (
	"encoding/json"
	"fmt"

	"github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
)

// The calls of a kagent agent are in the config.json and the variables of its pods, and in the
// skills that they load when they start.

type agentConfig struct {
	Model  *modelConfig   `json:"model"`
	HTTP   []serverConfig `json:"http_tools"`
	SSE    []serverConfig `json:"sse_tools"`
	Agents []struct {
		URL string `json:"url"`
	} `json:"remote_agents"`
	Memory *struct {
		Embedding *modelConfig `json:"embedding"`
	} `json:"memory"`
	Context *struct {
		Compaction *struct {
			Summarizer *modelConfig `json:"summarizer_model"`
		} `json:"compaction"`
	} `json:"context_config"`
}

type serverConfig struct {
	Params struct {
		URL string `json:"url"`
	} `json:"params"`
	Tools []string `json:"tools"`
}

type modelConfig struct {
	Type     string `json:"type"`
	Provider string `json:"provider"`
	BaseURL  string `json:"base_url"`
	AuthURL  string `json:"auth_url"`
	Endpoint string `json:"endpoint"`
	Region   string `json:"region"`
}

// call is the URL of a workload's call, or the problem why it is not known.
type call struct{ url, problem string }

// modelHosts are the hosts of the models of a provider if their configuration has no URL. "" means
// that a variable of the pod has it.
var modelHosts = map[string]string{
	"openai": "https://api.openai.com", "anthropic": "https://api.anthropic.com",
	"gemini":       "https://generativelanguage.googleapis.com",
	"azure_openai": "", "ollama": "",
}

// ofConfig reads config.json. declarative is false for an agent with its author's own code.
func ofConfig(text string) (bindings []binding, calls []call, declarative bool) {
	var c agentConfig
	if json.Unmarshal([]byte(text), &c) != nil || c.Model == nil {
		return nil, nil, false
	}
	for _, list := range [][]serverConfig{c.HTTP, c.SSE} {
		for _, t := range list {
			bindings = append(bindings, binding{url: t.Params.URL, tools: t.Tools})
		}
	}
	for _, a := range c.Agents {
		calls = append(calls, call{url: a.URL})
	}
	models := []*modelConfig{c.Model}
	if c.Memory != nil {
		models = append(models, c.Memory.Embedding)
	}
	if c.Context != nil && c.Context.Compaction != nil {
		models = append(models, c.Context.Compaction.Summarizer)
	}
	for _, m := range models {
		if m != nil {
			calls = append(calls, m.hosts()...)
		}
	}
	return bindings, calls, true
}

func (m *modelConfig) hosts() (calls []call) {
	for _, u := range []string{m.BaseURL, m.AuthURL, m.Endpoint} {
		if u != "" {
			calls = append(calls, call{url: u})
		}
	}
	kind := m.Type + m.Provider // a memory has the latter
	fixed, known := modelHosts[kind]
	switch {
	case len(calls) > 0:
	case fixed != "":
		calls = []call{{url: fixed}}
	case kind == "bedrock" && m.Region != "":
		calls = []call{{url: "https://bedrock-runtime." + m.Region + ".amazonaws.com"}}
	case !known:
		calls = []call{
			{problem: fmt.Sprintf("the address of models of the provider %q is not known",
				text.Shown(kind))}}
	}
	return calls
}

// skillHosts returns the calls for fetching the skills of an Agent.
func skillHosts(s source) (calls []call) {
	named := s.Spec.Skills
	for _, ref := range named.Refs {
		calls = append(calls, call{url: skills.Registry(ref)})
	}
	for _, g := range named.GitRefs {
		calls = append(calls, call{url: g.URL})
	}
	for _, o := range named.S3Refs {
		calls = append(calls,
			call{problem: fmt.Sprintf("the address of the bucket of %q is not known", text.Shown(o.URI))})
	}
	return calls
}
