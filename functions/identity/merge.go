package identity

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
)

// set copies a value that is set.
func set[T any](dst *T, src *T) {
	if src != nil {
		*dst = *src
	}
}

// identity merges spec into s and checks each value at its source.
func (c *checker) identity(s *Settings, spec *api.IdentitySpec) {
	if s.Profile == ProfileAuthBridge {
		c.otherSettings(s, spec)
	}
	if x := spec.SPIFFE; x != nil {
		c.spiffe(&s.SPIFFE, x)
	}
	if x := spec.ClientRegistration; x != nil {
		c.registration(&s.Registration, x)
	}
	if x := spec.TokenExchange; x != nil && x.Issuer != nil {
		c.url("tokenExchange.issuer", *x.Issuer)
		s.Inbound.Issuer, s.derive.issuer = *x.Issuer, false
	}
	if x := spec.Inbound; x != nil {
		c.inbound(s, x)
	}
	if x := spec.Outbound; x != nil {
		c.outbound(s, x)
	}
}

func (c *checker) spiffe(s *SPIFFE, x *api.SPIFFESpec) {
	set(&s.Enabled, x.Enabled)
	if x.TrustDomain != nil {
		c.trustDomain("spiffe.trustDomain", *x.TrustDomain)
		s.TrustDomain = *x.TrustDomain
	}
	if x.SocketPath != nil {
		s.SocketPath = c.socket("spiffe.socketPath", *x.SocketPath)
	}
	c.optionalOneOf("spiffe.socketVolume", x.SocketVolume, "csi", "hostPath")
	set(&s.SocketVolume, x.SocketVolume)
	c.optionalOneOf("spiffe.outputFormat", x.OutputFormat, "jwt", "x509")
	set(&s.OutputFormat, x.OutputFormat)
	c.optionalText("spiffe.audience", x.Audience)
	set(&s.Audience, x.Audience)
}

func (c *checker) registration(s *Registration, x *api.ClientRegistrationSpec) {
	const at = "clientRegistration."
	set(&s.Enabled, x.Enabled)
	switch {
	case x.Provider != nil:
		c.oneOf(at+"provider", *x.Provider, "keycloak", "aws", "gcp")
		s.Provider = *x.Provider
	case x.AWS != nil && x.GCP == nil && x.Keycloak == nil:
		s.Provider = "aws"
	case x.GCP != nil && x.AWS == nil && x.Keycloak == nil:
		s.Provider = "gcp"
	case x.Keycloak != nil && x.AWS == nil && x.GCP == nil:
		s.Provider = "keycloak"
	}
	if k := x.Keycloak; k != nil {
		if k.URL != nil {
			c.url(at+"keycloak.url", *k.URL)
			s.URL = *k.URL
		}
		if k.Realm != nil {
			c.realm(at+"keycloak.realm", *k.Realm)
			s.Realm = *k.Realm
		}
		if k.AdminCredentialsSecret != nil {
			c.secretName(at+"keycloak.adminCredentialsSecret", *k.AdminCredentialsSecret)
			s.AdminSecret = *k.AdminCredentialsSecret
		}
		if k.ClientNameTemplate != nil {
			c.clientName(at+"keycloak.clientNameTemplate", *k.ClientNameTemplate)
			s.ClientName = *k.ClientNameTemplate
		}
		set(&s.TokenExchange, k.TokenExchangeEnabled)
	}
	if a := x.AWS; a != nil {
		c.optionalText(at+"aws.region", a.Region)
		c.optionalText(at+"aws.sessionName", a.SessionName)
		c.optionalText(at+"aws.audience", a.Audience)
		if a.RoleARN != nil {
			c.roleARN(at+"aws.roleArn", *a.RoleARN)
		}
		if a.STSEndpoint != nil {
			c.url(at+"aws.stsEndpoint", *a.STSEndpoint)
		}
		set(&s.AWS.RoleARN, a.RoleARN)
		set(&s.AWS.Region, a.Region)
		set(&s.AWS.SessionName, a.SessionName)
		set(&s.AWS.Audience, a.Audience)
		set(&s.AWS.STSEndpoint, a.STSEndpoint)
	}
	if g := x.GCP; g != nil {
		c.optionalText(at+"gcp.serviceAccountEmail", g.ServiceAccountEmail)
		c.optionalText(at+"gcp.projectId", g.ProjectID)
		c.optionalText(at+"gcp.audience", g.Audience)
		set(&s.GCP.ServiceAccountEmail, g.ServiceAccountEmail)
		set(&s.GCP.ProjectID, g.ProjectID)
		if g.WorkloadIdentityProvider != nil {
			s.GCP.ProviderResource = c.gcpProvider(at+"gcp.workloadIdentityProvider", *g.WorkloadIdentityProvider)
			s.GCP.Audience = s.GCP.ProviderResource
		}
		set(&s.GCP.Audience, g.Audience)
	}
}

