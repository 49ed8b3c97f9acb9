package api

import "encoding/json"

// RenderConfig is armature.yaml, and at once our functionConfig in kustomize
// and kpt. Everything in it is optional.
type RenderConfig struct {
	TypeMeta   `json:",inline"`
	ObjectMeta `json:"metadata,omitempty"`

	Spec RenderConfigSpec `json:"spec"`

	Origin Origin `json:"-"`
}

// RenderConfigSpec configures a render.
type RenderConfigSpec struct {
	// Profile picks the defaults: "authbridge" (the default: one proxy that needs no
	// Secret; see AuthBridge), "kagenti" (source 001), "rossoctl" (the same under the
	// name the project took in 2026) or "kagenti-published" (the generation that was
	// published: no auth-proxy, inbound tokens validated in Envoy, tokens in /opt).
	Profile *string `json:"profile,omitempty"`
	// LabelPrefix is the prefix of labels and annotations. Default: the
	// profile's, kagenti.io or rossoctl.io.
	LabelPrefix *string `json:"labelPrefix,omitempty"`
	// RequireSpiffeLabel demands <prefix>/spiffe: enabled next to
	// <prefix>/inject: enabled, as 001's design decision says. Default false.
	RequireSpiffeLabel *bool `json:"requireSpiffeLabel,omitempty"`
	// Rollout is "none" (the default: a change of configuration alone reaches
	// running pods through their mounted files) or "hash" (it also rolls them).
	Rollout *string `json:"rollout,omitempty"`
	// CustomResources is "consume" (the default: pillar CRs are input and do
	// not appear in the output) or "keep".
	CustomResources *string `json:"customResources,omitempty"`
	// Exclude are globs of files that are left as they are, relative to the
	// root of the package. Default: none.
	Exclude []string `json:"exclude,omitempty"`
	// Components changes single containers, by the names of the profile's sidecars.
	Components map[string]*ComponentSpec `json:"components,omitempty"`
	// AuthBridge is read with profile authbridge, and an error with another one.
	AuthBridge *AuthBridgeSpec `json:"authbridge,omitempty"`
	// Identity is for all workloads what a TokenExchange is for one.
	Identity *IdentitySpec `json:"identity,omitempty"`
	// Asya configures the transports and sidecars of AsyncActors.
	Asya *AsyaSpec `json:"asya,omitempty"`
	// Kagenti says how the controller of Kagenti's Agents was set up.
	Kagenti *struct {
		// Generation says whose objects are rendered: "document" (the default: 000's,
		// with the Service <agent>-svc) or "operator" (those of Kagenti's operator since
		// December 2025: the Service <agent>, port 8000, and pods whose missing security
		// contexts are filled in).
		Generation *string `json:"generation,omitempty"`
	} `json:"kagenti,omitempty"`
	// Kagent says how the controller of kagent's Agents was set up.
	Kagent *KagentSpec `json:"kagent,omitempty"`
	// Skills says how workloads get the skills that they name.
	Skills *struct {
		// Mount is "image" (the default: an image volume, Kubernetes 1.35 and later) or "init"
		// (an init container copies the image).
		Mount *string `json:"mount,omitempty"`
		// Path has a folder for each skill. Default /skills.
		Path *string `json:"path,omitempty"`
	} `json:"skills,omitempty"`
	// Trace is for all workloads what an AgentTrace is for one.
	Trace *TraceSpec `json:"trace,omitempty"`
	// Policies derives what agents may reach from what they are bound to. Default: nothing.
	Policies *PoliciesSpec `json:"policies,omitempty"`
	// Lint sets the severity of lint rules by their names: off, info, warning or
	// error. Default: each rule's own (armature lint --rules).
	Lint map[string]string `json:"lint,omitempty"`
	// Images are fields of other kinds that name an image or an artifact, beside those that
	// are known. Pinning, lint and verification of images read them. Default: none.
	Images []ImageFieldSpec `json:"images,omitempty"`
}

// ImageFieldSpec is a field that names an image.
type ImageFieldSpec struct {
	// Group and Kind of the objects that have it.
	Group string `json:"group"`
	Kind  string `json:"kind"`
	// Path is keys that follow one another at any depth of the object, with any index of a
	// list between them: spec.runner.image.
	Path string `json:"path"`
	// Is says what the field has: image, artifact (a reference to another OCI artifact),
	// commit (of a Git repository) or version (of an object in a bucket). Default image.
	Is string `json:"is,omitempty"`
}

// PoliciesSpec says which policies are derived, and what becomes of them.
type PoliciesSpec struct {
	// Network is "report" (each NetworkPolicy is a finding) or "enforce" (it is written).
	// Default: none is derived.
	Network *string `json:"network,omitempty"`
	// Tools is likewise for the policies of gateways of MCP. Default: none is derived.
	Tools *string `json:"tools,omitempty"`
	// Addresses are those of hosts that the package does not describe, by the host of a URL.
	Addresses map[string]*AddressSpec `json:"addresses,omitempty"`
	// DNS is what resolves names. Default: the pods k8s-app: kube-dns in kube-system, port 53.
	DNS *AddressSpec `json:"dns,omitempty"`
}

// AddressSpec is where a host is: in networks, or pods of a namespace.
type AddressSpec struct {
	// CIDRs are networks, such as 203.0.113.0/24.
	CIDRs []string `json:"cidrs,omitempty"`
	// Namespace and Pods, the labels of pods in it, exclude CIDRs.
	Namespace *string           `json:"namespace,omitempty"`
	Pods      map[string]string `json:"pods,omitempty"`
	// Port of the pods. Default: that of the URL.
	Port *int `json:"port,omitempty"`
}

// ComponentSpec changes one injected container.
type ComponentSpec struct {
	// Enabled injects it. Default: the profile's.
	Enabled *bool `json:"enabled,omitempty"`
	// Image with tag or digest. Default: the profile's.
	Image *string `json:"image,omitempty"`
	// ImagePullPolicy is Always, IfNotPresent or Never. Default IfNotPresent.
	ImagePullPolicy *string `json:"imagePullPolicy,omitempty"`
	// Resources replace the profile's entry by entry; an empty string removes
	// an entry.
	Resources *struct {
		Requests *ResourceList `json:"requests,omitempty"`
		Limits   *ResourceList `json:"limits,omitempty"`
	} `json:"resources,omitempty"`
}

// ResourceList holds Kubernetes quantities: "100m", "64Mi".
type ResourceList struct {
	CPU    *Quantity `json:"cpu,omitempty"`
	Memory *Quantity `json:"memory,omitempty"`
}

// Quantity is a Kubernetes quantity as its author wrote it. Like Kubernetes'
// own it may be written as a number.
type Quantity string

// UnmarshalJSON takes a string or a number.
func (q *Quantity) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '"' {
		var n json.Number
		if err := json.Unmarshal(b, &n); err != nil {
			return err
		}
		*q = Quantity(n)
		return nil
	}
	return json.Unmarshal(b, (*string)(q))
}
