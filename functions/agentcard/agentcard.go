// Package agentcard validates AgentCards and renders their static part: where
// and how often to ask which pods, and what to say of an agent whose own card is
// silent. Fetching cards is a controller's work, not rendering's.
package agentcard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/text"
)

// Defaults of 001, "Pillar 2: AgentCard CR".
const (
	defaultPath       = "/.well-known/agent.json"
	defaultPort       = 8081
	defaultScheme     = "http"
	defaultSyncPeriod = "30s"
)

// Name is that of the ConfigMap for the card of this name.
func Name(card string) string { return identity.ShortName(card, "-discovery") }

// Check finds what is wrong with a card by itself. Whether its selector or
// target finds a workload is for the one who knows them all; see Matches.
func Check(card *api.AgentCard) []finding.Finding {
	c := &checker{card: card}
	spec := &card.Spec
	switch {
	case spec.Selector == nil && spec.TargetRef == nil:
		c.error("agentcard/no-target", "spec", "the card has neither a selector nor a targetRef",
			"set spec.selector.matchLabels, or spec.targetRef")
	case spec.Selector != nil && spec.TargetRef != nil:
		c.error("agentcard/two-targets", "spec.targetRef",
			"the card has a selector and a targetRef", "keep one of them")
	case spec.TargetRef != nil && (spec.TargetRef.Kind == "" || spec.TargetRef.Name == ""):
		c.error("agentcard/no-target", "spec.targetRef", "the reference needs kind and name", "set both")
	case spec.Selector != nil:
		c.selector(spec.Selector)
	}
	if e := spec.Endpoint; e != nil {
		if e.Path != nil &&
			(!strings.HasPrefix(*e.Path, "/") ||
				strings.IndexFunc(*e.Path, func(r rune) bool { return r <= ' ' || r == 0x7f }) >= 0) {
			c.error("agentcard/bad-path", "spec.endpoint.path",
				fmt.Sprintf("%q is not a path", text.Shown(*e.Path)),
				"begin with /, without spaces")
		}
		if e.Port != nil && (*e.Port < 1 || *e.Port > 65535) {
			c.error("agentcard/bad-port", "spec.endpoint.port",
				fmt.Sprintf("%d is not a port", *e.Port), "use 1 to 65535")
		}
		if e.Scheme != nil && *e.Scheme != "http" && *e.Scheme != "https" {
			c.error("agentcard/unknown-value", "spec.endpoint.scheme",
				fmt.Sprintf("%q is not supported", text.Shown(*e.Scheme)), "use http or https")
		}
	}
	if spec.SyncPeriod != nil {
		if d, err := time.ParseDuration(*spec.SyncPeriod); err != nil || d < time.Second {
			c.error("agentcard/bad-period", "spec.syncPeriod",
				fmt.Sprintf("%q is not a duration of at least a second",
					text.Shown(*spec.SyncPeriod)),
				"write it as 30s or 5m")
		}
	}
	return c.findings
}

type checker struct {
	card     *api.AgentCard
	findings []finding.Finding
}

func (c *checker) error(rule, field, message, hint string) {
	o := &c.card.Origin
	f := finding.Finding{
		Rule: rule, Severity: finding.Error, Message: message, Hint: hint,
		Place: finding.Place{File: o.File, Line: o.LineOf(field), Field: field,
			Object: finding.Ref{APIVersion: c.card.APIVersion, Kind: c.card.Kind,
				Namespace: c.card.Namespace, Name: c.card.Name}},
	}
	c.findings = append(c.findings, f)
}

func (c *checker) selector(s *api.LabelSelector) {
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		c.error("agentcard/selector-empty", "spec.selector",
			"an empty selector selects every pod of the namespace",
			"set spec.selector.matchLabels")
	}
	for i, e := range s.MatchExpressions {
		field := fmt.Sprintf("spec.selector.matchExpressions[%d]", i)
		switch e.Operator {
		case "In", "NotIn":
			if len(e.Values) == 0 {
				c.error("agentcard/bad-selector", field+".values", e.Operator+" needs values",
					"list at least one")
			}
		case "Exists", "DoesNotExist":
			if len(e.Values) > 0 {
				c.error("agentcard/bad-selector", field+".values", e.Operator+" takes no values",
					"leave values out")
			}
		default:
			c.error("agentcard/bad-selector", field+".operator",
				fmt.Sprintf("%q is not supported", text.Shown(e.Operator)),
				"use In, NotIn, Exists or DoesNotExist")
		}
		if e.Key == "" {
			c.error("agentcard/bad-selector", field+".key", "an expression needs a label's key",
				"set key")
		}
	}
	if len(c.findings) > 0 {
		return
	}
	if key, impossible := contradiction(s); impossible {
		c.error("agentcard/selector-impossible", "spec.selector",
			"no value of the label "+key+" can match", "remove one of the conditions on it")
	}
}

