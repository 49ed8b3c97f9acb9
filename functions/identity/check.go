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

// Checker collects the findings about the values of one object.
type Checker struct {
	origin *api.Origin
	object finding.Ref
	// By is the kind of input, which determines the path of a setting's field in the object.
	By       Input
	findings []finding.Finding
}

// Add adds a finding about the value of a setting.
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
	c.Error("identity/other-profile", field,
		fmt.Sprintf("the profile %s has no %s", s.Profile.Name, key),
		"remove it, or set spec.profile to one that has it")
}

// needless reports, once for an input, the fields that the profile does not need.
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

// check reports faults of a value and returns whether it is right.
type check func(c *Checker, field, value string) (right bool)

// fault is a forbidden property of a value. In the message, %q and %s are the value, and %d is the
// directory of a socket.
type fault struct {
	rule          string
	is            func(value string) bool
	message, hint string
}

// forbid returns a check that reports the first of its faults.
func forbid(faults ...fault) check {
	return func(c *Checker, field, value string) bool {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.is(value) })
		if i < 0 {
			return true
		}
		shown := text.Shown(value)
		message := strings.NewReplacer("%q", strconv.Quote(shown), "%s", shown, "%d",
			path.Dir(socketPath(value))).Replace(faults[i].message)
		c.Error("identity/"+faults[i].rule, field, message, faults[i].hint)
		return false
	}
}

// checkText accepts any text on one line that is not empty.
var checkText = forbid(
	fault{"empty", func(v string) bool { return v == "" }, "an empty value",
		"set a value, or leave the field out for the default"},
	fault{"control-character", func(v string) bool {
		return strings.IndexFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0
	}, "the value holds a line break or another control character", "write it on one line"})

// line forbids the faults of checkText and further ones.
func line(faults ...fault) check {
	more := forbid(faults...)
	return func(c *Checker, field, value string) bool {
		return checkText(c, field, value) && more(c, field, value)
	}
}

// has returns a condition that holds for texts with one of the characters.
func has(characters string) func(string) bool {
	return func(v string) bool { return strings.ContainsAny(v, characters) }
}

// beyond returns a condition that holds for texts that begin or end with another character.

func beyond(characters string) func(string) bool {
	return func(v string) bool { return strings.Trim(v, characters) != "" }
}

// number returns a condition of a whole number.
func number(is func(n int) bool) func(string) bool {
	return func(v string) bool {
		n, err := strconv.Atoi(v)
		return err != nil || is(n)
	}
}

// not negates a condition.
func not(is func(string) bool) func(string) bool {
	return func(v string) bool { return !is(v) }
}

const (
	lowerCase = "abcdefghijklmnopqrstuvwxyz0123456789"
	proxyUser = "use an ID that only the proxies have, such as 1337"
)

