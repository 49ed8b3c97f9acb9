package kagentagent

import (
	"slices"

	"github.com/armature-dev/armature/functions/foreign"
)

// moves says what becomes of the fields of a resource.
var moves = slices.Concat(
	// Of an Agent.
	foreign.MovedTo("the form of the Deployment", "spec.type"),
	foreign.MovedTo("the annotation description of the Deployment, and agent-card.json", "spec.description"),
	foreign.MovedTo("ConfigMap config.json and agent-card.json", "spec.declarative"),
	foreign.MovedTo("Deployment spec", "spec.declarative.deployment", "spec.byo.deployment"),
	foreign.MovedTo("ConfigMap agent-card.json", "spec.iconUrl", "spec.documentationUrl", "spec.version"),
	foreign.MovedTo("ConfigMap of the init container skills-init", "spec.skills"),
	foreign.MovedTo("ConfigMap config.json and srt-settings.json", "spec.sandbox"),
	[]foreign.Rule{{Path: "spec.allowedNamespaces", Fate: foreign.Dropped,
		Reason: "checked while migrating: plain Services do not ask who calls; write a NetworkPolicy"}},
	// Of an MCPServer.
	foreign.MovedTo("Deployment spec, and ConfigMap local.yaml", "spec.deployment"),
	foreign.MovedTo("ConfigMap local.yaml", "spec.transportType", "spec.stdioTransport",
		"spec.httpTransport"),
	foreign.MovedTo("config.json of the agents that call it", "spec.timeout"),
	// Of a ModelConfig.
	foreign.MovedTo("config.json of the agents that name it", "spec.model", "spec.provider",
		"spec.apiKeyPassthrough", "spec.defaultHeaders"),
	foreign.MovedTo("a secretKeyRef of the agents that name it", "spec.apiKeySecret", "spec.apiKeySecretKey"),
	foreign.MovedTo("config.json and volumes of the agents that name it", "spec.tls"),
	foreign.MovedTo("environment of the agents that name it", "spec.geminiVertexAI",
		"spec.anthropicVertexAI"),
	foreign.MovedTo("config.json and environment of the agents that name it",
		"spec.openAI", "spec.anthropic", "spec.azureOpenAI", "spec.ollama", "spec.gemini", "spec.sapAICore",
		"spec.foundry", "spec.bedrock"),
)
