package identity

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/internal/quantity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/text"
)

// Checker collects what is wrong with values of one object.
type Checker struct {
	origin *api.Origin
	object finding.Ref
	// By is the kind of input. It says where the object has the field of a setting.
	By       Input
	findings []finding.Finding
}

// Add reports what is wrong with the value of a setting.
func (c *Checker) Add(severity finding.Severity, rule, field, message, hint string) {
	field = c.By.field(field)
	c.findings = append(c.findings, finding.Finding{
		Rule: rule, Severity: severity, Message: message, Hint: hint,
		Place: finding.Place{File: c.origin.File, Line: c.origin.LineOf(field), Field: field,
			Object: c.object},
	})
}

// Error reports an error.
func (c *Checker) Error(rule, field, message, hint string) {
	c.Add(finding.Error, rule, field, message, hint)
}

// Warning reports a warning.
func (c *Checker) Warning(rule, field, message, hint string) {
	c.Add(finding.Warning, rule, field, message, hint)
}

// OtherProfile reports a key that the profile does not have.
func (c *Checker) OtherProfile(s *Settings, field, key string) {
	c.Error("identity/other-profile", field, fmt.Sprintf("the profile %s has no %s", s.Profile.Name,
		key),
		"remove it, or set spec.profile to one that has it")
}

// needless says once for an input which of its fields the profile does without.
func (c *Checker) needless(s *Settings, fields []string) {
	if len(fields) == 0 {
		return
	}
	what := s.Profile.Name
	if s.Profile.Rules.Unread != nil {
		what += " in the mode " + s.AuthBridge.Mode
	}
	c.Add(finding.Info, "identity/needless", fields[0],
		fmt.Sprintf("the profile %s does not need %s", what, strings.Join(fields, ", ")), "")
}

// Has reports whether the input sets a field.
func (c *Checker) Has(field string) bool { return c.origin.Has(c.By.field(field)) }

// OneOf reports a value that is not among the allowed ones.
func (c *Checker) OneOf(field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.Error("identity/unknown-value", field,
			fmt.Sprintf("%q is not supported", text.Shown(value)),
			"use one of: "+strings.Join(allowed, ", "))
	}
}

// text takes anything that fits on one line.
func checkText(c *Checker, field, value string) bool {
	if value == "" {
		c.Error("identity/empty", field, "an empty value",
			"set a value, or leave the field out for the default")
		return false
	}
	if i := strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		c.Error("identity/control-character", field,
			"the value holds a line break or another control character",
			"write it on one line")
		return false
	}
	return true
}

func checkURL(c *Checker, field, value string) {
	if !checkText(c, field, value) {
		return
	}
	u, err := url.Parse(value)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "",
		strings.ContainsAny(value, " "):
		c.Error("identity/bad-url", field, "this is not an http or https URL",
			remedy(value, "write it as http://host:port/path"))
	case u.User != nil:
		c.Error("identity/secret-in-url", field, "the URL holds a user name or password",
			"keep credentials in a Secret; see adminCredentialsSecret")
	case u.Port() != "" && !validPort(u.Port()):
		c.Error("identity/bad-port", field, u.Port()+" is not a port", "use 1 to 65535")
	}
}

// remedy says how to correct a value: by a hint, unless it has a variable that is replaced
// too late.
func remedy(value, hint string) string {
	if strings.Contains(value, "${") {
		return "a render reads it before Flux or another program replaces the variable: write " +
			"the value, or replace it before the render"
	}
	return hint
}

// endpoint takes host:port or a URL.
func checkEndpoint(c *Checker, field, value string) {
	if strings.Contains(value, "://") {
		checkURL(c, field, value)
	} else if checkText(c, field, value) {
		// What is true of the host and port of a URL is true of them alone.
		u, err := url.Parse("http://" + value)
		if err != nil || u.Host != value || u.Hostname() == "" || !validPort(u.Port()) ||
			strings.Contains(value, " ") {
			c.Error("identity/bad-endpoint", field, "the endpoint is neither host:port nor a URL",
				"write it as collector.namespace:4317 or http://collector.namespace:4318")
			return
		}
	}
	checkPortable(c, field, value)
}

