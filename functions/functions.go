package functions

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/agentcard"
	"github.com/armature-dev/armature/functions/agenttrace"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/scalar"
)

// Generation is the version that rendered files record. It changes with what
// functions write and not with every release, so that a new release of the program
// leaves the bytes of rendered files alone.
const Generation = "v0.1.0"

// Function is one step of rendering, which looks at one object after the other.
type Function struct {
	// Name is its name on the command line and in findings.
	Name string
	// Summary says in a line what it does.
	Summary string
	Run     func(*Unit)

	folder string // below functions, with its README.md
}

// Table names all functions. Their order when rendering is render/pipeline.go's.
func Table() []Function {
	return []Function{
		{"agent", "expand Agent (agent.kagenti.dev) into Deployment, Service, ServiceAccount and least-privilege RBAC", runAgent, "agent"},
		{"kagent-agent", "expand kagent's Agent, ModelConfig and MCPServer, with references in place of the values of Secrets", runKagentAgent, "kagentagent"},
		{"async-actor", "expand AsyncActor (asya.sh) into its workload with sidecar and script, queue and scaling by KEDA", runAsyncActor, "asyncactor"},
		{"inject", "put the identity sidecars, volumes and mounts into workloads that opted in", runInject, "inject"},
		{"token-exchange", "compile TokenExchange into the ConfigMap that the identity sidecars read", runTokenExchange, "tokenexchange"},
		{"agent-trace", "compile AgentTrace into the ConfigMap that the application reads for tracing", runAgentTrace, "agenttrace"},
		{"agent-card", "compile the static part of AgentCard for discovery", runAgentCard, "agentcard"},
		{"overcommit", "lower requests to a part of the limits, by OvercommitClasses", runOvercommit, "overcommit"},
		{"pin-images", "pin the images of all containers to the digests of the lock", runPinImages, "pinimages"},
		{"validate", "judge the result: labels and kinds that nothing reads", runValidate, "validate"},
	}
}

// Lookup gives the function of a name.
func Lookup(name string) (Function, bool) {
	table := Table()
	i := slices.IndexFunc(table, func(f Function) bool { return f.Name == name })
	if i < 0 {
		return Function{}, false
	}
	return table[i], true
}

// configHash is the pod annotation that rolls the pods when the configuration
// changes, on request.
const configHash = "armature.dev/config-hash"

func runAgent(u *Unit) { u.expand("agent") }

func runKagentAgent(u *Unit) { u.expand("kagent-agent") }

func runAsyncActor(u *Unit) { u.expand("async-actor") }

func runInject(u *Unit) {
	if !u.workload {
		return
	}
	u.twins()
	findings := inject.Check(u.Object, &u.settings, u.injector.Classic)
	u.Findings = append(u.Findings, findings...)
	if krm.Failed(findings) {
		return
	}
	var annotations []inject.Annotation
	if is(u.Config.Rollout, "hash") {
		u.scratch = u.scratch[:0]
		if !u.settings.TraceOnly {
			u.scratch = u.exchanges.AppendConfigMap(u.scratch, &u.settings)
		}
		u.scratch = agenttrace.AppendConfigMap(u.scratch, &u.settings)
		sum := sha256.Sum256(u.scratch)
		annotations = append(annotations, inject.Annotation{Key: configHash, Value: hex.EncodeToString(sum[:16])})
	}
	if err := u.injector.Inject(u.Object, &u.settings, annotations...); err != nil {
		u.report(krm.Error, "inject/layout", krm.Node{}, err.Error(), "write the object in block style")
		return
	}
	if why, rewritten := u.Rewritten(); rewritten {
		u.reportRewritten("inject/rewritten", why)
	}
}

func runTokenExchange(u *Unit) {
	if u.workload && !u.settings.TraceOnly {
		u.generate(u.settings.TokenExchangeName, u.tokenExchange)
		if c := u.exchangeOf[u.entry]; c != nil {
			u.keepSource(c.Object)
		}
	}
	u.consume("TokenExchange")
}

func runAgentTrace(u *Unit) {
	if u.workload {
		u.generate(u.settings.TraceName, u.trace)
		if c := u.traceOf[u.entry]; c != nil {
			u.keepSource(c.Object)
		}
	}
	u.consume("AgentTrace")
}

