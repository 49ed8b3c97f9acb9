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

type openAI struct {
	BaseURL             string         `json:"baseUrl,omitempty"`
	Organization        string         `json:"organization,omitempty"`
	Temperature         string         `json:"temperature,omitempty"`
	MaxTokens           int            `json:"maxTokens,omitempty"`
	TopP                string         `json:"topP,omitempty"`
	FrequencyPenalty    string         `json:"frequencyPenalty,omitempty"`
	PresencePenalty     string         `json:"presencePenalty,omitempty"`
	Seed                *int           `json:"seed,omitempty"`
	N                   *int           `json:"n,omitempty"`
	Timeout             *int           `json:"timeout,omitempty"`
	ReasoningEffort     string         `json:"reasoningEffort,omitempty"`
	MaxCompletionTokens int            `json:"maxCompletionTokens,omitempty"`
	APIFormat           string         `json:"apiFormat,omitempty"`
	TokenExchange       *tokenExchange `json:"tokenExchange,omitempty"`
}

type tokenExchange struct {
	Type               string `json:"type"`
	GDCHServiceAccount *struct {
		Audience string `json:"audience"`
	} `json:"gdchServiceAccount,omitempty"`
}

type anthropic struct {
	BaseURL     string `json:"baseUrl,omitempty"`
	MaxTokens   int    `json:"maxTokens,omitempty"`
	Temperature string `json:"temperature,omitempty"`
	TopP        string `json:"topP,omitempty"`
	TopK        int    `json:"topK,omitempty"`
}

type azure struct {
	Endpoint     string `json:"azureEndpoint"`
	APIVersion   string `json:"apiVersion"`
	Deployment   string `json:"azureDeployment,omitempty"`
	AzureADToken string `json:"azureAdToken,omitempty"`
	Temperature  string `json:"temperature,omitempty"`
	MaxTokens    *int   `json:"maxTokens,omitempty"`
	TopP         string `json:"topP,omitempty"`
}

type ollama struct {
	Host    string            `json:"host,omitempty"`
	Options map[string]string `json:"options,omitempty"`
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
	Region                       string         `json:"region"`
	AdditionalModelRequestFields map[string]any `json:"additionalModelRequestFields,omitempty"`
	PromptCaching                bool           `json:"promptCaching,omitempty"`
	CacheTTL                     string         `json:"cacheTTL,omitempty"` // 5m or 1h
	Guardrail                    *struct {
		Identifier string `json:"identifier"`
		Version    string `json:"version"`
		Trace      string `json:"trace,omitempty"`
	} `json:"guardrail,omitempty"`
	ReadTimeout    *int `json:"readTimeout,omitempty"`
	ConnectTimeout *int `json:"connectTimeout,omitempty"`
}

type sap struct {
	BaseURL       string `json:"baseUrl"`
	ResourceGroup string `json:"resourceGroup,omitempty"`
	AuthURL       string `json:"authUrl,omitempty"`
}

type gemini struct {
	MaxOutputTokens int `json:"maxOutputTokens,omitempty"`
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