// checks are the checks that rows of settings.yaml name.
var checks = map[string]check{
	"": checkText, "url": checkURL, "scope": checkScope,

	"image": line(fault{"bad-image", not(IsImage), "%q is not an image",
		"write it as registry/name:tag or registry/name@sha256:…"}),
	"path": line(fault{"bad-path", func(v string) bool { return v[0] != '/' },
		"%q is not a path", "begin with /"}),
	"port": forbid(fault{"bad-port", not(validPort), "%s is not a port", "use 1 to 65535"}),
	"quantity": forbid(fault{"bad-quantity", func(v string) bool {
		_, err := quantity.Parse(v)
		return v != "" && err != nil
	}, "%q is not a quantity", "write it as 100m or 64Mi"}),
	"rate": forbid(fault{"sampling-rate", func(v string) bool {
		f, err := strconv.ParseFloat(v, 64)
		return err != nil || !(f >= 0 && f <= 1)
	}, "%s is not a share of traces", "use a number from 0 to 1"}),
	"realm": line(fault{"bad-realm", has("/?#%\\ "), "%q is not a realm's name",
		"write the name only, without the URL"}),
	"noProxy": line(fault{"bad-host", has(` ,"\$`), "%q is not a host of NO_PROXY",
		"write a host, a domain such as .example.com, or a range of addresses"}),
	"secretName": forbid(
		fault{"secret-missing", func(v string) bool { return v == "" },
			"client-registration needs the Keycloak administrator's credentials",
			"name a Secret with the keys KEYCLOAK_ADMIN_USERNAME and KEYCLOAK_ADMIN_PASSWORD"},
		fault{"bad-secret-name", not(ValidName), "this is not the name of a Secret",
			"use lower-case letters, digits, dashes and dots"}), // the message may not quote a secret
	"uid": forbid(
		fault{"bad-uid", number(func(n int) bool { return n == 0 }),
			"the proxies must not run as root, and root's traffic must not bypass them", proxyUser},
		fault{"bad-uid", number(func(n int) bool { return n == HelperUID }),
			"1000 is the user of spiffe-helper and client-registration, and of many " +
				"applications, whose traffic would bypass the proxies", proxyUser},
		fault{"bad-uid", number(func(n int) bool { return n < 0 || n > 1<<31-1 }),
			"%s is not a user ID", proxyUser}),

	// SPIFFE ID, section 2.1.
	"trustDomain": line(
		fault{"bad-trust-domain", beyond(lowerCase + ".-_"), "%q is not a SPIFFE trust domain",
			"use lower-case letters, digits, dots, dashes and underscores, without spiffe://"},
		fault{"bad-trust-domain", func(v string) bool { return len(v) > 255 },
			"the trust domain has more than 255 characters", ""}),
	"socket": line(
		fault{"bad-socket", func(v string) bool {
			p := socketPath(v)
			return !path.IsAbs(p) || p != path.Clean(p) || strings.Contains(p, ":")
		}, "%q is not the absolute path of a socket", "write it as " +
			"/run/spire/agent-sockets/agent.sock or unix:///run/spire/agent-sockets/agent.sock"},
		fault{"bad-socket", func(v string) bool {
			return slices.Contains([]string{"/", "/etc", "/run", "/tmp", "/shared", "/opt", "/dev",
				"/proc", "/sys"}, path.Dir(socketPath(v)))
		}, "the socket's directory %d would hide a directory of the container",
			"put the socket into a directory of its own"}),
	"roleARN": forbid(fault{"bad-role-arn", func(v string) bool {
		parts := strings.Split(v, ":")
		return len(parts) != 6 || parts[0] != "arn" || parts[2] != "iam" ||
			!strings.HasPrefix(parts[5], "role/") || strings.ContainsAny(v, " \n\r\t")
	}, "%q is not the ARN of an IAM role", "write it as arn:aws:iam::123456789012:role/name"}),
	"gcpProvider": forbid(fault{"bad-provider-name", func(v string) bool {
		name := providerName(v)
		parts := strings.Split(name, "/")
		return len(parts) != 8 || parts[0] != "projects" || parts[2] != "locations" ||
			parts[4] != "workloadIdentityPools" || parts[6] != "providers" ||
			slices.Contains(parts, "") || strings.ContainsAny(name, " \n\r\t\"")
	}, "%q is not a workload identity provider", "write it as " +
		"projects/123/locations/global/workloadIdentityPools/pool/providers/provider"}),
	"clientName": line(fault{"bad-client-name", func(v string) bool {
		return slices.ContainsFunc(strings.Split(v, "{{")[1:], func(after string) bool {
			inner, _, closed := strings.Cut(after, "}}")
			name, dotted := strings.CutPrefix(strings.TrimSpace(inner), ".")
			return !closed || !dotted || !slices.Contains(clientNameVariables, name)
		})
	}, "%q holds an unknown placeholder",
		"use {{." + strings.Join(clientNameVariables, "}}, {{.") + "}}"}),

	"bypassPath": func(c *Checker, field, value string) bool {
		if !pathPattern(c, field, value) {
			return false
		}
		if strings.Contains(value, "**") {
			c.Warning("identity/bad-path", field,
				fmt.Sprintf("** in %q is the same as *, which does not match a slash",
					text.Shown(value)),
				"write a pattern for each level, such as /static/* and /static/*/*")
		}
		return true
	},
}