func runAgentCard(u *Unit) {
	if u.cards.any() {
		if pod, ok := u.PodTemplate(); ok {
			u.cards.match(u.Namespace, pod)
		}
	}
	for i := range u.agentCards {
		c := &u.agentCards[i]
		if c.Origin == u.Origin && c.Ref == u.Ref {
			u.generate(func() string { return agentcard.Name(c.Name) }, func() Generated { return Generated{text: agentcard.AppendConfigMap(nil, &c.value)} })
		}
	}
	u.consume("AgentCard")
}

// common is what tells the ConfigMaps of workloads without wishes of their own
// apart, besides their name and namespace.
type common struct {
	kind, probes              string
	namespaced, spiffe, trace bool
}

// maxCommon bounds the memory for them.
const maxCommon = 256

func (u *Unit) tokenExchange() Generated { return u.configMap(false, u.exchanges.AppendConfigMap) }

func (u *Unit) trace() Generated { return u.configMap(true, agenttrace.AppendConfigMap) }

// configMap composes a ConfigMap, of which only the names are filled in where the
// rest has been written before.
func (u *Unit) configMap(trace bool, write func([]byte, *identity.Settings) []byte) Generated {
	s := &u.settings
	namespaced := s.Namespace != ""
	if !s.Common || namespaced && !scalar.Plain(s.Namespace) {
		return Generated{text: write(nil, s)}
	}
	k := common{s.Kind, strings.Join(s.ProbePaths, " "), namespaced, s.SPIFFE.Enabled, trace}
	block := u.common[k]
	if block == nil {
		model := *s
		model.Name = namePlaceholder
		if namespaced {
			model.Namespace = namespacePlaceholder
		}
		block = krm.NewBlock(write(nil, &model), namePlaceholder, namespacePlaceholder)
		if u.common == nil || len(u.common) >= maxCommon {
			u.common = make(map[common]*krm.Block)
		}
		u.common[k] = block
	}
	return Generated{block: block, name: s.Name, namespace: s.Namespace}
}

const (
	namePlaceholder      = "armature0name0placeholder"
	namespacePlaceholder = "armature0namespace0placeholder"
)

// generate adds a document, unless an author's ConfigMap has its name.
func (u *Unit) generate(name func() string, compose func() Generated) {
	if u.configMaps > 0 {
		if place, taken := u.authored("ConfigMap", u.Namespace, name(), u.Origin.File); taken {
			u.report(krm.Error, "package/name-taken", u.Get("metadata", "name"),
				fmt.Sprintf("the ConfigMap %s that belongs to it is somebody else's in %s", name(), place), "rename that one")
			return
		}
	}
	u.Generated = append(u.Generated, compose())
}

// keepSource writes into the generated object what it was made from, so that
// another render of what a host kept comes to the same.
func (u *Unit) keepSource(c *krm.Object) {
	if len(u.Generated) == 0 {
		return // the name was taken
	}
	source, err := sourceJSON(c, u.Name)
	if err != nil {
		u.Findings = append(u.Findings, c.Finding(krm.Error, "package/source", krm.Node{}, err.Error(), ""))
		return
	}
	last := &u.Generated[len(u.Generated)-1]
	annotation := "  annotations:\n    " + expand.Source + ": '" + strings.ReplaceAll(strings.TrimSpace(string(source)), "'", "''") + "'\n"
	*last = Generated{text: bytes.Replace(last.Text(), []byte("  annotations:\n"), []byte(annotation), 1)}
}

// sourceJSON is the resource with the name that its workload has by now, and
// without what a host says about the item that it came as.
func sourceJSON(c *krm.Object, workload string) ([]byte, error) {
	value, err := c.Value()
	if err != nil {
		return nil, err
	}
	krm.DropHostAnnotations(value)
	if object, ok := value.(map[string]any); ok {
		if spec, ok := object["spec"].(map[string]any); ok {
			if ref, ok := spec["targetRef"].(map[string]any); ok {
				ref["name"] = workload
			}
		}
	}
	return json.Marshal(value)
}

// consume takes a custom resource of a pillar out of the output.
func (u *Unit) consume(kind string) {
	if u.Kind == kind && u.wants(u.APIVersion, kind) && !u.KeepCustomResources() {
		u.Consumed = true
	}
}
