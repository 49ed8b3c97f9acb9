package policies

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	kinds "github.com/armature-dev/armature/functions/workload"
)

// facts are what objects of the package say that policies follow from.
type facts struct {
	known     map[index.ID]bool
	workloads map[index.ID]*workload
	services  map[index.ID]*service
	gateways  map[index.ID]*gateway
	routes    map[index.ID]*route
	backends  map[index.ID]*backend
	registered,
	guards map[index.ID]*registration
	// configs are the config.json of kagent's Agents, and sources what objects remember of the
	// resource that they were made from, by namespace and Kind/name of that.
	configs, sources map[string]string
}

func newFacts() facts {
	return facts{
		known: map[index.ID]bool{}, workloads: map[index.ID]*workload{},
		services: map[index.ID]*service{}, gateways: map[index.ID]*gateway{},
		routes: map[index.ID]*route{}, backends: map[index.ID]*backend{},
		registered: map[index.ID]*registration{}, guards: map[index.ID]*registration{},
		configs: map[string]string{}, sources: map[string]string{},
	}
}

type object struct {
	finding.Ref
	file string
}

type workload struct {
	object
	labels map[string]string // of its pods
	// selector of its pods: its own, or else all of their labels.
	selector map[string]string
	ports    map[string]int // named ones of its containers
	env      []call         // what variables of its containers name
	tools    string         // annotations
	calls    string
	stated   bool   // an annotation says what it calls
	madeBy   string // Kind/name, "" for an author's
}

type service struct {
	object
	Spec struct {
		Type      string            `json:"type"`
		ClusterIP string            `json:"clusterIP"`
		Selector  map[string]string `json:"selector"`
		Ports     []struct {
			Port       int    `json:"port"`
			TargetPort any    `json:"targetPort"`
			Protocol   string `json:"protocol"`
		} `json:"ports"`
	} `json:"spec"`
}

type gateway struct {
	object
	Spec struct {
		Listeners []struct {
			Port     int    `json:"port"`
			Hostname string `json:"hostname"`
		} `json:"listeners"`
	} `json:"spec"`
}

type route struct {
	object
	Spec struct {
		ParentRefs []targetRef `json:"parentRefs"`
		Rules      []struct {
			Matches []struct {
				Path struct {
					Type  string `json:"type"`
					Value string `json:"value"`
				} `json:"path"`
			} `json:"matches"`
			BackendRefs []targetRef `json:"backendRefs"`
		} `json:"rules"`
	} `json:"spec"`
}

type targetRef struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      int    `json:"port"` // of a Service
}

// backend of agentgateway.
type backend struct {
	object
	Spec struct {
		MCP *struct {
			Targets []struct {
				Name   string         `json:"name"`
				Static map[string]any `json:"static"`
			} `json:"targets"`
		} `json:"mcp"`
	} `json:"spec"`
}

// registration of a server at Kuadrant's mcp-gateway, or a policy that somebody wrote for a
// gateway.
type registration struct {
	object
	Spec struct {
		TargetRef  targetRef   `json:"targetRef"`
		TargetRefs []targetRef `json:"targetRefs"`
	} `json:"spec"`
}