// Checks of items of lists and of fields of the RenderConfig.
var (
	pathPattern = line(fault{"bad-path", func(v string) bool {
		_, err := path.Match(v, "/")
		return err != nil || v[0] != '/' || strings.Contains(v, ",")
	}, "%q is not a path pattern", "begin with /, use * for anything but /, and no commas"})
	checkPrefix = forbid(fault{"bad-prefix", not(ValidName), "%q is not a label prefix",
		"write it as kagenti.io"})
	// RFC 6749, section 3.3.
	checkScope = forbid(fault{"bad-scope", func(v string) bool {
		return v == "" || strings.IndexFunc(v,
			func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) >= 0
	}, "%q is not an OAuth scope",
		"use printable ASCII without spaces, quotes and backslashes, one scope per item"})
	checkHost = line(
		fault{"bad-host", has("/ @"), "%q is not a host",
			"write the host only, without scheme and path"},
		fault{"bad-host", func(v string) bool { return strings.Count(v, ":") == 1 },
			"%q holds a port, and hosts are matched without ports", "leave the port out"},
		fault{"bad-host", func(v string) bool {
			return strings.Count(v, "{") != strings.Count(v, "}") ||
				strings.Count(v, "[") != strings.Count(v, "]") || strings.HasSuffix(v, `\`)
		}, "%q is not a complete pattern", "close each brace and bracket"})
	// checkPortable refuses texts that OpenTelemetry's loaders read differently.
	checkPortable = forbid(fault{"dollar", not(scalar.Portable),
		"the value holds a dollar sign or a brace that OpenTelemetry's loaders interpret " +
			"differently",
		"leave out $$, ${ without a variable's name, and { that is not closed"})
	checkHostPort = forbid(fault{"bad-endpoint", func(v string) bool {
		// A host and port are valid alone if they are valid in a URL.
		u, err := url.Parse("http://" + v)
		return err != nil || u.Host != v || u.Hostname() == "" || !validPort(u.Port()) ||
			strings.Contains(v, " ")
	}, "the endpoint is neither host:port nor a URL",
		"write it as collector.namespace:4317 or http://collector.namespace:4318"})
)

func checkURL(c *Checker, field, value string) bool {
	if !checkText(c, field, value) {
		return false
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
	default:
		return true
	}
	return false
}

// remedy returns the hint about a value, unless it has a variable that is replaced too late.
func remedy(value, hint string) string {
	if strings.Contains(value, "${") {
		return "a render reads it before Flux or another program replaces the variable: write " +
			"the value, or replace it before the render"
	}
	return hint
}

// checkEndpoint checks host:port or a URL.
func checkEndpoint(c *Checker, field, value string) {
	if strings.Contains(value, "://") {
		checkURL(c, field, value)
	} else if checkText(c, field, value) && !checkHostPort(c, field, value) {
		return
	}
	checkPortable(c, field, value)
}

// socketPath returns the path of a socket without its optional scheme.
func socketPath(value string) string { return strings.TrimPrefix(value, "unix://") }

// clientNameVariables are the placeholders of a client name.
var clientNameVariables = []string{"PodName", "PodNamespace", "PodIP", "NodeName",
	"ServiceAccount", "WorkloadName", "WorkloadKind"}

func validPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= 65535
}

// ValidName reports whether s is a DNS-1123 subdomain, as the names of objects are.
func ValidName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, lowerCase+"-") != "" {
			return false
		}
	}
	return true
}

// IsImage reports whether a text may be the reference of an image. Registries check the rest.
func IsImage(text string) bool { return text != "" && !strings.ContainsAny(text, " \t\n\"'\\") }

// checkResources reports components that request more than their limit. It skips components that
// equal those of than; nil skips none.
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

// checkExclude checks the globs of files.
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
