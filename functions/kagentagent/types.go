package kagentagent

import "github.com/armature-dev/armature/functions/api"

// The resources of kagent.dev as of kagent 0.10.0-rc3 and kmcp 0.3.0. Unknown fields are errors, so
// that no field is dropped silently.

type (
	agent        = api.Resource[agentSpec]
	modelConfig  = api.Resource[modelSpec]
	mcpServer    = api.Resource[mcpSpec]
	remoteServer = api.Resource[remoteSpec]
)

type agentSpec struct {
	Type        string       `json:"type,omitempty"` // Declarative or BYO
	Description string       `json:"description,omitempty"`
	Declarative *declarative `json:"declarative,omitempty"`
	BYO         *struct {
		Deployment *deploymentSpec `json:"deployment,omitempty"`
	} `json:"byo,omitempty"`
	Skills           *skills `json:"skills,omitempty"`
	IconURL          string  `json:"iconUrl,omitempty"`
	DocumentationURL string  `json:"documentationUrl,omitempty"`
	Version          string  `json:"version,omitempty"`
	Provider         *struct {
		Organization string `json:"organization"`
		URL          string `json:"url"`
	} `json:"provider,omitempty"`
	Sandbox           *sandbox           `json:"sandbox,omitempty"`
	AllowedNamespaces *allowedNamespaces `json:"allowedNamespaces,omitempty"`
}

type allowedNamespaces struct {
	From     string `json:"from,omitempty"` // All, Same or Selector
	Selector any    `json:"selector,omitempty"`
}

type sandbox struct {
	Network *struct {
		AllowedDomains []string `json:"allowedDomains,omitempty"`
	} `json:"network,omitempty"`
}

type skills struct {
	Refs               []string  `json:"refs,omitempty"`
	GitRefs            []gitRef  `json:"gitRefs,omitempty"`
	S3Refs             []s3Ref   `json:"s3Refs,omitempty"`
	GitAuthSecretRef   *nameRef  `json:"gitAuthSecretRef,omitempty"`
	ImagePullSecrets   []nameRef `json:"imagePullSecrets,omitempty"`
	InsecureSkipVerify bool      `json:"insecureSkipVerify,omitempty"`
	InitContainer      *struct {
		Resources any   `json:"resources,omitempty"`
		Env       []any `json:"env,omitempty"`
	} `json:"initContainer,omitempty"`
}

type gitRef struct {
	URL  string `json:"url"`
	Ref  string `json:"ref,omitempty"`
	Path string `json:"path,omitempty"`
	Name string `json:"name,omitempty"`
}

type s3Ref struct {
	URI    string `json:"uri"`
	Region string `json:"region,omitempty"`
	Name   string `json:"name,omitempty"`
}

type declarative struct {
	Runtime           string       `json:"runtime,omitempty"` // python or go
	SystemMessage     string       `json:"systemMessage,omitempty"`
	SystemMessageFrom *valueSource `json:"systemMessageFrom,omitempty"`
	PromptTemplate    *struct {
		DataSources []promptSource `json:"dataSources,omitempty"`
	} `json:"promptTemplate,omitempty"`
	ModelConfig string `json:"modelConfig,omitempty"`
	Stream      bool   `json:"stream,omitempty"`
	Tools       []tool `json:"tools,omitempty"`
	A2AConfig   *struct {
		Skills []cardSkill `json:"skills,omitempty"`
	} `json:"a2aConfig,omitempty"`
	Deployment        *deploymentSpec `json:"deployment,omitempty"`
	ExecuteCodeBlocks *bool           `json:"executeCodeBlocks,omitempty"`
	ShareTools        bool            `json:"shareTools,omitempty"`
	Memory            *struct {
		ModelConfig string `json:"modelConfig"`
		TTLDays     int    `json:"ttlDays,omitempty"`
	} `json:"memory,omitempty"`
	Context *struct {
		Compaction *compaction `json:"compaction,omitempty"`
	} `json:"context,omitempty"`
}

type promptSource struct {
	Kind     string `json:"kind,omitempty"`
	APIGroup string `json:"apiGroup,omitempty"`
	Name     string `json:"name"`
	Alias    string `json:"alias,omitempty"`
}

