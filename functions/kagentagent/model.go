package kagentagent

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/krm"
)

const group = "kagent.dev"

// model gives what the agent needs of a model, nil after a finding. The key of
// the model stays in its Secret.
func (e *expander) model(name, at string) *modelUse {
	name = cmp.Or(name, defaultModel)
	if ns, rest, found := strings.Cut(name, "/"); found {
		if ns != e.Namespace {
			e.error("no-model", at, "a ModelConfig is in the namespace of its agent, which alone can read its Secret", "name one of that namespace")
			return nil
		}
		name = rest
	}
	o := e.Find(group, "ModelConfig", e.Namespace, name)
	if o == nil {
		e.error("no-model", at, fmt.Sprintf("the package has no ModelConfig %s", name), "add it to the package: the agent's configuration is made from it")
		return nil
	}
	var m modelConfig
	if krm.Failed(o.Decode("kagent-agent/field", &m)) {
		return nil // its own expansion reports it
	}
	p, known := providerOf(&m.Spec)
	if !known || p.required != "" && p.settings(&m.Spec) == nil {
		return nil // likewise
	}
	u := &modelUse{of: e.generation, name: m.Spec.Model}
	if p.goOnly && !e.goRuntime() {
		e.error("runtime", at, fmt.Sprintf("models of %s need the runtime go", p.name), "say spec.declarative.runtime: go")
	}
	u.mountCA(m.Spec.TLS)
	p.use(&m.Spec, u)
	own := u.config
	u.config = ordered{{"type", u.typ}, {"model", u.name}}
	if len(m.Spec.DefaultHeaders) > 0 {
		u.config.add("headers", m.Spec.DefaultHeaders)
	}
	u.config.addTLS(m.Spec.TLS)
	if m.Spec.APIKeyPassthrough && p.name != "Gemini" {
		u.config.add("api_key_passthrough", true)
	}
	u.config = append(u.config, own...)
	e.take(u, at)
	return u
}

// take adds what the pod has for a model. Another model may need the same, but
// not something else under the same name: kagent then gives both the first.
func (e *expander) take(u *modelUse, at string) {
	for _, v := range u.env {
		i := slices.IndexFunc(e.env, func(have any) bool { return have.(object)["name"] == v["name"] })
		switch {
		case i < 0:
			e.env = append(e.env, v)
		case fmt.Sprint(e.env[i]) != fmt.Sprint(v):
			e.error("two-models", at, fmt.Sprintf("two models of the agent need different values of %s", v["name"]), "give both the same Secret, or choose models of different providers")
		}
	}
	for i, v := range u.volumes {
		j := slices.IndexFunc(e.volumes, func(have any) bool { return have.(object)["name"] == v.(object)["name"] })
		switch {
		case j < 0:
			e.volumes, e.mounts = append(e.volumes, v), append(e.mounts, u.mounts[i])
		case fmt.Sprint(e.volumes[j]) != fmt.Sprint(v):
			e.error("two-models", at, fmt.Sprintf("two models of the agent need different Secrets as %s", v.(object)["name"]), "give both the same Secret")
		}
	}
}

