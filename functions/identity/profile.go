package identity

import (
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/block"
)

// MaxSidecars is how many sidecars a profile has at most.
const MaxSidecars = 6

// Sidecar is a container that is put beside the agent.
type Sidecar struct {
	Name string
	// Default is what it gets where nobody sets anything else.
	Default Component
	// Ends says that it ends before the other containers start, Guards that it refuses
	// requests without a good token, the kubelet's included, and Registers that it
	// registers the workload's client.
	Ends, Guards, Registers bool

	// Container returns what the container has beside its image, ports, resources and
	// mounts.
	Container func(s *Settings) Container
	// Mounts are those of the container, nil for none. A volume that a sidecar mounts
	// is one of the pod.
	Mounts func(s *Settings) []Mount
	// Ports appends the ports on which something listens because of the sidecar, nil for
	// none. Nothing listens on a port whose number is 0. The container's ports, the
	// clashes and the free ports follow from them.
	Ports func(dst []Port, s *Settings) []Port
	// Files and Values are its part of the workload's ConfigMap, nil for none: the
	// files of all sidecars come before the values of all.
	Files, Values func(s *Settings) []block.Node
}

// Container is what a sidecar's container has by itself. Each part may be absent.
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
	// Needless reports whether the profile does without it, which is an info. Means is what follows
	// where it is set, a warning. Without either it is an error.
	Needless bool
	Means    string
}

// Profile is a generation of the platform. Its functions may be nil.
type Profile struct {
	Name string
	// Prefix is that of labels and annotations.
	Prefix string
	// Sidecars are in the order in which they start.
	Sidecars []Sidecar
	// Defaults are those that are not the table's, by the path of the setting.
	Defaults map[string]any
	// Lacks are the settings, or mappings of settings, that its programs do not read.
	Lacks []Lack

	// TokenDir is where the JWT SVID is.
	TokenDir string
	// SharedVolume is the volume with the client's ID and secret, "" for none.
	SharedVolume string
	// FollowsPorts says that the sidecars' ports follow from those of the agent.
	FollowsPorts bool
	// AgentRuntimes says that AgentRuntimes configure its sidecars.
	AgentRuntimes bool
	// ConfigMapPrefix is before the workload's name in that of its ConfigMap, "" for
	// <workload>-token-exchange.
	ConfigMapPrefix string

	Rules Rules

	all *Profiles
}

// Rules are what a profile does with settings beside their rows of the table. Each may be
// nil.
type Rules struct {
	// Settle computes what follows from the given settings.
	Settle func(*Settings)
	// Given checks the fields of an input before they are merged, by their paths, and
	// may change them.
	Given func(c *Checker, s *Settings, set map[string]any)
	// Unread reports whether a setting is not needed beside the others.
	Unread func(s *Settings, path string) bool
	// Merged checks the settings with the given fields. field is the annotation that
	// sets them, "" for other inputs.
	Merged func(c *Checker, s *Settings, set map[string]any, field string)
	// Contradictions finds settings that are right each for itself and wrong together.
	// s has been settled.
	Contradictions func(c *Checker, s *Settings)
	// Probe reports whether a probe asks the proxy, and sets the path that the proxy
	// compares. s has been settled.
	Probe func(s *Settings, p *Probe) bool
	// Incomplete returns the error about what a workload lacks and only its author can set;
	// rule is "" for none.
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

// Named returns the profile of a name, and the default one for another name.
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

// Sidecars returns the names of the sidecars of all profiles in the order in which they
// start.
func (p *Profiles) Sidecars() []string { return p.sidecars }

// AnnotationNames are all annotations that Resolve reads, without the prefix.
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

// Component returns the component of a name, nil where the profile has no such sidecar.
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

// defaults are those of 001, "Default Configuration", as the profile changes
// them; what 001 leaves open is as published.
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