func (c *checker) inbound(s *Settings, x *api.InboundSpec) {
	set(&s.Inbound.Enabled, x.Enabled)
	c.port("inbound.port", &s.Inbound.Port, x.Port)
	c.port("inbound.targetPort", &s.Inbound.TargetPort, x.TargetPort)
	v := x.Validation
	if v == nil {
		return
	}
	set(&s.Inbound.Validate, v.Enabled)
	if v.Issuer != nil {
		c.url("inbound.validation.issuer", *v.Issuer)
		s.Inbound.Issuer, s.derive.issuer = *v.Issuer, false
	}
	if v.JWKSURL != nil {
		c.url("inbound.validation.jwksUrl", *v.JWKSURL)
		s.Inbound.JWKSURL, s.derive.jwks = *v.JWKSURL, false
	}
	c.optionalText("inbound.validation.audience", v.Audience)
	set(&s.Inbound.Audience, v.Audience)
	if v.RequiredScopes != nil {
		c.scopes("inbound.validation.requiredScopes", v.RequiredScopes)
		s.Inbound.RequiredScopes = v.RequiredScopes
	}
	if v.BypassPaths != nil {
		for i, p := range v.BypassPaths {
			c.bypassPath(indexed("inbound.validation.bypassPaths", i), p)
		}
		s.Inbound.BypassPaths = v.BypassPaths
	}
}

func (c *checker) outbound(s *Settings, x *api.OutboundSpec) {
	set(&s.Outbound.Enabled, x.Enabled)
	if t := x.TrafficInterception; t != nil {
		const at = "outbound.trafficInterception."
		set(&s.Outbound.Intercept, t.Enabled)
		c.port(at+"proxyPort", &s.Outbound.ProxyPort, t.ProxyPort)
		c.port(at+"inboundProxyPort", &s.Outbound.InboundProxyPort, t.InboundProxyPort)
		if t.ProxyUID != nil {
			c.uid(at+"proxyUid", *t.ProxyUID)
			s.Outbound.ProxyUID = *t.ProxyUID
		}
		if t.ExcludePorts != nil {
			c.ports(at+"excludePorts", t.ExcludePorts)
			s.Outbound.ExcludePorts = t.ExcludePorts
		}
		if t.ExcludeInboundPorts != nil {
			c.ports(at+"excludeInboundPorts", t.ExcludeInboundPorts)
			s.Outbound.ExcludeInboundPorts = t.ExcludeInboundPorts
		}
	}
	t := x.TokenExchange
	if t == nil {
		return
	}
	const at = "outbound.tokenExchange."
	set(&s.Outbound.TokenExchange, t.Enabled)
	if t.TokenURL != nil {
		c.url(at+"tokenUrl", *t.TokenURL)
		s.Outbound.TokenURL, s.derive.tokenURL = *t.TokenURL, false
	}
	if d := t.DefaultTarget; d != nil {
		c.target(at+"defaultTarget", &s.Outbound.Default, d)
	}
	if t.DestinationRules == nil {
		return
	}
	rules := make([]Rule, len(t.DestinationRules))
	for i, r := range t.DestinationRules {
		field := indexed(at+"destinationRules", i)
		rule := Rule{Host: r.Match.Host, Target: Target{Scopes: []string{"openid"}}}
		c.hostGlob(field+".match.host", r.Match.Host)
		set(&rule.Passthrough, r.Passthrough)
		if r.TokenURL != nil {
			c.url(field+".tokenUrl", *r.TokenURL)
			rule.TokenURL = *r.TokenURL
		}
		if r.Target != nil {
			c.target(field+".target", &rule.Target, r.Target)
		}
		if rule.Target.Audience == "" && !rule.Passthrough {
			c.error("identity/target-missing", field+".target.audience",
				"a rule needs the audience that a token is exchanged for",
				"say target.audience, or passthrough: true to leave tokens alone")
		}
		rules[i] = rule
	}
	s.Outbound.Rules = rules
}

func (c *checker) target(field string, t *Target, x *api.TargetSpec) {
	c.optionalText(field+".audience", x.Audience)
	set(&t.Audience, x.Audience)
	if len(x.Scopes) > 0 {
		c.scopes(field+".scopes", x.Scopes)
		t.Scopes = x.Scopes
	}
}

