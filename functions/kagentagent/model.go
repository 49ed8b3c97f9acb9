package kagentagent

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/text"
)

const group = keys.Kagent

// model returns the agent's configuration for a model, or nil after a finding. The key of the model
// stays in its Secret.
func (e *expander) model(name, at string) *modelUse {
	name = cmp.Or(name, defaultModel)
	if ns, rest, found := strings.Cut(name, "/"); found {
		if e.FailIf(ns != e.Namespace, "no-model", at, "name one of that namespace",
			"a ModelConfig is in the namespace of its agent, which alone can read its Secret") {
			return nil
		}
		name = rest
	}
	o := e.Find(group, "ModelConfig", e.Namespace, name)
	if e.FailIf(o == nil, "no-model", at,
		"add it to the package: the agent's configuration is made from it",
		"the package has no ModelConfig %s", name) {
		return nil
	}
	var m modelConfig
	if finding.Failed(o.Decode("kagent-agent/field", &m)) {
		return nil // its own expansion reports it
	}
	p, known := providerOf(&m.Spec)
	if !known || p.missing(&m.Spec) {
		return nil // its own expansion reports it
	}
	u := &modelUse{typ: p.typ, name: m.Spec.Model}
	e.FailIf(p.goOnly && !e.goRuntime(), "runtime", at, "set spec.declarative.runtime: go",
		"models of %s need the runtime go", p.name)
	u.mountCA(m.Spec.TLS)
	u.secrets(&m.Spec, false, p.key, m.Spec.APIKeySecretKey)
	if p.use != nil {
		p.use(&m.Spec, u)
	}
	own := slices.Concat(u.azure, configOf(p.settings(&m.Spec)), u.config)
	u.config = slices.Concat(node.Map("type", u.typ, "model", u.name),
		some("headers", m.Spec.DefaultHeaders), m.Spec.TLS.config(),
		some("api_key_passthrough", m.Spec.APIKeyPassthrough && p.name != "Gemini"), own)
	e.addModel(u, at)
	return u
}

// addModel adds the environment and volumes of a model to the pod. Another model may need the
// same object, but not a different one under the same name: kagent then uses the first for both.
func (e *expander) addModel(u *modelUse, at string) {
	once := func(list *[]any, o object, hint, message string) (isNew bool) {
		i := slices.IndexFunc(*list,
			func(have any) bool { return have.(object)["name"] == o["name"] })
		if i < 0 {
			*list = append(*list, o)
			return true
		}
		e.FailIf(fmt.Sprint((*list)[i]) != fmt.Sprint(o), "two-models", at, hint, message,
			o["name"])
		return false
	}
	for _, v := range u.env {
		once(&e.env, v, "give both the same Secret, or choose models of different providers",
			"two models of the agent need different values of %s")
	}
	for i, v := range u.volumes {
		if once(&e.volumes, v, "give both the same Secret",
			"two models of the agent need different Secrets as %s") {
			e.mounts = append(e.mounts, u.mounts[i])
		}
	}
}

