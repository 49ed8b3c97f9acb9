// Package v1alpha1 holds kagent's MCPServer, as kagent publishes it: a server of
// tools that runs in the cluster behind a Service of the same name.
//
// +kubebuilder:object:generate=true
// +groupName=kagent.dev
// +versionName=v1alpha1
package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of MCPServer.
var GroupVersion = schema.GroupVersion{Group: "kagent.dev", Version: "v1alpha1"}

// AddToScheme registers MCPServer.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &MCPServer{}, &MCPServerList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// MCPServer is a server of tools that runs in the cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=mcps;mcp,categories=kagent
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Discovered",type=string,JSONPath=`.status.conditions[?(@.type=="Discovered")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MCPServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   MCPServerSpec   `json:"spec,omitempty"`
	Status MCPServerStatus `json:"status,omitempty"`
}

// MCPServerList is what a list request answers.
//
// +kubebuilder:object:root=true
type MCPServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MCPServer `json:"items"`
}

// MCPServerSpec is read as far as the catalog needs it; the rest is kept.
//
// +kubebuilder:pruning:PreserveUnknownFields
type MCPServerSpec struct {
	// Deployment of the server.
	Deployment MCPServerDeployment `json:"deployment"`
	// TransportType is stdio or http. A stdio server is behind a gateway that
	// speaks streamable HTTP, so both are queried in the same way.
	// +optional
	// +kubebuilder:validation:Enum=stdio;http
	TransportType string `json:"transportType,omitempty"`
	// HTTPTransport of an http server. Omitted, its defaults hold.
	// +optional
	HTTPTransport *HTTPTransport `json:"httpTransport,omitempty"`
	// StdioTransport of a stdio server: published without fields.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	StdioTransport *apiextensionsv1.JSON `json:"stdioTransport,omitempty"`
}

// MCPServerDeployment is how the server runs, as far as the catalog needs it.
//
// +kubebuilder:pruning:PreserveUnknownFields
type MCPServerDeployment struct {
	// Image of the server.
	// +optional
	Image string `json:"image,omitempty"`
	// Port of the Service. Default 3000.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// HTTPTransport of a server.
type HTTPTransport struct {
	// TargetPort of the pod.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	TargetPort int32 `json:"targetPort,omitempty"`
	// TargetPath of the MCP endpoint. Default /mcp.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	TargetPath string `json:"path,omitempty"`
}

// MCPServerStatus is kagent's. The catalog adds the condition Discovered.
type MCPServerStatus struct {
	// Conditions: Accepted, ResolvedRefs, Programmed and Ready are kagent's.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is kagent's.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}