// trace merges spec into s and checks each value at its source.
func (c *checker) trace(s *Settings, x *api.TraceSpec) {
	t := &s.Trace
	if x.Exporters != nil {
		t.Exporters = make([]Exporter, len(x.Exporters))
		for i := range x.Exporters {
			t.Exporters[i] = c.exporter(indexed("exporters", i), &x.Exporters[i])
		}
	}
	if x.Sampling != nil {
		c.sampling(t, x.Sampling)
	}
	if g := x.GenAI; g != nil {
		set(&t.GenAI.Enabled, g.Enabled)
		set(&t.GenAI.Prompts, g.CapturePrompts)
		set(&t.GenAI.Completions, g.CaptureCompletions)
		set(&t.GenAI.ModelParameters, g.CaptureModelParameters)
	}
	if len(x.ResourceAttributes) > 0 {
		all := make(map[string]string, len(t.Attributes)+len(x.ResourceAttributes))
		for _, a := range t.Attributes {
			all[a.Name] = a.Value
		}
		maps.Copy(all, x.ResourceAttributes)
		attributes := make([]Attribute, 0, len(all))
		for _, name := range slices.Sorted(maps.Keys(all)) {
			attributes = append(attributes, Attribute{name, all[name]})
		}
		t.Attributes = attributes
		for _, name := range slices.Sorted(maps.Keys(x.ResourceAttributes)) {
			c.attribute("resourceAttributes", name, x.ResourceAttributes[name])
		}
	}
	if x.Integration == nil {
		return
	}
	if m := x.Integration.MLflow; m != nil {
		set(&t.MLflow.Enabled, m.Enabled)
		if m.TrackingURI != nil {
			c.url("integration.mlflow.trackingUri", *m.TrackingURI)
			t.MLflow.TrackingURI = *m.TrackingURI
		}
		c.optionalText("integration.mlflow.experimentName", m.ExperimentName)
		set(&t.MLflow.ExperimentName, m.ExperimentName)
		if t.MLflow.Enabled && t.MLflow.TrackingURI == "" {
			c.error("identity/mlflow-incomplete", "integration.mlflow.trackingUri",
				"MLflow is enabled without a tracking server",
				"say integration.mlflow.trackingUri")
		}
	}
	if p := x.Integration.Prometheus; p != nil {
		set(&t.Prometheus.Enabled, p.Enabled)
		c.port("integration.prometheus.port", &t.Prometheus.Port, p.Port)
		if p.Path != nil {
			c.path("integration.prometheus.path", *p.Path)
			t.Prometheus.Path = *p.Path
		}
	}
}

func (c *checker) exporter(field string, x *api.ExporterSpec) Exporter {
	e := Exporter{Type: x.Type, Protocol: "grpc", Compression: "none"}
	c.oneOf(field+".type", e.Type, "otlp", "jaeger", "console")
	set(&e.Endpoint, x.Endpoint)
	c.optionalOneOf(field+".protocol", x.Protocol, "grpc", "http/protobuf", "http/json")
	set(&e.Protocol, x.Protocol)
	c.optionalOneOf(field+".compression", x.Compression, "none", "gzip")
	set(&e.Compression, x.Compression)
	if e.Type == "console" {
		return e
	}
	c.endpoint(field+".endpoint", e.Endpoint)
	scheme, _, found := strings.Cut(e.Endpoint, "://")
	e.Insecure = !found || scheme == "http"
	if x.Insecure != nil {
		if found && *x.Insecure != e.Insecure {
			c.error("identity/exporter-scheme", field+".insecure",
				"insecure: "+strconv.FormatBool(*x.Insecure)+" contradicts the endpoint's "+scheme+"://",
				"leave insecure out; the scheme decides")
		}
		e.Insecure = *x.Insecure
	}
	if e.Type == "jaeger" && (strings.HasSuffix(e.Endpoint, ":14250") || strings.HasSuffix(e.Endpoint, ":14268")) {
		c.warning("identity/jaeger-port", field+".endpoint",
			"OpenTelemetry has no exporter for Jaeger's own protocol any more: otel-config.yaml sends OTLP to port 4317 of this host",
			"use Jaeger's OTLP port: 4317 with grpc, 4318 with http/protobuf")
	}
	return e
}

func (c *checker) sampling(t *Trace, x *api.SamplingSpec) {
	switch {
	case x.Type != nil:
		c.oneOf("sampling.type", *x.Type, "always_on", "always_off", "probabilistic", "parentbased_probabilistic")
		t.SamplerType = *x.Type
	case x.Rate != nil:
		t.SamplerType = "probabilistic"
	}
	if x.Rate != nil {
		t.SamplerRate = c.rate("sampling.rate", string(*x.Rate))
	}
	if strings.HasSuffix(t.SamplerType, "probabilistic") && t.SamplerRate == "" {
		c.error("identity/sampling-rate", "sampling.rate",
			"probabilistic sampling needs a rate", "say sampling.rate, from 0 to 1")
	}
}

// component merges what RenderConfig says of one container.
func (c *checker) component(dst *Component, name string, x *api.ComponentSpec) {
	if x == nil {
		return
	}
	at := "components." + name + "."
	set(&dst.Enabled, x.Enabled)
	if x.Image != nil {
		c.image(at+"image", *x.Image)
		dst.Image = *x.Image
	}
	c.optionalOneOf(at+"imagePullPolicy", x.ImagePullPolicy, "Always", "IfNotPresent", "Never")
	set(&dst.ImagePullPolicy, x.ImagePullPolicy)
	if x.Resources == nil {
		return
	}
	if r := x.Resources.Requests; r != nil {
		c.quantity(at+"resources.requests.cpu", &dst.CPURequest, r.CPU)
		c.quantity(at+"resources.requests.memory", &dst.MemoryRequest, r.Memory)
	}
	if r := x.Resources.Limits; r != nil {
		c.quantity(at+"resources.limits.cpu", &dst.CPULimit, r.CPU)
		c.quantity(at+"resources.limits.memory", &dst.MemoryLimit, r.Memory)
	}
}

func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
