package policies

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	kinds "github.com/armature-dev/armature/functions/workload"
)

// facts are the contents of objects of the package from which policies are derived.
type facts struct {
	objects map[index.ID]*object
	// kinds are the objects by kind, those that run pods under "". They are sorted by name, so that
	// nothing depends on the order of files.
	kinds map[string][]*object
	// configs are the config.json of kagent's Agents, and sources are the recorded resources of
	// generated objects, by namespace and Kind/name of the resource.
	configs map[string]string
	sources map[string]source
}

// source holds the fields that are read of a recorded resource.
type source struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Skills struct {
			Refs    []string `json:"refs"`
			GitRefs []struct {
				URL string `json:"url"`
			} `json:"gitRefs"`
			S3Refs []struct {
				URI string `json:"uri"`
			} `json:"s3Refs"`
		} `json:"skills"`
	} `json:"spec"`
}

// sourceOf reads the first resource of an annotation.
func sourceOf(text string) (s source) {
	var all []source
	if json.Unmarshal([]byte(text), &all) == nil && len(all) > 0 {
		return all[0]
	}
	_ = json.Unmarshal([]byte(text), &s) // a single resource, or invalid
	return s
}

// object is an object from which policies are derived.
type object struct {
	finding.Ref
	file string
	// pods describes the pods of the object; nil means that it runs none.
	pods *workload
	// Spec has the fields of all kinds that do not run pods.
	Spec struct {
		// Of a Service.
		Type      string            `json:"type"`
		ClusterIP string            `json:"clusterIP"`
		Selector  map[string]string `json:"selector"`
		Ports     []struct {
			Port       int    `json:"port"`
			TargetPort any    `json:"targetPort"`
			Protocol   string `json:"protocol"`
		} `json:"ports"`

		// Of a Gateway.
		Listeners []struct {
			Port     int    `json:"port"`
			Hostname string `json:"hostname"`
		} `json:"listeners"`

		// Of an HTTPRoute.
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

		// Of an AgentgatewayBackend.
		MCP *struct {
			Targets []struct {
				Name   string         `json:"name"`
				Static map[string]any `json:"static"`
			} `json:"targets"`
		} `json:"mcp"`

		// Of the registration of a server at Kuadrant's mcp-gateway, and of an author's policy for
		// a gateway.
		TargetRef  targetRef   `json:"targetRef"`
		TargetRefs []targetRef `json:"targetRefs"`
	} `json:"spec"`
}

type workload struct {
	labels map[string]string // of its pods
	// selector selects its pods: it is its own, or else consists of all of their labels.
	selector map[string]string
	ports    map[string]int // the named ports of its containers
	env      []call         // URLs in the variables of its containers
	tools    string         // annotations
	calls    string
	stated   bool   // an annotation lists its calls
	madeBy   string // Kind/name, "" for an authored one
}

type targetRef struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      int    `json:"port"` // of a Service
}

// kindsWithSpec are the kinds without pods whose fields are read, with their API groups, or v1.
var kindsWithSpec = map[string]string{"Service": "v1", "Gateway": "gateway.networking.k8s.io",
	"HTTPRoute": "gateway.networking.k8s.io", "AgentgatewayBackend": "agentgateway.dev",
	"AgentgatewayPolicy": "agentgateway.dev", "MCPServerRegistration": "mcp.kuadrant.io"}

// unsure returns the objects that have to be read whole.
func (s *state) unsure() (ids []index.ID) {
	for id, e := range s.pkg.Index.All() {
		group, read := kindsWithSpec[e.Kind]
		read = read && e.Group() == group && (e.Kind == "Service" || !e.Generated)
		if !s.pkg.Index.Outdated(e) && (e.Made || kinds.Is(e.Kind) || read) {
			ids = append(ids, id)
		}
	}
	return ids
}

// look records the contents of an object.
func (s *state) look(id index.ID, o *krm.Object) {
	f := &s.facts
	o = o.Clone()
	made, _ := o.Annotation(keys.RenderedFor)
	if made != "" {
		if source, ok := o.Annotation(keys.Source); ok {
			f.sources[o.Namespace+" "+made] = sourceOf(source)
		}
		if config := o.Get("data", "config.json"); config.Exists() {
			of := o.Namespace + " " + made
			// The container that fetches the skills of an Agent has a file of that name as well.
			if _, _, declarative := ofConfig(config.Text()); declarative || f.configs[of] == "" {
				f.configs[of] = config.Text()
			}
		}
	}
	at := &object{Ref: o.Ref, file: o.Origin.File}
	if pod, ok := o.PodTemplate(); ok {
		at.pods = newWorkload(o, pod, made)
	} else if _, read := kindsWithSpec[o.Kind]; !read {
		return
	} else if data, err := o.JSON(); err != nil || json.Unmarshal(data, at) != nil {
		return
	}
	f.objects[id] = at
}

// sort fills kinds, when all objects are known.
func (f *facts) sort() {
	for _, o := range f.objects {
		kind := o.Kind
		if o.pods != nil {
			kind = ""
		}
		f.kinds[kind] = append(f.kinds[kind], o)
	}
	for _, all := range f.kinds {
		slices.SortFunc(all, func(a, b *object) int {
			return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace),
				strings.Compare(a.Name, b.Name))
		})
	}
}

func newWorkload(o *krm.Object, pod krm.PodTemplate, made string) *workload {
	w := &workload{ports: map[string]int{}, madeBy: made}
	w.labels, w.selector = texts(pod.Template.Get("metadata", "labels")),
		texts(o.Get("spec", "selector", "matchLabels"))
	if len(w.selector) == 0 {
		w.selector = w.labels
	}
	for _, c := range pod.Containers() {
		for p := range c.Get("ports").Items() {
			if n, ok := p.Get("containerPort").Int(); ok && p.Get("name").Exists() {
				w.ports[p.Get("name").Text()] = n
			}
		}
		for e := range c.Get("env").Items() {
			name, text := e.Get("name").Text(), e.Get("value").Text()
			named := slices.ContainsFunc([]string{"_URL", "_ENDPOINT", "_API_BASE"},
				func(end string) bool { return strings.HasSuffix(name, end) })
			switch {
			case strings.Contains(text, "://") || named && text != "":
				w.env = append(w.env, call{url: text})
			case named && e.Get("valueFrom").Exists():
				w.env = append(w.env,
					call{problem: "the value of its variable " + name + " is not known"})
			}
		}
	}
	var t, c bool
	w.tools, t = o.Annotation(keys.Tools)
	w.calls, c = o.Annotation(keys.Calls)
	w.stated = t || c
	return w
}

func texts(n krm.Node) map[string]string {
	out := map[string]string{}
	for key, value := range n.Fields() {
		out[key] = value.Text()
	}
	return out
}
