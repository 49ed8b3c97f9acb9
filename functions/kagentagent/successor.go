package kagentagent

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	fetch "github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
)

// Successor is the apiVersion of kagent 1.0.
const Successor = keys.Kagent1 + "/v1alpha3"

// succession has the rules for the fields of an Agent of 0.x, according to kagent's "Upgrade from
// 0.x".
//
//go:embed successor.txt
var succession string

// Succession converts resources of kagent 0.x into those of 1.0, as kagent's "Upgrade from 0.x"
// maps them: an Agent into an AgentTemplate, a Harness that Agents of one runtime share, and an
// Agent that pairs them.
type Succession struct {
	// Harness is a Harness of 1.0, which supplies the name and spec of each generated Harness.
	Harness *krm.Object
	// Pin returns an image with its digest, if that is known.
	Pin func(image string) string

	spec   object            // of Harness
	agents map[string]string // descriptions of Agents of 0.x, by namespace and name
	made   map[string]string // names of Harnesses, by namespace and spec
}

// The forms of an image and a commit that kagent 1.0 accepts.
var (
	digested   = text.Pattern(`^[^\s@]+@sha256:[0-9a-f]{64}$`)
	fullCommit = text.Pattern(`^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$`)
)

// Begin reads the Harness.
func (s *Succession) Begin() error {
	s.agents, s.made = make(map[string]string), make(map[string]string)
	value, err := s.Harness.Value()
	if err != nil {
		return err
	}
	root, _ := value.(object)
	s.spec, _ = root["spec"].(object)
	workload, _ := s.spec["workload"].(object)
	image, _ := workload["image"].(string)
	switch {
	case s.Harness.APIVersion != Successor || s.Harness.Kind != "Harness" || s.Harness.Name == "":
		return fmt.Errorf("it is %s of %s: give a Harness of %s with a name", s.Harness.Kind,
			s.Harness.APIVersion, Successor)
	case s.spec["kagent"] == nil || s.spec["byo"] != nil || s.spec["codex"] != nil ||
		s.spec["claude"] != nil:
		return fmt.Errorf("it does not run kagent's own harness: set spec.kagent, and no other")
	case !digested().MatchString(image):
		return fmt.Errorf("spec.workload.image "+
			"%q has no digest, which kagent 1.0 demands: write it as registry/name@sha256:…", image)
	case s.spec["substrate"] == nil:
		return fmt.Errorf(
			"it has no spec.substrate: name the WorkerPool and the location of snapshots")
	}
	return nil
}

// Collect records the description of an Agent for its callers.
func (s *Succession) Collect(o *krm.Object) {
	if o.Kind == "Agent" && o.Group() == group {
		s.agents[o.Namespace+"/"+o.Name] = o.Get("spec", "description").Text()
	}
}

// Succeeded is the result of converting an object.
type Succeeded struct {
	Texts    [][]byte
	Fields   []foreign.Field
	Findings []finding.Finding
}

// unequalled are the kinds without an equivalent in kagent 1.0, with a note about each.
var unequalled = map[string]string{
	"AgentHarness": ": it provisioned coding agents with channels",
	"SandboxAgent": ", because every agent of 1.0 runs in a sandbox: write it as an Agent of " +
		"kagent.dev first",
	"Memory": ": set spec.kagent.memory of the Harness",
}

// Convert converts an object of kagent 0.x. ok is false for any other object, which is not changed.
func (s *Succession) Convert(o *krm.Object) (done Succeeded, ok bool, err error) {
	if o.Group() != group {
		return done, false, nil
	}
	c := &conversion{Succession: s, Resource: expand.Resource{Object: o, Function: "migrate"}}
	reason, dropped := unequalled[o.Kind]
	rules := "moved spec: the same field of " + Successor
	switch {
	case dropped:
		rules = succession
		for key := range o.Root().Fields() {
			c.drop(key, "kagent 1.0 has no equivalent"+reason)
		}
	case o.Kind == "Agent":
		rules = succession
		c.agent()
	case o.Kind == "ModelConfig", o.Kind == "ModelProviderConfig", o.Kind == "RemoteMCPServer":
		if c.served("v1alpha2") {
			c.add(o.Kind, o.Name, c.fieldsOf("spec"))
		}
	case o.Kind == "ToolServer":
		rules = "moved spec: RemoteMCPServer spec"
		c.toolServer()
	default: // MCPServer belongs to kmcp, and stays
		return done, false, nil
	}
	done = Succeeded{Texts: c.texts, Findings: c.Findings}
	if c.Failed() || c.err != nil {
		return done, true, c.err
	}
	done.Fields, err = foreign.Fields(o, !dropped, rules, c.fields)
	return done, true, err
}

