package identity

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/quantity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
)

// checker collects what is wrong with values of one object.
type checker struct {
	origin *api.Origin
	object krm.Ref
	// prefix is put before field paths: "spec." or "spec.identity.".
	prefix   string
	findings []krm.Finding
}

func (c *checker) add(severity krm.Severity, rule, field, message, hint string) {
	f := krm.Finding{
		Rule: rule, Severity: severity, Message: message, Hint: hint,
		Place: krm.Place{File: c.origin.File, Line: c.origin.LineOf(c.prefix + field), Field: c.prefix + field, Object: c.object},
	}
	c.findings = append(c.findings, f)
}

func (c *checker) error(rule, field, message, hint string) {
	c.add(krm.Error, rule, field, message, hint)
}

func (c *checker) warning(rule, field, message, hint string) {
	c.add(krm.Warning, rule, field, message, hint)
}

func (c *checker) oneOf(field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.error("identity/unknown-value", field, fmt.Sprintf("%q is not known here", krm.Shown(value)),
			"use one of: "+strings.Join(allowed, ", "))
	}
}

func (c *checker) optionalOneOf(field string, value *string, allowed ...string) {
	if value != nil {
		c.oneOf(field, *value, allowed...)
	}
}

// text takes anything that fits on one line.
func (c *checker) text(field, value string) bool {
	if value == "" {
		c.error("identity/empty", field, "an empty value", "set a value, or leave the field out for the default")
		return false
	}
	if i := strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		c.error("identity/control-character", field, "the value holds a line break or another control character",
			"write it on one line")
		return false
	}
	return true
}

func (c *checker) optionalText(field string, value *string) {
	if value != nil {
		c.text(field, *value)
	}
}

func (c *checker) url(field, value string) {
	if !c.text(field, value) {
		return
	}
	u, err := url.Parse(value)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", strings.ContainsAny(value, " "):
		c.error("identity/bad-url", field, "this is not an http or https URL",
			"write it as http://host:port/path")
	case u.User != nil:
		c.error("identity/secret-in-url", field, "the URL holds a user name or password",
			"keep credentials in a Secret; see adminCredentialsSecret")
	case u.Port() != "" && !validPort(u.Port()):
		c.error("identity/bad-port", field, u.Port()+" is not a port", "use 1 to 65535")
	}
}

// endpoint takes host:port or a URL.
func (c *checker) endpoint(field, value string) {
	if strings.Contains(value, "://") {
		c.url(field, value)
	} else if c.text(field, value) {
		// What is true of the host and port of a URL is true of them alone.
		u, err := url.Parse("http://" + value)
		if err != nil || u.Host != value || u.Hostname() == "" || !validPort(u.Port()) || strings.Contains(value, " ") {
			c.error("identity/bad-endpoint", field, "this is neither host:port nor a URL",
				"write it as collector.namespace:4317 or http://collector.namespace:4318")
			return
		}
	}
	c.portable(field, value)
}

// portable refuses what OpenTelemetry's loaders would read differently.
func (c *checker) portable(field, value string) {
	if !scalar.Portable(value) {
		c.error("identity/dollar", field, "the value holds a dollar sign or a brace that OpenTelemetry's loaders do not agree on",
			"leave out $$, ${ without a variable's name, and { that is not closed")
	}
}

func validPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= 65535
}

func (c *checker) port(field string, dst, src *int) {
	if src == nil {
		return
	}
	c.portNumber(field, *src)
	*dst = *src
}

func (c *checker) portNumber(field string, n int) {
	if n < 1 || n > 65535 {
		c.error("identity/bad-port", field, fmt.Sprintf("%d is not a port", n), "use 1 to 65535")
	}
}

func (c *checker) ports(field string, ns []int) {
	for i, n := range ns {
		c.portNumber(indexed(field, i), n)
	}
}

