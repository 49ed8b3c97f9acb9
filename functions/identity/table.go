package identity

import (
	"bytes"
	_ "embed"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// setting is a value that can be set: a row of settings.yaml, which explains the fields.
type setting struct {
	path, annotation string
	also             otherFields

	// at is where it is kept: a *bool, *int, *string, *[]int or *[]string. A value of
	// another type is a list.
	at   func(*Settings) any
	list list

	standard *yaml.Node
	oneOf    []string
	is       check
	// then completes a new value.
	then    func(*Settings)
	derived func(*Settings) *bool

	shown, means string
}

// otherFields are fields beside its path that decide a setting.
type otherFields struct {
	runtime string
	alias   string
	follows []string
}

// list is how a list that is not of numbers or strings is merged and explained: by each part
// of its items, of which one clears the item.
type list struct {
	merge func(c *Checker, s *Settings, field string, value any)
	each  func(*Settings) []setting
	clear func(*Settings)
}

var lists = map[string]list{
	"outbound.tokenExchange.destinationRules": {merge: mergeRules, each: eachRule},
	"trace.exporters":                         {merge: mergeExporters},
	"trace.resourceAttributes":                {merge: mergeAttributes, each: eachAttribute},
}

// complete changes new values of settings to what they mean.
var complete = map[string]func(*Settings){
	"spiffe.socketPath": func(s *Settings) {
		s.SPIFFE.SocketPath = socketPath(s.SPIFFE.SocketPath)
	},
	// The full resource name of the provider is the audience too, unless that is set.
	"clientRegistration.gcp.workloadIdentityProvider": func(s *Settings) {
		g := &s.Registration.GCP
		g.ProviderResource = googleIAM + providerName(g.ProviderResource)
		g.Audience = g.ProviderResource
	},
	// The notation is one that every YAML reader takes for a number.
	"trace.sampling.rate": func(s *Settings) {
		f, _ := strconv.ParseFloat(s.Trace.SamplerRate, 64)
		s.Trace.SamplerRate = strconv.FormatFloat(f, 'f', -1, 64)
	},
}

//go:embed settings.yaml
var settingsYAML []byte

// row is a row of settings.yaml.
type row struct {
	Path, Annotation string
	Runtime, Alias   string
	Follows          []string

	In       string
	Standard yaml.Node
	OneOf    []string `yaml:"oneOf"`
	Check    string
	Derived  string

	Shown, Means string
}

var rows = sync.OnceValue(func() (all struct{ AuthBridge, Component, Identity, Trace []row }) {
	decoder := yaml.NewDecoder(bytes.NewReader(settingsYAML))
	decoder.KnownFields(true)
	if err := decoder.Decode(&all); err != nil {
		panic(err) // a test reads it
	}
	return all
})

const components = "components."

// settings returns those of rows, for a sidecar unless its name is "".
func settings(sidecar string, rows []row) (all []setting) {
	for i := range rows {
		r := &rows[i]
		x := setting{
			path: r.Path, annotation: r.Annotation, also: otherFields{r.Runtime, r.Alias, r.Follows},
			at: func(s *Settings) any { return fieldOf(s, r.In) }, list: lists[r.Path],
			standard: &r.Standard, oneOf: r.OneOf, is: checks[r.Check], then: complete[r.Path],
			shown: r.Shown, means: r.Means,
		}
		if sidecar != "" {
			x.path, x.annotation = components+sidecar+"."+x.path, sidecar+x.annotation
			x.at = func(s *Settings) any { return fieldOf(s.Component(sidecar), r.In) }
		}
		if r.Derived != "" {
			x.derived = func(s *Settings) *bool { return fieldOf(&s.Derived, r.Derived).(*bool) }
		}
		all = append(all, x)
	}
	return all
}

// fieldOf returns a pointer to a field, such as Inbound.Port, of what a pointer leads to.
func fieldOf(pointer any, path string) any {
	v := reflect.ValueOf(pointer).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v = v.FieldByName(name)
	}
	return v.Addr().Interface()
}

// Paths and annotations that findings name.
const (
	ReversePort  = "inbound.port" // where requests for the agent arrive
	AgentPort    = "inbound.targetPort"
	Interception = "outbound.trafficInterception."
	BridgeMode   = "authbridge.mode"
	traced       = "trace.enabled"
	metricsPort  = "trace.integration.prometheus.port"

	InboundPort        = "inbound-port"
	TargetPort         = "target-port"
	ProxyPort          = "proxy-port"
	InboundProxyPort   = "inbound-proxy-port"
	ClientSecretName   = "keycloak-client-credentials-secret-name"
	InboundBypassPaths = "inbound-bypass-paths"
)

const googleIAM = "//iam.googleapis.com/"

// providerName is the name of a workload identity provider without what may be before it.
func providerName(resource string) string {
	return strings.TrimPrefix(strings.TrimPrefix(resource, "https:"), googleIAM)
}
