// Package agentcard validates AgentCards and renders their static part: the pods, the endpoint and
// the interval for fetching cards, and metadata for agents whose own card lacks it. A controller
// fetches the cards.
package agentcard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/node"
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

// Name returns the name of the ConfigMap for a card.
func Name(card string) string { return identity.ShortName(card, "-discovery") }

// Check returns the findings about a card by itself. The caller checks with Matches whether its
// selector or target finds a workload.
func Check(card *api.AgentCard) []finding.Finding {
	c := &checker{card: card}
	spec := &card.Spec
	switch {
	case spec.Selector == nil && spec.TargetRef == nil:
		c.failIf(true, "no-target", "spec", "set spec.selector.matchLabels, or spec.targetRef",
			"the card has neither a selector nor a targetRef")
	case spec.Selector != nil && spec.TargetRef != nil:
		c.failIf(true, "two-targets", "spec.targetRef",
			"keep one of them", "the card has a selector and a targetRef")
	case spec.TargetRef != nil:
		c.failIf(spec.TargetRef.Kind == "" || spec.TargetRef.Name == "",
			"no-target", "spec.targetRef", "set both", "the reference needs kind and name")
	default:
		c.selector(spec.Selector)
	}
	if e := spec.Endpoint; e != nil {
		path, port, scheme := node.Or(e.Path, "/"), node.Or(e.Port, 1), node.Or(e.Scheme, "http")
		bad := strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f })
		c.failIf(!strings.HasPrefix(path, "/") || bad, "bad-path", "spec.endpoint.path",
			"begin with /, without spaces", "%q is not a path", text.Shown(path))
		c.failIf(port < 1 || port > 65535, "bad-port",
			"spec.endpoint.port", "use 1 to 65535", "%d is not a port", port)
		c.failIf(scheme != "http" && scheme != "https", "unknown-value",
			"spec.endpoint.scheme", "use http or https", "%q is not supported", text.Shown(scheme))
	}
	period := node.Or(spec.SyncPeriod, defaultSyncPeriod)
	d, err := time.ParseDuration(period)
	c.failIf(err != nil || d < time.Second, "bad-period", "spec.syncPeriod",
		"write it as 30s or 5m", "%q is not a duration of at least a second", text.Shown(period))
	return c.findings
}

type checker struct {
	card     *api.AgentCard
	findings []finding.Finding
}

func (c *checker) failIf(wrong bool, rule, field, hint, message string, values ...any) {
	if wrong {
		o := &c.card.Origin
		c.findings = append(c.findings, finding.Finding{Rule: "agentcard/" + rule,
			Severity: finding.Error, Message: fmt.Sprintf(message, values...), Hint: hint,
			Place: finding.Place{File: o.File, Line: o.LineOf(field), Field: field,
				Object: finding.Ref{APIVersion: c.card.APIVersion, Kind: c.card.Kind,
					Namespace: c.card.Namespace, Name: c.card.Name}}})
	}
}

// maxConditions bounds the labels and values of a selector, which are compared with each other.
const maxConditions = 1000

func (c *checker) selector(s *api.LabelSelector) {
	c.failIf(len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0,
		"selector-empty", "spec.selector", "set spec.selector.matchLabels",
		"an empty selector selects every pod of the namespace")
	conditions := len(s.MatchLabels)
	for i, e := range s.MatchExpressions {
		conditions += 1 + len(e.Values)
		field := fmt.Sprintf("spec.selector.matchExpressions[%d]", i)
		switch e.Operator {
		case "In", "NotIn":
			c.failIf(len(e.Values) == 0, "bad-selector",
				field+".values", "list at least one", "%s needs values", e.Operator)
		case "Exists", "DoesNotExist":
			c.failIf(len(e.Values) > 0, "bad-selector",
				field+".values", "leave values out", "%s takes no values", e.Operator)
		default:
			c.failIf(true, "bad-selector", field+".operator",
				"use In, NotIn, Exists or DoesNotExist",
				"%q is not supported", text.Shown(e.Operator))
		}
		c.failIf(e.Key == "", "bad-selector",
			field+".key", "set key", "an expression needs a label's key")
	}
	c.failIf(conditions > maxConditions, "bad-selector", "spec.selector",
		"select by other labels", "%d labels and values, more than %d", conditions, maxConditions)
	if len(c.findings) > 0 {
		return
	}
	key, impossible := contradiction(s)
	c.failIf(impossible, "selector-impossible", "spec.selector",
		"remove one of the conditions on it", "no value of the label %s can match", key)
}

// contradiction returns a label for which the selector has contradicting conditions.
func contradiction(s *api.LabelSelector) (key string, impossible bool) {
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for _, e := range s.MatchExpressions {
		keys = append(keys, e.Key)
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		// A missing label, one with an unmentioned value, and one with each mentioned value
		// represent all labels.
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

// Matches reports whether the selector selects a pod with these labels. An empty selector selects
// every pod.
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

// AppendConfigMap appends the card's static part for discovery: the endpoint and the pods to query,
// and in card.json the author's metadata of the agent.
func AppendConfigMap(dst []byte, card *api.AgentCard) []byte {
	spec := &card.Spec
	dst = append(dst, "apiVersion: v1\nkind: ConfigMap\n"...)
	dst = identity.AppendMetadata(dst, scalar.PlainText(Name(card.Name)),
		card.Namespace, scalar.PlainText("AgentCard/"+card.Name))
	dst = appendCard(append(dst, "data:\n  card.json: |\n    "...), card)
	text := func(key, value string) {
		dst = append(append(append(dst, "  "...), key...), ": "...)
		dst = append(scalar.AppendYAML(dst, value), '\n')
	}
	endpoint := cmp.Or(spec.Endpoint, &api.CardEndpoint{})
	text("endpoint_path", node.Or(endpoint.Path, defaultPath))
	text("endpoint_port", fmt.Sprint(node.Or(endpoint.Port, defaultPort)))
	text("endpoint_scheme", node.Or(endpoint.Scheme, defaultScheme))
	text("sync_period", node.Or(spec.SyncPeriod, defaultSyncPeriod))
	if spec.Selector != nil {
		text("selector", selectorString(spec.Selector))
	}
	if t := spec.TargetRef; t != nil {
		text("target_kind", t.Kind)
		text("target_name", t.Name)
	}
	return dst
}

// appendCard appends card.json, a single line.
func appendCard(dst []byte, card *api.AgentCard) []byte {
	m := cmp.Or(card.Spec.Metadata, &api.CardMetadata{})
	text := func(lead, s string) { dst = scalar.AppendJSON(append(dst, lead...), s) }
	text(`{"name": `, node.Or(m.Name, card.Name))
	if m.Description != nil {
		text(`, "description": `, *m.Description)
	}
	for i, tag := range m.Tags {
		if i == 0 {
			text(`, "tags": [`, tag)
		} else {
			text(", ", tag)
		}
	}
	if len(m.Tags) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, "}\n"...)
}

// selectorString returns a selector in the syntax of kubectl and the API.
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
