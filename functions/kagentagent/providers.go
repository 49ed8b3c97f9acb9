package kagentagent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/text"
)

// modelUse is what an agent needs of a model: its part of config.json, and what
// the pod has for it.
type modelUse struct {
	typ, name       string  // in the configuration
	azure           ordered // settings of the data plane, which a memory needs as well
	config          ordered
	env             []object
	volumes, mounts []any
}

// provider is what a model's provider needs. Its settings are in the field of
// modelSpec that has its name.
type provider struct {
	name, typ string                      // of the resource, and of config.json
	key       string                      // the variable with the model's key, "" for another way
	required  bool                        // its settings
	keyless   bool                        // its Secret has keys of fixed names
	goOnly    bool                        // Python's runtime does not know it
	use       func(*modelSpec, *modelUse) // what else it needs; nil for nothing
}

// providers are sorted by name. A ModelConfig that names none is OpenAI's.
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

// settings are those of a model, a pointer that is nil where there are none.
func (p *provider) settings(m *modelSpec) reflect.Value {
	return reflect.ValueOf(m).Elem().FieldByName(p.name)
}

// missing reports whether a model lacks the settings that the provider requires.
func (p *provider) missing(m *modelSpec) bool { return p.required && p.settings(m).IsNil() }

// field is the path of the settings in a ModelConfig.
func (p *provider) field() string {
	f, _ := reflect.TypeFor[modelSpec]().FieldByName(p.name)
	return "spec." + jsonName(f)
}

// jsonName is the name of a field in a resource.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// configOf returns what config.json has of settings: the fields that are set, and
// those whose tag says always. A number is text in the resource.
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
			config.add(name, value.Interface())
		case option == "number":
			if number, err := strconv.ParseFloat(value.String(), 64); err == nil {
				config.add(name, number)
			}
		default:
			config.set(name, value.Interface())
		}
	}
	return config
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
	if name != "" && m.APIKeySecret != "" && !m.APIKeyPassthrough {
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
	if m.OpenAI == nil {
		m.OpenAI = &openAI{}
	}
	if t := m.OpenAI.TokenExchange; t == nil {
		u.key(m, "OPENAI_API_KEY")
	} else if t.GDCHServiceAccount != nil { // its Secret is a file, not a variable
		u.config.add("token_exchange", ordered{{"type", t.Type}, {"gdch_service_account", ordered{
			{"service_account_path", "/gdch-creds/" + m.APIKeySecretKey},
			{"audience", t.GDCHServiceAccount.Audience},
		}}})
		u.mount("gdch-creds", m.APIKeySecret, "/gdch-creds", true)
	}
	u.value("OPENAI_ORGANIZATION", m.OpenAI.Organization)
}

func useAzure(m *modelSpec, u *modelUse) {
	s := m.AzureOpenAI
	u.name = s.Deployment
	u.azure.set("endpoint", s.Endpoint)
	u.azure.set("deployment", s.Deployment)
	u.azure.set("api_version", s.APIVersion)
	u.value("AZURE_AD_TOKEN", s.AzureADToken)
	u.value("OPENAI_API_VERSION", s.APIVersion)
	u.value("AZURE_OPENAI_ENDPOINT", s.Endpoint)
}

func useFoundry(m *modelSpec, u *modelUse) {
	s := m.Foundry
	u.azure = ordered{{"endpoint", s.Endpoint}, {"deployment", s.Deployment},
		{"api_version", cmp.Or(s.APIVersion, "2024-10-21")}}
	for i, name := range []string{"FOUNDRY_ENDPOINT", "FOUNDRY_DEPLOYMENT", "FOUNDRY_API_VERSION"} {
		u.value(name, u.azure[i].value.(string))
	}
}

func useOllama(m *modelSpec, u *modelUse) {
	host := m.Ollama.Host
	if !strings.HasPrefix(host, "http://") && !strings.HasPrefix(host, "https://") {
		host = "http://" + host
	}
	u.value("OLLAMA_API_BASE", host)
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
	u.value("AWS_REGION", m.Bedrock.Region)
	if m.APIKeySecret != "" && !m.APIKeyPassthrough {
		for _, name := range []string{"AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID",
			"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
			u.secret(name, m, name, true)
		}
	}
}

func useSAP(m *modelSpec, u *modelUse) {
	m.SAPAICore.ResourceGroup = cmp.Or(m.SAPAICore.ResourceGroup, "default")
	if m.APIKeySecret != "" && !m.APIKeyPassthrough {
		u.secret("SAP_AI_CORE_CLIENT_ID", m, "client_id", false)
		u.secret("SAP_AI_CORE_CLIENT_SECRET", m, "client_secret", false)
	}
}

var dnsLabel = text.Pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// caFile returns the name of the volume with a CA, where it is mounted, and the
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
		fail("tls", "spec.tls", "a CA needs both caCertSecretRef and caCertSecretKey", "set both")
	case t.DisableSystemCAs && !t.DisableVerify && t.CACertSecretRef == "":
		fail("tls", "spec.tls.disableSystemCAs", "no CA is trusted",
			"set caCertSecretRef and caCertSecretKey")
	case t.CACertSecretKey != "" && strings.ContainsAny(t.CACertSecretKey, "/\\"):
		fail("tls", "spec.tls.caCertSecretKey", "a path is not a key of a Secret",
			"set the key alone, "+text.Shown("ca.crt"))
	}
}
