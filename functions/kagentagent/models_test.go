package kagentagent

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/finding"
)

// made expands the agent "a" of a list of manifests with a configuration.
func made(t *testing.T, proxy string,
	manifests ...string) (objects map[string]map[string]any, findings []finding.Finding) {
	in := published{TargetObject: "a", ProxyURL: proxy}
	for _, text := range manifests {
		o := make(map[string]any)
		if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		in.Objects = append(in.Objects, o)
	}
	list, findings := translate(t, &in)
	objects = make(map[string]map[string]any)
	for _, o := range list {
		objects[o["kind"].(string)+"/"+o["metadata"].(map[string]any)["name"].(string)] = o
	}
	return objects, findings
}

// pod returns the pod of the Deployment, and its first container.
func pod(objects map[string]map[string]any) (pod, container map[string]any) {
	pod =
		objects["Deployment/a"]["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	return pod, pod["containers"].([]any)[0].(map[string]any)
}

func manifest(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: kagent.dev/v1alpha2\nkind: %s\n"+
		"metadata: {name: %s, namespace: team}\nspec: %s\n", kind, name, spec)
}

// TestProviders sets all settings of each provider: the keys and JSON types in config.json are
// those that kagent's runtime reads.
func TestProviders(t *testing.T) {
	for name, c := range map[string]struct{ spec, model, env string }{
		"OpenAI": {
			`{model: m, apiKeySecret: s, apiKeySecretKey: k, defaultHeaders: {H: v}, tls: {caCertSecretRef: ca, caCertSecretKey: ca.crt}, openAI: {baseUrl: u, organization: o, temperature: "0.7", maxTokens: 5, topP: "0.9", frequencyPenalty: "1", presencePenalty: "-1", seed: 0, "n": 1, timeout: 60, reasoningEffort: low}}`,
			`{"type":"openai","model":"m","headers":{"H":"v"},"tls_insecure_skip_verify":false,"tls_ca_cert_path":"/etc/ssl/certs/custom/ca/ca.crt","tls_disable_system_cas":false,"base_url":"u","frequency_penalty":1,"max_tokens":5,"n":1,"presence_penalty":-1,"reasoning_effort":"low","seed":0,"temperature":0.7,"timeout":60,"top_p":0.9}`,
			"OPENAI_API_KEY=s/k OPENAI_ORGANIZATION=o",
		},
		"OpenAI exchange": {
			`{provider: OpenAI, model: m, apiKeySecret: s, apiKeySecretKey: k.json, openAI: {tokenExchange: {type: GDCHServiceAccount, gdchServiceAccount: {audience: https://a}}}}`,
			`{"type":"openai","model":"m","base_url":"","token_exchange":{"type":"GDCHServiceAccount","gdch_service_account":{"service_account_path":"/gdch-creds/k.json","audience":"https://a"}}}`, "",
		},
		"Anthropic": {
			`{provider: Anthropic, model: m, apiKeyPassthrough: true, anthropic: {baseUrl: u, maxTokens: 5, temperature: "0.3", topP: "0.9", topK: 4}}`,
			`{"type":"anthropic","model":"m","api_key_passthrough":true,"base_url":"u","max_tokens":5,"temperature":0.3,"top_p":0.9,"top_k":4}`, "",
		},
		"AzureOpenAI": {
			`{provider: AzureOpenAI, model: m, apiKeySecret: s, apiKeySecretKey: k, azureOpenAI: {azureEndpoint: e, apiVersion: v, azureDeployment: d, temperature: "0.5", maxTokens: 5, topP: "1"}}`,
			`{"type":"azure_openai","model":"d","endpoint":"e","deployment":"d","api_version":"v","max_tokens":5,"temperature":0.5,"top_p":1}`, "AZURE_OPENAI_API_KEY=s/k OPENAI_API_VERSION=v AZURE_OPENAI_ENDPOINT=e",
		},
		"Ollama": {
			`{provider: Ollama, model: m, ollama: {host: "h:1", options: {num_ctx: "5"}}}`,
			`{"type":"ollama","model":"m","options":{"num_ctx":"5"}}`, "OLLAMA_API_BASE=http://h:1",
		},
		"Gemini": {
			`{provider: Gemini, model: m, apiKeySecret: s, apiKeySecretKey: k, gemini: {}}`,
			`{"type":"gemini","model":"m"}`, "GOOGLE_API_KEY=s/k",
		},
		"GeminiVertexAI": {
			`{provider: GeminiVertexAI, model: m, apiKeySecret: s, apiKeySecretKey: k.json, geminiVertexAI: {projectID: p, location: l, temperature: "1"}}`,
			`{"type":"gemini_vertex_ai","model":"m"}`,
			"GOOGLE_CLOUD_PROJECT=p GOOGLE_CLOUD_LOCATION=l GOOGLE_GENAI_USE_VERTEXAI=true " +
				"GOOGLE_APPLICATION_CREDENTIALS=/creds/k.json",
		},
		"AnthropicVertexAI": {
			`{provider: AnthropicVertexAI, model: m, anthropicVertexAI: {projectID: p, location: l}}`,
			`{"type":"gemini_anthropic","model":"m"}`,
			"GOOGLE_CLOUD_PROJECT=p GOOGLE_CLOUD_LOCATION=l",
		},
		"Bedrock": {
			`{provider: Bedrock, model: m, apiKeySecret: s, bedrock: {region: r, additionalModelRequestFields: {top_k: 5}, promptCaching: true, cacheTTL: 1h}}`,
			`{"type":"bedrock","model":"m","region":"r","additional_model_request_fields":{"top_k":5},"prompt_caching":true,"cache_ttl":"1h"}`,
			"AWS_REGION=r AWS_BEARER_TOKEN_BEDROCK=s/AWS_BEARER_TOKEN_BEDROCK? " +
				"AWS_ACCESS_KEY_ID=s/AWS_ACCESS_KEY_ID? " +
				"AWS_SECRET_ACCESS_KEY=s/AWS_SECRET_ACCESS_KEY? " +
				"AWS_SESSION_TOKEN=s/AWS_SESSION_TOKEN?",
		},
		"OpenAI responses": {
			`{model: m, openAI: {maxCompletionTokens: 5, apiFormat: responses}}`,
			`{"type":"openai","model":"m","base_url":"","max_completion_tokens":5,"api_format":"responses"}`, "",
		},
		"Foundry": {
			`{provider: Foundry, model: m, apiKeySecret: s, apiKeySecretKey: k, foundry: {endpoint: e, deployment: d}}`,
			`{"type":"foundry","model":"m","endpoint":"e","deployment":"d","api_version":"2024-10-21"}`,
			"FOUNDRY_API_KEY=s/k FOUNDRY_ENDPOINT=e FOUNDRY_DEPLOYMENT=d " +
				"FOUNDRY_API_VERSION=2024-10-21",
		},
		"Gemini tokens": {
			`{provider: Gemini, model: m, gemini: {maxOutputTokens: 5}}`,
			`{"type":"gemini","model":"m","max_output_tokens":5}`, "",
		},
		"Bedrock guardrail": {
			`{provider: Bedrock, model: m, bedrock: {region: r, guardrail: {identifier: i, version: "1", trace: enabled}, readTimeout: 5, connectTimeout: 6}}`,
			`{"type":"bedrock","model":"m","region":"r","guardrail":{"identifier":"i","version":"1","trace":"enabled"},"read_timeout":5,"connect_timeout":6}`, "AWS_REGION=r",
		},
		"SAPAICore": {
			`{provider: SAPAICore, model: m, apiKeySecret: s, sapAICore: {baseUrl: u, authUrl: a}}`,
			`{"type":"sap_ai_core","model":"m","base_url":"u","resource_group":"default","auth_url":"a"}`,
			"SAP_AI_CORE_CLIENT_ID=s/client_id SAP_AI_CORE_CLIENT_SECRET=s/client_secret",
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects, findings := made(t, "", manifest("ModelConfig", "default-model-config",
				c.spec), manifest("Agent", "a", "{declarative: {systemMessage: s}}"))
			if len(findings) > 0 {
				t.Fatal(findings)
			}
			var config struct{ Model json.RawMessage }
			if err := json.Unmarshal(
				[]byte(objects["ConfigMap/a"]["data"].(map[string]any)["config.json"].(string)),
				&config); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.model, string(config.Model)); diff != "" {
				t.Error("model (-want +got)", diff)
			}
			_, container := pod(objects)
			if diff := cmp.Diff(c.env, variables(container)); diff != "" {
				t.Error("environment (-want +got)", diff)
			}
		})
	}
}

