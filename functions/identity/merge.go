package identity

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
)

// written collects the fields of a specification that are set, by their paths: booleans, numbers,
// texts and lists, and nil for a mapping.
func written(set map[string]any, spec reflect.Value, path string) {
	switch spec.Kind() {
	case reflect.Pointer:
		if !spec.IsNil() {
			written(set, spec.Elem(), path)
		}
	case reflect.Slice, reflect.Map:
		set[path] = spec.Interface()
	case reflect.Struct:
		set[path] = nil
		for i := range spec.NumField() {
			value := spec.Field(i)
			if kind := value.Kind(); (kind == reflect.Pointer || kind == reflect.Slice ||
				kind == reflect.Map) && value.IsNil() {
				continue // before its path is composed
			}
			name, _, _ := strings.Cut(spec.Type().Field(i).Tag.Get("json"), ",")
			if path != "" {
				name = path + "." + name
			}
			written(set, value, name)
		}
	case reflect.String: // also quantities and numbers, as written
		set[path] = spec.String()
	case reflect.Int:
		set[path] = int(spec.Int())
	case reflect.Bool:
		set[path] = spec.Bool()
	}
}

// merge merges the fields of a specification into s, and checks each value at its source. path is
// the path of the specification in the table.
func (c *Checker) merge(s *Settings, spec any, path string) {
	set := make(map[string]any)
	written(set, reflect.ValueOf(spec), path)
	if len(set) == 0 {
		return
	}
	profile := s.Profile
	var needless []string
	for _, lacks := range profile.Lacks {
		switch _, found := set[lacks.Path]; {
		case !found:
		case lacks.Needless:
			needless = append(needless, lacks.Path)
		case lacks.Means != "":
			c.Warning("identity/other-profile", lacks.Path, lacks.Means,
				"remove it, or set spec.profile to one that has it")
		default:
			c.OtherProfile(s, lacks.Path, lacks.Path)
		}
	}
	if profile.Rules.Given != nil {
		profile.Rules.Given(c, s, set)
	}
	imply(set)
	for i := range profile.all.table {
		x := &profile.all.table[i]
		fields := [...]string{x.also.alias, x.path}
		if c.By == ByAgentRuntime {
			fields = [...]string{"", x.also.runtime}
		}
		for _, field := range fields {
			value := set[field]
			switch {
			case value == nil || field == "" || !profile.Has(x.path):
			case profile.Rules.Unread != nil && profile.Rules.Unread(s, x.path):
				needless = append(needless, field)
			default:
				x.put(c, s, field, value)
			}
		}
	}
	c.needless(s, needless)
	c.incomplete(s, set)
	if profile.Rules.Merged != nil {
		profile.Rules.Merged(c, s, set, "")
	}
}

// imply adds settings that follow from other fields and are not set.
func imply(set map[string]any) {
	const registration, sampling, scopes = "clientRegistration.", "trace.sampling.",
		"outbound.tokenExchange.defaultTarget.scopes"
	if set[registration+"provider"] == nil {
		var blocks []string
		for _, provider := range [...]string{"keycloak", "aws", "gcp"} {
			if _, found := set[registration+provider]; found {
				blocks = append(blocks, provider)
			}
		}
		if len(blocks) == 1 {
			set[registration+"provider"] = blocks[0]
		}
	}
	if _, found := set["trace"]; found && set[traced] == nil {
		set[traced] = true
	}
	if set[sampling+"type"] == nil && set[sampling+"rate"] != nil {
		set[sampling+"type"] = "probabilistic"
	}
	if list, _ := set[scopes].([]string); len(list) == 0 {
		delete(set, scopes) // an empty list keeps the default
	}
}

// incomplete reports settings without a setting that they require, at the input that has them.
func (c *Checker) incomplete(s *Settings, set map[string]any) {
	if _, found := set["trace.sampling"]; found &&
		strings.HasSuffix(s.Trace.SamplerType, "probabilistic") && s.Trace.SamplerRate == "" {
		c.Error("identity/sampling-rate", "trace.sampling.rate",
			"probabilistic sampling needs a rate", "set sampling.rate, from 0 to 1")
	}
	if _, found := set["trace.integration.mlflow"]; found && s.Trace.MLflow.Enabled &&
		s.Trace.MLflow.TrackingURI == "" {
		c.Error("identity/mlflow-incomplete", "trace.integration.mlflow.trackingUri",
			"MLflow is enabled without a tracking server", "set integration.mlflow.trackingUri")
	}
}

// put checks a value and stores it. field is the path at which it is set.
func (x *setting) put(c *Checker, s *Settings, field string, value any) {
	if x.list.merge != nil {
		x.list.merge(c, s, field, value)
		return
	}
	v := reflect.ValueOf(value)
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			x.check(c, indexed(field, i), v.Index(i).Interface())
		}
	} else {
		x.check(c, field, value)
	}
	x.assign(s, value)
	if x.derived != nil {
		*x.derived(s) = false
	}
	if x.then != nil {
		x.then(s)
	}
}

