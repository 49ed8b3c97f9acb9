// Package authbridge reads the configuration of AuthBridge as strictly as its fields allow: a key
// that rossoctl/cortex da955ea does not know is an error, at every depth, and so is everything that
// this program refuses when it starts.
package authbridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/multi"
)

// Config is config.yaml.
type Config struct {
	Mode     string   `json:"mode"`
	Listener Listener `json:"listener"`
	Pipeline struct {
		Inbound  Stage `json:"inbound"`
		Outbound Stage `json:"outbound"`
	} `json:"pipeline"`
	Session struct {
		Enabled     *bool  `json:"enabled"`
		TTL         string `json:"ttl"`
		MaxEvents   int    `json:"max_events"`
		MaxSessions int    `json:"max_sessions"`
	} `json:"session"`
	Stats struct {
		Address string `json:"address"`
	} `json:"stats"`
	MTLS *struct {
		Mode string `json:"mode"`
	} `json:"mtls"`
	SPIFFE *struct {
		Socket      string `json:"socket"`
		MirrorFiles *bool  `json:"mirror_files"`
		MirrorDir   string `json:"mirror_dir"`
	} `json:"spiffe"`
	TLSBridge *struct {
		Mode             string   `json:"mode"`
		CADir            string   `json:"ca_dir"`
		GenerateCA       bool     `json:"generate_ca"`
		UpstreamCABundle string   `json:"upstream_ca_bundle"`
		PassthroughHosts []string `json:"passthrough_hosts"`
		Ports            []int    `json:"ports"`
	} `json:"tls_bridge"`

	// Validation and Exchange are the configurations of the plugins that the file names, or nil.
	Validation *Validation `json:"-"`
	Exchange   *Exchange   `json:"-"`
}

// Listener has the addresses.
type Listener struct {
	Roles                []string `json:"roles"`
	ReverseProxyAddr     string   `json:"reverse_proxy_addr"`
	ReverseProxyBackend  string   `json:"reverse_proxy_backend"`
	ForwardProxyAddr     string   `json:"forward_proxy_addr"`
	TransparentProxyAddr string   `json:"transparent_proxy_addr"`
	ExtProcAddr          string   `json:"ext_proc_addr"`
	SessionAPIAddr       string   `json:"session_api_addr"`
	SkipHosts            []string `json:"skip_hosts"`
}

// Stage is one direction of the pipeline.
type Stage struct {
	Plugins []struct {
		Name    string          `json:"name"`
		ID      string          `json:"id"`
		OnError string          `json:"on_error"`
		Config  json.RawMessage `json:"config"`
	} `json:"plugins"`
}

// Validation is the configuration of jwt-validation.
type Validation struct {
	Issuer           string   `json:"issuer"`
	JWKSURL          string   `json:"jwks_url"`
	KeycloakURL      string   `json:"keycloak_url"`
	KeycloakRealm    string   `json:"keycloak_realm"`
	Audience         string   `json:"audience"`
	AudienceFile     string   `json:"audience_file"`
	AllowedAudiences []string `json:"allowed_audiences"`
	BypassPaths      []string `json:"bypass_paths"`
}

// Exchange is the configuration of token-exchange.
type Exchange struct {
	TokenURL      string `json:"token_url"`
	Provider      string `json:"provider"`
	ProviderURL   string `json:"provider_url"`
	ProviderRealm string `json:"provider_realm"`
	DefaultPolicy string `json:"default_policy"`
	NoTokenPolicy string `json:"no_token_policy"`
	Identity      struct {
		Type             string `json:"type"`
		ClientID         string `json:"client_id"`
		ClientIDFile     string `json:"client_id_file"`
		ClientSecret     string `json:"client_secret"`
		ClientSecretFile string `json:"client_secret_file"`
		JWTAudience      string `json:"jwt_audience"`
	} `json:"identity"`
	Routes struct {
		File  string  `json:"file"`
		Rules []Route `json:"rules"`
	} `json:"routes"`
}

// Route says which token replaces that of a request for a host.
type Route struct {
	Host           string `json:"host"`
	TargetAudience string `json:"target_audience"`
	TokenScopes    string `json:"token_scopes"`
	TokenURL       string `json:"token_url"`
	Action         string `json:"action"`
}

