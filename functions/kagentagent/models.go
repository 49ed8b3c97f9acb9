package kagentagent

import "github.com/armature-dev/armature/functions/api"

type modelConfig struct {
	api.TypeMeta   `json:",inline"`
	api.ObjectMeta `json:"metadata,omitempty"`
	Spec           modelSpec `json:"spec"`
	Status         any       `json:"status,omitempty"`
}

type modelSpec struct {
	Model             string            `json:"model"`
	Provider          string            `json:"provider,omitempty"`
	APIKeySecret      string            `json:"apiKeySecret,omitempty"`
	APIKeySecretKey   string            `json:"apiKeySecretKey,omitempty"`
	APIKeyPassthrough bool              `json:"apiKeyPassthrough,omitempty"`
	DefaultHeaders    map[string]string `json:"defaultHeaders,omitempty"`
	TLS               *tlsConfig        `json:"tls,omitempty"`

	OpenAI            *openAI    `json:"openAI,omitempty"`
	Anthropic         *anthropic `json:"anthropic,omitempty"`
	AzureOpenAI       *azure     `json:"azureOpenAI,omitempty"`
	Ollama            *ollama    `json:"ollama,omitempty"`
	Gemini            *gemini    `json:"gemini,omitempty"`
	GeminiVertexAI    *vertex    `json:"geminiVertexAI,omitempty"`
	AnthropicVertexAI *vertex    `json:"anthropicVertexAI,omitempty"`
	Bedrock           *bedrock   `json:"bedrock,omitempty"`
	SAPAICore         *sap       `json:"sapAICore,omitempty"`
	Foundry           *foundry   `json:"foundry,omitempty"`
}

// The settings of providers. Fields with the tag config are those of config.json,
// in this order: see configOf.

type openAI struct {
	BaseURL             string         `json:"baseUrl,omitempty" config:"base_url,always"`
	FrequencyPenalty    string         `json:"frequencyPenalty,omitempty" config:"frequency_penalty,number"`
	MaxTokens           int            `json:"maxTokens,omitempty" config:"max_tokens"`
	MaxCompletionTokens int            `json:"maxCompletionTokens,omitempty" config:"max_completion_tokens"`
	N                   *int           `json:"n,omitempty" config:"n"`
	PresencePenalty     string         `json:"presencePenalty,omitempty" config:"presence_penalty,number"`
	ReasoningEffort     string         `json:"reasoningEffort,omitempty" config:"reasoning_effort"`
	Seed                *int           `json:"seed,omitempty" config:"seed"`
	Temperature         string         `json:"temperature,omitempty" config:"temperature,number"`
	Timeout             *int           `json:"timeout,omitempty" config:"timeout"`
	TopP                string         `json:"topP,omitempty" config:"top_p,number"`
	APIFormat           string         `json:"apiFormat,omitempty" config:"api_format"`
	Organization        string         `json:"organization,omitempty"`
	TokenExchange       *tokenExchange `json:"tokenExchange,omitempty"`
}

type tokenExchange struct {
	Type               string `json:"type"`
	GDCHServiceAccount *struct {
		Audience string `json:"audience"`
	} `json:"gdchServiceAccount,omitempty"`
}

type anthropic struct {
	BaseURL     string `json:"baseUrl,omitempty" config:"base_url"`
	MaxTokens   int    `json:"maxTokens,omitempty" config:"max_tokens"`
	Temperature string `json:"temperature,omitempty" config:"temperature,number"`
	TopP        string `json:"topP,omitempty" config:"top_p,number"`
	TopK        int    `json:"topK,omitempty" config:"top_k"`
}

type azure struct {
	Endpoint     string `json:"azureEndpoint"`
	APIVersion   string `json:"apiVersion"`
	Deployment   string `json:"azureDeployment,omitempty"`
	AzureADToken string `json:"azureAdToken,omitempty"`
	MaxTokens    *int   `json:"maxTokens,omitempty" config:"max_tokens"`
	Temperature  string `json:"temperature,omitempty" config:"temperature,number"`
	TopP         string `json:"topP,omitempty" config:"top_p,number"`
}

type ollama struct {
	Host    string            `json:"host,omitempty"`
	Options map[string]string `json:"options,omitempty" config:"options"`
}

// vertex is that of both providers of Vertex AI. kagent leaves all but the first
// two out of the configuration.
type vertex struct {
	ProjectID string `json:"projectID"`
	Location  string `json:"location"`

	Temperature      string   `json:"temperature,omitempty"`
	TopP             string   `json:"topP,omitempty"`
	TopK             string   `json:"topK,omitempty"`
	StopSequences    []string `json:"stopSequences,omitempty"`
	MaxOutputTokens  int      `json:"maxOutputTokens,omitempty"`
	CandidateCount   int      `json:"candidateCount,omitempty"`
	ResponseMimeType string   `json:"responseMimeType,omitempty"`
	MaxTokens        int      `json:"maxTokens,omitempty"`
}

type bedrock struct {
	Region                       string         `json:"region" config:"region"`
	AdditionalModelRequestFields map[string]any `json:"additionalModelRequestFields,omitempty" config:"additional_model_request_fields"`
	PromptCaching                bool           `json:"promptCaching,omitempty" config:"prompt_caching"`
	CacheTTL                     string         `json:"cacheTTL,omitempty" config:"cache_ttl"` // 5m or 1h
	Guardrail                    *struct {
		Identifier string `json:"identifier"`
		Version    string `json:"version"`
		Trace      string `json:"trace,omitempty"`
	} `json:"guardrail,omitempty" config:"guardrail"`
	ReadTimeout    *int `json:"readTimeout,omitempty" config:"read_timeout"`
	ConnectTimeout *int `json:"connectTimeout,omitempty" config:"connect_timeout"`
}

type sap struct {
	BaseURL       string `json:"baseUrl" config:"base_url,always"`
	ResourceGroup string `json:"resourceGroup,omitempty" config:"resource_group"`
	AuthURL       string `json:"authUrl,omitempty" config:"auth_url"`
}

type gemini struct {
	MaxOutputTokens int `json:"maxOutputTokens,omitempty" config:"max_output_tokens"`
}

type foundry struct {
	Endpoint     string `json:"endpoint,omitempty"`
	EndpointFrom any    `json:"endpointFrom,omitempty"`
	Deployment   string `json:"deployment"`
	APIVersion   string `json:"apiVersion,omitempty"`
}

// tlsConfig says how a server's certificate is checked.
type tlsConfig struct {
	DisableVerify    bool   `json:"disableVerify,omitempty"`
	CACertSecretRef  string `json:"caCertSecretRef,omitempty"`
	CACertSecretKey  string `json:"caCertSecretKey,omitempty"`
	DisableSystemCAs bool   `json:"disableSystemCAs,omitempty"`
}