type compaction struct {
	CompactionInterval *int `json:"compactionInterval,omitempty"` // 5
	OverlapSize        *int `json:"overlapSize,omitempty"`        // 2
	TokenThreshold     *int `json:"tokenThreshold,omitempty"`
	EventRetentionSize *int `json:"eventRetentionSize,omitempty"`
	Summarizer         *struct {
		ModelConfig    string `json:"modelConfig,omitempty"`
		PromptTemplate string `json:"promptTemplate,omitempty"`
	} `json:"summarizer,omitempty"`
}

// cardSkill has its fields in the order of agent-card.json.
type cardSkill struct {
	Description string   `json:"description"`
	Examples    []string `json:"examples,omitempty"`
	ID          string   `json:"id"`
	InputModes  []string `json:"inputModes,omitempty"`
	Name        string   `json:"name"`
	OutputModes []string `json:"outputModes,omitempty"`
	Tags        []string `json:"tags"`
}

// deploymentSpec is the deployment of both types: imageRegistry is for Declarative, image, cmd,
// args and workingDir are for BYO.
type deploymentSpec struct {
	ImageRegistry string   `json:"imageRegistry,omitempty"`
	Image         string   `json:"image,omitempty"`
	Cmd           string   `json:"cmd,omitempty"`
	Args          []string `json:"args,omitempty"`
	WorkingDir    string   `json:"workingDir,omitempty"`

	PodSettings `json:",inline"`

	EnvFrom               []any             `json:"envFrom,omitempty"`
	Env                   []any             `json:"env,omitempty"`
	DeploymentAnnotations map[string]string `json:"deploymentAnnotations,omitempty"`
	ServiceAccountConfig  *accountConfig    `json:"serviceAccountConfig,omitempty"`
	ExtraContainers       []map[string]any  `json:"extraContainers,omitempty"`
}

// PodSettings are the pod settings of both Agents and MCPServers.
type PodSettings struct {
	Replicas           *int              `json:"replicas,omitempty"`
	ImagePullSecrets   []any             `json:"imagePullSecrets,omitempty"`
	Volumes            []any             `json:"volumes,omitempty"`
	VolumeMounts       []any             `json:"volumeMounts,omitempty"`
	Labels             map[string]string `json:"labels,omitempty"`
	Annotations        map[string]string `json:"annotations,omitempty"`
	ImagePullPolicy    string            `json:"imagePullPolicy,omitempty"`
	Resources          any               `json:"resources,omitempty"`
	Tolerations        []any             `json:"tolerations,omitempty"`
	Affinity           any               `json:"affinity,omitempty"`
	NodeSelector       map[string]string `json:"nodeSelector,omitempty"`
	SecurityContext    map[string]any    `json:"securityContext,omitempty"`
	PodSecurityContext map[string]any    `json:"podSecurityContext,omitempty"`
	ServiceAccountName string            `json:"serviceAccountName,omitempty"`
}

type accountConfig struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// valueSource names a key of a ConfigMap or a Secret.
type valueSource struct {
	Type string `json:"type"` // ConfigMap or Secret
	Name string `json:"name"`
	Key  string `json:"key"`
}

// header is a value, or its source.
type header struct {
	Name      string       `json:"name"`
	Value     string       `json:"value,omitempty"`
	ValueFrom *valueSource `json:"valueFrom,omitempty"`
}

type tool struct {
	Type        string     `json:"type,omitempty"` // McpServer or Agent
	McpServer   *reference `json:"mcpServer,omitempty"`
	Agent       *agentRef  `json:"agent,omitempty"`
	HeadersFrom []header   `json:"headersFrom,omitempty"`
	// IsolateSessions is for agents.
	IsolateSessions *bool `json:"isolateSessions,omitempty"`
}

