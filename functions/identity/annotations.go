package identity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
)

// Annotations of one setting, below the prefix. docs/annotations.md has the
// table for people.
const (
	inboundPort         = "inbound-port"
	targetPort          = "target-port"
	proxyPort           = "proxy-port"
	inboundProxyPort    = "inbound-proxy-port"
	proxyUID            = "proxy-uid"
	outboundExclude     = "outbound-ports-exclude"
	inboundExclude      = "inbound-ports-exclude"
	inboundBypassPaths  = "inbound-bypass-paths"
	authBridgeMode      = "authbridge-mode"
	clientSecretName    = "keycloak-client-credentials-secret-name"
	imageSuffix         = "-image"
	pullPolicySuffix    = "-image-pull-policy"
	cpuRequestSuffix    = "-cpu-request"
	memoryRequestSuffix = "-memory-request"
	cpuLimitSuffix      = "-cpu-limit"
	memoryLimitSuffix   = "-memory-limit"
)

func settingNames() []string {
	return []string{
		inboundPort, targetPort, proxyPort, inboundProxyPort, proxyUID,
		outboundExclude, inboundExclude, inboundBypassPaths, authBridgeMode, clientSecretName,
	}
}

func componentSuffixes() []string {
	return []string{
		"", imageSuffix, pullPolicySuffix,
		cpuRequestSuffix, memoryRequestSuffix, cpuLimitSuffix, memoryLimitSuffix,
	}
}

// AnnotationNames are all annotations that Resolve reads, without the prefix.
func AnnotationNames() []string {
	names := settingNames()
	for _, c := range Components() {
		for _, suffix := range componentSuffixes() {
			names = append(names, c+suffix)
		}
	}
	return names
}

// annotations merges the workload's annotations into s.
func (c *checker) annotations(s *Settings, all []Annotation) {
	origin := *c.origin
	defer func() { c.origin, c.prefix = &origin, "" }()
	for _, a := range all {
		name, ours := strings.CutPrefix(a.Key, s.Prefix+"/")
		if !ours {
			continue
		}
		field := a.Field
		if field == "" {
			field = "metadata.annotations"
		}
		at := api.Origin{File: origin.File, Line: a.Line}
		if a.Line == 0 {
			at.Line = origin.Line
		}
		c.origin = &at
		c.annotation(s, name, a.Value, field+"["+strconv.Quote(a.Key)+"]")
	}
}

func (c *checker) annotation(s *Settings, name, value, field string) {
	if s.Profile == ProfileAuthBridge && c.authBridgeAnnotation(s, name, value, field) {
		return
	}
	switch name {
	case inboundPort:
		c.number(field, value, &s.Inbound.Port, c.portNumber)
	case targetPort:
		c.number(field, value, &s.Inbound.TargetPort, c.portNumber)
	case proxyPort:
		c.number(field, value, &s.Outbound.ProxyPort, c.portNumber)
	case inboundProxyPort:
		c.number(field, value, &s.Outbound.InboundProxyPort, c.portNumber)
	case proxyUID:
		c.number(field, value, &s.Outbound.ProxyUID, c.uid)
	case outboundExclude:
		c.portList(field, value, &s.Outbound.ExcludePorts)
	case inboundExclude:
		c.portList(field, value, &s.Outbound.ExcludeInboundPorts)
	case inboundBypassPaths:
		paths := slices.Clone(s.Inbound.BypassPaths)
		for p := range strings.SplitSeq(value, ",") {
			if p = strings.TrimSpace(p); p != "" {
				c.bypassPath(field, p)
				paths = append(paths, p)
			}
		}
		s.Inbound.BypassPaths = paths
	default:
		for _, component := range Components() {
			if suffix, found := strings.CutPrefix(name, component); found && slices.Contains(componentSuffixes(), suffix) {
				if !s.Has(component) {
					c.otherProfile(s, field, component)
					return
				}
				c.componentAnnotation(s.Component(component), suffix, value, field)
				return
			}
		}
		c.unknown(name, field)
	}
}

func (c *checker) componentAnnotation(dst *Component, suffix, value, field string) {
	q := api.Quantity(value)
	switch suffix {
	case "":
		switch value {
		case "disabled", "false":
			dst.Enabled = false
		case "enabled", "true":
			dst.Enabled = true
		default:
			c.error("identity/bad-annotation", field, fmt.Sprintf("%q says neither on nor off", krm.Shown(value)), "use enabled or disabled")
		}
	case imageSuffix:
		c.image(field, value)
		dst.Image = value
	case pullPolicySuffix:
		c.oneOf(field, value, "Always", "IfNotPresent", "Never")
		dst.ImagePullPolicy = value
	case cpuRequestSuffix:
		c.quantity(field, &dst.CPURequest, &q)
	case memoryRequestSuffix:
		c.quantity(field, &dst.MemoryRequest, &q)
	case cpuLimitSuffix:
		c.quantity(field, &dst.CPULimit, &q)
	case memoryLimitSuffix:
		c.quantity(field, &dst.MemoryLimit, &q)
	}
}

func (c *checker) number(field, value string, dst *int, check func(string, int)) {
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil {
		c.error("identity/bad-annotation", field, fmt.Sprintf("%q is not a number", krm.Shown(value)), "write a number in quotes")
		return
	}
	check(field, n)
	*dst = n
}

// portList adds ports to those of the configuration, as published.
func (c *checker) portList(field, value string, dst *[]int) {
	ports := slices.Clone(*dst)
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		n, err := strconv.Atoi(item)
		if err != nil {
			c.error("identity/bad-annotation", field, fmt.Sprintf("%q is not a port", krm.Shown(item)), "separate port numbers with commas")
			continue
		}
		c.portNumber(field, n)
		if !slices.Contains(ports, n) {
			ports = append(ports, n)
		}
	}
	*dst = ports
}

// unknown warns of an annotation that is close to one of ours. Others share
// the prefix, and theirs are theirs.
func (c *checker) unknown(name, field string) {
	best, distance := "", 3
	for _, known := range AnnotationNames() {
		if d := editDistance(name, known, distance); d < distance {
			best, distance = known, d
		}
	}
	if best == "" {
		if !slices.ContainsFunc(componentList(), func(p string) bool { return strings.HasPrefix(name, p+"-") }) {
			return
		}
	}
	hint := "see docs/annotations.md for those that are"
	if best != "" {
		hint = "did you mean " + best + "?"
	}
	c.add(krm.Warning, "identity/unknown-annotation", field, "this annotation is not known and has no effect", hint)
}

func componentList() []string { names := Components(); return names[:] }

// Near reports whether a name is another one with a slip of the pen.
func Near(name, other string) bool { return name != other && editDistance(name, other, 3) < 3 }

// editDistance is Levenshtein's, or at least limit where that is not less.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diagonal
			if a[i] != b[j] {
				next = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return min(row[len(b)], limit)
}