// portable refuses what OpenTelemetry's loaders would read differently.
func checkPortable(c *Checker, field, value string) {
	if !scalar.Portable(value) {
		c.Error("identity/dollar", field,
			"the value holds a dollar sign or a brace that OpenTelemetry's loaders interpret "+
				"differently",
			"leave out $$, ${ without a variable's name, and { that is not closed")
	}
}

func validPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= 65535
}

func checkPort(c *Checker, field string, n int) {
	if n < 1 || n > 65535 {
		c.Error("identity/bad-port", field, fmt.Sprintf("%d is not a port", n), "use 1 to 65535")
	}
}

func checkUID(c *Checker, field string, n int) {
	switch {
	case n == 0:
		c.Error("identity/bad-uid", field,
			"the proxies must not run as root, and root's traffic must not bypass them",
			"use an ID that only the proxies have, such as 1337")
	case n == HelperUID:
		c.Error("identity/bad-uid", field,
			"1000 is the user of spiffe-helper and client-registration, "+
				"and of many applications, whose traffic would bypass the proxies",
			"use an ID that only the proxies have, such as 1337")
	case n < 0 || n > 1<<31-1:
		c.Error("identity/bad-uid", field, fmt.Sprintf("%d is not a user ID", n),
			"use an ID that only the proxies have, such as 1337")
	}
}

func checkTrustDomain(c *Checker, field, value string) {
	if !checkText(c, field, value) {
		return
	}
	// SPIFFE ID, section 2.1.
	for _, r := range value {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_' {
			c.Error("identity/bad-trust-domain", field,
				fmt.Sprintf("%q is not a SPIFFE trust domain", text.Shown(value)),
				"use lower-case letters, digits, dots, dashes and underscores, without spiffe://")
			return
		}
	}
	if len(value) > 255 {
		c.Error("identity/bad-trust-domain", field, "the trust domain has more than 255 characters", "")
	}
}

func checkSocket(c *Checker, field, value string) {
	if !checkText(c, field, value) {
		return
	}
	p := strings.TrimPrefix(value, "unix://")
	dir := path.Dir(p)
	switch {
	case !path.IsAbs(p), p != path.Clean(p), strings.Contains(p, ":"):
		c.Error("identity/bad-socket", field,
			fmt.Sprintf("%q is not the absolute path of a socket", text.Shown(value)),
			"write it as /run/spire/agent-sockets/agent.sock or "+
				"unix:///run/spire/agent-sockets/agent.sock")
	case dir == "/", dir == "/etc", dir == "/run", dir == "/tmp", dir == "/shared", dir == "/opt",
		dir == "/dev", dir == "/proc", dir == "/sys":
		c.Error("identity/bad-socket", field,
			"the socket's directory "+dir+" would hide a directory of "+
				"the container",
			"put the socket into a directory of its own")
	}
}

func checkRealm(c *Checker, field, value string) {
	if checkText(c, field, value) && strings.ContainsAny(value, "/?#%\\ ") {
		c.Error("identity/bad-realm", field,
			fmt.Sprintf("%q is not a realm's name", text.Shown(value)),
			"write the name only, without the URL")
	}
}

func checkSecretName(c *Checker, field, value string) {
	if value == "" {
		c.Error("identity/secret-missing", field,
			"client-registration needs the Keycloak administrator's credentials",
			"name a Secret with the keys KEYCLOAK_ADMIN_USERNAME and KEYCLOAK_ADMIN_PASSWORD")
		return
	}
	if !ValidName(value) {
		// and perhaps what is in one
		c.Error("identity/bad-secret-name", field, "this is not the name of a Secret",
			"use lower-case letters, digits, dashes and dots")
	}
}

