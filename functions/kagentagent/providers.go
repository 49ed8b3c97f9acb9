package kagentagent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
)

// modelUse is what an agent needs of a model: its part of config.json, and what
// the pod has for it.
type modelUse struct {
	of                 generation
	typ, name, baseURL string  // in the configuration
	azure              ordered // settings of the data plane, which a memory needs as well
	config             ordered
	env                []object
	volumes, mounts    []any
}

// provider is what a model's provider needs.
type provider struct {
	name     string
	settings func(*modelSpec) any // nil where there are none
	required string               // their field, where it is required
	keyless  bool                 // its Secret has keys of fixed names
	use      func(*modelSpec, *modelUse)
	goOnly   bool // Python's runtime does not know it
}

// block gives a block of settings, or nil instead of a nil pointer.
func block[T any](p *T) any {
	if p == nil {
		return nil
	}
	return p
}

// providers are sorted by name. A ModelConfig that names none is OpenAI's.
var providers = []provider{
	{name: "Anthropic", settings: func(m *modelSpec) any { return block(m.Anthropic) }, use: useAnthropic},
	{name: "AnthropicVertexAI", settings: func(m *modelSpec) any { return block(m.AnthropicVertexAI) }, required: "spec.anthropicVertexAI", use: func(m *modelSpec, u *modelUse) {
		u.typ = "gemini_anthropic"
		useVertex(m, u, m.AnthropicVertexAI, "")
	}},
	{name: "AzureOpenAI", settings: func(m *modelSpec) any { return block(m.AzureOpenAI) }, required: "spec.azureOpenAI", use: useAzure},
	{name: "Bedrock", settings: func(m *modelSpec) any { return block(m.Bedrock) }, required: "spec.bedrock", keyless: true, use: useBedrock},
	{name: "Foundry", settings: func(m *modelSpec) any { return block(m.Foundry) }, required: "spec.foundry", use: useFoundry, goOnly: true},
	{name: "Gemini", settings: func(m *modelSpec) any { return block(m.Gemini) }, use: func(m *modelSpec, u *modelUse) {
		u.typ = "gemini"
		u.key(m, "GOOGLE_API_KEY")
		if m.Gemini != nil {
			u.config.positive("max_output_tokens", m.Gemini.MaxOutputTokens)
		}
	}},
	{name: "GeminiVertexAI", settings: func(m *modelSpec) any { return block(m.GeminiVertexAI) }, required: "spec.geminiVertexAI", use: func(m *modelSpec, u *modelUse) {
		u.typ = "gemini_vertex_ai"
		useVertex(m, u, m.GeminiVertexAI, "true")
	}},
	{name: "Ollama", settings: func(m *modelSpec) any { return block(m.Ollama) }, required: "spec.ollama", use: useOllama},
	{name: "OpenAI", settings: func(m *modelSpec) any { return block(m.OpenAI) }, use: useOpenAI},
	{name: "SAPAICore", settings: func(m *modelSpec) any { return block(m.SAPAICore) }, required: "spec.sapAICore", keyless: true, use: useSAP},
}

func providerOf(m *modelSpec) (p provider, known bool) {
	name := cmp.Or(m.Provider, "OpenAI")
	i := slices.IndexFunc(providers, func(p provider) bool { return p.name == name })
	if i < 0 {
		return provider{}, false
	}
	return providers[i], true
}

// value adds a variable that is not empty.
func (u *modelUse) value(name, value string) {
	if value != "" {
		u.env = append(u.env, object{"name": name, "value": value})
	}
}

// secret adds a variable with a key of the model's Secret.
func (u *modelUse) secret(name string, m *modelSpec, key string, optional bool) {
	ref := object{"name": m.APIKeySecret, "key": key}
	if optional {
		ref["optional"] = true
	}
	u.env = append(u.env, object{"name": name, "valueFrom": object{"secretKeyRef": ref}})
}

// key adds the variable for the model's key, where it has one.
func (u *modelUse) key(m *modelSpec, name string) {
	if m.APIKeySecret != "" && !m.APIKeyPassthrough {
		u.secret(name, m, m.APIKeySecretKey, false)
	}
}

// mount adds a Secret as files.
func (u *modelUse) mount(name, secret, path string, readOnly bool) {
	volume, mount := object{"secretName": secret}, object{"name": name, "mountPath": path}
	if readOnly {
		volume["defaultMode"], mount["readOnly"] = 0o444, true
	}
	u.volumes = append(u.volumes, object{"name": name, "secret": volume})
	u.mounts = append(u.mounts, mount)
}