// Read parses a configuration. lookup returns the variables of the environment; one that it does
// not have is an error here, and stays as it is in the real program.
func Read(text []byte, lookup func(string) (string, bool)) (*Config, error) {
	var missing error
	expanded := os.Expand(string(text), func(name string) string {
		value, found := lookup(name)
		if !found {
			missing = multi.Errors(missing, fmt.Errorf("the variable %q is not set", name))
		}
		return value
	})
	if missing != nil {
		return nil, missing
	}
	c := new(Config)
	if err := yaml.UnmarshalStrict([]byte(expanded), c); err != nil {
		return nil, err
	}
	var p problems
	c.plugins(&p)
	c.listeners(&p)
	c.rest(&p)
	return c, multi.Errors(p...)
}

// Reloadable returns why the running program refuses a changed file: it cannot change its
// listeners, and then ignores the whole file. Changes of mtls, spiffe, session and stats are
// accepted, and have no effect.
func (c *Config) Reloadable(next *Config) error {
	var fields []string
	if c.Mode != next.Mode {
		fields = append(fields, "mode")
	}
	if !reflect.DeepEqual(c.Listener, next.Listener) {
		fields = append(fields, "listener.*")
	}
	if fields != nil {
		return fmt.Errorf("unreloadable field changed, pod restart required: %v", fields)
	}
	return nil
}

// Open reports whether a request's path needs no token. Paths are cleaned first. A configuration
// without patterns has default ones.
func (v *Validation) Open(requested string) bool {
	patterns := v.BypassPaths
	if len(patterns) == 0 {
		patterns = []string{"/.well-known/*", "/healthz", "/readyz", "/livez", "/metrics"}
	}
	requested = path.Clean(requested)
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		found, _ := path.Match(pattern, requested)
		return found
	})
}

// ReadFile adds the routes of the file that the configuration names, before its rules. A file that
// does not exist has no routes.
func (x *Exchange) ReadFile() error {
	if x.Routes.File == "" {
		return nil
	}
	text, err := os.ReadFile(x.Routes.File)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	var routes []Route
	if err := yaml.UnmarshalStrict(text, &routes); err != nil {
		return fmt.Errorf("%s: %w", x.Routes.File, err)
	}
	x.Routes.Rules = append(routes, x.Routes.Rules...)
	return nil
}

// Route returns the first rule for a host, or nil: * stands for any part of a label,
// and ** for any labels.
func (x *Exchange) Route(host string) *Route {
	for i := range x.Routes.Rules {
		pattern := regexp.QuoteMeta(x.Routes.Rules[i].Host)
		pattern = strings.ReplaceAll(pattern, `\*\*`, ".*")
		pattern = strings.ReplaceAll(pattern, `\*`, "[^.]*")
		if found, _ := regexp.MatchString("^"+pattern+"$", host); found {
			return &x.Routes.Rules[i]
		}
	}
	return nil
}

// problems collects the errors of a configuration.
type problems []error

