package identity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
)

// Setting is one value that can be set, of those that decide what a workload
// gets.
type Setting struct {
	// Name is the path below a TokenExchange's spec; for tracing "trace." and the
	// path below an AgentTrace's spec; for a container "components." and the path
	// below the RenderConfig's.
	Name string
	// Value is the effective one, as people write it.
	Value string
	// Alter gives settings in which this one is another, so that what depends on
	// it comes out different.
	Alter func(Settings) Settings

	aliases     []string // other fields that set it, where its own does not
	annotations []string // without the prefix
	derived     bool     // nobody set it: it follows from other settings
}

// Input is the kind of input that set a value.
type Input string

// Inputs; a later one wins.
const (
	ByDefault       Input = "default"
	ByRenderConfig  Input = "RenderConfig"
	ByTokenExchange Input = "TokenExchange"
	ByAgentTrace    Input = "AgentTrace"
	ByAgentRuntime  Input = "AgentRuntime"
	ByAnnotation    Input = "annotation"
)

// Provenance says where a setting comes from.
type Provenance struct {
	// Setting is its name, Value the effective one.
	Setting string `json:"setting" yaml:"setting"`
	Value   string `json:"value" yaml:"value"`
	By      Input  `json:"by" yaml:"by"`
	// File, Line and Field are where it is set; empty for a default.
	File  string `json:"file,omitempty" yaml:"file,omitempty"`
	Line  int    `json:"line,omitempty" yaml:"line,omitempty"`
	Field string `json:"field,omitempty" yaml:"field,omitempty"`
	// Derived says that nobody set it: it follows from other settings.
	Derived bool `json:"derived,omitempty" yaml:"derived,omitempty"`
}

// Inputs are what the settings of one workload were merged from. All but
// Settings may be nil.
type Inputs struct {
	Config        *api.Origin
	TokenExchange *api.Origin
	AgentTrace    *api.Origin
	AgentRuntime  *api.Origin
	Annotations   []Annotation
	// File is where the annotations are.
	File     string
	Settings *Settings
}

// Explain gives where each setting comes from. Nothing of it is worked out
// during a render.
func (in *Inputs) Explain() []Provenance {
	var all []Provenance
	for _, x := range in.Settings.All() {
		p := Provenance{Setting: x.Name, Value: x.Value, By: ByDefault, Derived: x.derived}
		if !x.derived {
			in.find(&p, x)
		}
		all = append(all, p)
	}
	return all
}

func (in *Inputs) find(p *Provenance, x Setting) {
	for _, a := range slices.Backward(in.Annotations) {
		if name, ours := strings.CutPrefix(a.Key, in.Settings.Prefix+"/"); ours && slices.Contains(x.annotations, name) {
			p.By, p.File, p.Line, p.Field = ByAnnotation, in.File, a.Line, a.Field+"["+a.Key+"]"
			return
		}
	}
	for _, name := range append([]string{x.Name}, x.aliases...) {
		trace, isTrace := strings.CutPrefix(name, "trace.")
		switch {
		case isTrace && p.set(ByAgentTrace, in.AgentTrace, "spec."+trace):
			return
		case !isTrace && p.set(ByTokenExchange, in.TokenExchange, "spec."+name):
			return
		}
	}
	if field := runtimeFields[x.Name]; field != "" && p.set(ByAgentRuntime, in.AgentRuntime, "spec."+field) {
		return
	}
	for _, name := range append([]string{x.Name}, x.aliases...) {
		field := "spec.identity." + name
		if strings.HasPrefix(name, "trace.") || strings.HasPrefix(name, "components.") || strings.HasPrefix(name, "authbridge.") {
			field = "spec." + name
		}
		if p.set(ByRenderConfig, in.Config, field) {
			return
		}
	}
}

// set notes an input that has the field, and reports whether it does.
func (p *Provenance) set(by Input, origin *api.Origin, field string) bool {
	if origin == nil || !origin.Has(field) {
		return false
	}
	p.By, p.File, p.Line, p.Field = by, origin.File, origin.LineOf(field), field
	return true
}

// All gives every setting.
func (s *Settings) All() []Setting {
	var all settingList
	all.components(s)
	if s.Profile == ProfileAuthBridge {
		all.authBridge(s)
	}
	all.identity(s)
	all.rules(s)
	all.trace(s)
	return all
}

type settingList []Setting

