package identity

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
)

// Setting is one setting of a workload.
type Setting struct {
	Provenance
	// Alter returns settings in which this one has another value, so that dependent values differ.
	Alter func(Settings) Settings
	// Clear returns settings without the items of this list, so that dependent values disappear. It
	// is nil for an empty list and for other settings.
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
	// Setting is the path below a TokenExchange's spec; for tracing "trace." and the path below an
	// AgentTrace's spec; for a container "components." and the path below the RenderConfig's. Value
	// is the effective value, as people write it.
	Setting string `json:"setting" yaml:"setting"`
	Value   string `json:"value" yaml:"value"`
	By      Input  `json:"by" yaml:"by"`
	// File, Line and Field locate the value; they are empty for a default.
	File  string `json:"file,omitempty" yaml:"file,omitempty"`
	Line  int    `json:"line,omitempty" yaml:"line,omitempty"`
	Field string `json:"field,omitempty" yaml:"field,omitempty"`
	// Derived says that the value is not set: it follows from other settings.
	Derived bool `json:"derived,omitempty" yaml:"derived,omitempty"`
}

// Place returns the place of the value: "armature.yaml:7", or "default".
func (p Provenance) Place() string {
	return cmp.Or(finding.Place{File: p.File, Line: p.Line}.String(), string(ByDefault))
}

// Inputs are the inputs from which the settings of one workload were merged. All but Settings may
// be nil.
type Inputs struct {
	Config        *api.Origin
	TokenExchange *api.Origin
	AgentTrace    *api.Origin
	AgentRuntime  *api.Origin
	Annotations   []Annotation
	// File is the file of the annotations.
	File     string
	Settings *Settings
}

// Explain returns every setting with its provenance. A render does not call it.
func (in *Inputs) Explain() []Setting {
	all := in.Settings.All()
	for i := range all {
		x := &all[i]
		x.Derived = x.row.derived != nil && *x.row.derived(in.Settings)
		if !x.Derived {
			in.find(&x.Provenance, x.row)
		}
	}
	return all
}

func (in *Inputs) find(p *Provenance, x *setting) {
	for _, a := range slices.Backward(in.Annotations) {
		if name, ours := strings.CutPrefix(a.Key, in.Settings.Prefix+"/"); ours &&
			x.annotation == name {
			p.By, p.File, p.Line, p.Field = ByAnnotation, in.File, a.Line, a.Field+"["+a.Key+"]"
			return
		}
	}
	fields := append([]string{x.path, x.also.alias}, x.also.follows...)
	resource, by := in.TokenExchange, ByTokenExchange
	if strings.HasPrefix(x.path, "trace.") {
		resource, by = in.AgentTrace, ByAgentTrace
	}
	for _, of := range [...]struct {
		by     Input
		origin *api.Origin
		fields []string
	}{{by, resource, fields}, {ByAgentRuntime, in.AgentRuntime, []string{x.also.runtime}},
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

// field returns the path of a setting in an input of the kind. The path of an annotation is already
// complete.
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
	for _, x := range s.Profile.all.table {
		switch {
		case !s.Profile.Has(x.path):
		case x.list.each != nil:
			for _, part := range x.list.each(s) {
				all = append(all, part.explained(s))
			}
		default:
			all = append(all, x.explained(s))
		}
	}
	return all
}

// explained returns the setting with its value in s.
func (x setting) explained(s *Settings) Setting {
	e := Setting{Provenance: Provenance{Setting: x.path, By: ByDefault}, row: &x,
		Alter: altered(x.alter)}
	clears := x.list.clear
	if exporters, ok := x.at(s).(*[]Exporter); ok {
		var words []string
		for _, e := range *exporters {
			words = append(words, strings.TrimSpace(e.Type+" "+e.Endpoint))
		}
		e.Value = strings.Join(words, ", ")
	} else if value := reflect.ValueOf(x.at(s)).Elem(); value.Kind() != reflect.Slice {
		e.Value = fmt.Sprint(value)
	} else if e.Value = strings.Trim(fmt.Sprint(value), "[]"); value.Len() > 0 {
		clears = func(s *Settings) { reflect.ValueOf(x.at(s)).Elem().SetZero() }
	}
	if clears != nil {
		e.Clear = altered(clears)
	}
	return e
}

// alter sets another value. It changes each item of a list, and adds one to an empty list.
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
	case *[]Exporter:
		*at = slices.Clone(*at)
		for i := range *at {
			e := &(*at)[i]
			e.Endpoint, e.Insecure = "altered.example:7", !e.Insecure
			e.Protocol = another(e.Protocol, "grpc", "http/protobuf")
			e.Compression = another(e.Compression, "none", "gzip")
		}
	}
	if x.derived != nil {
		*x.derived(s) = false
	}
}

// another returns a different value: one of the given values if there are any, and otherwise one of
// the same form.
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
		s.shape = nil // the altered settings are not shared
		alter(&s)
		return s
	}
}

// part returns the row of a part of a list's item. In other settings the list may have fewer items.
func part[T any](path string, list func(*Settings) *[]T, i int, field string) setting {
	return setting{path: path, at: func(s *Settings) any {
		items := list(s)
		if i >= len(*items) {
			return fieldOf(new(T), field)
		}
		*items = slices.Clone(*items) // settings share the list
		return fieldOf(&(*items)[i], field)
	}}
}

func eachRule(s *Settings) (parts []setting) {
	rules := func(s *Settings) *[]Rule { return &s.Outbound.Rules }
	for i := range s.Outbound.Rules {
		at := indexed("outbound.tokenExchange.destinationRules", i)
		host := part(at+".match.host", rules, i, "Host")
		host.list.clear = func(s *Settings) {
			if i < len(s.Outbound.Rules) {
				s.Outbound.Rules = slices.Delete(slices.Clone(s.Outbound.Rules), i, i+1)
			}
		}
		url := part(at+".tokenUrl", rules, i, "TokenURL")
		url.oneOf = []string{"https://altered.example:7"}
		parts = append(parts, host, url, part(at+".passthrough", rules, i, "Passthrough"),
			part(at+".target.audience", rules, i, "Target.Audience"),
			part(at+".target.scopes", rules, i, "Target.Scopes"))
	}
	return parts
}

func eachAttribute(s *Settings) (parts []setting) {
	attributes := func(s *Settings) *[]Attribute { return &s.Trace.Attributes }
	for i, a := range s.Trace.Attributes {
		parts = append(parts, part("trace.resourceAttributes["+a.Name+"]", attributes, i, "Value"))
	}
	return parts
}