// when adds a problem if wrong is true.
func (p *problems) when(wrong bool, format string, args ...any) {
	if wrong {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

// among reports whether a setting is known or not set.
func among(setting string, known ...string) bool {
	return setting == "" || slices.Contains(known, setting)
}

// plugins reads the settings of the two plugins, the only ones of the image authbridge-lite.
func (c *Config) plugins(p *problems) {
	for _, stage := range [...]struct {
		name string
		Stage
	}{{"jwt-validation", c.Pipeline.Inbound}, {"token-exchange", c.Pipeline.Outbound}} {
		for _, plugin := range stage.Plugins {
			p.when(!among(plugin.OnError, "enforce", "observe", "off"), "on_error %q of %s",
				plugin.OnError, plugin.Name)
			var into any
			switch {
			case plugin.Name != stage.name:
				p.when(true, "the plugin %q does not belong here", plugin.Name)
				continue
			case plugin.Name == "jwt-validation":
				c.Validation = new(Validation)
				into = c.Validation
			default:
				c.Exchange = new(Exchange)
				into = c.Exchange
			}
			decoder := json.NewDecoder(bytes.NewReader(plugin.Config))
			decoder.DisallowUnknownFields()
			err := decoder.Decode(into)
			p.when(err != nil, "%s: %w", plugin.Name, err)
		}
	}
	if v := c.Validation; v != nil {
		p.when(v.Issuer == "" || v.JWKSURL+v.KeycloakURL == "" || v.Audience+v.AudienceFile == "",
			"jwt-validation lacks an issuer, keys or an audience: %+v", *v)
		for _, pattern := range v.BypassPaths {
			p.when(pattern == "/*" || pattern == "/**",
				"bypass pattern %q is too broad; use specific path globs", pattern)
			_, err := path.Match(pattern, "/")
			p.when(err != nil, "bypass pattern %q: %w", pattern, err)
		}
	}
	if c.Exchange != nil {
		c.Exchange.check(p, c.SPIFFE != nil)
	}
}

func (x *Exchange) check(p *problems, spiffe bool) {
	id := x.Identity
	p.when(x.TokenURL == "" && (x.Provider == "" || x.ProviderURL == "" || x.ProviderRealm == ""),
		"token-exchange has no token_url")
	p.when(id.Type != "spiffe" && id.Type != "client-secret", "identity.type %q", id.Type)
	p.when(id.Type == "spiffe" &&
		(id.JWTAudience == "" || id.ClientID+id.ClientIDFile == "" || !spiffe),
		"the identity lacks jwt_audience, client_id or the spiffe block: %+v", id)
	p.when(id.Type == "client-secret" && id.ClientSecret != "", "the client's secret is in the file")
	p.when(!among(x.NoTokenPolicy, "allow", "deny"), "no_token_policy %q", x.NoTokenPolicy)
	for _, r := range x.Routes.Rules {
		p.when(r.Host == "" || r.Action != "exchange" && r.Action != "passthrough" ||
			(r.Action == "exchange") == (r.TargetAudience == ""), "the route %+v", r)
	}
}

func (c *Config) listeners(p *problems) {
	l := c.Listener
	reverse := len(l.Roles) == 0 || strings.Contains(strings.Join(l.Roles, " "), "reverse")
	switch c.Mode {
	case "proxy-sidecar":
		p.when(l.ExtProcAddr != "" || reverse && l.ReverseProxyBackend == "",
			"listeners of %s: %+v", c.Mode, l)
		for _, r := range l.Roles {
			p.when(r != "reverse" && r != "forward", "the role %q", r)
		}
	case "envoy-sidecar":
		p.when(l.ReverseProxyAddr+l.ReverseProxyBackend+l.ForwardProxyAddr+
			l.TransparentProxyAddr != "", "listeners of %s: %+v", c.Mode, l)
	default:
		p.when(true, "the mode %q", c.Mode)
	}
	for _, address := range c.Addresses() {
		_, _, err := net.SplitHostPort(address)
		p.when(err != nil, "%w", err)
	}
	for _, host := range l.SkipHosts {
		p.when(strings.Contains(host, ":"),
			"listener.skip_hosts: skiphost: pattern %q must not contain a port", host)
		p.when(strings.Trim(host, "* ") == "", "listener.skip_hosts: %q", host)
	}
}

// Addresses returns the addresses on which the program listens, besides :9091 for its health.
func (c *Config) Addresses() []string {
	l := c.Listener
	return slices.DeleteFunc([]string{l.ReverseProxyAddr, l.ForwardProxyAddr, l.TransparentProxyAddr,
		l.ExtProcAddr, l.SessionAPIAddr, c.Stats.Address}, func(a string) bool { return a == "" })
}

func (c *Config) rest(p *problems) {
	_, err := time.ParseDuration(c.Session.TTL)
	p.when(c.Session.TTL != "" && err != nil, "%w", err)
	if m := c.MTLS; m != nil {
		p.when(m.Mode != "permissive" && m.Mode != "strict" || c.SPIFFE == nil ||
			c.Mode == "envoy-sidecar", "mtls %+v in %s", *m, c.Mode)
	}
	if s := c.SPIFFE; s != nil {
		p.when(s.Socket != "" && !strings.HasPrefix(s.Socket, "unix://"), "the socket %q", s.Socket)
	}
	if b := c.TLSBridge; b != nil {
		p.when(!among(b.Mode, "disabled", "enabled") || b.Mode == "enabled" && b.CADir == "",
			"tls_bridge %+v", *b)
	}
}
