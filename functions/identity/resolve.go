package identity

import (
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
)

// Workload is what Resolve has to know of a workload.
type Workload struct {
	APIVersion, Kind, Namespace, Name string
	// ServiceAccount is the pod's serviceAccountName; empty means "default".
	ServiceAccount string
	// SPIFFE is false where the labels turn SPIFFE off.
	SPIFFE bool
	// ProbePaths are the paths of the HTTP probes in the author's containers.
	ProbePaths []string
	// TraceOnly says that nothing but the tracing settings is for the workload.
	TraceOnly bool
	// Volumes are those of the author that the sidecars use.
	Volumes Volumes
	// File and Line are where the author wrote the workload.
	File string
	Line int
	// Ports are the TCP ports of the author's containers in their order, and EnvPort
	// is the variable PORT that the author gives the agent, 0 for none. Both are read
	// with ProfileAuthBridge.
	Ports   []int
	EnvPort int
	// Runtime is the workload's AgentRuntime, nil for none.
	Runtime *api.AgentRuntime
	// Alter changes the given settings before the derived ones are computed, to
	// find out what depends on them. Nil changes nothing.
	Alter func(Settings) Settings
}

// Annotation is one of the workload's annotations under the prefix, from the
// workload itself or its pod template.
type Annotation struct {
	Key, Value string
	// Field is the path of the annotations that hold it: metadata.annotations,
	// spec.template.metadata.annotations.
	Field string
	Line  int
}

// Base gives the settings that every workload starts from: 001's defaults as
// the profile and the configuration change them. cfg may be nil.
func Base(cfg *api.RenderConfig) (Settings, []krm.Finding) {
	if cfg == nil {
		cfg = &api.RenderConfig{}
	}
	c := &checker{
		origin: &cfg.Origin,
		object: krm.Ref{APIVersion: api.RenderV1alpha1, Kind: "RenderConfig", Name: cfg.Name},
		prefix: "spec.",
	}
	profile := ProfileKagenti
	set(&profile, cfg.Spec.Profile)
	c.oneOf("profile", profile, ProfileKagenti, ProfileRossoctl, ProfilePublished, ProfileAuthBridge)
	s := defaults(profile)
	if p := cfg.Spec.LabelPrefix; p != nil {
		if c.prefixName("labelPrefix", *p) {
			s.Prefix = *p
		}
	}
	c.optionalOneOf("sidecars", cfg.Spec.Sidecars, "native", "classic")
	c.optionalOneOf("rollout", cfg.Spec.Rollout, "none", "hash")
	c.optionalOneOf("customResources", cfg.Spec.CustomResources, "consume", "keep")
	c.exclude(cfg.Spec.Exclude)
	c.authBridge(&s, cfg.Spec.AuthBridge)
	if cs := cfg.Spec.Components; cs != nil {
		c.otherComponents(&s, cs)
		c.component(&s.AuthBridgeProxy, AuthBridgeProxy, cs.AuthBridgeProxy)
		c.component(&s.ProxyInit, ProxyInit, cs.ProxyInit)
		c.component(&s.SpiffeHelper, SpiffeHelper, cs.SpiffeHelper)
		c.component(&s.ClientRegistration, ClientRegistration, cs.ClientRegistration)
		c.component(&s.AuthProxy, AuthProxy, cs.AuthProxy)
		c.component(&s.EnvoyProxy, EnvoyProxy, cs.EnvoyProxy)
	}
	if cfg.Spec.Identity != nil {
		c.prefix = "spec.identity."
		c.identity(&s, cfg.Spec.Identity)
	}
	if cfg.Spec.Trace != nil {
		c.prefix = "spec.trace."
		c.trace(&s, cfg.Spec.Trace)
	}
	s.deriveURLs()
	// Contradictions are checked in what a workload without settings of
	// its own would get; the base itself keeps what was asked for, because a
	// TokenExchange or an annotation may ask for something else.
	settled := s
	settled.settle()
	c.prefix = "spec.identity."
	c.contradictions(&settled)
	c.prefix = "spec.trace."
	c.metrics(&settled)
	c.prefix = "spec."
	c.resources(&s, nil, nil)
	return s, c.findings
}

