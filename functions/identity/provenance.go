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
	// Alter returns settings in which this one is another, so that what depends on
	// it comes out different.
	Alter func(Settings) Settings
	// Clear returns settings without it, where it is a list that has items: what is there
	// because of them goes. nil elsewhere.
	Clear func(Settings) Settings

	row *setting
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

// Explain returns where each setting comes from. Nothing of it is worked out
// during a render.
func (in *Inputs) Explain() []Provenance {
	var all []Provenance
	for _, x := range in.Settings.All() {
		p := Provenance{Setting: x.Name, Value: x.Value, By: ByDefault}
		if x.row.derived != nil {
			p.Derived = *x.row.derived(in.Settings)
		}
		if !p.Derived {
			in.find(&p, x)
		}
		all = append(all, p)
	}
	return all
}

func (in *Inputs) find(p *Provenance, x Setting) {
	for _, a := range slices.Backward(in.Annotations) {
		if name, ours := strings.CutPrefix(a.Key, in.Settings.Prefix+"/"); ours &&
			x.row.annotation == name {
			p.By, p.File, p.Line, p.Field = ByAnnotation, in.File, a.Line, a.Field+"["+a.Key+"]"
			return
		}
	}
	fields := append([]string{x.Name, x.row.also.alias}, x.row.also.follows...)
	resource, by := in.TokenExchange, ByTokenExchange
	if strings.HasPrefix(x.Name, "trace.") {
		resource, by = in.AgentTrace, ByAgentTrace
	}
	for _, of := range [...]struct {
		by     Input
		origin *api.Origin
		fields []string
	}{{by, resource, fields}, {ByAgentRuntime, in.AgentRuntime, []string{x.row.also.runtime}},
		{ByRenderConfig, in.Config, fields}} {
		for _, name := range of.fields {
			if field := of.by.field(name); name != "" && of.origin != nil && of.origin.Has(field) {
				p.By, p.File, p.Line, p.Field =
					of.by, of.origin.File, of.origin.LineOf(field), field
				return
			}
		}
	}
}

// field is the path of a setting in an input of the kind. That of an annotation is
// given in full.
func (by Input) field(name string) string {
	section, _, _ := strings.Cut(name, ".")
	switch {
	case by == ByAnnotation:
		return name
	case by != ByRenderConfig:
		return "spec." + strings.TrimPrefix(name, "trace.")
	case slices.Contains([]string{"spiffe", "clientRegistration", "inbound", "outbound",
		"tokenExchange"},
		section):
		return "spec.identity." + name
	}
	return "spec." + name
}

// All returns every setting of the profile.
func (s *Settings) All() (all []Setting) {
	rows, profile := s.Profile.all.table, s.Profile
	for i := range rows {
		x := &rows[i]
		switch {
		case !profile.Has(x.path):
		case x.list.each != nil:
			for _, item := range x.list.each(s) {
				item.row = x
				all = append(all, item)
			}
		default:
			all = append(all, x.explained(s))
		}
	}
	return all
}

// explained is the setting as it is in s.
func (x *setting) explained(s *Settings) Setting {
	e := Setting{Name: x.path, row: x, Alter: altered(x.alter)}
	items := 0
	switch at := x.at(s).(type) {
	case *bool:
		e.Value = strconv.FormatBool(*at)
	case *int:
		e.Value = strconv.Itoa(*at)
	case *string:
		e.Value = *at
	case *[]int:
		e.Value, items = strings.Trim(fmt.Sprint(*at), "[]"), len(*at)
	case *[]string:
		e.Value, items = strings.Join(*at, " "), len(*at)
	}
	if items > 0 {
		e.Clear = altered(func(s *Settings) {
			switch at := x.at(s).(type) {
			case *[]int:
				*at = nil
			case *[]string:
				*at = nil
			}
		})
	}
	return e
}