func useOpenAI(m *modelSpec, u *modelUse) {
	u.typ = "openai"
	s := m.OpenAI
	if s == nil {
		s = &openAI{}
	}
	u.baseURL = s.BaseURL
	u.config.add("base_url", s.BaseURL)
	u.config.number("frequency_penalty", s.FrequencyPenalty)
	u.config.positive("max_tokens", s.MaxTokens)
	u.config.positive("max_completion_tokens", s.MaxCompletionTokens)
	u.config.integer("n", s.N)
	u.config.number("presence_penalty", s.PresencePenalty)
	u.config.text("reasoning_effort", s.ReasoningEffort)
	u.config.integer("seed", s.Seed)
	u.config.number("temperature", s.Temperature)
	u.config.integer("timeout", s.Timeout)
	u.config.number("top_p", s.TopP)
	u.config.text("api_format", s.APIFormat)
	if t := s.TokenExchange; t == nil {
		u.key(m, "OPENAI_API_KEY")
	} else if t.GDCHServiceAccount != nil { // its Secret is a file, not a variable
		u.config.add("token_exchange", ordered{{"type", t.Type}, {"gdch_service_account", ordered{
			{"service_account_path", "/gdch-creds/" + m.APIKeySecretKey}, {"audience", t.GDCHServiceAccount.Audience},
		}}})
		u.mount("gdch-creds", m.APIKeySecret, "/gdch-creds", true)
	}
	u.value("OPENAI_ORGANIZATION", s.Organization)
}

func useAnthropic(m *modelSpec, u *modelUse) {
	u.typ = "anthropic"
	u.key(m, "ANTHROPIC_API_KEY")
	if s := m.Anthropic; s != nil {
		u.baseURL = s.BaseURL
		u.config.text("base_url", s.BaseURL)
		u.config.positive("max_tokens", s.MaxTokens)
		u.config.number("temperature", s.Temperature)
		u.config.number("top_p", s.TopP)
		u.config.positive("top_k", s.TopK)
	}
}

func useAzure(m *modelSpec, u *modelUse) {
	s := m.AzureOpenAI
	u.typ, u.name = "azure_openai", s.Deployment
	if u.of.order >= gen10.order {
		u.azure.text("endpoint", s.Endpoint)
		u.azure.text("deployment", s.Deployment)
		u.azure.text("api_version", s.APIVersion)
		u.config = append(u.config, u.azure...)
	}
	u.config.integer("max_tokens", s.MaxTokens)
	u.config.number("temperature", s.Temperature)
	u.config.number("top_p", s.TopP)
	u.key(m, "AZURE_OPENAI_API_KEY")
	u.value("AZURE_AD_TOKEN", s.AzureADToken)
	u.value("OPENAI_API_VERSION", s.APIVersion)
	u.value("AZURE_OPENAI_ENDPOINT", s.Endpoint)
}

func useFoundry(m *modelSpec, u *modelUse) {
	s := m.Foundry
	u.typ = "foundry"
	u.azure = ordered{{"endpoint", s.Endpoint}, {"deployment", s.Deployment}, {"api_version", cmp.Or(s.APIVersion, "2024-10-21")}}
	u.config = append(u.config, u.azure...)
	u.key(m, "FOUNDRY_API_KEY")
	for i, name := range []string{"FOUNDRY_ENDPOINT", "FOUNDRY_DEPLOYMENT", "FOUNDRY_API_VERSION"} {
		u.value(name, u.azure[i].value.(string))
	}
}

func useOllama(m *modelSpec, u *modelUse) {
	u.typ = "ollama"
	host := m.Ollama.Host
	if !strings.HasPrefix(host, "http://") && !strings.HasPrefix(host, "https://") {
		host = "http://" + host
	}
	u.value("OLLAMA_API_BASE", host)
	if len(m.Ollama.Options) > 0 {
		u.config.add("options", m.Ollama.Options)
	}
}

