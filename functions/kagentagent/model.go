package kagentagent

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

const group = keys.Kagent

// model returns what the agent needs of a model, nil after a finding. The key of
// the model stays in its Secret.
func (e *expander) model(name, at string) *modelUse {
	name = cmp.Or(name, defaultModel)
	if ns, rest, found := strings.Cut(name, "/"); found {
		if ns != e.Namespace {
			e.error("no-model", at,
				"a ModelConfig is in the namespace of its agent, which alone can read its Secret",
				"name one of that namespace")
			return nil
		}
		name = rest
	}
	o := e.Find(group, "ModelConfig", e.Namespace, name)
	if o == nil {
		e.error("no-model", at, fmt.Sprintf("the package has no ModelConfig %s", name),
			"add it to the package: the agent's configuration is made from it")
		return nil
	}
	var m modelConfig
	if finding.Failed(o.Decode("kagent-agent/field", &m)) {
		return nil // its own expansion reports it
	}
	p, known := providerOf(&m.Spec)
	if !known || p.missing(&m.Spec) {
		return nil // likewise
	}
	u := &modelUse{typ: p.typ, name: m.Spec.Model}
	if p.goOnly && !e.goRuntime() {
		e.error("runtime", at, fmt.Sprintf("models of %s need the runtime go", p.name),
			"set spec.declarative.runtime: go")
	}
	u.mountCA(m.Spec.TLS)
	u.key(&m.Spec, p.key)
	if p.use != nil {
		p.use(&m.Spec, u)
	}
	own := slices.Concat(u.azure, configOf(p.settings(&m.Spec)), u.config)
	u.config = ordered{{"type", u.typ}, {"model", u.name}}
	u.config.set("headers", m.Spec.DefaultHeaders)
	u.config.addTLS(m.Spec.TLS)
	u.config.set("api_key_passthrough", m.Spec.APIKeyPassthrough && p.name != "Gemini")
	u.config = append(u.config, own...)
	e.take(u, at)
	return u
}

// take adds what the pod has for a model. Another model may need the same object, but not a
// different one under the same name: kagent then uses the first for both.
func (e *expander) take(u *modelUse, at string) {
	for _, v := range u.env {
		i := slices.IndexFunc(e.env, func(have any) bool {
			return have.(object)["name"] == v["name"]
		})
		switch {
		case i < 0:
			e.env = append(e.env, v)
		case fmt.Sprint(e.env[i]) != fmt.Sprint(v):
			e.error("two-models", at,
				fmt.Sprintf("two models of the agent need different values of %s",
					v["name"]),
				"give both the same Secret, or choose models of different providers")
		}
	}
	for i, v := range u.volumes {
		j := slices.IndexFunc(e.volumes,
			func(have any) bool { return have.(object)["name"] == v.(object)["name"] })
		switch {
		case j < 0:
			e.volumes, e.mounts = append(e.volumes, v), append(e.mounts, u.mounts[i])
		case fmt.Sprint(e.volumes[j]) != fmt.Sprint(v):
			e.error("two-models", at,
				fmt.Sprintf("two models of the agent need different Secrets as %s",
					v.(object)["name"]), "give both the same Secret")
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
	fail := func(rule, field, message, hint string) {
		r.Report(finding.Error, "kagent-agent/"+rule, field, message, hint)
	}
	p, known := providerOf(&m.Spec)
	if !known {
		var names []string
		for _, p := range providers {
			names = append(names, p.name)
		}
		fail("unsupported", "spec.provider",
			fmt.Sprintf("the provider %q is not expanded", text.Shown(m.Spec.Provider)),
			"choose from "+strings.Join(names, ", ")+", or use a BYO agent")
		return
	}
	if m.Spec.Model == "" {
		fail("no-model", "spec.model", "a ModelConfig names its model", "set spec.model")
	}
	if m.Spec.APIKeySecret != "" && m.Spec.APIKeySecretKey == "" && !p.keyless {
		fail("api-key", "spec.apiKeySecretKey", "apiKeySecret without apiKeySecretKey",
			"set it to the key in the Secret")
	}
	if m.Spec.APIKeySecret == "" && m.Spec.APIKeySecretKey != "" {
		fail("api-key", "spec.apiKeySecret", "apiKeySecretKey without apiKeySecret",
			"set it to the name of the Secret")
	}
	if m.Spec.APIKeySecret != "" && m.Spec.APIKeyPassthrough {
		fail("api-key", "spec.apiKeyPassthrough", "both apiKeySecret and apiKeyPassthrough",
			"keep one of them")
	}
	for _, other := range providers {
		settings := other.settings(&m.Spec)
		if settings.IsNil() {
			continue
		}
		if other.name != p.name {
			fail("provider", "spec", fmt.Sprintf("settings of %s, but the provider is another",
				other.name),
				"correct spec.provider")
		}
		checkNumbers(other.field(), settings.Elem(), fail)
	}
	if p.missing(&m.Spec) {
		fail("provider", "spec", "no settings of "+p.name, "set "+p.field())
	}
	m.Spec.TLS.check(fail)
	if t := m.Spec.OpenAI; t != nil && t.TokenExchange != nil {
		if x := t.TokenExchange; x.Type != "GDCHServiceAccount" || x.GDCHServiceAccount == nil ||
			x.GDCHServiceAccount.Audience == "" {
			fail("exchange", "spec.openAI.tokenExchange",
				"a token exchange needs type GDCHServiceAccount and gdchServiceAccount.audience",
				"set both")
		}
		if m.Spec.APIKeySecret == "" {
			fail("exchange", "spec.apiKeySecret",
				"a token exchange needs the Secret with the service account",
				"set apiKeySecret and apiKeySecretKey")
		}
	}
	if f := m.Spec.Foundry; f != nil && f.Endpoint == "" {
		fail("endpoint", "spec.foundry.endpoint", "no endpoint",
			"set it: an endpointFrom is not read")
	}
	if a := m.Spec.AzureOpenAI; a != nil && a.AzureADToken != "" {
		r.Report(finding.Warning, "kagent-agent/token", "spec.azureOpenAI.azureAdToken",
			"the token is in the manifest, and in the Deployment of each agent that "+
				"names this model",
			"remove it, and give the agents AZURE_AD_TOKEN from a Secret in "+
				"spec.declarative.deployment.env")
	}
	for field, v := range map[string]*vertex{"spec.geminiVertexAI": m.Spec.GeminiVertexAI,
		"spec.anthropicVertexAI": m.Spec.AnthropicVertexAI} {
		if v == nil {
			continue
		}
		for _, name := range []string{"temperature", "topP", "topK", "stopSequences",
			"maxOutputTokens", "candidateCount", "responseMimeType", "maxTokens"} {
			if r.Has(field + "." + name) {
				r.Report(finding.Info, "kagent-agent/ignored", field+"."+name,
					"kagent ignores this field", "")
			}
		}
	}
}

// checkNumbers reports texts that have to be numbers.
func checkNumbers(at string, settings reflect.Value, fail func(rule, field, message, hint string)) {
	for i := range settings.NumField() {
		field := settings.Type().Field(i)
		if !strings.HasSuffix(field.Tag.Get("config"), ",number") || settings.Field(i).IsZero() {
			continue
		}
		value := settings.Field(i).String()
		if f, err := strconv.ParseFloat(value, 64); err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			fail("number", at+"."+jsonName(field),
				fmt.Sprintf("%q is not a number", text.Shown(value)), `write it as "0.7"`)
		}
	}
}
