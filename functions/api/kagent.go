package api

// KagentSpec configures what the settings of kagent's controller did.
type KagentSpec struct {
	// Version is the generation of kagent whose objects are rendered: "0.10".
	Version *string `json:"version,omitempty"`
	// ImageRegistry has the images kagent-dev/kagent/app, golang-adk and
	// skills-init. Default ghcr.io.
	ImageRegistry *string `json:"imageRegistry,omitempty"`
	// ImageTag is that of these images. Default: 0.10.0-rc3.
	ImageTag *string `json:"imageTag,omitempty"`
	// ControllerURL reaches agents as KAGENT_URL. Default
	// http://kagent-controller.kagent:8083.
	ControllerURL *string `json:"controllerURL,omitempty"`
	// ProxyURL is the gateway through which agents call other agents and MCP
	// servers of the cluster, as http://host:port. Default: none.
	ProxyURL *string `json:"proxyURL,omitempty"`
	// ServiceAccountName is that of agents which name none themselves. Default:
	// each gets its own.
	ServiceAccountName *string `json:"serviceAccountName,omitempty"`
	// Labels are added to all objects of agents, whose own labels win.
	Labels map[string]string `json:"labels,omitempty"`
}