func (l *settingList) add(name, value string, alter func(*Settings), annotations ...string) *Setting {
	*l = append(*l, Setting{Name: name, Value: value, annotations: annotations, Alter: func(s Settings) Settings {
		alter(&s)
		return s
	}})
	return &(*l)[len(*l)-1]
}

// text adds a setting that is a text; alternatives are the values it can have,
// where not every text will do.
func (l *settingList) text(s *Settings, name string, at func(*Settings) *string, alternatives ...string) *Setting {
	return l.add(name, *at(s), func(s *Settings) { *at(s) = another(*at(s), alternatives) })
}

// another gives a value that differs.
func another(value string, alternatives []string) string {
	for _, a := range append(alternatives, "altered", "altered-too") {
		if a != value {
			return a
		}
	}
	return value
}

func (l *settingList) boolean(s *Settings, name string, at func(*Settings) *bool, annotations ...string) *Setting {
	return l.add(name, strconv.FormatBool(*at(s)), func(s *Settings) { *at(s) = !*at(s) }, annotations...)
}

func (l *settingList) number(s *Settings, name string, at func(*Settings) *int, annotations ...string) *Setting {
	return l.add(name, strconv.Itoa(*at(s)), func(s *Settings) { *at(s) += 7 }, annotations...)
}

func (l *settingList) texts(s *Settings, name string, at func(*Settings) *[]string, annotations ...string) *Setting {
	return l.add(name, strings.Join(*at(s), " "), func(s *Settings) { *at(s) = append(slices.Clone(*at(s)), "/altered") }, annotations...)
}

func (l *settingList) ports(s *Settings, name string, at func(*Settings) *[]int, annotations ...string) *Setting {
	return l.add(name, strings.Trim(fmt.Sprint(*at(s)), "[]"), func(s *Settings) { *at(s) = append(slices.Clone(*at(s)), 7) }, annotations...)
}

func (l *settingList) components(s *Settings) {
	for _, name := range Components() {
		if !s.Has(name) {
			continue
		}
		at := "components." + name + "."
		part := func(pick func(*Component) *string) func(*Settings) *string {
			return func(s *Settings) *string { return pick(s.Component(name)) }
		}
		l.boolean(s, at+"enabled", func(s *Settings) *bool { return &s.Component(name).Enabled }, name)
		for _, x := range []struct {
			field, suffix string
			pick          func(*Component) *string
			alternatives  []string
		}{
			{"image", imageSuffix, func(c *Component) *string { return &c.Image }, nil},
			{"imagePullPolicy", pullPolicySuffix, func(c *Component) *string { return &c.ImagePullPolicy }, []string{"Always", "Never"}},
			{"resources.requests.cpu", cpuRequestSuffix, func(c *Component) *string { return &c.CPURequest }, []string{"7m"}},
			{"resources.requests.memory", memoryRequestSuffix, func(c *Component) *string { return &c.MemoryRequest }, []string{"7Mi"}},
			{"resources.limits.cpu", cpuLimitSuffix, func(c *Component) *string { return &c.CPULimit }, []string{"7m"}},
			{"resources.limits.memory", memoryLimitSuffix, func(c *Component) *string { return &c.MemoryLimit }, []string{"7Mi"}},
		} {
			l.text(s, at+x.field, part(x.pick), x.alternatives...).annotations = []string{name + x.suffix}
		}
	}
}