// conversion converts one object.
type conversion struct {
	*Succession
	expand.Resource
	texts  [][]byte
	fields []foreign.Field // the dropped ones
	err    error
}

func (c *conversion) drop(path, reason string) {
	c.fields = append(c.fields, foreign.Field{Path: path, Fate: foreign.Dropped, Reason: reason})
}

// lose drops a field with a warning, because the agent may need it.
func (c *conversion) lose(path, reason, hint string) {
	c.drop(path, reason)
	c.warn(path, hint, reason)
}

func (c *conversion) warn(path, hint, message string, values ...any) {
	c.Report(finding.Warning, "migrate/kagent", path, hint, message, values...)
}

// fieldsOf returns the mapping in a field of the object.
func (c *conversion) fieldsOf(field string) object {
	value, err := c.Value()
	c.err = multi.Errors(c.err, err)
	root, _ := value.(object)
	fields, _ := root[field].(object)
	return fields
}

// add writes an object with the metadata of the converted one.
func (c *conversion) add(kind, name string, spec any) {
	metadata := given(object{"name": name, "namespace": c.Namespace})
	if kind != "Harness" {
		old := c.fieldsOf("metadata")
		for _, key := range []string{"labels", "annotations"} {
			if entries, _ := old[key].(object); len(entries) > 0 {
				delete(entries, "kubectl.kubernetes.io/last-applied-configuration")
				metadata[key] = entries
			}
		}
	}
	text, err := yaml.Marshal(object{"apiVersion": Successor, "kind": kind, "metadata": metadata,
		"spec": spec})
	c.err = multi.Errors(c.err, err)
	c.texts = append(c.texts, text)
}

// served reports whether the object has the version that kagent 0.10 serves.
func (c *conversion) served(version string) bool {
	c.FailIf(c.APIVersion != group+"/"+version, "kagent", "apiVersion", "convert it to "+
		group+"/"+version+" first", "%s of %s is not what kagent 0.10 serves", c.Kind, c.APIVersion)
	return !c.Failed()
}

// decode reads an object of a version. Any other version is a finding.
func (c *conversion) decode(version string, into any) bool {
	return c.served(version) && c.Decode("kagent", into) && !c.Failed()
}

// toolServer converts a ToolServer into a RemoteMCPServer.
func (c *conversion) toolServer() {
	var in api.Resource[struct {
		Description string `json:"description,omitempty"`
		Config      struct {
			Type           string `json:"type,omitempty"`
			SSE            object `json:"sse,omitempty"`
			StreamableHTTP object `json:"streamableHttp,omitempty"`
			Stdio          any    `json:"stdio,omitempty"`
		} `json:"config"`
	}]
	if !c.decode("v1alpha1", &in) {
		return
	}
	spec := object{"description": in.Spec.Description, "protocol": "STREAMABLE_HTTP"}
	from, at := in.Spec.Config.StreamableHTTP, "spec.config.streamableHttp."
	if from == nil {
		from, at, spec["protocol"] = in.Spec.Config.SSE, "spec.config.sse.", "SSE"
	}
	if c.FailIf(from == nil, "kagent", "spec.config",
		"run the program with kmcp's MCPServer, and write a RemoteMCPServer for it",
		"kagent 1.0 reaches tool servers over HTTP alone") {
		return
	}
	for key, value := range from {
		switch key {
		case "url", "headersFrom", "timeout", "sseReadTimeout", "terminateOnClose":
			spec[key] = value
		default:
			c.lose(at+key, "a RemoteMCPServer has no such field", "write headers as headersFrom")
		}
	}
	c.add("RemoteMCPServer", c.Name, spec)
}

func (c *conversion) agent() {
	var in agent
	if !c.decode("v1alpha2", &in) {
		return
	}
	spec, harness := &in.Spec, maps.Clone(c.spec)
	template := given(object{"description": spec.Description})
	var deployment *deploymentSpec
	at := "spec.declarative.deployment"
	switch d := spec.Declarative; {
	case spec.Type == "BYO":
		deployment, at = c.byo(spec, harness), "spec.byo.deployment"
	case d == nil:
		c.Fail("kagent", "spec", "correct spec.type",
			"neither a Declarative agent with spec.declarative nor a BYO agent")
	default:
		deployment = d.Deployment
		c.declarative(d, template, harness)
	}
	if deployment != nil {
		c.environment(deployment, at+".env", harness)
	}
	if spec.Skills != nil {
		template["skills"] = c.skills(spec.Skills)
	}
	if c.Failed() {
		return
	}
	c.add("AgentTemplate", c.Name, template)
	c.add("Agent", c.Name, object{"templateRef": object{"name": c.Name},
		"harnessRef": object{"name": c.harness(harness)}})
}

