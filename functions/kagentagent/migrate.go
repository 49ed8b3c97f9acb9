package kagentagent

import "github.com/armature-dev/armature/functions/migrate"

// moves says what becomes of the fields of a resource.
var moves = []migrate.Rule{
	{Path: "spec.type", Fate: migrate.Moved, To: "the form of the Deployment"},
	{Path: "spec.description", Fate: migrate.Moved, To: "the annotation description of the Deployment, and agent-card.json"},
	{Path: "spec.declarative", Fate: migrate.Moved, To: "ConfigMap config.json and agent-card.json"},
	{Path: "spec.declarative.deployment", Fate: migrate.Moved, To: "Deployment spec"},
	{Path: "spec.byo.deployment", Fate: migrate.Moved, To: "Deployment spec"},
	{Path: "spec.skills", Fate: migrate.Moved, To: "ConfigMap of the init container skills-init"},
	{Path: "spec.sandbox", Fate: migrate.Moved, To: "ConfigMap config.json and srt-settings.json"},
	{Path: "spec.allowedNamespaces", Fate: migrate.Dropped, Reason: "checked while migrating: plain Services do not ask who calls; write a NetworkPolicy"},
	{Path: "spec.deployment", Fate: migrate.Moved, To: "Deployment spec, and ConfigMap local.yaml"},
	{Path: "spec.transportType", Fate: migrate.Moved, To: "ConfigMap local.yaml"},
	{Path: "spec.stdioTransport", Fate: migrate.Moved, To: "ConfigMap local.yaml"},
	{Path: "spec.httpTransport", Fate: migrate.Moved, To: "ConfigMap local.yaml"},
	{Path: "spec.timeout", Fate: migrate.Moved, To: "config.json of the agents that call it"},
	{Path: "spec.model", Fate: migrate.Moved, To: "config.json of the agents that name it"},
	{Path: "spec.provider", Fate: migrate.Moved, To: "config.json of the agents that name it"},
	{Path: "spec.apiKeySecret", Fate: migrate.Moved, To: "a secretKeyRef of the agents that name it"},
	{Path: "spec.apiKeySecretKey", Fate: migrate.Moved, To: "a secretKeyRef of the agents that name it"},
	{Path: "spec.apiKeyPassthrough", Fate: migrate.Moved, To: "config.json of the agents that name it"},
	{Path: "spec.defaultHeaders", Fate: migrate.Moved, To: "config.json of the agents that name it"},
	{Path: "spec.openAI", Fate: migrate.Moved, To: "config.json and environment of the agents that name it"},
	{Path: "spec.anthropic", Fate: migrate.Moved, To: "config.json and environment of the agents that name it"},
	{Path: "spec.azureOpenAI", Fate: migrate.Moved, To: "config.json and environment of the agents that name it"},
	{Path: "spec.ollama", Fate: migrate.Moved, To: "config.json and environment of the agents that name it"},
	{Path: "spec.gemini", Fate: migrate.Moved, To: "config.json and environment of the agents that name it"},
	{Path: "spec.tls", Fate: migrate.Moved, To: "config.json and volumes of the agents that name it"},
	{Path: "spec.geminiVertexAI", Fate: migrate.Moved, To: "environment of the agents that name it"},
	{Path: "spec.anthropicVertexAI", Fate: migrate.Moved, To: "environment of the agents that name it"},
	{Path: "spec.sapAICore", Fate: migrate.Moved, To: "config.json and environment of the agents that name it"},
	{Path: "spec.bedrock", Fate: migrate.Moved, To: "config.json and environment of the agents that name it"},
}