type agentRef struct {
	Kind      string `json:"kind,omitempty"`
	APIGroup  string `json:"apiGroup,omitempty"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

type reference struct {
	Kind            string   `json:"kind,omitempty"`
	APIGroup        string   `json:"apiGroup,omitempty"`
	Name            string   `json:"name"`
	Namespace       string   `json:"namespace,omitempty"`
	ToolNames       []string `json:"toolNames,omitempty"`
	RequireApproval []string `json:"requireApproval,omitempty"`
	AllowedHeaders  []string `json:"allowedHeaders,omitempty"`
}

type remoteSpec struct {
	Description       string             `json:"description,omitempty"`
	Protocol          string             `json:"protocol,omitempty"` // SSE or STREAMABLE_HTTP
	URL               string             `json:"url"`
	HeadersFrom       []header           `json:"headersFrom,omitempty"`
	Timeout           string             `json:"timeout,omitempty"`
	SSEReadTimeout    string             `json:"sseReadTimeout,omitempty"`
	TerminateOnClose  *bool              `json:"terminateOnClose,omitempty"`
	AllowedNamespaces *allowedNamespaces `json:"allowedNamespaces,omitempty"`
	TLS               *tlsConfig         `json:"tls,omitempty"`
}

type mcpSpec struct {
	Deployment     mcpDeployment `json:"deployment"`
	TransportType  string        `json:"transportType,omitempty"` // stdio or http
	StdioTransport struct{}      `json:"stdioTransport,omitempty"`
	HTTPTransport  *struct {
		TargetPort int    `json:"targetPort,omitempty"`
		Path       string `json:"path,omitempty"`
		TLS        *struct {
			SecretRef          string `json:"secretRef,omitempty"`
			InsecureSkipVerify bool   `json:"insecureSkipVerify,omitempty"`
		} `json:"tls,omitempty"`
	} `json:"httpTransport,omitempty"`
	Timeout string `json:"timeout,omitempty"` // of its callers
}

type mcpDeployment struct {
	PodSettings `json:",inline"`

	Image         string         `json:"image,omitempty"`
	Port          int            `json:"port,omitempty"` // 3000
	Cmd           string         `json:"cmd,omitempty"`
	Args          []string       `json:"args,omitempty"`
	Env           map[string]any `json:"env,omitempty"` // text, or {value, valueFrom}
	SecretRefs    []nameRef      `json:"secretRefs,omitempty"`
	ConfigMapRefs []nameRef      `json:"configMapRefs,omitempty"`
	InitContainer *struct {
		Image           string         `json:"image,omitempty"`
		ImagePullPolicy string         `json:"imagePullPolicy,omitempty"`
		Resources       any            `json:"resources,omitempty"`
		SecurityContext map[string]any `json:"securityContext,omitempty"`
	} `json:"initContainer,omitempty"`
	ServiceAccount *accountConfig `json:"serviceAccount,omitempty"`
	Sidecars       []any          `json:"sidecars,omitempty"`
}

type nameRef struct {
	Name string `json:"name"`
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

// The settings of providers. Fields with the tag config are written to config.json, in this order:
// see configOf. kagent ignores those with the tag ignored.

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

// vertex has the settings of both providers of Vertex AI.
type vertex struct {
	ProjectID string `json:"projectID"`
	Location  string `json:"location"`

	Temperature      string   `json:"temperature,omitempty" config:",ignored"`
	TopP             string   `json:"topP,omitempty" config:",ignored"`
	TopK             string   `json:"topK,omitempty" config:",ignored"`
	StopSequences    []string `json:"stopSequences,omitempty" config:",ignored"`
	MaxOutputTokens  int      `json:"maxOutputTokens,omitempty" config:",ignored"`
	CandidateCount   int      `json:"candidateCount,omitempty" config:",ignored"`
	ResponseMimeType string   `json:"responseMimeType,omitempty" config:",ignored"`
	MaxTokens        int      `json:"maxTokens,omitempty" config:",ignored"`
}

type bedrock struct {
	Region                       string         `json:"region" config:"region"`
	AdditionalModelRequestFields map[string]any `json:"additionalModelRequestFields,omitempty" config:"additional_model_request_fields"`
	PromptCaching                bool           `json:"promptCaching,omitempty" config:"prompt_caching"`
	// 5m or 1h
	CacheTTL  string `json:"cacheTTL,omitempty" config:"cache_ttl"`
	Guardrail *struct {
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