// harness returns the name of the Harness with a spec, and writes it if it is new.
func (c *conversion) harness(spec object) string {
	text, err := json.Marshal(spec)
	base, err2 := json.Marshal(c.spec)
	c.err = multi.Errors(c.err, err, err2)
	key := c.Namespace + " " + string(text)
	if name, known := c.made[key]; known {
		return name
	}
	name := c.Harness.Name
	if string(text) != string(base) {
		name = identity.ShortName(c.Harness.Name+"-"+c.Name, "")
	}
	c.made[key] = name
	c.add("Harness", name, spec)
	return name
}

// byo writes the harness of an agent with its own image.
func (c *conversion) byo(spec *agentSpec, harness object) *deploymentSpec {
	const at = "spec.byo.deployment"
	if c.FailIf(spec.BYO == nil || spec.BYO.Deployment == nil || spec.BYO.Deployment.Image == "",
		"kagent", "spec.byo", "set spec.byo.deployment.image", "a BYO agent needs an image") {
		return nil
	}
	d := spec.BYO.Deployment
	image := c.pinned(d.Image, at+".image")
	c.FailIf(d.Cmd == "", "kagent", at,
		"set spec.byo.deployment.cmd to the entrypoint of the image",
		"kagent 1.0 demands the command of a BYO agent")
	delete(harness, "kagent")
	harness["byo"] = object{}
	harness["workload"] = given(object{"image": image, "command": []string{d.Cmd}, "args": d.Args})
	c.warn("spec.byo", "check that the image keeps it",
		"kagent 1.0 speaks A2A with a BYO image by a contract of its own")
	return d
}

// pinned returns an image with its digest, which kagent 1.0 demands.
func (c *conversion) pinned(image, at string) string {
	image = c.Pin(image)
	c.FailIf(!digested().MatchString(image), "kagent", at,
		"run `armature pin`, or write the digest",
		"%s has no digest, which kagent 1.0 demands", image)
	return image
}

func (c *conversion) declarative(d *declarative, template, harness object) {
	const at = "spec.declarative"
	template["modelConfig"] = object{"name": cmp.Or(d.ModelConfig, defaultModel)}
	maps.Copy(template, given(object{"systemPrompt": d.SystemMessage}))
	if from := d.SystemMessageFrom; from != nil {
		c.FailIf(from.Type != "ConfigMap", "kagent", at+".systemMessageFrom.type",
			"move the prompt to a ConfigMap", "kagent 1.0 reads prompts from ConfigMaps alone")
		template["systemPromptFrom"] = object{"name": from.Name, "key": from.Key}
	}
	if p := d.PromptTemplate; p != nil {
		var sources []any
		for i, source := range p.DataSources {
			c.FailIf(source.Kind != "" && source.Kind != "ConfigMap", "kagent",
				fmt.Sprintf("%s.promptTemplate.dataSources[%d].kind", at, i),
				"move the text to a ConfigMap", "kagent 1.0 reads prompts from ConfigMaps alone")
			sources = append(sources, given(object{"name": source.Name, "alias": source.Alias}))
		}
		template["promptTemplate"] = object{"dataSources": sources}
	}
	if m := d.Memory; m != nil {
		own := object{}
		have, _ := harness["kagent"].(object)
		maps.Copy(own, have)
		own["memory"] = given(object{"modelConfigRef": object{"name": m.ModelConfig},
			"ttlDays": max(0, m.TTLDays)})
		harness["kagent"] = own
	}
	if d.Context != nil {
		c.lose(at+".context", "the published mapping has no equivalent",
			"set spec.kagent.compaction of the Harness, if that version of kagent has it")
	}
	var tools []any
	for i := range d.Tools {
		tools = append(tools, c.tool(&d.Tools[i], fmt.Sprintf("%s.tools[%d]", at, i))...)
	}
	c.FailIf(len(tools) > maxBound, "kagent", at+".tools", "bind fewer tools",
		"they become %d bindings, and kagent 1.0 takes %d", len(tools), maxBound)
	if tools != nil {
		template["tools"] = tools
	}
}

