// Package kagent holds what the catalog reads and writes of kagent's MCP servers. Their
// CRDs, as kagent publishes them and with our field tls, are in templates/crds/catalog.
// Fields that are not here stay as they are, since the catalog writes by patches.
package kagent

import (
	"cmp"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
)

// Group of kagent's kinds.
const Group = keys.Kagent

// The versions that have the two kinds.
var (
	V1alpha1 = schema.GroupVersion{Group: Group, Version: "v1alpha1"} // MCPServer
	V1alpha2 = schema.GroupVersion{Group: Group, Version: "v1alpha2"} // RemoteMCPServer
)

// AddToScheme registers both kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	copies.AddKind[MCPServer](scheme, V1alpha1)
	copies.AddKind[RemoteMCPServer](scheme, V1alpha2)
	return nil
}

// MCPServer is a server of tools that runs in the cluster, behind a Service of the same name.
type MCPServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Deployment struct {
			// Port of the Service. Omitted, 3000.
			Port int32 `json:"port,omitempty"`
		} `json:"deployment"`
		// TransportType is stdio or http. A stdio server is behind a gateway that
		// speaks streamable HTTP, so both are queried in the same way.
		TransportType string `json:"transportType,omitempty"`
		HTTPTransport struct {
			// TargetPath of the MCP endpoint. Omitted, /mcp.
			TargetPath string `json:"path,omitempty"`
		} `json:"httpTransport,omitzero"`
	} `json:"spec,omitempty"`
	Status struct {
		// Conditions: Discovered is the catalog's, all others are kagent's.
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status,omitempty"`
}

// URL returns where the server listens in the cluster.
func (s *MCPServer) URL() string {
	port, path := cmp.Or(s.Spec.Deployment.Port, 3000), cmp.Or(s.Spec.HTTPTransport.TargetPath, "/mcp")
	return fmt.Sprintf("http://%s.%s.svc:%d/%s", s.Name, s.Namespace, port,
		strings.TrimPrefix(path, "/"))
}

// MCPServerList is what a list request answers.
type MCPServerList = copies.List[MCPServer]

// RemoteMCPServer makes the tools of an MCP server known.
type RemoteMCPServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RemoteMCPServerSpec   `json:"spec,omitempty"`
	Status RemoteMCPServerStatus `json:"status,omitempty"`
}

// RemoteMCPServerList is what a list request answers.
type RemoteMCPServerList = copies.List[RemoteMCPServer]

// Protocol is how an MCP server is spoken to.
type Protocol string

// The transports of the MCP specification.
const (
	SSE            Protocol = "SSE"
	StreamableHTTP Protocol = "STREAMABLE_HTTP"
)

// RemoteMCPServerSpec says where a server is and how to reach it.
type RemoteMCPServerSpec struct {
	// Description in a sentence, for people. Omitted, there is none.
	Description string `json:"description,omitempty"`
	// Protocol is SSE or STREAMABLE_HTTP. Default STREAMABLE_HTTP.
	Protocol Protocol `json:"protocol,omitempty"`
	// URL of the server's MCP endpoint.
	URL string `json:"url"`
	// HeadersFrom are sent with every request. Omitted, there are none.
	HeadersFrom []ValueRef `json:"headersFrom,omitempty"`
	// Timeout of one discovery. Default 30s, at most 1m; a longer one counts as 1m.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// SseReadTimeout bounds how long nothing may come over an event stream.
	// Omitted, timeout alone holds.
	SseReadTimeout metav1.Duration `json:"sseReadTimeout,omitzero"`
	// TerminateOnClose ends the session when discovery is done. Default true.
	TerminateOnClose *bool `json:"terminateOnClose,omitempty"`
	// TLS of the connection. Omitted, the system's authorities are trusted.
	// (Armature)
	TLS TLS `json:"tls,omitzero"`
}

// TLS of a connection.
type TLS struct {
	// CACertSecretRef names a Secret of the namespace with the authorities to
	// trust beside the system's. Omitted, there are none.
	CACertSecretRef string `json:"caCertSecretRef,omitempty"`
	// CACertSecretKey of that Secret. Default ca.crt.
	CACertSecretKey string `json:"caCertSecretKey,omitempty"`
	// ServerName that the certificate has to be for. Omitted, the URL's host.
	ServerName string `json:"serverName,omitempty"`
}

// ValueRef is the name of a header with a value, or with where the value is.
type ValueRef struct {
	Name      string      `json:"name"`
	Value     string      `json:"value,omitempty"`
	ValueFrom ValueSource `json:"valueFrom,omitzero"`
}

// ValueSource is a key of a Secret or ConfigMap of the same namespace.
type ValueSource struct {
	// Type is Secret or ConfigMap.
	Type string `json:"type"`
	Name string `json:"name"`
	Key  string `json:"key"`
}

// ConditionAccepted is true when the server's tools could be listed.
const ConditionAccepted = "Accepted"

// RemoteMCPServerStatus is what the last discoveries found.
type RemoteMCPServerStatus struct {
	// ObservedGeneration is the generation that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Conditions: Accepted.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// DiscoveredTools of the last good answer, the first 1000 of them.
	DiscoveredTools []MCPTool `json:"discoveredTools,omitempty"`
}

// MCPTool is one tool.
type MCPTool struct {
	Name string `json:"name"`
	// Description by the server, its first 512 bytes.
	Description string `json:"description"`
}

// DeepCopyObject returns a copy that shares nothing with s.
func (s *MCPServer) DeepCopyObject() runtime.Object { return copies.Of(s) }

// DeepCopyObject returns a copy that shares nothing with s.
func (s *RemoteMCPServer) DeepCopyObject() runtime.Object { return copies.Of(s) }