// modelConfig checks a ModelConfig. It generates no objects: the agents that name it include its
// configuration.
func (s *settings) modelConfig(r *expand.Resource) {
	var m modelConfig
	if !r.Decode("field", &m) {
		return
	}
	spec := &m.Spec
	p, known := providerOf(spec)
	if !known {
		var names []string
		for _, p := range providers {
			names = append(names, p.name)
		}
		r.Fail("unsupported", "spec.provider", "choose from "+strings.Join(names, ", ")+
			", or use a BYO agent", "the provider %q is not expanded", spec.Provider)
		return
	}
	secret, key := spec.APIKeySecret != "", spec.APIKeySecretKey != ""
	r.FailIf(spec.Model == "", "no-model", "spec.model", "set spec.model",
		"a ModelConfig names its model")
	r.FailIf(secret && !key && !p.keyless, "api-key", "spec.apiKeySecretKey",
		"set it to the key in the Secret", "apiKeySecret without apiKeySecretKey")
	r.FailIf(!secret && key, "api-key", "spec.apiKeySecret", "set it to the name of the Secret",
		"apiKeySecretKey without apiKeySecret")
	r.FailIf(secret && spec.APIKeyPassthrough, "api-key", "spec.apiKeyPassthrough",
		"keep one of them", "both apiKeySecret and apiKeyPassthrough")
	for _, other := range providers {
		if settings := other.settings(spec); !settings.IsNil() {
			r.FailIf(other.name != p.name, "provider", "spec", "correct spec.provider",
				"settings of %s, but the provider is another", other.name)
			checkSettings(r, other.field(), settings.Elem())
		}
	}
	r.FailIf(p.missing(spec), "provider", "spec", "set "+p.field(), "no settings of %s", p.name)
	spec.TLS.check(r.Fail)
	if spec.OpenAI != nil && spec.OpenAI.TokenExchange != nil {
		x := spec.OpenAI.TokenExchange
		r.FailIf(x.Type != "GDCHServiceAccount" || x.GDCHServiceAccount == nil ||
			x.GDCHServiceAccount.Audience == "", "exchange", "spec.openAI.tokenExchange",
			"set both",
			"a token exchange needs type GDCHServiceAccount and gdchServiceAccount.audience")
		r.FailIf(!secret, "exchange", "spec.apiKeySecret", "set apiKeySecret and apiKeySecretKey",
			"a token exchange needs the Secret with the service account")
	}
	r.FailIf(spec.Foundry != nil && spec.Foundry.Endpoint == "", "endpoint",
		"spec.foundry.endpoint", "set it: an endpointFrom is not read", "no endpoint")
	if a := spec.AzureOpenAI; a != nil && a.AzureADToken != "" {
		r.Report(finding.Warning, "kagent-agent/token",
			"spec.azureOpenAI.azureAdToken", "remove it, and give the agents "+
				"AZURE_AD_TOKEN from a Secret in spec.declarative.deployment.env", "the token is in "+
				"the manifest, and in the Deployment of each agent that names this model")
	}
}

// checkSettings reports texts that have to be numbers, and fields that kagent ignores.
func checkSettings(r *expand.Resource, path string, settings reflect.Value) {
	for i := range settings.NumField() {
		field, value := settings.Type().Field(i), settings.Field(i)
		at := path + "." + jsonName(field)
		switch _, option, _ := strings.Cut(field.Tag.Get("config"), ","); {
		case option == "number" && !value.IsZero():
			f, err := strconv.ParseFloat(value.String(), 64)
			r.FailIf(err != nil || math.IsNaN(f) || math.IsInf(f, 0), "number", at,
				`write it as "0.7"`, "%q is not a number", value.String())
		case option == "ignored" && r.Has(at):
			r.Report(finding.Info, "kagent-agent/ignored", at, "", "kagent ignores this field")
		}
	}
}

// modelUse is the use of a model by an agent: its part of config.json, and the environment and
// volumes of the pod.
type modelUse struct {
	typ, name       string  // in the configuration
	azure           ordered // settings of the data plane, which a memory needs as well
	config          ordered
	env             []object
	volumes, mounts []object
}

// provider describes a model's provider. Its settings are in the field of modelSpec that has its
// name.
type provider struct {
	name, typ string                      // of the resource, and of config.json
	key       string                      // the variable with the model's key, or ""
	required  bool                        // the settings have to be set
	keyless   bool                        // its Secret has keys of fixed names
	goOnly    bool                        // Python's runtime does not support it
	use       func(*modelSpec, *modelUse) // adds further needs; may be nil
}

// providers are sorted by name. OpenAI is the default.
var providers = []provider{
	{name: "Anthropic", typ: "anthropic", key: "ANTHROPIC_API_KEY"},
	{name: "AnthropicVertexAI", typ: "gemini_anthropic", required: true,
		use: func(m *modelSpec, u *modelUse) { useVertex(m, u, m.AnthropicVertexAI, "") }},
	{name: "AzureOpenAI", typ: "azure_openai", key: "AZURE_OPENAI_API_KEY", required: true,
		use: useAzure},
	{name: "Bedrock", typ: "bedrock", required: true, keyless: true, use: useBedrock},
	{name: "Foundry", typ: "foundry", key: "FOUNDRY_API_KEY", required: true, goOnly: true,
		use: useFoundry},
	{name: "Gemini", typ: "gemini", key: "GOOGLE_API_KEY"},
	{name: "GeminiVertexAI", typ: "gemini_vertex_ai", required: true,
		use: func(m *modelSpec, u *modelUse) { useVertex(m, u, m.GeminiVertexAI, "true") }},
	{name: "Ollama", typ: "ollama", required: true, use: useOllama},
	{name: "OpenAI", typ: "openai", use: useOpenAI},
	{name: "SAPAICore", typ: "sap_ai_core", required: true, keyless: true, use: useSAP},
}