// Resolve gives the settings of one workload: base < te and at < annotations.
// te and at may be nil, and the cost is that of copying base where there are
// neither CRs nor annotations. The result shares slices with base.
func Resolve(base *Settings, w Workload, te *api.TokenExchange, at *api.AgentTrace, annotations []Annotation) (Settings, []krm.Finding) {
	s := *base
	s.APIVersion, s.Kind, s.Namespace, s.Name = w.APIVersion, w.Kind, w.Namespace, w.Name
	s.ServiceAccount = w.ServiceAccount
	if s.ServiceAccount == "" {
		s.ServiceAccount = "default"
	}
	s.ProbePaths, s.Volumes, s.TraceOnly = w.ProbePaths, w.Volumes, w.TraceOnly
	s.AuthBridge.Ports, s.AuthBridge.EnvPort = w.Ports, w.EnvPort
	var findings []krm.Finding
	if te != nil || at != nil || w.Runtime != nil || len(annotations) > 0 || Shortened(w.Name, tokenExchangeSuffix) {
		findings = s.resolve(w, te, at, annotations)
	}
	if w.Alter != nil {
		s = w.Alter(s)
		s.deriveURLs()
	}
	s.Common = s.Profile != ProfileAuthBridge && w.Alter == nil && te == nil && at == nil && len(annotations) == 0 && !Shortened(w.Name, tokenExchangeSuffix) && scalar.Plain(w.Name) &&
		!strings.Contains(s.Registration.ClientName, "ServiceAccount") && !strings.Contains(s.Registration.ClientName, "WorkloadKind")
	s.SPIFFE.Enabled = s.SPIFFE.Enabled && w.SPIFFE
	s.settle()
	if len(w.ProbePaths) > 0 && s.ValidatesInbound() {
		findings = append(findings, refusedProbes(&s, w)...)
	}
	return s, append(findings, s.clientSecret(w)...)
}

// refusedProbes warns of probes that a proxy will answer with 401.
func refusedProbes(s *Settings, w Workload) []krm.Finding {
	var c *checker
	for _, p := range w.ProbePaths {
		if _, open := OpenProbe(p); open || slices.Contains(s.Inbound.BypassPaths, p) {
			continue
		}
		if c == nil {
			c = &checker{
				origin: &api.Origin{File: w.File, Line: w.Line},
				object: krm.Ref{APIVersion: w.APIVersion, Kind: w.Kind, Namespace: w.Namespace, Name: w.Name},
			}
		}
		c.warning("identity/probe-refused", "", "the kubelet's probe of "+strconv.Quote(p)+" has no token and will be refused; the path is not opened by itself, because it may be where the agent takes its requests",
			"probe a path of its own, such as /healthz, or open this one with the annotation "+s.Prefix+"/"+inboundBypassPaths)
	}
	if c == nil {
		return nil
	}
	return c.findings
}

