package identity

import (
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/block"
)

// MaxSidecars is the maximum number of sidecars of a profile.
const MaxSidecars = 6

// Sidecar is a container that is injected next to the agent.
type Sidecar struct {
	Name string
	// Default is the component without settings.
	Default Component
	// Ends says that it ends before the other containers start, Guards that it refuses requests
	// without a valid token, including the kubelet's, and Registers that it registers the
	// workload's client.
	Ends, Guards, Registers bool

	// Container returns the fields of the container other than its image, ports, resources and
	// mounts.
	Container func(s *Settings) Container
	// Mounts returns the mounts of the container; nil means that there are none. The pod gets the
	// volumes that its sidecars mount.
	Mounts func(s *Settings) []Mount
	// Ports appends the ports of listeners that the sidecar brings; nil means that there are none.
	// A port with the number 0 is not used. The container's ports, the clashes and the free ports
	// follow from them.
	Ports func(dst []Port, s *Settings) []Port
	// Files and Values return its part of the workload's ConfigMap; nil means that there is none.
	// The files of all sidecars precede all values.
	Files, Values func(s *Settings) []block.Node
}

// Container holds the fields that are specific to a sidecar. Each may be absent.
type Container struct {
	// Program is the field command or args.
	Program            block.Node
	Env                []block.Node
	Startup, Readiness block.Node
	Security           block.Node
}

// Mount is a volume in a container.
type Mount struct {
	Volume, Path string
	ReadOnly     bool
}

// Lack is a setting, or a mapping of settings, that the programs of a profile do not read.
type Lack struct {
	Path string
	// Needless says that the profile does not need it, which is an info. Means is the consequence
	// of setting it, which is a warning. Without either it is an error.
	Needless bool
	Means    string
}

// Profile is a generation of the platform. Its functions may be nil.
type Profile struct {
	Name string
	// Prefix is the prefix of labels and annotations.
	Prefix string
	// Sidecars are ordered as they start.
	Sidecars []Sidecar
	// Defaults override the defaults of the table, by the path of the setting.
	Defaults map[string]any
	// Lacks are the settings, or mappings of settings, that its programs do not read.
	Lacks []Lack

	// TokenDir is the directory of the JWT SVID.
	TokenDir string
	// SharedVolume is the volume with the client's ID and secret, or "".
	SharedVolume string
	// FollowsPorts says that the sidecars' ports depend on those of the agent.
	FollowsPorts bool
	// AgentRuntimes says that AgentRuntimes configure its sidecars.
	AgentRuntimes bool
	// ConfigMapPrefix is prefixed to the workload's name for its ConfigMap. "" selects
	// <workload>-token-exchange.
	ConfigMapPrefix string

	Rules Rules

	all *Profiles
}

// Rules are the parts of a profile that are not rows of the table. Each may be nil.
type Rules struct {
	// Settle computes the settings that follow from the given ones.
	Settle func(*Settings)
	// Given checks the fields of an input before they are merged, by their paths, and
	// may change them.
	Given func(c *Checker, s *Settings, set map[string]any)
	// Unread reports whether a setting is not needed, given the others.
	Unread func(s *Settings, path string) bool
	// Merged checks the settings with the given fields. field is the annotation that
	// sets them, "" for other inputs.
	Merged func(c *Checker, s *Settings, set map[string]any, field string)
	// Contradictions reports settings that are valid separately but contradict each other. The
	// settings are settled.
	Contradictions func(c *Checker, s *Settings)
	// Probe reports whether a probe reaches the proxy, and sets the path that the proxy compares.
	// The settings are settled.
	Probe func(s *Settings, p *Probe) bool
	// Incomplete returns the error about a setting that the workload lacks and only its author can
	// set; rule is "" if there is none.
	Incomplete func(*Settings) (rule, field, message, hint string)
}

// Profiles are the generations of the platform, the default last.
type Profiles struct {
	all      []Profile
	sidecars []string
	table    []setting
}