// maxBound is the maximum number of bindings of an agent, and of tools in a binding.
const maxBound = 50

// tool returns the bindings of a tool. In 1.0 approval applies to a whole binding, so the tools
// that need it have a separate one.
func (c *conversion) tool(t *tool, at string) (bindings []any) {
	if len(t.HeadersFrom) > 0 {
		c.lose(at+".headersFrom", "a binding has no headers", "write them into the RemoteMCPServer")
	}
	if a := t.Agent; a != nil {
		namespace := cmp.Or(a.Namespace, c.Namespace)
		c.FailIf(namespace != c.Namespace, "kagent", at+".agent.namespace",
			"move it, or call it over A2A",
			"a sub-agent is in the namespace of its caller in kagent 1.0")
		return []any{object{"subAgent": object{
			"name":        a.Name,
			"description": cmp.Or(c.agents[namespace+"/"+a.Name], "The agent "+a.Name+"."),
			"templateRef": object{"name": a.Name},
		}}}
	}
	m := t.McpServer
	if c.FailIf(m == nil, "kagent", at, "set one of them", "neither mcpServer nor agent") {
		return nil
	}
	c.FailIf(m.Namespace != "" && m.Namespace != c.Namespace, "kagent", at+".mcpServer.namespace",
		"write a RemoteMCPServer in this namespace",
		"a server is in the namespace of the AgentTemplate in kagent 1.0")
	if m.Kind != "RemoteMCPServer" && m.Kind != "ToolServer" {
		c.warn(at+".mcpServer.kind",
			"write a RemoteMCPServer of this name with the address of its Service",
			"kagent 1.0 binds a RemoteMCPServer, and this is %s %s", cmp.Or(m.Kind, "MCPServer"), m.Name)
	}
	if len(m.AllowedHeaders) > 0 {
		c.lose(at+".mcpServer.allowedHeaders", "a binding has no headers",
			"set them on the RemoteMCPServer")
	}
	server := object{"kind": "RemoteMCPServer", "name": m.Name}
	free := slices.DeleteFunc(slices.Clone(m.ToolNames),
		func(name string) bool { return slices.Contains(m.RequireApproval, name) })
	for i, names := range [][]string{free, m.RequireApproval} {
		for some := range slices.Chunk(names, maxBound) {
			bindings = append(bindings, object{"mcp": given(
				object{"server": server, "tools": some, "requireApproval": i == 1})})
		}
	}
	if bindings == nil { // every tool of the server
		bindings = []any{object{"mcp": object{"server": server}}}
	}
	return bindings
}

// environment moves literal variables to the Harness.
func (c *conversion) environment(d *deploymentSpec, at string, harness object) {
	own, _ := harness["env"].([]any)
	env := slices.Clone(own)
	for i, item := range d.Env {
		v, _ := item.(object)
		if _, from := v["valueFrom"]; from {
			c.lose(fmt.Sprintf("%s[%d]", at, i),
				"1.0 gives a process no Secrets, but requests to a host",
				"set a credentialRef with the URL and header in the Harness")
			continue
		}
		env = append(env, object{"name": v["name"], "value": cmp.Or(v["value"], any(""))})
	}
	if len(env) > 0 {
		harness["env"] = env
	}
}

// skills returns sources that cannot change.
func (c *conversion) skills(s *skills) (all []any) {
	const at = "spec.skills"
	for i, ref := range s.Refs {
		source := object{"oci": c.pinned(ref, fmt.Sprintf("%s.refs[%d]", at, i))}
		all = append(all, object{"name": fetch.Folder(ref), "source": source})
	}
	for i, ref := range s.GitRefs {
		c.FailIf(!fullCommit().MatchString(ref.Ref), "kagent",
			fmt.Sprintf("%s.gitRefs[%d].ref", at, i), "write the commit that the agent runs with",
			"%q is not a full commit, which kagent 1.0 demands", cmp.Or(ref.Ref, "main"))
		source := object{"git": object{"url": ref.URL, "commit": ref.Ref},
			"path": strings.TrimSuffix(ref.Path, "/")}
		all = append(all, object{"name": ref.folder(), "source": given(source)})
	}
	for i := range s.S3Refs {
		c.Fail("kagent", fmt.Sprintf("%s.s3Refs[%d]", at, i),
			"write the skill by hand as source.bucket.s3, and remove it here",
			"kagent 1.0 demands the endpoint and the version of an object")
	}
	return all
}