func providerOf(m *modelSpec) (p provider, known bool) {
	name := cmp.Or(m.Provider, "OpenAI")
	i := slices.IndexFunc(providers, func(p provider) bool { return p.name == name })
	if i < 0 {
		return provider{}, false
	}
	return providers[i], true
}

// settings returns the provider's settings of a model, a pointer that may be nil.
func (p *provider) settings(m *modelSpec) reflect.Value {
	return reflect.ValueOf(m).Elem().FieldByName(p.name)
}

// missing reports whether a model lacks the settings that the provider requires.
func (p *provider) missing(m *modelSpec) bool { return p.required && p.settings(m).IsNil() }

// field returns the path of the settings in a ModelConfig.
func (p *provider) field() string {
	f, _ := reflect.TypeFor[modelSpec]().FieldByName(p.name)
	return "spec." + jsonName(f)
}

// jsonName returns the name of a field in a resource.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// configOf returns the part of config.json for settings: the fields that are set, and those whose
// tag says always. A number is text in the resource.
func configOf(settings reflect.Value) (config ordered) {
	if settings.IsNil() {
		return nil
	}
	settings = settings.Elem()
	for i := range settings.NumField() {
		name, option, _ := strings.Cut(settings.Type().Field(i).Tag.Get("config"), ",")
		switch value := settings.Field(i); {
		case name == "":
		case option == "always":
			config = append(config, node.Map(name, value.Interface())...)
		case option == "number":
			if number, err := strconv.ParseFloat(value.String(), 64); err == nil {
				config = append(config, node.Map(name, number)...)
			}
		default:
			config = append(config, some(name, value.Interface())...)
		}
	}
	return config
}

// values adds variables from alternating names and values, without empty values.
func (u *modelUse) values(pairs ...string) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			u.env = append(u.env, object{"name": pair[0], "value": pair[1]})
		}
	}
}

// secrets adds variables from alternating names and keys of the model's Secret, if it has one.
func (u *modelUse) secrets(m *modelSpec, optional bool, pairs ...string) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[0] == "" || m.APIKeySecret == "" || m.APIKeyPassthrough {
			return
		}
		ref := object{"name": m.APIKeySecret, "key": pair[1]}
		if optional {
			ref["optional"] = true
		}
		u.env = append(u.env, object{"name": pair[0], "valueFrom": object{"secretKeyRef": ref}})
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
	if m.OpenAI == nil {
		m.OpenAI = &openAI{}
	}
	if t := m.OpenAI.TokenExchange; t == nil {
		u.secrets(m, false, "OPENAI_API_KEY", m.APIKeySecretKey)
	} else if t.GDCHServiceAccount != nil { // its Secret is mounted as a file
		u.config = node.Map("token_exchange", node.Map("type", t.Type, "gdch_service_account",
			node.Map("service_account_path", "/gdch-creds/"+m.APIKeySecretKey,
				"audience", t.GDCHServiceAccount.Audience)))
		u.mount("gdch-creds", m.APIKeySecret, "/gdch-creds", true)
	}
	u.values("OPENAI_ORGANIZATION", m.OpenAI.Organization)
}

func useAzure(m *modelSpec, u *modelUse) {
	s := m.AzureOpenAI
	u.name = s.Deployment
	u.azure = some("endpoint", s.Endpoint, "deployment", s.Deployment, "api_version", s.APIVersion)
	u.values("AZURE_AD_TOKEN", s.AzureADToken, "OPENAI_API_VERSION", s.APIVersion,
		"AZURE_OPENAI_ENDPOINT", s.Endpoint)
}

