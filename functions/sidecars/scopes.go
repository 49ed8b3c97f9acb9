package sidecars

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// Required scopes are demanded by Envoy itself, because no published program
// looks at a token's scopes. Behind the token processor, which has refused bad
// tokens already, Envoy verifies the token once more in order to read its claims
// and lets a request pass only with all scopes, or on a path that needs no token.

// lines appends text with each line indented, and with what the caller puts in
// between.
type lines struct {
	dst    []byte
	indent string
}

func (l *lines) add(text string) {
	for line := range strings.Lines(text) {
		l.dst = append(append(l.dst, l.indent...), line...)
	}
}

// value ends a line with a user's string.
func (l *lines) value(key, value string) {
	l.dst = append(append(l.dst, l.indent...), key...)
	l.dst = append(scalar.AppendYAML(l.dst, value), '\n')
}

// appendScopeFilters appends the HTTP filters of the inbound listener.
func appendScopeFilters(dst []byte, s *identity.Settings, indent string) []byte {
	l := &lines{dst, indent}
	l.add(`          - name: envoy.filters.http.jwt_authn
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
              providers:
                issuer:
`)
	l.value("                  issuer: ", s.Inbound.Issuer)
	l.add(`                  forward: true
                  payload_in_metadata: claims
                  remote_jwks:
                    http_uri:
`)
	l.value("                      uri: ", s.Inbound.JWKSURL)
	l.add(`                      cluster: issuer
                      timeout: 5s
                    cache_duration: 300s
              rules:
`)
	free := bypassPatterns(s)
	for _, pattern := range free {
		l.add("              - match:\n                  safe_regex:\n")
		l.value("                    regex: ", pattern)
	}
	l.add(`              - match: {prefix: /}
                requires: {provider_name: issuer}
          - name: envoy.filters.http.rbac
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
              rules:
                action: ALLOW
                policies:
                  scopes:
                    principals:
                    - any: true
                    permissions:
                    - and_rules:
                        rules:
`)
	for _, scope := range s.Inbound.RequiredScopes {
		l.add(`                        - metadata:
                            filter: envoy.filters.http.jwt_authn
                            path: [{key: claims}, {key: scope}]
                            value:
                              string_match:
                                safe_regex:
`)
		l.value("                                  regex: ", "(.* )?"+regexp.QuoteMeta(scope)+"( .*)?")
	}
	if len(free) > 0 {
		l.add("                  free:\n                    principals:\n                    - any: true\n                    permissions:\n")
	}
	for _, pattern := range free {
		l.add("                    - url_path:\n                        path:\n                          safe_regex:\n")
		l.value("                            regex: ", pattern)
	}
	return l.dst
}

// bypassPatterns are the paths that need no token, as regular expressions.
func bypassPatterns(s *identity.Settings) []string {
	patterns := make([]string, 0, len(s.Inbound.BypassPaths)+len(s.Declared.ProbePaths))
	for _, p := range s.Inbound.BypassPaths {
		patterns = append(patterns, globPattern(p))
	}
	for _, p := range s.Declared.ProbePaths {
		if open, ok := identity.OpenProbe(p); ok {
			patterns = append(patterns, regexp.QuoteMeta(open))
		}
	}
	return patterns
}

// globPattern is the regular expression of a pattern of Go's path.Match, which
// the token processor takes. Its classes and escapes are taken literally, so
// that Envoy never lets more pass than the token processor does.
func globPattern(glob string) string {
	var b strings.Builder
	for _, r := range glob {
		switch r {
		case '*':
			b.WriteString("[^/]*")
		case '?':
			b.WriteString("[^/]")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	return b.String()
}

// appendScopeCluster appends the cluster that the issuer's keys come from.
func appendScopeCluster(dst []byte, s *identity.Settings, indent string) []byte {
	host, port, tls := "", 80, false
	if u, err := url.Parse(s.Inbound.JWKSURL); err == nil {
		host, tls = u.Hostname(), u.Scheme == "https"
		if tls {
			port = 443
		}
		if n, err := strconv.Atoi(u.Port()); err == nil {
			port = n
		}
	}
	l := &lines{dst, indent}
	l.add(`  - name: issuer
    type: STRICT_DNS
    dns_lookup_family: V4_PREFERRED
    connect_timeout: 5s
    load_assignment:
      cluster_name: issuer
      endpoints:
      - lb_endpoints:
        - endpoint:
            address:
              socket_address:
                port_value: ` + strconv.Itoa(port) + "\n")
	l.value("                address: ", host)
	if tls {
		l.add(`    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
`)
		l.value("        sni: ", host)
		l.add(`        common_tls_context:
          validation_context:
            trusted_ca: {filename: /etc/ssl/certs/ca-certificates.crt}
            match_typed_subject_alt_names:
            - san_type: DNS
              matcher:
`)
		l.value("                exact: ", host)
	}
	return l.dst
}