// contradiction names a label on which the selector demands what cannot be.
func contradiction(s *api.LabelSelector) (key string, impossible bool) {
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for _, e := range s.MatchExpressions {
		keys = append(keys, e.Key)
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		// A label that is not there, one with a value nobody mentions, and one
		// with each value that is mentioned represent all labels.
		candidates, only := []string{"\x00"}, &api.LabelSelector{}
		if v, ok := s.MatchLabels[key]; ok {
			candidates, only.MatchLabels = append(candidates, v), map[string]string{key: v}
		}
		for _, e := range s.MatchExpressions {
			if e.Key == key {
				candidates, only.MatchExpressions = append(candidates, e.Values...),
					append(only.MatchExpressions, e)
			}
		}
		absent := func(string) (string, bool) { return "", false }
		possible := Matches(only, absent) || slices.ContainsFunc(candidates, func(v string) bool {
			return Matches(only, func(string) (string, bool) { return v, true })
		})
		if !possible {
			return key, true
		}
	}
	return "", false
}

// Matches reports whether the selector picks a pod with these labels. An empty
// selector picks every pod.
func Matches(s *api.LabelSelector, label func(key string) (string, bool)) bool {
	for key, want := range s.MatchLabels {
		if got, ok := label(key); !ok || got != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, ok := label(e.Key)
		listed, matches := ok && slices.Contains(e.Values, got), false
		switch e.Operator {
		case "In":
			matches = listed
		case "NotIn":
			matches = !listed
		case "Exists":
			matches = ok
		case "DoesNotExist":
			matches = !ok
		}
		if !matches {
			return false
		}
	}
	return true
}

// AppendConfigMap appends the card's static part for discovery: what to ask
// whom, and in card.json what the author says of the agent.
func AppendConfigMap(dst []byte, card *api.AgentCard) []byte {
	spec := &card.Spec
	dst = append(dst, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: "...)
	dst = scalar.AppendPlain(dst, Name(card.Name))
	if card.Namespace != "" {
		dst = append(dst, "\n  namespace: "...)
		dst = scalar.AppendPlain(dst, card.Namespace)
	}
	dst = append(dst,
		"\n  labels:\n    "+identity.ManagedBy+": armature\n  annotations:\n    "+keys.RenderedFor+
			": "...)
	dst = scalar.AppendPlain(dst, "AgentCard/"+card.Name)
	dst = append(dst, "\ndata:\n  card.json: |\n"...)
	dst = AppendCard(append(dst, "    "...), card)
	text := func(key, value string) {
		dst = append(append(append(dst, "  "...), key...), ": "...)
		dst = append(scalar.AppendYAML(dst, value), '\n')
	}
	endpoint := spec.Endpoint
	if endpoint == nil {
		endpoint = &api.CardEndpoint{}
	}
	text("endpoint_path", value(endpoint.Path, defaultPath))
	text("endpoint_port", fmt.Sprint(value(endpoint.Port, defaultPort)))
	text("endpoint_scheme", value(endpoint.Scheme, defaultScheme))
	text("sync_period", value(spec.SyncPeriod, defaultSyncPeriod))
	if spec.Selector != nil {
		text("selector", selectorString(spec.Selector))
	}
	if t := spec.TargetRef; t != nil {
		text("target_kind", t.Kind)
		text("target_name", t.Name)
	}
	return dst
}

// AppendCard appends card.json, a single line.
func AppendCard(dst []byte, card *api.AgentCard) []byte {
	m := card.Spec.Metadata
	if m == nil {
		m = &api.CardMetadata{}
	}
	dst = append(dst, `{"name": `...)
	dst = scalar.AppendJSON(dst, value(m.Name, card.Name))
	if m.Description != nil {
		dst = append(dst, `, "description": `...)
		dst = scalar.AppendJSON(dst, *m.Description)
	}
	if len(m.Tags) > 0 {
		dst = append(dst, `, "tags": [`...)
		for i, tag := range m.Tags {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = scalar.AppendJSON(dst, tag)
		}
		dst = append(dst, ']')
	}
	return append(dst, "}\n"...)
}

func value[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

// selectorString writes a selector as kubectl and the API take it.
func selectorString(s *api.LabelSelector) string {
	var terms []string
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		terms = append(terms, key+"="+s.MatchLabels[key])
	}
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case "In":
			terms = append(terms, e.Key+" in ("+strings.Join(e.Values, ",")+")")
		case "NotIn":
			terms = append(terms, e.Key+" notin ("+strings.Join(e.Values, ",")+")")
		case "Exists":
			terms = append(terms, e.Key)
		case "DoesNotExist":
			terms = append(terms, "!"+e.Key)
		}
	}
	return strings.Join(terms, ",")
}