func (c *checker) uid(field string, n int) {
	switch {
	case n == 0:
		c.error("identity/bad-uid", field, "the proxies must not run as root, and root's traffic must not bypass them",
			"use an ID of the proxies' own, such as 1337")
	case n == HelperUID:
		c.error("identity/bad-uid", field, "1000 is the user of spiffe-helper and client-registration, and of many applications, whose traffic would pass the proxies by",
			"use an ID of the proxies' own, such as 1337")
	case n < 0 || n > 1<<31-1:
		c.error("identity/bad-uid", field, fmt.Sprintf("%d is not a user ID", n), "use an ID of the proxies' own, such as 1337")
	}
}

func (c *checker) trustDomain(field, value string) {
	if !c.text(field, value) {
		return
	}
	// SPIFFE ID, section 2.1.
	for _, r := range value {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_' {
			c.error("identity/bad-trust-domain", field, fmt.Sprintf("%q is not a SPIFFE trust domain", krm.Shown(value)),
				"use lower-case letters, digits, dots, dashes and underscores, without spiffe://")
			return
		}
	}
	if len(value) > 255 {
		c.error("identity/bad-trust-domain", field, "the trust domain has more than 255 characters", "")
	}
}

// socket gives the plain path of a socket.
func (c *checker) socket(field, value string) string {
	p := strings.TrimPrefix(value, "unix://")
	if !c.text(field, value) {
		return p
	}
	dir := path.Dir(p)
	switch {
	case !path.IsAbs(p), p != path.Clean(p), strings.Contains(p, ":"):
		c.error("identity/bad-socket", field, fmt.Sprintf("%q is not the absolute path of a socket", krm.Shown(value)),
			"write it as /run/spire/agent-sockets/agent.sock or unix:///run/spire/agent-sockets/agent.sock")
	case dir == "/", dir == "/etc", dir == "/run", dir == "/tmp", dir == "/shared", dir == "/opt", dir == "/dev", dir == "/proc", dir == "/sys":
		c.error("identity/bad-socket", field, "the socket's directory "+dir+" is mounted over the container's own",
			"put the socket into a directory of its own")
	}
	return p
}

func (c *checker) realm(field, value string) {
	if c.text(field, value) && strings.ContainsAny(value, "/?#%\\ ") {
		c.error("identity/bad-realm", field, fmt.Sprintf("%q is not a realm's name", krm.Shown(value)), "write the name only, without the URL")
	}
}

func (c *checker) secretName(field, value string) {
	if value == "" {
		c.error("identity/secret-missing", field, "client-registration needs the Keycloak administrator's credentials",
			"name a Secret with the keys KEYCLOAK_ADMIN_USERNAME and KEYCLOAK_ADMIN_PASSWORD")
		return
	}
	if !ValidName(value) {
		c.error("identity/bad-secret-name", field, "this is not the name of a Secret", // and perhaps what is in one
			"use lower-case letters, digits, dashes and dots")
	}
}

func (c *checker) prefixName(field, value string) bool {
	if !ValidName(value) {
		c.error("identity/bad-prefix", field, fmt.Sprintf("%q is not a label prefix", krm.Shown(value)), "write it as kagenti.io")
		return false
	}
	return true
}

// ValidName reports whether s is a DNS-1123 subdomain, as the names of objects are.
func ValidName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, r := range label {
			if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
				return false
			}
		}
	}
	return true
}

func (c *checker) clientName(field, value string) {
	if !c.text(field, value) {
		return
	}
	for rest := value; ; {
		_, after, found := strings.Cut(rest, "{{")
		if !found {
			return
		}
		inner, tail, closed := strings.Cut(after, "}}")
		name := strings.TrimSpace(inner)
		if !closed || !slices.Contains(ClientNameVariables(), strings.TrimPrefix(name, ".")) || !strings.HasPrefix(name, ".") {
			c.error("identity/bad-client-name", field, fmt.Sprintf("%q holds an unknown placeholder", krm.Shown(value)),
				"use {{."+strings.Join(ClientNameVariables(), "}}, {{.")+"}}")
			return
		}
		rest = tail
	}
}

