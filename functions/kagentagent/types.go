package kagentagent

import (
	"encoding/json"

	"github.com/armature-dev/armature/functions/api"
)

// The resources of kagent.dev as published, as far as they can be expanded.
// Unknown fields are errors, so that nothing is left out in silence.

type agent struct {
	api.TypeMeta   `json:",inline"`
	api.ObjectMeta `json:"metadata,omitempty"`
	Spec           agentSpec `json:"spec"`
	Status         any       `json:"status,omitempty"`
}

type agentSpec struct {
	Type              string       `json:"type,omitempty"` // Declarative or BYO
	Description       string       `json:"description,omitempty"`
	Declarative       *declarative `json:"declarative,omitempty"`
	BYO               *byo         `json:"byo,omitempty"`
	Skills            any          `json:"skills,omitempty"`
	AllowedNamespaces *struct {
		From     string `json:"from,omitempty"` // All, Same or Selector
		Selector any    `json:"selector,omitempty"`
	} `json:"allowedNamespaces,omitempty"`
}

type declarative struct {
	SystemMessage     string       `json:"systemMessage,omitempty"`
	SystemMessageFrom *valueSource `json:"systemMessageFrom,omitempty"`
	ModelConfig       string       `json:"modelConfig,omitempty"`
	Stream            bool         `json:"stream,omitempty"`
	Tools             []tool       `json:"tools,omitempty"`
	A2AConfig         *struct {
		Skills []json.RawMessage `json:"skills,omitempty"`
	} `json:"a2aConfig,omitempty"`
	Deployment        *deploymentSpec `json:"deployment,omitempty"`
	ExecuteCodeBlocks *bool           `json:"executeCodeBlocks,omitempty"`
}

type byo struct {
	Deployment *deploymentSpec `json:"deployment,omitempty"`
}

// deploymentSpec is that of both types: imageRegistry is for Declarative, image,
// cmd and args are for BYO.
type deploymentSpec struct {
	ImageRegistry string   `json:"imageRegistry,omitempty"`
	Image         string   `json:"image,omitempty"`
	Cmd           string   `json:"cmd,omitempty"`
	Args          []string `json:"args,omitempty"`

	Replicas             *int              `json:"replicas,omitempty"`
	ImagePullSecrets     []any             `json:"imagePullSecrets,omitempty"`
	Volumes              []any             `json:"volumes,omitempty"`
	VolumeMounts         []any             `json:"volumeMounts,omitempty"`
	Labels               map[string]string `json:"labels,omitempty"`
	Annotations          map[string]string `json:"annotations,omitempty"`
	Env                  []any             `json:"env,omitempty"`
	ImagePullPolicy      string            `json:"imagePullPolicy,omitempty"`
	Resources            any               `json:"resources,omitempty"`
	Tolerations          []any             `json:"tolerations,omitempty"`
	Affinity             any               `json:"affinity,omitempty"`
	NodeSelector         map[string]string `json:"nodeSelector,omitempty"`
	SecurityContext      any               `json:"securityContext,omitempty"`
	PodSecurityContext   any               `json:"podSecurityContext,omitempty"`
	ServiceAccountName   string            `json:"serviceAccountName,omitempty"`
	ServiceAccountConfig *struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"serviceAccountConfig,omitempty"`
}

// valueSource names a key of a ConfigMap or a Secret.
type valueSource struct {
	Type string `json:"type"` // ConfigMap or Secret
	Name string `json:"name"`
	Key  string `json:"key"`
}

// header is a value, or where it is from.
type header struct {
	Name      string       `json:"name"`
	Value     string       `json:"value,omitempty"`
	ValueFrom *valueSource `json:"valueFrom,omitempty"`
}

type tool struct {
	Type        string     `json:"type,omitempty"` // McpServer or Agent
	McpServer   *reference `json:"mcpServer,omitempty"`
	Agent       *reference `json:"agent,omitempty"`
	HeadersFrom []header   `json:"headersFrom,omitempty"`
}

type reference struct {
	Kind           string   `json:"kind,omitempty"`
	APIGroup       string   `json:"apiGroup,omitempty"`
	Name           string   `json:"name"`
	Namespace      string   `json:"namespace,omitempty"`
	ToolNames      []string `json:"toolNames,omitempty"`
	AllowedHeaders []string `json:"allowedHeaders,omitempty"`
}

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

	OpenAI            map[string]any `json:"openAI,omitempty"`
	Anthropic         map[string]any `json:"anthropic,omitempty"`
	AzureOpenAI       map[string]any `json:"azureOpenAI,omitempty"`
	Ollama            map[string]any `json:"ollama,omitempty"`
	Gemini            map[string]any `json:"gemini,omitempty"`
	GeminiVertexAI    map[string]any `json:"geminiVertexAI,omitempty"`
	AnthropicVertexAI map[string]any `json:"anthropicVertexAI,omitempty"`
	Bedrock           map[string]any `json:"bedrock,omitempty"`
}

type remoteServer struct {
	api.TypeMeta   `json:",inline"`
	api.ObjectMeta `json:"metadata,omitempty"`
	Spec           struct {
		Description      string   `json:"description,omitempty"`
		Protocol         string   `json:"protocol,omitempty"` // SSE or STREAMABLE_HTTP
		URL              string   `json:"url"`
		HeadersFrom      []header `json:"headersFrom,omitempty"`
		Timeout          string   `json:"timeout,omitempty"`
		SSEReadTimeout   string   `json:"sseReadTimeout,omitempty"`
		TerminateOnClose *bool    `json:"terminateOnClose,omitempty"`
	} `json:"spec"`
	Status any `json:"status,omitempty"`
}

type mcpServer struct {
	api.TypeMeta   `json:",inline"`
	api.ObjectMeta `json:"metadata,omitempty"`
	Spec           mcpSpec `json:"spec"`
	Status         any     `json:"status,omitempty"`
}

type mcpSpec struct {
	Deployment struct {
		Image           string         `json:"image,omitempty"`
		ImagePullPolicy string         `json:"imagePullPolicy,omitempty"`
		Port            int            `json:"port,omitempty"`
		Cmd             string         `json:"cmd,omitempty"`
		Args            []string       `json:"args,omitempty"`
		Env             map[string]any `json:"env,omitempty"` // text, or {value, valueFrom}
		SecretRefs      []nameRef      `json:"secretRefs,omitempty"`
		ConfigMapRefs   []nameRef      `json:"configMapRefs,omitempty"`
		Volumes         []any          `json:"volumes,omitempty"`
		VolumeMounts    []any          `json:"volumeMounts,omitempty"`
		ServiceAccount  *struct {
			Labels      map[string]string `json:"labels,omitempty"`
			Annotations map[string]string `json:"annotations,omitempty"`
		} `json:"serviceAccount,omitempty"`
		InitContainer *struct {
			Image           string `json:"image,omitempty"`
			ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
		} `json:"initContainer,omitempty"`
	} `json:"deployment"`
	TransportType  string   `json:"transportType,omitempty"` // stdio or http
	StdioTransport struct{} `json:"stdioTransport,omitempty"`
	HTTPTransport  *struct {
		TargetPort int    `json:"targetPort,omitempty"`
		Path       string `json:"path,omitempty"`
	} `json:"httpTransport,omitempty"`
}

type nameRef struct {
	Name string `json:"name"`
}