// useVertex is for both providers of Vertex AI. gemini is "true" for Gemini.
func useVertex(m *modelSpec, u *modelUse, s *vertex, gemini string) {
	u.value("GOOGLE_CLOUD_PROJECT", s.ProjectID)
	u.value("GOOGLE_CLOUD_LOCATION", s.Location)
	u.value("GOOGLE_GENAI_USE_VERTEXAI", gemini)
	if m.APIKeySecret != "" {
		u.value("GOOGLE_APPLICATION_CREDENTIALS", "/creds/"+m.APIKeySecretKey)
		u.mount("google-creds", m.APIKeySecret, "/creds", false)
	}
}

// useBedrock refers to all keys that the Secret may have: a render does not read
// Secrets, where kagent's controller looks which of them are there.
func useBedrock(m *modelSpec, u *modelUse) {
	s := m.Bedrock
	u.typ = "bedrock"
	u.config.text("region", s.Region)
	if len(s.AdditionalModelRequestFields) > 0 {
		u.config.add("additional_model_request_fields", s.AdditionalModelRequestFields)
	}
	if s.PromptCaching {
		u.config.add("prompt_caching", true)
	}
	u.config.text("cache_ttl", s.CacheTTL)
	if g := s.Guardrail; g != nil {
		guardrail := ordered{{"identifier", g.Identifier}, {"version", g.Version}}
		guardrail.text("trace", g.Trace)
		u.config.add("guardrail", guardrail)
	}
	u.config.integer("read_timeout", s.ReadTimeout)
	u.config.integer("connect_timeout", s.ConnectTimeout)
	u.value("AWS_REGION", s.Region)
	if m.APIKeySecret != "" && !m.APIKeyPassthrough {
		for _, name := range []string{"AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
			u.secret(name, m, name, true)
		}
	}
}

func useSAP(m *modelSpec, u *modelUse) {
	s := m.SAPAICore
	u.typ, u.baseURL = "sap_ai_core", s.BaseURL
	u.config.add("base_url", s.BaseURL)
	u.config.text("resource_group", cmp.Or(s.ResourceGroup, "default"))
	u.config.text("auth_url", s.AuthURL)
	if m.APIKeySecret != "" && !m.APIKeyPassthrough {
		u.secret("SAP_AI_CORE_CLIENT_ID", m, "client_id", false)
		u.secret("SAP_AI_CORE_CLIENT_SECRET", m, "client_secret", false)
	}
}

var dnsLabel = krm.Pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// caFile gives the name of the volume with a CA, where it is mounted, and the
// path of the certificate. A Secret whose name cannot name a volume is
// replaced by a checksum of it.
func (t *tlsConfig) caFile() (volume, folder, file string) {
	id := t.CACertSecretRef
	if volume = "tls-ca-" + id; len(volume) > 63 || !dnsLabel().MatchString(volume) {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:4])
	}
	folder = "/etc/ssl/certs/custom/" + id
	return "tls-ca-" + id, folder, folder + "/" + t.CACertSecretKey
}

// addTLS adds how certificates are checked, where anything is set.
func (o *ordered) addTLS(t *tlsConfig) {
	if t == nil || *t == (tlsConfig{}) {
		return
	}
	o.add("tls_insecure_skip_verify", t.DisableVerify)
	if t.CACertSecretRef != "" && t.CACertSecretKey != "" {
		_, _, file := t.caFile()
		o.add("tls_ca_cert_path", file)
	}
	o.add("tls_disable_system_cas", t.DisableSystemCAs)
}

// mountCA adds the CA of a server.
func (u *modelUse) mountCA(t *tlsConfig) {
	if t != nil && t.CACertSecretRef != "" && t.CACertSecretKey != "" {
		volume, folder, _ := t.caFile()
		u.mount(volume, t.CACertSecretRef, folder, true)
	}
}

// check reports what the API server refuses.
func (t *tlsConfig) check(fail func(rule, field, message, hint string)) {
	switch {
	case t == nil:
	case (t.CACertSecretRef == "") != (t.CACertSecretKey == ""):
		fail("tls", "spec.tls", "a CA needs both caCertSecretRef and caCertSecretKey", "say both")
	case t.DisableSystemCAs && !t.DisableVerify && t.CACertSecretRef == "":
		fail("tls", "spec.tls.disableSystemCAs", "no CA is trusted", "say caCertSecretRef and caCertSecretKey")
	case t.CACertSecretKey != "" && strings.ContainsAny(t.CACertSecretKey, "/\\"):
		fail("tls", "spec.tls.caCertSecretKey", "a path is not a key of a Secret", "say the key alone, "+krm.Shown("ca.crt"))
	}
}