// ClientNameVariables are the placeholders of a client name.
func ClientNameVariables() []string {
	return []string{"PodName", "PodNamespace", "PodIP", "NodeName", "ServiceAccount", "WorkloadName", "WorkloadKind"}
}

func (c *checker) roleARN(field, value string) {
	parts := strings.Split(value, ":")
	if len(parts) != 6 || parts[0] != "arn" || parts[2] != "iam" || !strings.HasPrefix(parts[5], "role/") || strings.ContainsAny(value, " \n\r\t") {
		c.error("identity/bad-role-arn", field, fmt.Sprintf("%q is not the ARN of an IAM role", krm.Shown(value)),
			"write it as arn:aws:iam::123456789012:role/name")
	}
}

// gcpProvider gives a workload identity provider's full resource name.
func (c *checker) gcpProvider(field, value string) string {
	const host = "//iam.googleapis.com/"
	name := strings.TrimPrefix(strings.TrimPrefix(value, "https:"), host)
	parts := strings.Split(name, "/")
	if len(parts) != 8 || parts[0] != "projects" || parts[2] != "locations" ||
		parts[4] != "workloadIdentityPools" || parts[6] != "providers" || slices.Contains(parts, "") || strings.ContainsAny(name, " \n\r\t\"") {
		c.error("identity/bad-provider-name", field, fmt.Sprintf("%q is not a workload identity provider", krm.Shown(value)),
			"write it as projects/123/locations/global/workloadIdentityPools/pool/providers/provider")
	}
	return host + name
}

func (c *checker) scopes(field string, scopes []string) {
	for i, s := range scopes {
		// RFC 6749, section 3.3.
		if s == "" || strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) >= 0 {
			c.error("identity/bad-scope", indexed(field, i), fmt.Sprintf("%q is not an OAuth scope", krm.Shown(s)),
				"use printable ASCII without spaces, quotes and backslashes, one scope per item")
		}
	}
}

func (c *checker) bypassPath(field, p string) {
	if !c.text(field, p) {
		return
	}
	if _, err := path.Match(p, "/"); err != nil || p[0] != '/' || strings.Contains(p, ",") {
		c.error("identity/bad-path", field, fmt.Sprintf("%q is not a path pattern", krm.Shown(p)),
			"begin with /, use * for anything but /, and no commas")
	}
}

func (c *checker) path(field, p string) {
	if c.text(field, p) && p[0] != '/' {
		c.error("identity/bad-path", field, fmt.Sprintf("%q is not a path", krm.Shown(p)), "begin with /")
	}
}