func (x *setting) assign(s *Settings, value any) {
	reflect.ValueOf(x.at(s)).Elem().Set(reflect.ValueOf(value))
}

// check checks a value, or an item of a list.
func (x *setting) check(c *Checker, field string, value any) {
	if text := fmt.Sprint(value); x.oneOf != nil {
		c.OneOf(field, text, x.oneOf...)
	} else {
		x.is(c, field, text)
	}
}

func mergeRules(c *Checker, s *Settings, at string, value any) {
	all := value.([]api.DestinationRule)
	rules := make([]Rule, len(all))
	for i, r := range all {
		field := indexed(at, i)
		rule := Rule{Host: r.Match.Host, Target: Target{Scopes: []string{"openid"}}}
		checkHost(c, field+".match.host", r.Match.Host)
		if r.Passthrough != nil {
			rule.Passthrough = *r.Passthrough
		}
		if r.TokenURL != nil {
			checkURL(c, field+".tokenUrl", *r.TokenURL)
			rule.TokenURL = *r.TokenURL
		}
		if r.Target != nil && r.Target.Audience != nil {
			checkText(c, field+".target.audience", *r.Target.Audience)
			rule.Target.Audience = *r.Target.Audience
		}
		if r.Target != nil && len(r.Target.Scopes) > 0 {
			for i, scope := range r.Target.Scopes {
				checkScope(c, indexed(field+".target.scopes", i), scope)
			}
			rule.Target.Scopes = r.Target.Scopes
		}
		if rule.Target.Audience == "" && !rule.Passthrough {
			c.Error("identity/target-missing", field+".target.audience",
				"a rule needs the audience that a token is exchanged for",
				"set target.audience, or passthrough: true to leave tokens alone")
		}
		rules[i] = rule
	}
	s.Outbound.Rules = rules
}

// mergeAttributes merges resource attributes by name.
func mergeAttributes(c *Checker, s *Settings, field string, value any) {
	own, all := value.(map[string]string), make(map[string]string)
	for _, a := range s.Trace.Attributes {
		all[a.Name] = a.Value
	}
	maps.Copy(all, own)
	s.Trace.Attributes = make([]Attribute, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s.Trace.Attributes = append(s.Trace.Attributes, Attribute{name, all[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if at := field + "[" + strconv.Quote(name) + "]"; checkText(c, at, name) {
			checkPortable(c, at, name)
			checkPortable(c, at, own[name])
		}
	}
}

// mergeExporters replaces the exporters by the given list.
func mergeExporters(c *Checker, s *Settings, field string, value any) {
	all := value.([]api.ExporterSpec)
	s.Trace.Exporters = make([]Exporter, len(all))
	for i := range all {
		s.Trace.Exporters[i] = readExporter(c, indexed(field, i), &all[i])
	}
}

func readExporter(c *Checker, field string, x *api.ExporterSpec) Exporter {
	e := Exporter{Type: x.Type, Protocol: "grpc", Compression: "none"}
	c.OneOf(field+".type", e.Type, "otlp", "jaeger", "console")
	if x.Endpoint != nil {
		e.Endpoint = *x.Endpoint
	}
	if x.Protocol != nil {
		c.OneOf(field+".protocol", *x.Protocol, "grpc", "http/protobuf", "http/json")
		e.Protocol = *x.Protocol
	}
	if x.Compression != nil {
		c.OneOf(field+".compression", *x.Compression, "none", "gzip")
		e.Compression = *x.Compression
	}
	if e.Type == "console" {
		return e
	}
	checkEndpoint(c, field+".endpoint", e.Endpoint)
	scheme, _, found := strings.Cut(e.Endpoint, "://")
	e.Insecure = !found || scheme == "http"
	if x.Insecure != nil {
		if found && *x.Insecure != e.Insecure {
			c.Error("identity/exporter-scheme", field+".insecure",
				"insecure: "+strconv.FormatBool(*x.Insecure)+" contradicts the endpoint's "+scheme+
					"://",
				"leave insecure out; the scheme decides")
		}
		e.Insecure = *x.Insecure
	}
	if e.Type == "jaeger" &&
		(strings.HasSuffix(e.Endpoint, ":14250") || strings.HasSuffix(e.Endpoint, ":14268")) {
		c.Warning("identity/jaeger-port", field+".endpoint",
			"OpenTelemetry no longer has an exporter for Jaeger's own protocol: otel-config.yaml "+
				"sends OTLP to port 4317 of this host",
			"use Jaeger's OTLP port: 4317 with grpc, 4318 with http/protobuf")
	}
	return e
}

func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
