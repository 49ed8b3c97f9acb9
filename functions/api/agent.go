package api

// Agent is an agent as one resource: 000, "Agent Controller", and 001,
// "Migration Example". Rendering expands it to standard objects.
type Agent = Resource[AgentSpec]

// AgentSpec is what the agent should be.
type AgentSpec struct {
	// Description in a sentence. It becomes the annotation <prefix>/description.
	Description string `json:"description,omitempty"`
	// Replicas of the Deployment. Omitted, none are written, so that an
	// autoscaler may own them; Kubernetes then starts 1.
	Replicas *int `json:"replicas,omitempty"`
	// Labels and Annotations are added to those of the resource itself.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// ImageSource is where the image of the first container is from, and that of
	// others that say none. Required, unless every container has an image.
	ImageSource *ImageSource `json:"imageSource,omitempty"`
	// Image is the image of the first container, in generation operator.
	Image string `json:"image,omitempty"`
	// ServicePorts are those of the Service, as in a Service. Default: one port,
	// http, which is the first that a container declares, or 8080. In generation
	// operator it is 8000.
	ServicePorts []ServicePort `json:"servicePorts,omitempty"`
	// Skills are mounted into the containers of the pods. Default: none.
	Skills []struct {
		// Name is that of the folder, and the one in SKILL.md. Default: the last part of the
		// repository.
		Name string `json:"name,omitempty"`
		// Ref of the image: oci://registry/repository:tag, with a digest or without.
		Ref string `json:"ref"`
	} `json:"skills,omitempty"`
	// PodTemplateSpec is a pod template. The pod's spec may also be here directly,
	// as 001 writes it. Required.
	PodTemplateSpec any `json:"podTemplateSpec"`
}

// ImageSource has either of its fields.
type ImageSource struct {
	// Image with tag or digest.
	Image string `json:"image,omitempty"`
	// BuildRef names the AgentBuild, in the same namespace, that builds it. The
	// lock file says what it has built.
	BuildRef *BuildRef `json:"buildRef,omitempty"`
}

// BuildRef names an AgentBuild.
type BuildRef struct {
	Name string `json:"name"`
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name        string `json:"name,omitempty" yaml:"name,omitempty"`
	Protocol    string `json:"protocol,omitempty" yaml:"protocol,omitempty"`
	AppProtocol string `json:"appProtocol,omitempty" yaml:"appProtocol,omitempty"`
	Port        int    `json:"port" yaml:"port"`
	// TargetPort is a number or the name of a container's port. Default: Port.
	TargetPort any `json:"targetPort,omitempty" yaml:"targetPort,omitempty"`
	NodePort   int `json:"nodePort,omitempty" yaml:"nodePort,omitempty"`
}
