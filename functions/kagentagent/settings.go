package kagentagent

import (
	"cmp"
	_ "embed"
	"net/url"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/node"
	fetch "github.com/armature-dev/armature/functions/skills"
)

// Defaults of the published charts.
const (
	defaultController = "http://kagent-controller.kagent:8083"
	defaultModel      = "default-model-config"
)

// generation is the series of kagent's releases whose objects are rendered.
const generation = "0.10"

// settings are the settings of kagent's controller.
type settings struct {
	spec       *api.KagentSpec
	controller string
	proxy      *url.URL // may be nil
	account    string   // the default of agents; "" generates one for each
	index      *index.Index
}

// settingsOf reads the configuration. Errors in it fail the render.
func settingsOf(p *contract.Package) *settings {
	c := cmp.Or(p.Config.Kagent, &api.KagentSpec{})
	s := &settings{spec: c, account: node.Or(c.ServiceAccountName, ""), index: p.Index,
		controller: cmp.Or(node.Or(c.ControllerURL, ""), defaultController)}
	fail := func(field, message, hint string) {
		p.Misconfigured("config/kagent", "spec.kagent."+field, message, hint)
	}
	if version := node.Or(c.Version, generation); version != generation {
		fail("version", expand.Sprintf("kagent %q is not rendered: only %s is", version, generation),
			"upgrade kagent to 0.10, and remove this line; armature migrate --kagent-harness "+
				"leads to 1.0")
	}
	if image := s.image("", "app"); !identity.IsImage(image) || strings.Contains(image, "//") {
		fail("imageRegistry", expand.Sprintf("%q is not an image", image),
			"write the registry as host or host:port, and imageTag as a tag")
	}
	if proxy := node.Or(c.ProxyURL, ""); proxy != "" {
		u, err := url.Parse(proxy)
		if s.proxy = u; err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
			u.User != nil {
			fail("proxyURL", expand.Sprintf("%q is not the URL of a proxy", proxy),
				"write it as http://host:port")
		}
	}
	return s
}

// image returns one of kagent's images.
func (s *settings) image(registry, name string) string {
	return fetch.KagentImage(s.spec, registry, name)
}

// proxied returns the address with which an agent calls another one: the proxy's, if there is
// one. A header tells the proxy the host.
func (s *settings) proxied(address string, headers object) string {
	u, err := url.Parse(address)
	if s.proxy == nil || err != nil {
		return address
	}
	headers["x-kagent-host"] = u.Hostname()
	return s.proxy.Scheme + "://" + s.proxy.Host + u.EscapedPath()
}

// inside reports whether an address is in the cluster, as kagent's controller decides: by its
// suffix, or by a namespace that exists. A render knows the controller's namespace, those of the
// package, and the given ones.
func (s *settings) inside(address string, namespaces ...string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	_, in, _ := strings.Cut(u.Hostname(), ".")
	if strings.HasSuffix(u.Hostname(), ".svc.cluster.local") {
		return true
	}
	if in == "" || strings.Contains(in, ".") {
		return false
	}
	if u, err := url.Parse(s.controller); err == nil {
		_, own, _ := strings.Cut(u.Hostname(), ".")
		own, _, _ = strings.Cut(own, ".")
		namespaces = append(namespaces, own)
	}
	if slices.Contains(namespaces, in) {
		return true
	}
	for o := range s.index.Namespaces() {
		if o.Name == in {
			return true
		}
	}
	return false
}

var (
	//go:embed README.md
	page string
	//go:embed migrate.txt
	moves string
)

const function = "kagent-agent"

// Function expands kagent's resources.
func Function() contract.Function {
	groups := []contract.Group{{Name: group, Open: true}}
	kind := func(name, version string, use contract.Use, fields any) contract.Kind {
		return contract.Kind{Name: name, Groups: groups, Versions: []string{version}, Use: use,
			Fields: fields, Config: "spec.kagent", Shared: name != "Agent"}
	}
	return contract.Function{
		Name: function,
		Summary: "expand kagent's Agent, ModelConfig and MCPServer, with references in " +
			"place of the values of Secrets",
		Page: page,
		Kinds: []contract.Kind{
			kind("Agent", "v1alpha2", contract.Expands, agent{}),
			kind("ModelConfig", "v1alpha2", contract.Expands, modelConfig{}),
			kind("MCPServer", "v1alpha1", contract.Expands, mcpServer{}),
			kind("RemoteMCPServer", "v1alpha2", contract.Refers, remoteServer{}),
		},
		Migration: contract.Migration{Fields: moves, Replaces: true},
		New: func(p *contract.Package) contract.Steps {
			s := settingsOf(p)
			return contract.Steps{Expand: s.expand}
		},
	}
}

func (s *settings) expand(r *expand.Resource) {
	switch r.Kind {
	case "Agent":
		s.agent(r)
	case "ModelConfig":
		s.modelConfig(r)
	case "MCPServer":
		s.server(r)
	}
}
