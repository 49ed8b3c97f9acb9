package api

import (
	"cmp"
	"slices"
	"strings"
)

// ImageLock is armature.lock: the digests behind the tags of a package. It is
// written by `armature pin` and applied by every render, which therefore needs
// no network. Its annotation config.kubernetes.io/local-config keeps hosts from
// applying it.
type ImageLock struct {
	TypeMeta   `json:",inline"`
	ObjectMeta `json:"metadata"`

	Spec ImageLockSpec `json:"spec"`

	Origin Origin `json:"-"`
}

// ImageLockSpec holds what was resolved.
type ImageLockSpec struct {
	// Images are sorted by image; each occurs once.
	Images []LockedImage `json:"images,omitempty"`
	// Builds are finished AgentBuilds, sorted by namespace and name.
	Builds []LockedBuild `json:"builds,omitempty"`
	// Tools are the tool servers that the package names, sorted; each occurs once.
	Tools []LockedToolServer `json:"tools,omitempty"`
	// Cards are signatures of agent cards, which `armature card sign` writes, sorted by
	// name and payload.
	Cards []LockedCard `json:"cards,omitempty"`
}

// ToolServer names an MCPServer or RemoteMCPServer of kagent.
type ToolServer struct {
	// Group is kagent.dev or api.kagent.dev.
	Group string `json:"group"`
	// Kind is MCPServer or RemoteMCPServer.
	Kind string `json:"kind"`
	// Namespace as the manifests write it. Omitted, they have none.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Compare orders servers by namespace, name, kind and group.
func (s ToolServer) Compare(other ToolServer) int {
	return cmp.Or(strings.Compare(s.Namespace, other.Namespace),
		strings.Compare(s.Name, other.Name), strings.Compare(s.Kind, other.Kind),
		strings.Compare(s.Group, other.Group))
}

// String returns the kind with the namespace and name, if there is one.
func (s ToolServer) String() string {
	if s.Namespace == "" {
		return s.Kind + " " + s.Name
	}
	return s.Kind + " " + s.Namespace + "/" + s.Name
}

// LockedToolServer is what a server offered when the lock was written.
type LockedToolServer struct {
	ToolServer `json:",inline"`
	// Protocol is the version of MCP that the server answered in. It is asked in this one
	// first. Omitted, the newest is tried.
	Protocol string `json:"protocol,omitempty"`
	// Digest is that of all tools: SHA-256 of the canonical JSON (RFC 8785) of an object
	// with each tool's digest under its name.
	Digest string `json:"digest"`
	// Tools are sorted by name.
	Tools []LockedTool `json:"tools,omitempty"`
}

// Has reports whether the server offered a tool of a name.
func (s *LockedToolServer) Has(name string) bool {
	return slices.ContainsFunc(s.Tools, func(t LockedTool) bool { return t.Name == name })
}

// LockedTool is one tool.
type LockedTool struct {
	Name string `json:"name"`
	// Digest is SHA-256 of the canonical JSON (RFC 8785) of the tool's name, title,
	// description, inputSchema, outputSchema and annotations.
	Digest string `json:"digest"`
}

// LockedImage is one image of the package.
type LockedImage struct {
	// Image is as the manifests write it, without a digest: "web:v1".
	Image string `json:"image"`
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
	// Platform is os/arch[/variant] where the digest is that of one platform's
	// image. Omitted, it is the digest behind the tag, for all platforms.
	Platform string `json:"platform,omitempty"`
}

// LockedBuild is what an AgentBuild made.
type LockedBuild struct {
	// Namespace and Name are the AgentBuild's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Image is with its digest: "registry/web:v1@sha256:…".
	Image string `json:"image"`
	// Commit of the source that it was built from, in full. If omitted, it is not known,
	// and any other image may follow this one.
	Commit string `json:"commit,omitempty"`
}

// LockedCard is the signature of an agent card: a JSON Web Signature without its payload.
type LockedCard struct {
	// Name is the agent's, as the card has it.
	Name string `json:"name"`
	// Payload is "sha256:" and 64 hexadecimal digits: the digest of the card in
	// canonical form, without its signatures.
	Payload string `json:"payload"`
	// Protected is the protected header, and Signature the signature, in base64url.
	Protected string `json:"protected"`
	Signature string `json:"signature"`
}