func checkPrefix(c *Checker, field, value string) bool {
	if !ValidName(value) {
		c.Error("identity/bad-prefix", field,
			fmt.Sprintf("%q is not a label prefix", text.Shown(value)), "write it as kagenti.io")
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

func checkClientName(c *Checker, field, value string) {
	if !checkText(c, field, value) {
		return
	}
	for rest := value; ; {
		_, after, found := strings.Cut(rest, "{{")
		if !found {
			return
		}
		inner, tail, closed := strings.Cut(after, "}}")
		name := strings.TrimSpace(inner)
		if !closed || !slices.Contains(ClientNameVariables(), strings.TrimPrefix(name, ".")) ||
			!strings.HasPrefix(name, ".") {
			c.Error("identity/bad-client-name", field,
				fmt.Sprintf("%q holds an unknown placeholder", text.Shown(value)),
				"use {{."+strings.Join(ClientNameVariables(), "}}, {{.")+"}}")
			return
		}
		rest = tail
	}
}

// ClientNameVariables are the placeholders of a client name.
func ClientNameVariables() []string {
	return []string{"PodName", "PodNamespace", "PodIP", "NodeName", "ServiceAccount",
		"WorkloadName", "WorkloadKind"}
}

func checkRoleARN(c *Checker, field, value string) {
	parts := strings.Split(value, ":")
	if len(parts) != 6 || parts[0] != "arn" || parts[2] != "iam" ||
		!strings.HasPrefix(parts[5], "role/") ||
		strings.ContainsAny(value, " \n\r\t") {
		c.Error("identity/bad-role-arn", field,
			fmt.Sprintf("%q is not the ARN of an IAM role", text.Shown(value)),
			"write it as arn:aws:iam::123456789012:role/name")
	}
}

func checkGCPProvider(c *Checker, field, value string) {
	name := strings.TrimPrefix(strings.TrimPrefix(value, "https:"), googleIAM)
	parts := strings.Split(name, "/")
	if len(parts) != 8 || parts[0] != "projects" || parts[2] != "locations" ||
		parts[4] != "workloadIdentityPools" || parts[6] != "providers" ||
		slices.Contains(parts, "") ||
		strings.ContainsAny(name, " \n\r\t\"") {
		c.Error("identity/bad-provider-name", field,
			fmt.Sprintf("%q is not a workload identity provider", text.Shown(value)),
			"write it as "+
				"projects/123/locations/global/workloadIdentityPools/pool/providers/provider")
	}
}

func checkScope(c *Checker, field, scope string) {
	// RFC 6749, section 3.3.
	if scope == "" ||
		strings.IndexFunc(scope,
			func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) >= 0 {
		c.Error("identity/bad-scope", field,
			fmt.Sprintf("%q is not an OAuth scope", text.Shown(scope)),
			"use printable ASCII without spaces, quotes and backslashes, one scope per item")
	}
}

func checkBypassPath(c *Checker, field, p string) {
	if !checkText(c, field, p) {
		return
	}
	if _, err := path.Match(p, "/"); err != nil || p[0] != '/' || strings.Contains(p, ",") {
		c.Error("identity/bad-path", field, fmt.Sprintf("%q is not a path pattern", text.Shown(p)),
			"begin with /, use * for anything but /, and no commas")
	} else if strings.Contains(p, "**") {
		c.Warning("identity/bad-path", field,
			fmt.Sprintf("** in %q is the same as *, which does not "+
				"match a slash", text.Shown(p)),
			"write a pattern for each level, such as /static/* and /static/*/*")
	}
}

func checkPath(c *Checker, field, p string) {
	if checkText(c, field, p) && p[0] != '/' {
		c.Error("identity/bad-path", field, fmt.Sprintf("%q is not a path", text.Shown(p)),
			"begin with /")
	}
}

func checkHost(c *Checker, field, host string) {
	if !checkText(c, field, host) {
		return
	}
	colons := strings.Count(host, ":")
	switch {
	case strings.Contains(host, "/") || strings.ContainsAny(host, " @"):
		c.Error("identity/bad-host", field, fmt.Sprintf("%q is not a host", text.Shown(host)),
			"write the host only, without scheme and path")
	case colons == 1:
		c.Error("identity/bad-host", field,
			fmt.Sprintf("%q holds a port, and hosts are matched without ports", text.Shown(host)),
			"leave the port out")
	case strings.Count(host, "{") != strings.Count(host, "}") ||
		strings.Count(host, "[") != strings.Count(host, "]") || strings.HasSuffix(host, `\`):
		c.Error("identity/bad-host", field,
			fmt.Sprintf("%q is not a complete pattern", text.Shown(host)),
			"close each brace and bracket")
	}
}

func checkNoProxy(c *Checker, field, host string) {
	if checkText(c, field, host) && strings.ContainsAny(host, ` ,"\$`) {
		c.Error("identity/bad-host", field,
			fmt.Sprintf("%q is not a host of NO_PROXY", text.Shown(host)),
			"write a host, a domain such as .example.com, or a range of addresses")
	}
}

func checkRate(c *Checker, field, value string) {
	if f, err := strconv.ParseFloat(value, 64); err != nil || !(f >= 0 && f <= 1) {
		c.Error("identity/sampling-rate", field, text.Shown(value)+" is not a share of traces",
			"use a number from 0 to 1")
	}
}

func checkImage(c *Checker, field, value string) {
	if checkText(c, field, value) && !IsImage(value) {
		c.Error("identity/bad-image", field, fmt.Sprintf("%q is not an image", text.Shown(value)),
			"write it as registry/name:tag or registry/name@sha256:…")
	}
}

// IsImage reports whether a text may be the reference of an image. It leaves the
// finer points to the registries.
func IsImage(text string) bool { return text != "" && !strings.ContainsAny(text, " \t\n\"'\\") }

func checkQuantity(c *Checker, field, value string) {
	if _, err := quantity.Parse(value); value != "" && err != nil {
		c.Error("identity/bad-quantity", field,
			fmt.Sprintf("%q is not a quantity", text.Shown(value)), "write it as 100m or 64Mi")
	}
}

// resources finds components that request more than their limit, of those that
// differ from than; nil is all of them.
func checkResources(c *Checker, s, than *Settings, annotations []Annotation) {
	origin := c.origin
	defer func() { c.origin = origin }()
	for i := range s.Profile.Sidecars {
		name, x := s.Profile.Sidecars[i].Name, &s.Components[i]
		if !x.Enabled || than != nil && *x == than.Components[i] {
			continue
		}
		for _, r := range [...]struct{ what, request, limit string }{{"cpu", x.CPURequest,
			x.CPULimit},
			{"memory", x.MemoryRequest, x.MemoryLimit}} {
			request, err1 := quantity.Parse(r.request)
			limit, err2 := quantity.Parse(r.limit)
			if err1 != nil || err2 != nil || request.Cmp(limit) <= 0 {
				continue
			}
			field := "components." + name + ".resources.requests." + r.what
			annotation := s.Prefix + "/" + name + "-" + r.what
			for _, a := range annotations {
				if a.Key == annotation+"-request" || a.Key == annotation+"-limit" {
					field, c.origin = a.Field+"["+strconv.Quote(a.Key)+"]",
						&api.Origin{File: origin.File, Line: a.Line}
				}
			}
			c.Error("identity/request-over-limit", field,
				fmt.Sprintf(
					"%s requests %s of %s and its limit is %s: Kubernetes refuses such a pod", name,
					r.request, r.what, r.limit),
				fmt.Sprintf(
					"change the other one too, for one workload with %s-request and %s-limit",
					annotation, annotation))
		}
	}
}

// exclude checks the globs of files.
func checkExclude(c *Checker, globs []string) {
	for i, g := range globs {
		_, err := path.Match(strings.ReplaceAll(g, "**", "*"), "")
		if err != nil || g == "" || g[0] == '/' || strings.HasPrefix(g, "./") ||
			strings.HasPrefix(g, "../") {
			c.Error("identity/bad-glob", indexed("exclude", i),
				fmt.Sprintf("%q matches no file", text.Shown(g)),
				"write a path relative to the package, where * matches anything but /, and ** "+
					"any folders: charts/**")
		}
	}
}