// variables returns the variables that not every agent has, as NAME=value, or NAME=secret/key with
// a ? after an optional one.
func variables(container map[string]any) string {
	var list []string
	for _, v := range container["env"].([]any) {
		v := v.(map[string]any)
		if strings.HasPrefix(v["name"].(string), "KAGENT_") {
			continue
		}
		text := fmt.Sprint(v["name"], "=")
		if from, ok := v["valueFrom"].(map[string]any); ok {
			ref := from["secretKeyRef"].(map[string]any)
			text += fmt.Sprint(ref["name"], "/", ref["key"])
			if ref["optional"] == true {
				text += "?"
			}
		} else {
			text += fmt.Sprint(v["value"])
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

const openAIModel = `{model: m, apiKeySecret: s, apiKeySecretKey: k}`

// TestTwoModels finds models of one agent that need different values of one
// variable: the pod can have only one.
func TestTwoModels(t *testing.T) {
	a := manifest("Agent", "a", "{declarative: {systemMessage: s, memory: {modelConfig: other}}}")
	for other, clash := range map[string]bool{openAIModel: false,
		`{model: z, apiKeySecret: t, apiKeySecretKey: k}`: true} {
		_, findings := made(t, "", manifest("ModelConfig", "default-model-config", openAIModel),
			manifest("ModelConfig", "other", other), a)
		if found := len(findings) == 1 &&
			findings[0].Rule == "kagent-agent/two-models"; found != clash ||
			!found && len(findings) > 0 {
			t.Errorf("%s: %v", other, findings)
		}
	}
}

// TestProxy routes calls inside the cluster through the proxy, with a header for the host.
func TestProxy(t *testing.T) {
	for address, want := range map[string]string{
		"http://tools.team:8084/mcp":   "http://proxy:80/mcp tools.team",
		"http://tools.kagent:8084/mcp": "http://proxy:80/mcp tools.kagent",
		"https://tools.x.svc.cluster.local:8084/mcp": "http://proxy:80/mcp " +
			"tools.x.svc.cluster.local",
		"https://mcp.example.com/mcp": "https://mcp.example.com/mcp <nil>",
		"https://example.com/mcp":     "https://example.com/mcp <nil>",
	} {
		objects, findings := made(t, "http://proxy:80",
			manifest("ModelConfig", "default-model-config", openAIModel),
			manifest("RemoteMCPServer", "r", fmt.Sprintf("{description: d, url: %q}", address)),
			manifest("Agent", "a",
				"{declarative: {systemMessage: s, tools: [{type: McpServer, mcpServer: {kind: "+
					"RemoteMCPServer, name: r}}]}}"))
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		var config struct {
			HTTPTools []struct {
				Params struct {
					URL     string
					Headers map[string]any
				}
			} `json:"http_tools"`
		}
		if err := json.Unmarshal(
			[]byte(objects["ConfigMap/a"]["data"].(map[string]any)["config.json"].(string)),
			&config); err != nil {
			t.Fatal(err)
		}
		params := config.HTTPTools[0].Params
		if got := fmt.Sprint(params.URL, " ", params.Headers["x-kagent-host"]); got != want {
			t.Errorf("%s: have %s, want %s", address, got, want)
		}
	}
}

// TestFillUser runs what fills in values as the user that the agent's contexts
// say, but never as root.
func TestFillUser(t *testing.T) {
	for contexts, want := range map[string]string{
		`{}`:                                   "1001",
		`{podSecurityContext: {runAsUser: 5}}`: "<nil>",
		`{podSecurityContext: {runAsUser: 0}}`: "1001",
		`{podSecurityContext: {runAsUser: 5}, securityContext: {runAsUser: 6}}`: "6",
		`{podSecurityContext: {runAsUser: 5}, securityContext: {runAsUser: 0}}`: "1001",
		`{securityContext: {privileged: true, capabilities: {add: [ALL]}}}`:     "1001",
	} {
		objects, findings := made(t, "",
			manifest("ModelConfig", "default-model-config", openAIModel),
			manifest("Agent", "a",
				fmt.Sprintf("{declarative: {runtime: go, systemMessageFrom: {type: Secret, name: "+
					"s, key: k}, deployment: %s}}", contexts)))
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		p, _ := pod(objects)
		init := p["initContainers"].([]any)[0].(map[string]any)
		security := init["securityContext"].(map[string]any)
		if got := fmt.Sprint(security["runAsUser"]); got != want {
			t.Errorf("%s: runs as %s, want %s", contexts, got, want)
		}
		if security["allowPrivilegeEscalation"] != false || security["runAsNonRoot"] != true ||
			security["privileged"] != nil ||
			fmt.Sprint(security["capabilities"]) != "map[drop:[ALL]]" ||
			fmt.Sprint(security["seccompProfile"]) != "map[type:RuntimeDefault]" {
			t.Errorf("%s: not restricted: %v", contexts, security)
		}
		if image := init["image"].(string); !strings.HasSuffix(image,
			"/kagent-dev/kagent/app:dev") {
			t.Errorf("%s: %s has no Python", contexts, image)
		}
	}
}

// TestValuesOfConfigMaps writes values of the package's ConfigMaps into the configuration: only
// values of Secrets, and of ConfigMaps elsewhere, need the container that fills them in.
func TestValuesOfConfigMaps(t *testing.T) {
	texts := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: texts, namespace: team}\n" +
		"data: {prompt: \"Hi {{.AgentName}}\", header: h}\n"
	server := manifest("RemoteMCPServer", "r",
		"{url: https://r.example, headersFrom: [{name: H, valueFrom: {type: ConfigMap, name: "+
			"texts, key: header}}]}")
	from := func(kind, name, key, more string) string {
		return fmt.Sprintf("{declarative: {systemMessageFrom: {type: %s, name: %s, key: %s}, "+
			"tools: [{type: McpServer, mcpServer: {kind: RemoteMCPServer, name: r}}]%s}}", kind,
			name, key, more)
	}
	for spec, want := range map[string]string{
		from("ConfigMap", "texts", "prompt",
			""): `inits 0: "instruction":"Hi {{.AgentName}}" "H":"h"`,
		from("ConfigMap", "texts", "prompt",
			", promptTemplate: {dataSources: [{name: texts}]}"): `inits 0: "instruction":"Hi a" "H":"h"`,
		from("ConfigMap", "elsewhere", "prompt",
			""): `inits 1: "instruction":"$(ARMATURE_VALUE_0)" "H":"h"`,
		from("Secret", "texts", "prompt",
			""): `inits 1: "instruction":"$(ARMATURE_VALUE_0)" "H":"h"`,
		from("ConfigMap", "texts", "nokey",
			""): "kagent-agent/value-source",
		from("Secret", "texts", "prompt",
			", promptTemplate: {dataSources: [{name: texts}]}"): "kagent-agent/unsupported",
		from("ConfigMap", "elsewhere", "prompt",
			", promptTemplate: {dataSources: [{name: texts}]}"): "kagent-agent/unsupported",
	} {
		objects, findings := made(t, "", manifest("ModelConfig", "default-model-config",
			openAIModel), manifest("Agent", "a", spec), server, texts)
		if len(findings) > 0 {
			if len(findings) > 1 || findings[0].Rule != want {
				t.Errorf("%s: have %v, want %s", spec, findings, want)
			}
			continue
		}
		p, _ := pod(objects)
		inits, _ := p["initContainers"].([]any)
		config := objects["ConfigMap/a"]["data"].(map[string]any)["config.json"].(string)
		got := fmt.Sprintf("inits %d: %s %s", len(inits),
			regexp.MustCompile(`"instruction":"[^"]*"`).FindString(config),
			regexp.MustCompile(`"H":"[^"]*"`).FindString(config))
		if got != want {
			t.Errorf("%s: have %s, want %s", spec, got, want)
		}
	}
}

// TestPrivileges checks that code in a sandbox gets privileges unless the author rules them out.
func TestPrivileges(t *testing.T) {
	for deployment, want := range map[string]string{
		`{}`:                                "map[privileged:true]",
		`{securityContext: {runAsUser: 5}}`: "map[privileged:true runAsUser:5]",
		`{securityContext: {allowPrivilegeEscalation: false}}`: "map[allowPrivilegeEscalation:false]",
		`{securityContext: {}}`:                                "map[privileged:true]",
	} {
		for _, with := range []string{
			"skills: {refs: [example/skill:v1]}, declarative: {systemMessage: s",
			"declarative: {executeCodeBlocks: true, systemMessage: s"} {
			objects, findings := made(t, "",
				manifest("ModelConfig", "default-model-config", openAIModel),
				manifest("Agent", "a", fmt.Sprintf("{%s, deployment: %s}}", with, deployment)))
			if len(findings) > 0 {
				t.Fatal(findings)
			}
			if _, c := pod(objects); fmt.Sprint(c["securityContext"]) != want {
				t.Errorf("%s, %s: have %v, want %s", with, deployment, c["securityContext"], want)
			}
		}
	}
}