// NewProfiles returns the profiles with the settings of all of them.
func NewProfiles(all ...Profile) *Profiles {
	p := &Profiles{all: all, table: settings("authbridge", "")}
	for i := range all {
		all[i].all = p
		for _, x := range all[i].Sidecars {
			if !slices.Contains(p.sidecars, x.Name) {
				p.sidecars = append(p.sidecars, x.Name)
				p.table = append(p.table, settings("component", x.Name)...)
			}
		}
	}
	p.table = slices.Concat(p.table, settings("identity", ""), settings("trace", ""))
	return p
}

// Names returns the names of the profiles.
func (p *Profiles) Names() (names []string) {
	for i := range p.all {
		names = append(names, p.all[i].Name)
	}
	return names
}

// Named returns the profile of a name, or the default one if the name is unknown.
func (p *Profiles) Named(name string) *Profile {
	i := slices.IndexFunc(p.all, func(x Profile) bool { return x.Name == name })
	if i < 0 {
		i = len(p.all) - 1
	}
	return &p.all[i]
}

// Configured returns the profile of a configuration, which may be nil.
func (p *Profiles) Configured(config *api.RenderConfig) *Profile {
	if config == nil || config.Spec.Profile == nil {
		return p.Named("")
	}
	return p.Named(*config.Spec.Profile)
}

// Sidecars returns the names of the sidecars of all profiles, ordered as they start.
func (p *Profiles) Sidecars() []string { return p.sidecars }

// AnnotationNames returns all annotations that Resolve reads, without the prefix.
func (p *Profiles) AnnotationNames() (names []string) {
	for _, x := range p.table {
		if x.annotation != "" {
			names = append(names, x.annotation)
		}
	}
	return names
}

// HasSidecar reports whether the profile has a sidecar.
func (p *Profile) HasSidecar(name string) bool {
	return slices.ContainsFunc(p.Sidecars, func(x Sidecar) bool { return x.Name == name })
}

// Has reports whether the profile reads a setting.
func (p *Profile) Has(path string) bool {
	if name, found := strings.CutPrefix(path, components); found {
		name, _, _ = strings.Cut(name, ".")
		return p.HasSidecar(name)
	}
	for _, lacks := range p.Lacks {
		if rest, found := strings.CutPrefix(path, lacks.Path); found &&
			(rest == "" || rest[0] == '.') {
			return false
		}
	}
	return true
}

// Component returns the component of a name, or nil if the profile lacks that sidecar.
func (s *Settings) Component(name string) *Component {
	for i := range s.Profile.Sidecars {
		if s.Profile.Sidecars[i].Name == name {
			return &s.Components[i]
		}
	}
	return nil
}

// On reports whether the workload gets a sidecar.
func (s *Settings) On(sidecar string) bool {
	c := s.Component(sidecar)
	return c != nil && c.Enabled
}

// AnyOn reports whether the workload gets one of the sidecars.
func (s *Settings) AnyOn(sidecars ...string) bool { return slices.ContainsFunc(sidecars, s.On) }

// defaults returns the defaults of 001, "Default Configuration", with the profile's overrides.
// Published manifests define the rest.
func (p *Profile) defaults() Settings {
	s := Settings{
		Profile: p, Prefix: p.Prefix,
		SPIFFE:  SPIFFE{TokenDir: p.TokenDir, HealthPort: 15125},
		Derived: Derived{Issuer: true, JWKS: true, TokenURL: true},
		Trace: Trace{Exporters: []Exporter{{Type: "otlp", Protocol: "grpc", Compression: "none",
			Endpoint: "otel-collector.observability:4317", Insecure: true}}},
	}
	for i := range p.Sidecars {
		s.Components[i] = p.Sidecars[i].Default
	}
	for _, x := range p.all.table {
		own, set := p.Defaults[x.path]
		switch {
		case !p.Has(x.path):
		case set:
			x.assign(&s, own)
		case x.standard.Exists():
			x.setStandard(&s)
		}
	}
	return s
}

// Users of the injected containers: 001, "Security Contexts".
const (
	// HelperUID runs spiffe-helper and client-registration.
	HelperUID = 1000
	// DefaultProxyUID runs auth-proxy and envoy-proxy.
	DefaultProxyUID = 1337
)