// resolve is the part of Resolve that costs something.
func (s *Settings) resolve(w Workload, te *api.TokenExchange, at *api.AgentTrace, annotations []Annotation) []krm.Finding {
	here := &checker{
		origin: &api.Origin{File: w.File, Line: w.Line},
		object: krm.Ref{APIVersion: w.APIVersion, Kind: w.Kind, Namespace: w.Namespace, Name: w.Name},
	}
	// Each contradiction is reported once, for the input that introduces it: Base
	// has reported those of the configuration.
	known := s.contradict(&checker{origin: &api.Origin{}}, w)
	var findings []krm.Finding
	report := func(c *checker, field string) {
		for _, f := range s.contradict(&checker{origin: c.origin, object: c.object, prefix: c.prefix}, w) {
			if !slices.ContainsFunc(known, func(t krm.Finding) bool { return t.Rule == f.Rule && t.Message == f.Message }) {
				known = append(known, f)
				if field != "" {
					f.Field = field
				}
				if at != nil && c.origin != &at.Origin && strings.HasSuffix(f.Field, metricsPort) {
					// The port is in the AgentTrace, whatever it clashes with.
					f.File, f.Line, f.Object = at.Origin.File, at.Origin.LineOf(f.Field), krm.Ref{APIVersion: at.APIVersion, Kind: at.Kind, Namespace: at.Namespace, Name: at.Name}
				}
				findings = append(findings, f)
			}
		}
	}
	if at != nil {
		c := &checker{
			origin: &at.Origin,
			object: krm.Ref{APIVersion: at.APIVersion, Kind: at.Kind, Namespace: at.Namespace, Name: at.Name},
			prefix: "spec.",
		}
		c.trace(s, &at.Spec.TraceSpec)
		s.TraceFrom = place(at.Origin)
		findings = append(findings, c.findings...)
		report(c, "")
	}
	if ar := w.Runtime; ar != nil {
		c := &checker{
			origin: &ar.Origin,
			object: krm.Ref{APIVersion: ar.APIVersion, Kind: ar.Kind, Namespace: ar.Namespace, Name: ar.Name},
			prefix: "spec.",
		}
		c.runtime(s, &ar.Spec)
		findings = append(findings, c.findings...)
		report(c, "")
	}
	if te != nil {
		c := &checker{
			origin: &te.Origin,
			object: krm.Ref{APIVersion: te.APIVersion, Kind: te.Kind, Namespace: te.Namespace, Name: te.Name},
			prefix: "spec.",
		}
		c.identity(s, &te.Spec.IdentitySpec)
		s.deriveURLs()
		s.TokenExchangeFrom = place(te.Origin)
		findings = append(findings, c.findings...)
		report(c, "")
	}
	if len(annotations) > 0 {
		before := *s
		here.annotations(s, annotations)
		report(here, "metadata.annotations")
		here.resources(s, &before, annotations)
	}
	for _, suffix := range [...]string{tokenExchangeSuffix, traceSuffix} {
		if Shortened(w.Name, suffix) && (suffix == traceSuffix || !w.TraceOnly) {
			here.add(krm.Info, "identity/name-shortened", "metadata.name",
				"the ConfigMap of this workload is named "+ShortName(w.Name, suffix)+", because "+w.Name+suffix+" has more than 63 characters", "")
		}
	}
	return append(findings, here.findings...)
}

// contradict gives what contradicts itself in s as the workload would get it.
func (s *Settings) contradict(c *checker, w Workload) []krm.Finding {
	settled := *s
	settled.SPIFFE.Enabled = settled.SPIFFE.Enabled && w.SPIFFE
	settled.settle()
	c.contradictions(&settled)
	c.metrics(&settled)
	return c.findings
}

// settle computes the settings that follow from the given ones, so that a
// component is on exactly if its Enabled says so.
func (s *Settings) settle() {
	if s.TraceOnly {
		s.Registration.Enabled, s.Inbound.Enabled, s.Outbound.Enabled = false, false, false
		for _, name := range Components() {
			s.Component(name).Enabled = false
		}
	}
	if s.Profile == ProfileAuthBridge {
		s.settleAuthBridge()
		return
	}
	spiffe := s.SPIFFE.Enabled && s.SpiffeHelper.Enabled
	s.SPIFFE.Enabled, s.SpiffeHelper.Enabled = spiffe, spiffe
	s.ClientRegistration.Enabled = s.ClientRegistration.Enabled && s.Registration.Enabled
	s.AuthProxy.Enabled = s.AuthProxy.Enabled && s.Inbound.Enabled
	// In the published generation Envoy validates what comes in, and stays for
	// that where nothing is exchanged on the way out.
	if !s.Outbound.Enabled {
		s.Outbound.TokenExchange = false
		s.EnvoyProxy.Enabled = s.EnvoyProxy.Enabled && s.Profile == ProfilePublished && s.Inbound.Enabled
	}
	// Traffic that is sent to a proxy which is not there goes nowhere.
	intercept := s.ProxyInit.Enabled && s.EnvoyProxy.Enabled && s.Outbound.Intercept
	s.ProxyInit.Enabled, s.Outbound.Intercept = intercept, intercept
}

// deriveURLs fills the URLs that follow from Keycloak's realm.
func (s *Settings) deriveURLs() {
	s.Registration.Port = portOf(s.Registration.URL)
	realm := trimSlash(s.Registration.URL) + "/realms/" + s.Registration.Realm
	if s.derive.issuer {
		s.Inbound.Issuer = realm
	}
	if s.derive.jwks {
		s.Inbound.JWKSURL = realm + "/protocol/openid-connect/certs"
	}
	if s.derive.tokenURL {
		s.Outbound.TokenURL = realm + "/protocol/openid-connect/token"
	}
}