func (l *settingList) identity(s *Settings) {
	const url = "https://altered.example:7"
	l.boolean(s, "spiffe.enabled", func(s *Settings) *bool { return &s.SPIFFE.Enabled })
	l.text(s, "spiffe.trustDomain", func(s *Settings) *string { return &s.SPIFFE.TrustDomain })
	l.text(s, "spiffe.socketPath", func(s *Settings) *string { return &s.SPIFFE.SocketPath }, "/altered/agent.sock")
	l.text(s, "spiffe.socketVolume", func(s *Settings) *string { return &s.SPIFFE.SocketVolume }, "csi", "hostPath")
	l.text(s, "spiffe.outputFormat", func(s *Settings) *string { return &s.SPIFFE.OutputFormat }, "jwt", "x509")
	l.text(s, "spiffe.audience", func(s *Settings) *string { return &s.SPIFFE.Audience })

	l.boolean(s, "clientRegistration.enabled", func(s *Settings) *bool { return &s.Registration.Enabled })
	l.text(s, "clientRegistration.provider", func(s *Settings) *string { return &s.Registration.Provider }, "keycloak", "aws").aliases =
		[]string{"clientRegistration.gcp", "clientRegistration.aws", "clientRegistration.keycloak"}
	const keycloak = "clientRegistration.keycloak."
	l.text(s, keycloak+"url", func(s *Settings) *string { return &s.Registration.URL }, url)
	l.text(s, keycloak+"realm", func(s *Settings) *string { return &s.Registration.Realm })
	l.text(s, keycloak+"adminCredentialsSecret", func(s *Settings) *string { return &s.Registration.AdminSecret })
	l.text(s, keycloak+"clientNameTemplate", func(s *Settings) *string { return &s.Registration.ClientName })
	l.boolean(s, keycloak+"tokenExchangeEnabled", func(s *Settings) *bool { return &s.Registration.TokenExchange })
	const aws = "clientRegistration.aws."
	l.text(s, aws+"roleArn", func(s *Settings) *string { return &s.Registration.AWS.RoleARN })
	l.text(s, aws+"region", func(s *Settings) *string { return &s.Registration.AWS.Region })
	l.text(s, aws+"sessionName", func(s *Settings) *string { return &s.Registration.AWS.SessionName })
	l.text(s, aws+"audience", func(s *Settings) *string { return &s.Registration.AWS.Audience })
	l.text(s, aws+"stsEndpoint", func(s *Settings) *string { return &s.Registration.AWS.STSEndpoint }, url)
	const gcp = "clientRegistration.gcp."
	l.text(s, gcp+"workloadIdentityProvider", func(s *Settings) *string { return &s.Registration.GCP.ProviderResource })
	l.text(s, gcp+"serviceAccountEmail", func(s *Settings) *string { return &s.Registration.GCP.ServiceAccountEmail })
	l.text(s, gcp+"projectId", func(s *Settings) *string { return &s.Registration.GCP.ProjectID })
	l.text(s, gcp+"audience", func(s *Settings) *string { return &s.Registration.GCP.Audience })

	l.boolean(s, "inbound.enabled", func(s *Settings) *bool { return &s.Inbound.Enabled })
	l.number(s, "inbound.port", func(s *Settings) *int { return &s.Inbound.Port }, inboundPort)
	l.number(s, "inbound.targetPort", func(s *Settings) *int { return &s.Inbound.TargetPort }, targetPort)
	l.boolean(s, "inbound.validation.enabled", func(s *Settings) *bool { return &s.Inbound.Validate })
	x := l.add("inbound.validation.issuer", s.Inbound.Issuer, func(s *Settings) { s.Inbound.Issuer, s.derive.issuer = url, false })
	x.derived, x.aliases = s.derive.issuer, []string{"tokenExchange.issuer"}
	x = l.add("inbound.validation.jwksUrl", s.Inbound.JWKSURL, func(s *Settings) { s.Inbound.JWKSURL, s.derive.jwks = url, false })
	x.derived = s.derive.jwks
	l.text(s, "inbound.validation.audience", func(s *Settings) *string { return &s.Inbound.Audience })
	l.texts(s, "inbound.validation.requiredScopes", func(s *Settings) *[]string { return &s.Inbound.RequiredScopes })
	l.texts(s, "inbound.validation.bypassPaths", func(s *Settings) *[]string { return &s.Inbound.BypassPaths }, inboundBypassPaths)

	l.boolean(s, "outbound.enabled", func(s *Settings) *bool { return &s.Outbound.Enabled })
	const traffic = "outbound.trafficInterception."
	l.boolean(s, traffic+"enabled", func(s *Settings) *bool { return &s.Outbound.Intercept })
	l.number(s, traffic+"proxyPort", func(s *Settings) *int { return &s.Outbound.ProxyPort }, proxyPort)
	l.number(s, traffic+"inboundProxyPort", func(s *Settings) *int { return &s.Outbound.InboundProxyPort }, inboundProxyPort)
	l.number(s, traffic+"proxyUid", func(s *Settings) *int { return &s.Outbound.ProxyUID }, proxyUID)
	l.ports(s, traffic+"excludePorts", func(s *Settings) *[]int { return &s.Outbound.ExcludePorts }, outboundExclude)
	l.ports(s, traffic+"excludeInboundPorts", func(s *Settings) *[]int { return &s.Outbound.ExcludeInboundPorts }, inboundExclude)
	const exchange = "outbound.tokenExchange."
	l.boolean(s, exchange+"enabled", func(s *Settings) *bool { return &s.Outbound.TokenExchange })
	x = l.add(exchange+"tokenUrl", s.Outbound.TokenURL, func(s *Settings) { s.Outbound.TokenURL, s.derive.tokenURL = url, false })
	x.derived = s.derive.tokenURL
	l.text(s, exchange+"defaultTarget.audience", func(s *Settings) *string { return &s.Outbound.Default.Audience })
	l.texts(s, exchange+"defaultTarget.scopes", func(s *Settings) *[]string { return &s.Outbound.Default.Scopes })
}