// modelConfig checks a ModelConfig. It generates nothing by itself: the agents
// that name it take their configuration from it.
func (s *settings) modelConfig(r *expand.Resource) {
	var m modelConfig
	if !r.Decode("kagent-agent/field", &m) {
		return
	}
	s.checkFields(r)
	fail := func(rule, field, message, hint string) {
		r.Report(krm.Error, "kagent-agent/"+rule, field, message, hint)
	}
	p, known := providerOf(&m.Spec)
	if !known {
		var names []string
		for _, p := range providers {
			names = append(names, p.name)
		}
		fail("unsupported", "spec.provider", fmt.Sprintf("the provider %q is not expanded", krm.Shown(m.Spec.Provider)),
			"choose from "+strings.Join(names, ", ")+", or use a BYO agent")
		return
	}
	if m.Spec.Model == "" {
		fail("no-model", "spec.model", "a ModelConfig names its model", "say spec.model")
	}
	if m.Spec.APIKeySecret != "" && m.Spec.APIKeySecretKey == "" && !p.keyless {
		fail("api-key", "spec.apiKeySecretKey", "apiKeySecret without apiKeySecretKey", "say which key of the Secret it is")
	}
	if m.Spec.APIKeySecret == "" && m.Spec.APIKeySecretKey != "" {
		fail("api-key", "spec.apiKeySecret", "apiKeySecretKey without apiKeySecret", "say which Secret it is")
	}
	if m.Spec.APIKeySecret != "" && m.Spec.APIKeyPassthrough {
		fail("api-key", "spec.apiKeyPassthrough", "both apiKeySecret and apiKeyPassthrough", "keep one of them")
	}
	for _, other := range providers {
		if other.settings(&m.Spec) != nil && other.name != p.name {
			fail("provider", "spec", fmt.Sprintf("settings of %s, but the provider is another", other.name), "correct spec.provider")
		}
	}
	if p.required != "" && p.settings(&m.Spec) == nil {
		fail("provider", "spec", "no settings of "+p.name, "say "+p.required)
	}
	m.Spec.TLS.check(fail)
	m.Spec.checkNumbers(fail)
	if t := m.Spec.OpenAI; t != nil && t.TokenExchange != nil {
		if x := t.TokenExchange; x.Type != "GDCHServiceAccount" || x.GDCHServiceAccount == nil || x.GDCHServiceAccount.Audience == "" {
			fail("exchange", "spec.openAI.tokenExchange", "a token exchange needs type GDCHServiceAccount and gdchServiceAccount.audience", "say both")
		}
		if m.Spec.APIKeySecret == "" {
			fail("exchange", "spec.apiKeySecret", "a token exchange needs the Secret with the service account", "say apiKeySecret and apiKeySecretKey")
		}
	}
	if f := m.Spec.Foundry; f != nil && f.Endpoint == "" {
		fail("endpoint", "spec.foundry.endpoint", "no endpoint", "say it: an endpointFrom is not read")
	}
	if a := m.Spec.AzureOpenAI; a != nil && a.AzureADToken != "" {
		r.Report(krm.Warning, "kagent-agent/token", "spec.azureOpenAI.azureAdToken", "the token is in the manifest, and in the Deployment of each agent that names this model",
			"remove it, and give the agents AZURE_AD_TOKEN from a Secret in spec.declarative.deployment.env")
	}
	for field, v := range map[string]*vertex{"spec.geminiVertexAI": m.Spec.GeminiVertexAI, "spec.anthropicVertexAI": m.Spec.AnthropicVertexAI} {
		if v == nil {
			continue
		}
		for _, name := range []string{"temperature", "topP", "topK", "stopSequences", "maxOutputTokens", "candidateCount", "responseMimeType", "maxTokens"} {
			if r.Has(field + "." + name) {
				r.Report(krm.Info, "kagent-agent/ignored", field+"."+name, "kagent ignores this field", "")
			}
		}
	}
}

// checkNumbers reports texts that have to be numbers.
func (m *modelSpec) checkNumbers(fail func(rule, field, message, hint string)) {
	check := func(field, value string) {
		if f, err := strconv.ParseFloat(value, 64); value != "" && (err != nil || math.IsNaN(f) || math.IsInf(f, 0)) {
			fail("number", field, fmt.Sprintf("%q is not a number", krm.Shown(value)), `write it as "0.7"`)
		}
	}
	if o := m.OpenAI; o != nil {
		check("spec.openAI.temperature", o.Temperature)
		check("spec.openAI.topP", o.TopP)
		check("spec.openAI.frequencyPenalty", o.FrequencyPenalty)
		check("spec.openAI.presencePenalty", o.PresencePenalty)
	}
	if a := m.Anthropic; a != nil {
		check("spec.anthropic.temperature", a.Temperature)
		check("spec.anthropic.topP", a.TopP)
	}
	if a := m.AzureOpenAI; a != nil {
		check("spec.azureOpenAI.temperature", a.Temperature)
		check("spec.azureOpenAI.topP", a.TopP)
	}
}
