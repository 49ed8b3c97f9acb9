package rules

import "github.com/armature-dev/armature/functions/krm"

// kagent1 is the group of kagent 1.0, whose references are within a namespace.
const kagent1 = "api.kagent.dev"

// templateAndHarness give the specs of both in an object of kagent 1.0.
func (c *checker) templateAndHarness() (template, harness krm.Node) {
	if c.Group() != kagent1 {
		return template, harness
	}
	switch c.Kind {
	case "Agent":
		return c.Get("spec", "template"), c.Get("spec", "harness")
	case "AgentTemplate":
		return c.Get("spec"), harness
	case "Harness":
		return template, c.Get("spec")
	}
	return template, harness
}

// kagentReferences finds references of kagent 1.0 that lead nowhere.
func (c *checker) kagentReferences() {
	template, harness := c.templateAndHarness()
	if c.Group() == kagent1 && c.Kind == "Agent" {
		c.named(c.Get("spec", "templateRef", "name"), "AgentTemplate")
		c.named(c.Get("spec", "harnessRef", "name"), "Harness")
	}
	if c.Group() == kagent1 && (c.Kind == "Agent" || c.Kind == "SandboxTemplate") {
		for policy := range c.Get("spec", "egressPolicyRefs").Items() {
			c.named(policy.Get("name"), "EgressPolicy")
		}
	}
	c.named(template.Get("modelConfig", "name"), "ModelConfig")
	c.named(template.Get("systemPromptFrom", "name"), "ConfigMap")
	c.named(template.Get("outputSchemaFrom", "name"), "ConfigMap")
	for source := range template.Get("promptTemplate", "dataSources").Items() {
		c.named(source.Get("name"), "ConfigMap")
	}
	for tool := range template.Get("tools").Items() {
		c.named(tool.Get("mcp", "server", "name"), "RemoteMCPServer")
		c.named(tool.Get("subAgent", "templateRef", "name"), "AgentTemplate")
		c.named(tool.Get("subAgent", "agentRef", "name"), "Agent")
	}
	c.named(harness.Get("kagent", "memory", "modelConfigRef", "name"), "ModelConfig")
	c.named(harness.Get("kagent", "compaction", "summarizer", "modelConfigRef", "name"), "ModelConfig")
}