// unsure returns the objects that have to be seen whole.
func (s *state) unsure() (ids []index.ID) {
	for id, e := range s.pkg.Index.All() {
		switch {
		case e.Generated && !e.Made && s.madeAgain(e):
		case e.Made, kinds.Is(e.Kind), e.Kind == "Service" && e.APIVersion == "v1":
			ids = append(ids, id)
		case e.Group() == "gateway.networking.k8s.io" &&
			(e.Kind == "Gateway" || e.Kind == "HTTPRoute"),
			e.Group() == "agentgateway.dev" &&
				(e.Kind == "AgentgatewayBackend" || e.Kind == "AgentgatewayPolicy"),
			e.Group() == "mcp.kuadrant.io" && e.Kind == "MCPServerRegistration":
			if !e.Generated {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// madeAgain reports whether this render makes an object of an earlier one again.
func (s *state) madeAgain(old *index.Entry) bool {
	for _, e := range s.pkg.Index.Named(old.Key) {
		if e.Made {
			return true
		}
	}
	return false
}

// look notes what an object says. It keeps nothing of the object itself.
func (s *state) look(id index.ID, o *krm.Object) {
	f := &s.facts
	made, _ := o.Annotation(keys.RenderedFor)
	if made != "" {
		if source, ok := o.Annotation(keys.Source); ok {
			f.sources[o.Namespace+" "+made] = strings.Clone(source)
		}
		if config := o.Get("data", "config.json"); config.Exists() {
			of := o.Namespace + " " + made
			// What fetches the skills of an Agent has a file of that name as well.
			if _, _, declarative := ofConfig(config.Text()); declarative || f.configs[of] == "" {
				f.configs[of] = strings.Clone(config.Text())
			}
		}
	}
	at := object{finding.Ref{APIVersion: strings.Clone(o.APIVersion), Kind: strings.Clone(o.Kind),
		Namespace: strings.Clone(o.Namespace), Name: strings.Clone(o.Name)}, o.Origin.File}
	if pod, ok := o.PodTemplate(); ok {
		f.known[id], f.workloads[id] = true, newWorkload(at, o, pod, strings.Clone(made))
		return
	}
	switch o.Kind {
	case "Service":
		f.known[id] = read(o, f.services, id, service{object: at})
	case "Gateway":
		f.known[id] = read(o, f.gateways, id, gateway{object: at})
	case "HTTPRoute":
		f.known[id] = read(o, f.routes, id, route{object: at})
	case "AgentgatewayBackend":
		f.known[id] = read(o, f.backends, id, backend{object: at})
	case "MCPServerRegistration":
		f.known[id] = read(o, f.registered, id, registration{object: at})
	case "AgentgatewayPolicy":
		f.known[id] = read(o, f.guards, id, registration{object: at})
	}
}

// read notes the fields of an object that policies follow from.
func read[T any](o *krm.Object, into map[index.ID]*T, id index.ID, value T) (ok bool) {
	data, err := o.JSON()
	if err == nil && json.Unmarshal(data, &value) == nil {
		into[id], ok = &value, true
	}
	return ok
}

func newWorkload(at object, o *krm.Object, pod krm.PodTemplate, made string) *workload {
	w := &workload{object: at, ports: map[string]int{}, madeBy: made}
	w.labels, w.selector = texts(pod.Template.Get("metadata", "labels")),
		texts(o.Get("spec", "selector", "matchLabels"))
	if len(w.selector) == 0 {
		w.selector = w.labels
	}
	for _, list := range []string{"containers", "initContainers"} {
		for c := range pod.Spec().Get(list).Items() {
			for p := range c.Get("ports").Items() {
				if n, ok := p.Get("containerPort").Int(); ok && p.Get("name").Exists() {
					w.ports[strings.Clone(p.Get("name").Text())] = n
				}
			}
			for e := range c.Get("env").Items() {
				name, text :=
					strings.Clone(e.Get("name").Text()), strings.Clone(e.Get("value").Text())
				switch named := addressVariable(name); {
				case strings.Contains(text, "://") || named && text != "":
					w.env = append(w.env, call{url: text})
				case named && e.Get("valueFrom").Exists():
					w.env = append(w.env,
						call{problem: "the value of its variable " + name + " is not known"})
				}
			}
		}
	}
	tools, t := o.Annotation(keys.Tools)
	calls, c := o.Annotation(keys.Calls)
	w.tools, w.calls, w.stated = strings.Clone(tools), strings.Clone(calls), t || c
	return w
}

func texts(n krm.Node) map[string]string {
	out := map[string]string{}
	for key, value := range n.Fields() {
		out[strings.Clone(key)] = strings.Clone(value.Text())
	}
	return out
}

// addressVariable reports whether a variable of a name has an address, with a scheme or not.
func addressVariable(name string) bool {
	return slices.ContainsFunc([]string{"_URL", "_ENDPOINT", "_API_BASE"},
		func(end string) bool { return strings.HasSuffix(name, end) })
}

// sorted returns facts of a kind in the order of their names, so that nothing depends on the
// order of files.
func sorted[T interface{ ref() finding.Ref }](of map[index.ID]T) []T {
	return slices.SortedFunc(maps.Values(of),
		func(a, b T) int { return strings.Compare(key(a.ref()), key(b.ref())) })
}

func (o *object) ref() finding.Ref { return o.Ref }

func key(r finding.Ref) string { return r.Kind + " " + r.Namespace + " " + r.Name }
