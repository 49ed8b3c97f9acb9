package identity

import (
	_ "embed"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/krm"
)

// setting is a value that can be set: a row of settings.yaml, which explains the fields.
type setting struct {
	path, annotation string
	also             otherFields

	// at returns a pointer to the value: a *bool, *int, *string, *[]int or *[]string. A value of
	// another type is a list.
	at   func(*Settings) any
	list list

	standard krm.Node
	oneOf    []string
	is       check
	// then normalizes a new value.
	then    func(*Settings)
	derived func(*Settings) *bool

	shown, means krm.Node
}

// otherFields are further fields that decide a setting.
type otherFields struct {
	runtime string
	alias   string
	follows []string
}

// list says how a list that is not of numbers or strings is merged and explained: by each part of
// its items, of which one clears the item.
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

// complete normalizes new values of settings.
var complete = map[string]func(*Settings){
	"spiffe.socketPath": func(s *Settings) {
		s.SPIFFE.SocketPath = socketPath(s.SPIFFE.SocketPath)
	},
	// The full resource name of the provider is also the audience, unless that is set.
	"clientRegistration.gcp.workloadIdentityProvider": func(s *Settings) {
		g := &s.Registration.GCP
		g.ProviderResource = googleIAM + providerName(g.ProviderResource)
		g.Audience = g.ProviderResource
	},
	// Every YAML reader reads this notation as a number.
	"trace.sampling.rate": func(s *Settings) {
		f, _ := strconv.ParseFloat(s.Trace.SamplerRate, 64)
		s.Trace.SamplerRate = strconv.FormatFloat(f, 'f', -1, 64)
	},
}

//go:embed settings.yaml
var settingsYAML []byte

// rows are the sections of settings.yaml. Each program reads them when it starts; the scanner takes
// a tenth of the time of a YAML library.
var rows = sync.OnceValue(func() *krm.Object {
	o, document := new(krm.Object), krm.Document{End: len(settingsYAML)}
	if _, err := o.Read(settingsYAML, document, false, krm.Origin{}); err != nil {
		panic(err) // a test reads it
	}
	return o
})

const components = "components."

// settings returns the settings of a section, for a sidecar unless its name is "".
func settings(section, sidecar string) (all []setting) {
	for row := range rows().Get(section).Items() {
		text := func(field string) string { return row.Get(field).Text() }
		in, derived := text("in"), text("derived")
		x := setting{
			path: text("path"), annotation: text("annotation"),
			also: otherFields{text("runtime"), text("alias"), texts(row.Get("follows"))},
			at:   func(s *Settings) any { return fieldOf(s, in) },
			is:   checks[text("check")], standard: row.Get("standard"), oneOf: texts(row.Get("oneOf")),
			shown: row.Get("shown"), means: row.Get("means"),
		}
		x.list, x.then = lists[x.path], complete[x.path]
		if sidecar != "" {
			x.path, x.annotation = components+sidecar+"."+x.path, sidecar+x.annotation
			x.at = func(s *Settings) any { return fieldOf(s.Component(sidecar), in) }
		}
		if derived != "" {
			x.derived = func(s *Settings) *bool { return fieldOf(&s.Derived, derived).(*bool) }
		}
		all = append(all, x)
	}
	return all
}

func texts(list krm.Node) (all []string) {
	for item := range list.Items() {
		all = append(all, item.Text())
	}
	return all
}

// setStandard sets a setting to its default.
func (x *setting) setStandard(s *Settings) {
	switch at := x.at(s).(type) {
	case *bool:
		*at = x.standard.Is("true")
	case *int:
		*at, _ = x.standard.Int()
	case *string:
		*at = x.standard.Text()
	case *[]string:
		*at = texts(x.standard)
	case *[]int:
		for item := range x.standard.Items() {
			n, _ := item.Int()
			*at = append(*at, n)
		}
	default:
		panic(x.path + " has a default of another type") // a test reads all of them
	}
}

// fieldOf returns a pointer to a field, such as Inbound.Port, of the value of a pointer.
func fieldOf(pointer any, path string) any {
	v := reflect.ValueOf(pointer).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v = v.FieldByName(name)
	}
	return v.Addr().Interface()
}

// Paths and annotations that findings name.
const (
	ReversePort  = "inbound.port" // the port for the agent's requests
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

// providerName returns the name of a workload identity provider without its optional host.
func providerName(resource string) string {
	return strings.TrimPrefix(strings.TrimPrefix(resource, "https:"), googleIAM)
}
