// Package authbridge reads the configuration of AuthBridge as strictly as its fields
// allow: a key that rossoctl/cortex da955ea does not know is an error, at every
// depth, and so is what that program refuses when it starts.
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

	// Validation and Exchange are the configurations of the plugins that the file
	// names, nil for one that it does not.
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

// Route says what the tokens for a host become.
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
	return c, multi.Errors(c.plugins(), c.listeners(), c.rest())
}

// Reloadable reports why the running program refuses a changed file: it does not change
// its listeners, and then takes nothing else of the file. Changes of mtls, spiffe, session
// and stats are accepted, and have no effect.
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

// Open reports whether a request's path needs no token. Paths are cleaned first, and a
// configuration without patterns opens paths all the same.
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

// ReadFile adds the routes of the file that the configuration names, before its rules. A
// file that does not exist has none.
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

// plugins reads the settings of the two plugins, which the image authbridge-lite has
// alone.
func (c *Config) plugins() (err error) {
	for _, stage := range [...]struct {
		name string
		Stage
	}{{"jwt-validation", c.Pipeline.Inbound}, {"token-exchange", c.Pipeline.Outbound}} {
		for _, p := range stage.Plugins {
			if p.OnError != "" && p.OnError != "enforce" && p.OnError != "observe" && p.OnError != "off" {
				err = multi.Errors(err, fmt.Errorf("on_error %q of %s", p.OnError, p.Name))
			}
			var into any
			switch {
			case p.Name != stage.name:
				err = multi.Errors(err, fmt.Errorf("the plugin %q does not belong here", p.Name))
				continue
			case p.Name == "jwt-validation":
				c.Validation = new(Validation)
				into = c.Validation
			default:
				c.Exchange = new(Exchange)
				into = c.Exchange
			}
			decoder := json.NewDecoder(bytes.NewReader(p.Config))
			decoder.DisallowUnknownFields()
			if e := decoder.Decode(into); e != nil {
				err = multi.Errors(err, fmt.Errorf("%s: %w", p.Name, e))
			}
		}
	}
	if v := c.Validation; v != nil &&
		(v.Issuer == "" || v.JWKSURL == "" && v.KeycloakURL == "" ||
			v.Audience == "" && v.AudienceFile == "") {
		err = multi.Errors(err,
			fmt.Errorf("jwt-validation lacks an issuer, keys or an audience: %+v", *v))
	}
	if v := c.Validation; v != nil {
		for _, pattern := range v.BypassPaths {
			if pattern == "/*" || pattern == "/**" {
				err = multi.Errors(err,
					fmt.Errorf("bypass pattern %q is too broad; use specific path globs", pattern))
			}
			if _, e := path.Match(pattern, "/"); e != nil {
				err = multi.Errors(err, fmt.Errorf("bypass pattern %q: %w", pattern, e))
			}
		}
	}
	if x := c.Exchange; x != nil {
		err = multi.Errors(err, x.check(c.SPIFFE != nil))
	}
	return err
}

func (x *Exchange) check(spiffe bool) (err error) {
	id := x.Identity
	if x.TokenURL == "" && (x.Provider == "" || x.ProviderURL == "" || x.ProviderRealm == "") {
		err = errors.New("token-exchange has no token_url")
	}
	switch id.Type {
	case "spiffe":
		if id.JWTAudience == "" || id.ClientID == "" && id.ClientIDFile == "" || !spiffe {
			err = multi.Errors(err,
				fmt.Errorf("the identity lacks jwt_audience, client_id or the spiffe block: %+v", id))
		}
	case "client-secret":
		if id.ClientSecret != "" {
			err = multi.Errors(err, errors.New("the client's secret is in the file"))
		}
	default:
		err = multi.Errors(err, fmt.Errorf("identity.type %q", id.Type))
	}
	if p := x.NoTokenPolicy; p != "" && p != "allow" && p != "deny" {
		err = multi.Errors(err, fmt.Errorf("no_token_policy %q", p))
	}
	for _, r := range x.Routes.Rules {
		if r.Host == "" || r.Action != "exchange" && r.Action != "passthrough" ||
			(r.Action == "exchange") == (r.TargetAudience == "") {
			err = multi.Errors(err, fmt.Errorf("the route %+v", r))
		}
	}
	return err
}

func (c *Config) listeners() (err error) {
	l := c.Listener
	switch c.Mode {
	case "proxy-sidecar":
		reverse := len(l.Roles) == 0 || strings.Contains(strings.Join(l.Roles, " "), "reverse")
		if l.ExtProcAddr != "" || reverse && l.ReverseProxyBackend == "" {
			err = fmt.Errorf("listeners of %s: %+v", c.Mode, l)
		}
		for _, r := range l.Roles {
			if r != "reverse" && r != "forward" {
				err = multi.Errors(err, fmt.Errorf("the role %q", r))
			}
		}
	case "envoy-sidecar":
		if l.ReverseProxyAddr != "" || l.ReverseProxyBackend != "" || l.ForwardProxyAddr != "" ||
			l.TransparentProxyAddr != "" {
			err = fmt.Errorf("listeners of %s: %+v", c.Mode, l)
		}
	default:
		err = fmt.Errorf("the mode %q", c.Mode)
	}
	for _, address := range c.Addresses() {
		if _, _, e := net.SplitHostPort(address); e != nil {
			err = multi.Errors(err, e)
		}
	}
	for _, host := range l.SkipHosts {
		if strings.Contains(host, ":") {
			err = multi.Errors(err,
				fmt.Errorf("listener.skip_hosts: skiphost: pattern %q must not contain a port", host))
		} else if strings.Trim(host, "* ") == "" {
			err = multi.Errors(err, fmt.Errorf("listener.skip_hosts: %q", host))
		}
	}
	return err
}

// Addresses are those on which the program listens, besides :9091 for its health.
func (c *Config) Addresses() (all []string) {
	l := c.Listener
	for _, a := range []string{l.ReverseProxyAddr, l.ForwardProxyAddr, l.TransparentProxyAddr,
		l.ExtProcAddr, l.SessionAPIAddr, c.Stats.Address} {
		if a != "" {
			all = append(all, a)
		}
	}
	return all
}

func (c *Config) rest() (err error) {
	if _, e := time.ParseDuration(c.Session.TTL); c.Session.TTL != "" && e != nil {
		err = e
	}
	if m := c.MTLS; m != nil &&
		(m.Mode != "permissive" && m.Mode != "strict" || c.SPIFFE == nil || c.Mode == "envoy-sidecar") {
		err = multi.Errors(err, fmt.Errorf("mtls %+v in %s", *m, c.Mode))
	}
	if s := c.SPIFFE; s != nil && s.Socket != "" && !strings.HasPrefix(s.Socket, "unix://") {
		err = multi.Errors(err, fmt.Errorf("the socket %q", s.Socket))
	}
	if b := c.TLSBridge; b != nil && b.Mode != "" && b.Mode != "disabled" &&
		(b.Mode != "enabled" || b.CADir == "") {
		err = multi.Errors(err, fmt.Errorf("tls_bridge %+v", *b))
	}
	return err
}