// alter sets another value. Each item of a list becomes another, and an
// empty list gets one.
func (x *setting) alter(s *Settings) {
	switch at := x.at(s).(type) {
	case *bool:
		*at = !*at
	case *int:
		*at += 7
	case *string:
		*at = another(*at, x.oneOf...)
	case *[]int:
		ports := make([]int, max(1, len(*at)))
		copy(ports, *at)
		for i := range ports {
			ports[i] += 7
		}
		*at = ports
	case *[]string:
		*at = make([]string, max(1, len(*at)))
		for i := range *at {
			(*at)[i] = "/altered" + strconv.Itoa(i)
		}
	}
	if x.derived != nil {
		*x.derived(s) = false
	}
}

// another returns a value that differs, one of the given values if there are any, and
// otherwise of the same form.
func another(value string, given ...string) string {
	form := "altered"
	_, number := strconv.ParseFloat(value, 64)
	switch {
	case strings.Contains(value, "://"):
		form = "https://altered.example:7"
	case strings.HasPrefix(value, "/"):
		form = "/altered/agent.sock"
	case strings.HasSuffix(value, "Mi"):
		form = "7Mi"
	case strings.HasSuffix(value, "0m"):
		form = "7m"
	case number == nil:
		form = "0.7"
	}
	for _, a := range append(slices.Clone(given), form, "altered-too") {
		if a != value && a != "" {
			return a
		}
	}
	return value
}

func altered(alter func(*Settings)) func(Settings) Settings {
	return func(s Settings) Settings {
		alter(&s)
		return s
	}
}

func eachRule(s *Settings) (all []Setting) {
	for i, r := range s.Outbound.Rules {
		add := func(field, value string, alter func(*Rule)) {
			all = append(all,
				Setting{Name: indexed("outbound.tokenExchange.destinationRules", i) + "." + field,
					Value: value, Alter: altered(func(s *Settings) {
						if i < len(s.Outbound.Rules) {
							s.Outbound.Rules = slices.Clone(s.Outbound.Rules)
							alter(&s.Outbound.Rules[i])
						}
					})})
		}
		add("match.host", r.Host, func(r *Rule) { r.Host = "altered.example" })
		all[len(all)-1].Clear = altered(func(s *Settings) {
			if i < len(s.Outbound.Rules) {
				s.Outbound.Rules = slices.Delete(slices.Clone(s.Outbound.Rules), i, i+1)
			}
		})
		add("passthrough", strconv.FormatBool(r.Passthrough),
			func(r *Rule) { r.Passthrough = !r.Passthrough })
		add("target.audience", r.Target.Audience, func(r *Rule) { r.Target.Audience = "altered" })
		add("target.scopes", strings.Join(r.Target.Scopes, " "),
			func(r *Rule) { r.Target.Scopes = []string{"altered"} })
		add("tokenUrl", r.TokenURL, func(r *Rule) { r.TokenURL = "https://altered.example:7" })
	}
	return all
}

func eachAttribute(s *Settings) (all []Setting) {
	for i, a := range s.Trace.Attributes {
		all = append(all, Setting{Name: "trace.resourceAttributes[" + a.Name + "]", Value: a.Value,
			Alter: altered(func(s *Settings) {
				if i < len(s.Trace.Attributes) {
					s.Trace.Attributes = slices.Clone(s.Trace.Attributes)
					s.Trace.Attributes[i].Value = "altered"
				}
			})})
	}
	return all
}

// allExporters returns the exporters as one setting.
func allExporters(s *Settings) []Setting {
	var words []string
	for _, e := range s.Trace.Exporters {
		words = append(words, strings.TrimSpace(e.Type+" "+e.Endpoint))
	}
	return []Setting{{Name: "trace.exporters", Value: strings.Join(words, ", "),
		Alter: altered(func(s *Settings) {
			s.Trace.Exporters = slices.Clone(s.Trace.Exporters)
			for i := range s.Trace.Exporters {
				e := &s.Trace.Exporters[i]
				e.Endpoint, e.Insecure = "altered.example:7", !e.Insecure
				e.Protocol, e.Compression = another(e.Protocol, "grpc", "http/protobuf"),
					another(e.Compression, "none", "gzip")
			}
		})}}
}