func useFoundry(m *modelSpec, u *modelUse) {
	s := m.Foundry
	version := cmp.Or(s.APIVersion, "2024-10-21")
	u.azure = node.Map("endpoint", s.Endpoint, "deployment", s.Deployment, "api_version", version)
	u.values("FOUNDRY_ENDPOINT", s.Endpoint, "FOUNDRY_DEPLOYMENT", s.Deployment,
		"FOUNDRY_API_VERSION", version)
}

func useOllama(m *modelSpec, u *modelUse) {
	host := m.Ollama.Host
	if !strings.HasPrefix(host, "http://") && !strings.HasPrefix(host, "https://") {
		host = "http://" + host
	}
	u.values("OLLAMA_API_BASE", host)
}

// useVertex adds the needs of both providers of Vertex AI. gemini is "true" for Gemini.
func useVertex(m *modelSpec, u *modelUse, s *vertex, gemini string) {
	u.values("GOOGLE_CLOUD_PROJECT", s.ProjectID, "GOOGLE_CLOUD_LOCATION", s.Location,
		"GOOGLE_GENAI_USE_VERTEXAI", gemini)
	if m.APIKeySecret != "" {
		u.values("GOOGLE_APPLICATION_CREDENTIALS", "/creds/"+m.APIKeySecretKey)
		u.mount("google-creds", m.APIKeySecret, "/creds", false)
	}
}

// useBedrock refers to all keys that the Secret may have: kagent's controller checks which of them
// exist, but a render does not read Secrets.
func useBedrock(m *modelSpec, u *modelUse) {
	u.values("AWS_REGION", m.Bedrock.Region)
	for _, name := range []string{"AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		u.secrets(m, true, name, name)
	}
}

func useSAP(m *modelSpec, u *modelUse) {
	m.SAPAICore.ResourceGroup = cmp.Or(m.SAPAICore.ResourceGroup, "default")
	u.secrets(m, false, "SAP_AI_CORE_CLIENT_ID", "client_id",
		"SAP_AI_CORE_CLIENT_SECRET", "client_secret")
}

var dnsLabel = text.Pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// caFile returns the name of the volume with a CA, its mount path, and the path of the certificate,
// or "". If the name of the Secret cannot name a volume, a checksum of it does.
func (t *tlsConfig) caFile() (volume, folder, file string) {
	if t == nil || t.CACertSecretRef == "" || t.CACertSecretKey == "" {
		return "", "", ""
	}
	id := t.CACertSecretRef
	if volume = "tls-ca-" + id; len(volume) > 63 || !dnsLabel().MatchString(volume) {
		sum := sha256.Sum256([]byte(id))
		id = fmt.Sprintf("%x", sum[:4])
	}
	folder = "/etc/ssl/certs/custom/" + id
	return "tls-ca-" + id, folder, folder + "/" + t.CACertSecretKey
}

// config returns the TLS settings, or nil if none is set.
func (t *tlsConfig) config() ordered {
	if t == nil || *t == (tlsConfig{}) {
		return nil
	}
	_, _, file := t.caFile()
	return node.Map("tls_insecure_skip_verify", t.DisableVerify, "tls_ca_cert_path",
		node.Given(file), "tls_disable_system_cas", t.DisableSystemCAs)
}

// mountCA adds the CA of a server.
func (u *modelUse) mountCA(t *tlsConfig) {
	if volume, folder, _ := t.caFile(); volume != "" {
		u.mount(volume, t.CACertSecretRef, folder, true)
	}
}

// check reports settings that the API server refuses.
func (t *tlsConfig) check(fail func(rule, field, hint, message string, values ...any)) {
	switch {
	case t == nil:
	case (t.CACertSecretRef == "") != (t.CACertSecretKey == ""):
		fail("tls", "spec.tls", "set both", "a CA needs both caCertSecretRef and caCertSecretKey")
	case t.DisableSystemCAs && !t.DisableVerify && t.CACertSecretRef == "":
		fail("tls", "spec.tls.disableSystemCAs", "set caCertSecretRef and caCertSecretKey",
			"no CA is trusted")
	case strings.ContainsAny(t.CACertSecretKey, "/\\"):
		fail("tls", "spec.tls.caCertSecretKey", "set the key alone, ca.crt",
			"a path is not a key of a Secret")
	}
}
