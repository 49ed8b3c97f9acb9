package identity

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/text"
)

// Workload holds the properties of a workload that Resolve needs.
type Workload struct {
	APIVersion, Kind, Namespace, Name string
	// ServiceAccount is the name that the author sets, or empty.
	ServiceAccount string
	// SPIFFE is false if the labels turn SPIFFE off.
	SPIFFE bool
	// Probes are the probes of the author's containers.
	Probes []Probe
	// TraceOnly says that the workload gets the tracing settings only.
	TraceOnly bool
	// Volumes are the author's volumes that the sidecars use.
	Volumes Volumes
	// File and Line locate the workload.
	File string
	Line int
	// Ports are the TCP ports of the author's containers in their order, and EnvPort is the value
	// of the variable PORT that the author set, or 0. Both are read only if the profile
	// FollowsPorts.
	Ports   []int
	EnvPort int
	// Runtime is the workload's AgentRuntime, or nil.
	Runtime *api.AgentRuntime
	// Alter changes the given settings before the derived ones are computed, to find out which
	// values depend on them. Nil changes nothing.
	Alter func(Settings) Settings
}

func (w *Workload) subject() Subject {
	return Subject{Kind: w.Kind, Namespace: w.Namespace, Name: w.Name}
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

// Base returns the settings that every workload starts from: 001's defaults with the overrides of
// the profile and the configuration. cfg may be nil.
func (p *Profiles) Base(cfg *api.RenderConfig) (Settings, []finding.Finding) {
	if cfg == nil {
		cfg = &api.RenderConfig{}
	}
	c := &Checker{
		origin: &cfg.Origin, By: ByRenderConfig,
		object: finding.Ref{APIVersion: api.RenderV1alpha1, Kind: "RenderConfig", Name: cfg.Name},
	}
	choose := func(field string, value *string, of ...string) {
		if value != nil {
			c.OneOf(field, *value, of...)
		}
	}
	choose("profile", cfg.Spec.Profile, p.Names()...)
	s := p.Configured(cfg).defaults()
	if prefix := cfg.Spec.LabelPrefix; prefix != nil && checkPrefix(c, "labelPrefix", *prefix) {
		s.Prefix = *prefix
	}
	choose("rollout", cfg.Spec.Rollout, "none", "hash")
	choose("customResources", cfg.Spec.CustomResources, "consume", "keep")
	checkExclude(c, cfg.Spec.Exclude)
	c.merge(&s, cfg.Spec.AuthBridge, "authbridge")
	for _, name := range slices.Sorted(maps.Keys(cfg.Spec.Components)) {
		switch at := components + name; {
		case !slices.Contains(p.sidecars, name):
			hint := "remove or correct it: unknown fields are errors, so that nothing is " +
				"ignored by mistake"
			if near := text.Nearest(name, p.sidecars); near != "" {
				hint = "did you mean " + near + "?"
			}
			c.Error("config/field", at, "RenderConfig has no such field", hint)
		case !s.Profile.HasSidecar(name):
			c.OtherProfile(&s, at, name)
		default:
			c.merge(&s, cfg.Spec.Components[name], at)
		}
	}
	c.merge(&s, cfg.Spec.Identity, "")
	c.merge(&s, cfg.Spec.Trace, "trace")
	s.deriveURLs()
	// Contradictions are checked in the settings of a workload without settings of its own. The
	// base itself keeps the requested values, because a TokenExchange or an annotation may override
	// them.
	settled := s
	settled.settle()
	c.contradictions(&settled)
	checkResources(c, &s, nil, nil)
	return s, c.findings
}

// Resolve returns the settings of one workload: base < te and at < annotations. te and at may be
// nil. Without custom resources and annotations it only copies base. The result shares slices with
// base.
func Resolve(base *Settings, w Workload, te *api.TokenExchange, at *api.AgentTrace,
	annotations []Annotation) (Settings, []finding.Finding) {
	s := new(Settings)
	findings := s.resolve(base, w, te, at, annotations)
	return *s, findings
}

// resolve computes the result of Resolve in s.
func (s *Settings) resolve(base *Settings, w Workload, te *api.TokenExchange, at *api.AgentTrace,
	annotations []Annotation) (findings []finding.Finding) {
	*s = *base
	s.Subject = w.subject()
	s.Declared, s.TraceOnly = Declared{Volumes: w.Volumes}, w.TraceOnly
	s.AuthBridge.Ports, s.AuthBridge.EnvPort = w.Ports, w.EnvPort
	if te != nil || at != nil || w.Runtime != nil || len(annotations) > 0 || len(s.shortened()) > 0 {
		findings = s.merge(w, te, at, annotations)
	}
	if w.Alter != nil {
		*s = w.Alter(*s)
		s.deriveURLs()
	}
	s.SPIFFE.Enabled = s.SPIFFE.Enabled && w.SPIFFE
	s.settle()
	for _, p := range w.Probes {
		asks := true
		if s.Profile.Rules.Probe != nil {
			asks = s.Profile.Rules.Probe(s, &p)
		}
		if asks {
			s.Declared.ProbePaths = append(s.Declared.ProbePaths, p.Path)
		}
	}
	findings = append(findings, s.account(w)...)
	if len(s.Declared.ProbePaths) > 0 && s.ValidatesInbound() {
		findings = append(findings, refusedProbes(s, w)...)
	}
	if incomplete := s.Profile.Rules.Incomplete; incomplete != nil && !s.TraceOnly {
		if rule, field, message, hint := incomplete(s); rule != "" {
			c := w.checker()
			c.Error(rule, field, message, hint)
			findings = append(findings, c.findings...)
		}
	}
	return findings
}

// account decides on the ServiceAccount. The SPIFFE ID contains its name, as a client's ID may:
// workloads that share an account are indistinguishable to others. A Pod gets none, because the API
// server refuses it before its ServiceAccount exists, and kubectl creates objects in the order of
// the file.
func (s *Settings) account(w Workload) []finding.Finding {
	s.Subject.ServiceAccount = cmp.Or(w.ServiceAccount, "default")
	identified := s.SPIFFE.Enabled || s.any(func(x *Sidecar) bool { return x.Registers }) &&
		strings.Contains(s.Registration.ClientName, "ServiceAccount")
	s.Subject.OwnAccount = w.ServiceAccount == "" && identified && s.Subject.Name != "default" &&
		s.Subject.Kind != "Pod"
	if !s.Subject.OwnAccount {
		return nil
	}
	if s.Subject.ServiceAccount = s.Subject.Name; !Shortened(s.Subject.Name, "") {
		return nil
	}
	s.Subject.ServiceAccount = ShortName(s.Subject.Name, "")
	c := w.checker()
	c.Add(finding.Info, "identity/name-shortened", "metadata.name",
		"the ServiceAccount of this workload is named "+s.Subject.ServiceAccount+
			", because "+s.Subject.Name+" has more than 63 characters", "")
	return c.findings
}

// checker returns a Checker for findings about a workload.
func (w Workload) checker() *Checker {
	return &Checker{
		origin: &api.Origin{File: w.File, Line: w.Line}, By: ByAnnotation,
		object: finding.Ref{APIVersion: w.APIVersion, Kind: w.Kind, Namespace: w.Namespace,
			Name: w.Name},
	}
}

// refusedProbes returns warnings about probes that a proxy will answer with 401.
func refusedProbes(s *Settings, w Workload) []finding.Finding {
	var c *Checker
	for _, p := range s.Declared.ProbePaths {
		if _, open := OpenProbe(p); open || slices.Contains(s.Inbound.BypassPaths, p) {
			continue
		}
		if c == nil {
			c = w.checker()
		}
		c.Warning("identity/probe-refused", "",
			"the kubelet's probe of "+strconv.Quote(p)+
				" has no token and will be refused; the path is not "+
				"opened automatically, because the agent may receive its requests there",
			"probe a separate path, such as /healthz, or open this path with the annotation "+
				s.Prefix+"/"+InboundBypassPaths)
	}
	if c == nil {
		return nil
	}
	return c.findings
}

// merge applies the inputs, of which a later one wins. Resolve skips it for workloads without
// inputs.
func (s *Settings) merge(w Workload, te *api.TokenExchange, at *api.AgentTrace,
	annotations []Annotation) (findings []finding.Finding) {
	// Each contradiction is reported once, for the input that introduces it: Base
	// has reported those of the configuration.
	settled, known := new(Settings), make(map[[2]string]bool)
	introduced := func(c *Checker) {
		for _, f := range s.contradict(&Checker{origin: c.origin, object: c.object, By: c.By}, w,
			settled) {
			if known[[2]string{f.Rule, f.Message}] {
				continue
			}
			known[[2]string{f.Rule, f.Message}] = true
			switch {
			case c.By == ByAnnotation:
				f.Field = "metadata.annotations"
			case at != nil && f.Field == ByAgentTrace.field(metricsPort):
				// The port is in the AgentTrace, whichever listener it clashes with.
				f.File, f.Line, f.Object = at.Origin.File, at.Origin.LineOf(f.Field),
					finding.Ref{APIVersion: at.APIVersion, Kind: at.Kind, Namespace: at.Namespace,
						Name: at.Name}
			}
			c.findings = append(c.findings, f)
		}
		findings = append(findings, c.findings...)
	}
	introduced(&Checker{origin: &api.Origin{}})
	findings = nil
	input := func(by Input, origin *api.Origin, of api.TypeMeta, meta api.ObjectMeta, spec any,
		path string) {
		c := &Checker{origin: origin, By: by,
			object: finding.Ref{APIVersion: of.APIVersion, Kind: of.Kind, Namespace: meta.Namespace,
				Name: meta.Name}}
		c.merge(s, spec, path)
		s.deriveURLs()
		introduced(c)
	}
	if at != nil {
		input(ByAgentTrace, &at.Origin, at.TypeMeta, at.ObjectMeta, &at.Spec.TraceSpec, "trace")
	}
	if ar := w.Runtime; ar != nil {
		input(ByAgentRuntime, &ar.Origin, ar.TypeMeta, ar.ObjectMeta, &ar.Spec, "")
	}
	if te != nil {
		input(ByTokenExchange, &te.Origin, te.TypeMeta, te.ObjectMeta, &te.Spec.IdentitySpec, "")
	}
	here := w.checker()
	if len(annotations) > 0 {
		before := *s
		here.annotations(s, annotations)
		introduced(here)
		here.findings = nil
		checkResources(here, s, &before, annotations)
	}
	for _, name := range s.shortened() {
		here.Add(finding.Info, "identity/name-shortened", "metadata.name",
			"the ConfigMap of this workload is named "+name[0]+", because "+name[1]+
				" has more than 63 characters", "")
	}
	return append(findings, here.findings...)
}

// contradict returns the contradictions in s as the workload would get it, which it writes to
// settled.
func (s *Settings) contradict(c *Checker, w Workload, settled *Settings) []finding.Finding {
	*settled = *s
	settled.SPIFFE.Enabled = settled.SPIFFE.Enabled && w.SPIFFE
	settled.settle()
	c.contradictions(settled)
	return c.findings
}

// contradictions reports settings that are valid separately but contradict each other. s is
// settled.
func (c *Checker) contradictions(s *Settings) {
	c.portClashes(s)
	if s.Profile.Rules.Contradictions != nil {
		s.Profile.Rules.Contradictions(c, s)
	}
	c.metricsClash(s)
}

// settle computes the settings that follow from the given ones, so that a component is on exactly
// if its Enabled is true.
func (s *Settings) settle() {
	if s.TraceOnly {
		s.Registration.Enabled, s.Inbound.Enabled, s.Outbound.Enabled = false, false, false
		for i := range s.Components {
			s.Components[i].Enabled = false
		}
	}
	if !s.Trace.Enabled {
		s.Trace = Trace{}
	}
	if s.Profile.Rules.Settle != nil {
		s.Profile.Rules.Settle(s)
	}
}

// deriveURLs sets the URLs that follow from Keycloak's realm.
func (s *Settings) deriveURLs() {
	s.Registration.Port = PortOf(s.Registration.URL)
	realm := strings.TrimRight(s.Registration.URL, "/") + "/realms/" + s.Registration.Realm
	if s.Derived.Issuer {
		s.Inbound.Issuer = realm
	}
	if s.Derived.JWKS {
		s.Inbound.JWKSURL = realm + "/protocol/openid-connect/certs"
	}
	if s.Derived.TokenURL {
		s.Outbound.TokenURL = realm + "/protocol/openid-connect/token"
	}
}

// PortOf returns the port of a URL, given or implied by the scheme, and 0 for other schemes.
func PortOf(raw string) int {
	u, err := url.Parse(raw)
	if err != nil {
		return 0
	}
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	return map[string]int{"http": 80, "https": 443}[u.Scheme]
}

// Most workloads of a package have no settings of their own. Those with equal declarations have one
// shape: they get the same settings and, except for their names, the same texts, which are computed
// once.

// Part is a text that depends on the settings of a workload.
type Part int

// The parts.
const (
	PodContainers Part = iota
	PodVolumes
	configMapData // of the ConfigMap TokenExchangeConfigMap and those after it
	parts         = configMapData + 2
)

// shape holds the common values of workloads without settings of their own.
type shape struct {
	settings Settings // of one of them
	ports    []Port

	mu    sync.Mutex
	texts [parts]*sharedText
}

// sharedText is a text of all workloads of a shape.
type sharedText struct {
	// pieces are the parts of the text between the names of the workload. Each but the first begins
	// with the letter of the preceding name. They are nil for a text that is not shared, because it
	// contains the placeholder itself.
	pieces [][]byte
	// names are the names of the items of the text.
	names []string
}

// placeholder stands for a name of the workload. A letter after it selects the name.
const placeholder = "armature0shape0"

// AppendPart appends the text of write, which also returns the names of the items. The text may
// depend on the settings only.
func (s *Settings) AppendPart(dst []byte, part Part,
	write func([]byte, *Settings) ([]byte, []string)) (text []byte, names []string) {
	if s.shape == nil {
		return write(dst, s)
	}
	t := s.shape.text(part, write)
	if t.pieces == nil {
		return write(dst, s)
	}
	dst = append(dst, t.pieces[0]...)
	for _, piece := range t.pieces[1:] {
		switch piece[0] {
		case 'n':
			dst = append(dst, s.Subject.Name...)
		case 's':
			dst = append(dst, s.Subject.Namespace...)
		case 'a':
			dst = append(dst, s.Subject.ServiceAccount...)
		}
		dst = append(dst, piece[1:]...)
	}
	return dst, t.names
}

func (x *shape) text(part Part, write func([]byte, *Settings) ([]byte, []string)) *sharedText {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.texts[part] == nil {
		named := func(lead string) (text []byte, names []string) {
			s := x.settings
			s.shape, s.Subject = nil, Subject{Kind: s.Subject.Kind, Namespace: lead + "s",
				Name: lead + "n", ServiceAccount: lead + "a"}
			return write(nil, &s)
		}
		t := &sharedText{}
		text, names := named(placeholder)
		if other, _ := named("other"); !bytes.Contains(other, []byte(placeholder)) {
			t.pieces, t.names = bytes.Split(text, []byte(placeholder)), slices.Clip(names)
		}
		x.texts[part] = t
	}
	return x.texts[part]
}

// Bounds for the memory that a package can make a render keep: each shape takes some 30 KB, and its
// texts contain the declarations of a workload.
const (
	maxShapes   = 64
	maxShapeKey = 4 << 10
)

// shapes are the shapes of a package. The zero value is ready to use.
type shapes struct {
	mu    sync.Mutex
	known map[string]*shape
}

// appendShape appends the values on which the settings of a workload depend, except for the base
// and its names. It reports whether the workload has a shape: it has no settings of its own, and
// its names need no quotes and no shortening in any text.
func (w *Workload) appendShape(dst []byte) (key []byte, ok bool) {
	if w.Runtime != nil || w.Alter != nil || w.TraceOnly || !scalar.Plain(w.Name) ||
		len(w.Name) > MaxName-longestAffix || w.ServiceAccount != "" && !scalar.Plain(w.ServiceAccount) ||
		w.Namespace != "" && !scalar.Plain(w.Namespace) {
		return dst, false
	}
	text := func(s string) {
		dst = append(binary.AppendUvarint(dst, uint64(len(s))), s...)
	}
	flag := func(b bool) {
		if b {
			text("1")
		} else {
			text("")
		}
	}
	text(w.Kind)
	flag(w.SPIFFE)
	flag(w.Volumes.Shared)
	flag(w.Volumes.SVID)
	dst = binary.AppendVarint(dst, int64(w.EnvPort))
	dst = binary.AppendUvarint(dst, uint64(len(w.Ports)))
	for _, port := range w.Ports {
		dst = binary.AppendVarint(dst, int64(port))
	}
	for _, p := range w.Probes {
		text(p.Path)
		dst = binary.AppendVarint(dst, int64(p.Port))
	}
	return dst, len(dst) <= maxShapeKey
}

// find returns the shape of a key, or nil.
func (x *shapes) find(key []byte) *shape {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.known[string(key)]
}

// add stores the settings of a workload as those of its shape.
func (x *shapes) add(key []byte, s *Settings) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.known) == maxShapes {
		return
	}
	if x.known == nil {
		x.known = make(map[string]*shape)
	}
	of := &shape{settings: *s, ports: s.Ports()}
	of.settings.AuthBridge.Ports = slices.Clone(s.AuthBridge.Ports)
	of.settings.shape = of
	x.known[string(key)] = of
}
