// Package v1alpha2 holds kagent's RemoteMCPServer, as kagent publishes it; the
// field tls is ours.
//
// +kubebuilder:object:generate=true
// +groupName=kagent.dev
// +versionName=v1alpha2
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of RemoteMCPServer.
var GroupVersion = schema.GroupVersion{Group: "kagent.dev", Version: "v1alpha2"}

// AddToScheme registers RemoteMCPServer.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &RemoteMCPServer{}, &RemoteMCPServerList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// RemoteMCPServer makes the tools of an MCP server known.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rmcps,categories=kagent
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.url`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`,priority=1
type RemoteMCPServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RemoteMCPServerSpec   `json:"spec,omitempty"`
	Status RemoteMCPServerStatus `json:"status,omitempty"`
}

// RemoteMCPServerList is what a list request answers.
//
// +kubebuilder:object:root=true
type RemoteMCPServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RemoteMCPServer `json:"items"`
}

// Protocol is how an MCP server is spoken to.
//
// +kubebuilder:validation:Enum=SSE;STREAMABLE_HTTP
type Protocol string

// The transports of the MCP specification.
const (
	SSE            Protocol = "SSE"
	StreamableHTTP Protocol = "STREAMABLE_HTTP"
)

// RemoteMCPServerSpec says where a server is and how to reach it.
type RemoteMCPServerSpec struct {
	// Description in a sentence, for people. Omitted, there is none.
	// +optional
	Description string `json:"description,omitempty"`
	// Protocol is SSE or STREAMABLE_HTTP. Default STREAMABLE_HTTP.
	// +optional
	// +kubebuilder:default=STREAMABLE_HTTP
	Protocol Protocol `json:"protocol,omitempty"`
	// URL of the server's MCP endpoint.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https']",message="must be an http or https URL, such as http://tools.team1:8080/mcp"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[a-zA-Z]+://[^/?#]*@')",message="must hold no user or password: put them into a Secret and name it in headersFrom"
	URL string `json:"url"`
	// HeadersFrom are sent with every request. Omitted, there are none.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	HeadersFrom []ValueRef `json:"headersFrom,omitempty"`
	// Timeout of one discovery. Default 30s, at most 1m; a longer one counts as 1m.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// SseReadTimeout bounds how long nothing may come over an event stream.
	// Omitted, timeout alone holds.
	// +optional
	SseReadTimeout *metav1.Duration `json:"sseReadTimeout,omitempty"`
	// TerminateOnClose ends the session when discovery is done. Default true.
	// +optional
	// +kubebuilder:default=true
	TerminateOnClose *bool `json:"terminateOnClose,omitempty"`
	// AllowedNamespaces says which namespaces' agents may refer to the server. The
	// catalog carries it along.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`
	// TLS of the connection. Omitted, the system's authorities are trusted.
	// (Armature)
	// +optional
	TLS *TLS `json:"tls,omitempty"`
}

// AllowedNamespaces follows the Gateway API.
type AllowedNamespaces struct {
	// From is All, Same or Selector. Default Same.
	// +optional
	// +kubebuilder:default=Same
	// +kubebuilder:validation:Enum=All;Same;Selector
	From string `json:"from,omitempty"`
	// Selector of namespaces, for from: Selector.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// TLS of a connection.
type TLS struct {
	// CACertSecretRef names a Secret of the namespace with the authorities to
	// trust beside the system's. Omitted, there are none.
	// +optional
	CACertSecretRef string `json:"caCertSecretRef,omitempty"`
	// CACertSecretKey of that Secret. Default ca.crt.
	// +optional
	// +kubebuilder:default=ca.crt
	CACertSecretKey string `json:"caCertSecretKey,omitempty"`
	// ServerName that the certificate has to be for. Omitted, the URL's host.
	// +optional
	ServerName string `json:"serverName,omitempty"`
}

// ValueRef is a name with a value, or with where the value is.
//
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueFrom)",message="say either value or valueFrom"
type ValueRef struct {
	// Name of the header.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// Value as it is. For a secret use valueFrom.
	// +optional
	Value string `json:"value,omitempty"`
	// ValueFrom a Secret or ConfigMap.
	// +optional
	ValueFrom *ValueSource `json:"valueFrom,omitempty"`
}

// ValueSource is a key of a Secret or ConfigMap of the same namespace.
type ValueSource struct {
	// Type is Secret or ConfigMap.
	// +kubebuilder:validation:Enum=ConfigMap;Secret
	Type string `json:"type"`
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Key in the object's data.
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
}

// ConditionAccepted is true when the server's tools could be listed.
const ConditionAccepted = "Accepted"

// RemoteMCPServerStatus is what the last discoveries found.
type RemoteMCPServerStatus struct {
	// ObservedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`
	// Conditions: Accepted.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// DiscoveredTools of the last good answer, the first 1000 of them.
	// +optional
	// +listType=atomic
	DiscoveredTools []MCPTool `json:"discoveredTools,omitempty"`
}

// MCPTool is one tool.
type MCPTool struct {
	// Name of the tool.
	Name string `json:"name"`
	// Description by the server, its first 512 bytes.
	Description string `json:"description"`
}