// rules adds the destination rules, each field of each.
func (l *settingList) rules(s *Settings) {
	for i, r := range s.Outbound.Rules {
		at := indexed("outbound.tokenExchange.destinationRules", i) + "."
		change := func(alter func(*Rule)) func(*Settings) {
			return func(s *Settings) {
				if i < len(s.Outbound.Rules) {
					s.Outbound.Rules = slices.Clone(s.Outbound.Rules)
					alter(&s.Outbound.Rules[i])
				}
			}
		}
		l.add(at+"match.host", r.Host, change(func(r *Rule) { r.Host = "altered.example" }))
		l.add(at+"passthrough", strconv.FormatBool(r.Passthrough), change(func(r *Rule) { r.Passthrough = !r.Passthrough }))
		l.add(at+"target.audience", r.Target.Audience, change(func(r *Rule) { r.Target.Audience = "altered" }))
		l.add(at+"target.scopes", strings.Join(r.Target.Scopes, " "), change(func(r *Rule) { r.Target.Scopes = []string{"altered"} }))
		l.add(at+"tokenUrl", r.TokenURL, change(func(r *Rule) { r.TokenURL = "https://altered.example:7" }))
	}
}

func (l *settingList) trace(s *Settings) {
	l.add("trace.exporters", exporters(s.Trace.Exporters), func(s *Settings) {
		s.Trace.Exporters = slices.Clone(s.Trace.Exporters)
		for i := range s.Trace.Exporters {
			e := &s.Trace.Exporters[i]
			e.Endpoint, e.Insecure = "altered.example:7", !e.Insecure
			e.Protocol, e.Compression = another(e.Protocol, []string{"grpc", "http/protobuf"}), another(e.Compression, []string{"none", "gzip"})
		}
	})
	l.text(s, "trace.sampling.type", func(s *Settings) *string { return &s.Trace.SamplerType }, "always_on", "always_off").aliases = []string{"trace.sampling.rate"}
	l.text(s, "trace.sampling.rate", func(s *Settings) *string { return &s.Trace.SamplerRate }, "0.7", "0.77")
	l.boolean(s, "trace.genai.enabled", func(s *Settings) *bool { return &s.Trace.GenAI.Enabled })
	l.boolean(s, "trace.genai.capturePrompts", func(s *Settings) *bool { return &s.Trace.GenAI.Prompts })
	l.boolean(s, "trace.genai.captureCompletions", func(s *Settings) *bool { return &s.Trace.GenAI.Completions })
	l.boolean(s, "trace.genai.captureModelParameters", func(s *Settings) *bool { return &s.Trace.GenAI.ModelParameters })
	for i, a := range s.Trace.Attributes {
		l.add("trace.resourceAttributes["+a.Name+"]", a.Value, func(s *Settings) {
			if i < len(s.Trace.Attributes) {
				s.Trace.Attributes = slices.Clone(s.Trace.Attributes)
				s.Trace.Attributes[i].Value = "altered"
			}
		})
	}
	l.boolean(s, "trace.integration.mlflow.enabled", func(s *Settings) *bool { return &s.Trace.MLflow.Enabled })
	l.text(s, "trace.integration.mlflow.trackingUri", func(s *Settings) *string { return &s.Trace.MLflow.TrackingURI }, "https://altered.example:7")
	l.text(s, "trace.integration.mlflow.experimentName", func(s *Settings) *string { return &s.Trace.MLflow.ExperimentName })
	l.boolean(s, "trace.integration.prometheus.enabled", func(s *Settings) *bool { return &s.Trace.Prometheus.Enabled })
	l.number(s, "trace.integration.prometheus.port", func(s *Settings) *int { return &s.Trace.Prometheus.Port })
	l.text(s, "trace.integration.prometheus.path", func(s *Settings) *string { return &s.Trace.Prometheus.Path }, "/altered")
}

func exporters(all []Exporter) string {
	var words []string
	for _, e := range all {
		words = append(words, strings.TrimSpace(e.Type+" "+e.Endpoint))
	}
	return strings.Join(words, ", ")
}