func (c *checker) hostGlob(field, host string) {
	if !c.text(field, host) {
		return
	}
	colons := strings.Count(host, ":")
	switch {
	case strings.Contains(host, "/") || strings.ContainsAny(host, " @"):
		c.error("identity/bad-host", field, fmt.Sprintf("%q is not a host", krm.Shown(host)), "write the host only, without scheme and path")
	case colons == 1:
		c.error("identity/bad-host", field, fmt.Sprintf("%q holds a port, and hosts are matched without it", krm.Shown(host)), "leave the port out")
	case strings.Count(host, "{") != strings.Count(host, "}") || strings.Count(host, "[") != strings.Count(host, "]") || strings.HasSuffix(host, `\`):
		c.error("identity/bad-host", field, fmt.Sprintf("%q is not a complete pattern", krm.Shown(host)), "close each brace and bracket")
	}
}

func (c *checker) attribute(field, name, value string) {
	at := field + "[" + strconv.Quote(name) + "]"
	if !c.text(at, name) {
		return
	}
	c.portable(at, name)
	c.portable(at, value)
}

// rate gives the share in a notation that every YAML reader takes for a number.
func (c *checker) rate(field, value string) string {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		c.error("identity/sampling-rate", field, krm.Shown(value)+" is not a share of traces", "use a number from 0 to 1")
		return "0"
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

func (c *checker) image(field, value string) {
	if c.text(field, value) && !IsImage(value) {
		c.error("identity/bad-image", field, fmt.Sprintf("%q is not an image", krm.Shown(value)), "write it as registry/name:tag or registry/name@sha256:…")
	}
}

// IsImage reports whether a text may be the reference of an image. It leaves the
// finer points to the registries.
func IsImage(text string) bool { return text != "" && !strings.ContainsAny(text, " \t\n\"'\\") }

func (c *checker) quantity(field string, dst *string, src *api.Quantity) {
	if src == nil {
		return
	}
	*dst = string(*src)
	if *src != "" && !isQuantity(string(*src)) {
		c.error("identity/bad-quantity", field, fmt.Sprintf("%q is not a quantity", krm.Shown(string(*src))), "write it as 100m or 64Mi")
	}
}

// isQuantity reports whether s is a positive Kubernetes quantity.
func isQuantity(s string) bool {
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	number, suffix := s, ""
	if end >= 0 {
		number, suffix = s[:end], s[end:]
	}
	if number == "" || number == "." || strings.Count(number, ".") > 1 {
		return false
	}
	if len(suffix) > 1 && (suffix[0] == 'e' || suffix[0] == 'E') {
		if _, err := strconv.Atoi(suffix[1:]); err == nil {
			return true
		}
	}
	switch suffix {
	case "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei":
		return true
	}
	return false
}

// resources finds components that request more than their limit, of those that
// differ from than; nil is all of them.
func (c *checker) resources(s, than *Settings, annotations []Annotation) {
	origin := c.origin
	defer func() { c.origin = origin }()
	for _, name := range Components() {
		x := s.Component(name)
		if !x.Enabled || than != nil && *x == *than.Component(name) {
			continue
		}
		for _, r := range [...]struct{ what, request, limit, requestSuffix, limitSuffix string }{
			{"cpu", x.CPURequest, x.CPULimit, cpuRequestSuffix, cpuLimitSuffix},
			{"memory", x.MemoryRequest, x.MemoryLimit, memoryRequestSuffix, memoryLimitSuffix},
		} {
			request, err1 := quantity.Parse(r.request)
			limit, err2 := quantity.Parse(r.limit)
			if err1 != nil || err2 != nil || request.Cmp(limit) <= 0 {
				continue
			}
			field := "components." + name + ".resources.requests." + r.what
			for _, a := range annotations {
				if key := strings.TrimPrefix(a.Key, s.Prefix+"/"); key == name+r.requestSuffix || key == name+r.limitSuffix {
					field, c.origin = a.Field+"["+strconv.Quote(a.Key)+"]", &api.Origin{File: origin.File, Line: a.Line}
				}
			}
			c.error("identity/request-over-limit", field,
				fmt.Sprintf("%s requests %s of %s and may use %s: Kubernetes refuses such a pod", name, r.request, r.what, r.limit),
				fmt.Sprintf("change the other one too, for one workload with %s/%s and %s/%s", s.Prefix, name+r.requestSuffix, s.Prefix, name+r.limitSuffix))
		}
	}
}

// exclude checks the globs of files.
func (c *checker) exclude(globs []string) {
	for i, g := range globs {
		_, err := path.Match(strings.ReplaceAll(g, "**", "*"), "")
		if err != nil || g == "" || g[0] == '/' || strings.HasPrefix(g, "./") || strings.HasPrefix(g, "../") {
			c.error("identity/bad-glob", indexed("exclude", i), fmt.Sprintf("%q matches no file", krm.Shown(g)),
				"write a path relative to the package, where * matches anything but /, and ** any folders: charts/**")
		}
	}
}

// place is "file:line".
func place(o api.Origin) string {
	if o.File == "" {
		return ""
	}
	return o.File + ":" + strconv.Itoa(o.Line)
}
