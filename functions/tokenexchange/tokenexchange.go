// Package tokenexchange renders the ConfigMap <workload>-token-exchange: the
// files of spiffe-helper, client-registration, auth-proxy and envoy-proxy, each
// as the program itself reads it. What a TokenExchange says reaches the pod
// through these files and values alone.
package tokenexchange

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// Keys of the ConfigMap. Those in capitals are environment variables of the
// programs; the others are files in the volume that mounts all of it.
const (
	HelperConf     = "helper.conf"
	EnvoyYAML      = "envoy.yaml"
	RoutesYAML     = "routes.yaml"
	AWSConfig      = "aws-config"
	GCPCredentials = "gcp-credentials.json"
)

// ReadAtStart reports whether the program that reads a key as a file does so when
// it starts, and keeps what it read: Envoy its configuration, the token processor
// its routes, spiffe-helper its own. (Source: their documentation.)
func ReadAtStart(key string) bool {
	return key == HelperConf || key == EnvoyYAML || key == RoutesYAML
}

// MountPath is where the sidecars that look nowhere else find the ConfigMap's
// files. The paths of the others are theirs: /etc/envoy, /etc/spiffe-helper,
// /etc/authproxy.
const MountPath = "/etc/armature/identity"

// TokenPath is where the application and client-registration find the tokens that
// AWSConfig and GCPCredentials refer to. It is a directory of its own, because
// what is mounted over a directory of the application's image hides its files.
const TokenPath = "/etc/armature/tokens"

// CloudFile gives the file by which the SDKs of the provider get credentials for
// the workload, and the variable that leads them to it. Both are empty for
// Keycloak.
func CloudFile(s *identity.Settings) (variable, file string) {
	if s.ClientRegistration.Enabled {
		switch s.Registration.Provider {
		case "aws":
			return "AWS_CONFIG_FILE", MountPath + "/" + AWSConfig
		case "gcp":
			return "GOOGLE_APPLICATION_CREDENTIALS", MountPath + "/" + GCPCredentials
		}
	}
	return "", ""
}

//go:embed envoy.yaml
var envoyTemplate string

// Renderer writes ConfigMaps. It holds the template, split once.
type Renderer struct {
	envoy template // a block scalar in the ConfigMap's data
}

// template is envoy.yaml, whose lines begin with indent, in the parts between
// what depends on the workload.
type template struct {
	indent string
	// The parts end before the outbound port, the inbound port, the filters and
	// the cluster that demand scopes; tail is the rest.
	outbound, inbound, filters, cluster, tail string
}

const blockIndent = "    "

// New prepares the template. A Renderer may be used by many goroutines.
func New() *Renderer {
	return &Renderer{envoy: split(envoyTemplate, blockIndent)}
}

func split(text, indent string) template {
	text = indent + strings.ReplaceAll(text, "\n", "\n"+indent)
	t := template{indent: indent}
	t.outbound, text, _ = strings.Cut(text, "{{ProxyPort}}")
	t.inbound, text, _ = strings.Cut(text, "{{InboundProxyPort}}")
	// These two are placeholders of whole lines, including their indentation.
	t.filters, text, _ = strings.Cut(text, indent+"{{ScopeFilters}}")
	t.cluster, t.tail, _ = strings.Cut(indent+text, indent+"{{ScopeCluster}}")
	return t
}

func (t *template) appendTo(dst []byte, s *identity.Settings) []byte {
	dst = append(dst, t.outbound...)
	dst = scalar.AppendInt(dst, s.Outbound.ProxyPort)
	dst = append(dst, t.inbound...)
	dst = scalar.AppendInt(dst, s.Outbound.InboundProxyPort)
	dst = append(dst, t.filters...)
	scopes := s.Inbound.Enabled && s.Inbound.Validate && len(s.Inbound.RequiredScopes) > 0
	if scopes {
		dst = appendScopeFilters(dst, s, t.indent)
	}
	dst = append(dst, t.cluster...)
	if scopes {
		dst = appendScopeCluster(dst, s, t.indent)
	}
	return append(dst, t.tail...)
}

// AppendConfigMap appends the workload's ConfigMap as a YAML document without
// separators.
func (r *Renderer) AppendConfigMap(dst []byte, s *identity.Settings) []byte {
	dst = append(dst, "apiVersion: v1\nkind: ConfigMap\n"...)
	dst = s.AppendMetadata(dst, identity.TokenExchangeConfigMap)
	if s.Profile == identity.ProfileAuthBridge {
		return r.appendAuthBridge(dst, s)
	}
	if !anything(s) {
		return append(dst, "data: {}\n"...)
	}
	dst = append(dst, "data:\n"...)
	if s.SpiffeHelper.Enabled {
		dst = append(dst, "  helper.conf: |\n"...)
		dst = appendHelperConf(dst, s, blockIndent)
	}
	if s.EnvoyProxy.Enabled {
		dst = append(dst, "  envoy.yaml: |\n"...)
		dst = r.envoy.appendTo(dst, s)
		dst = append(dst, "  routes.yaml: |\n"...)
		dst = appendRoutes(dst, s, blockIndent)
	}
	if s.ClientRegistration.Enabled {
		switch s.Registration.Provider {
		case "aws":
			dst = append(dst, "  aws-config: |\n"...)
			dst = appendAWSConfig(dst, s, blockIndent)
		case "gcp":
			dst = append(dst, "  gcp-credentials.json: |\n"...)
			dst = appendGCPCredentials(dst, s, blockIndent)
		}
	}
	return appendValues(dst, s)
}

func anything(s *identity.Settings) bool {
	return s.SpiffeHelper.Enabled || s.EnvoyProxy.Enabled || s.ClientRegistration.Enabled || s.AuthProxy.Enabled
}

// appendHelperConf writes spiffe-helper's configuration, HCL 1 as its README
// documents it.
func appendHelperConf(dst []byte, s *identity.Settings, indent string) []byte {
	line := func(key string) { dst = append(append(dst, indent...), key...) }
	line("agent_address = ")
	dst = scalar.AppendHCL(dst, s.SPIFFE.SocketPath)
	dst = append(dst, '\n')
	line("cert_dir = ")
	dst = scalar.AppendHCL(dst, s.SPIFFE.TokenDir)
	dst = append(dst, '\n')
	line("daemon_mode = true\n")
	if s.SPIFFE.OutputFormat == "x509" {
		line("svid_file_name = \"svid.pem\"\n")
		line("svid_key_file_name = \"svid_key.pem\"\n")
		line("svid_bundle_file_name = \"svid_bundle.pem\"\n")
	}
	line("jwt_svids = [{jwt_audience=")
	dst = scalar.AppendHCL(dst, s.SPIFFE.Audience)
	dst = append(dst, ", jwt_svid_file_name=\"jwt_svid.token\"}"...)
	if s.ClientRegistration.Enabled {
		switch s.Registration.Provider {
		case "aws":
			dst = append(dst, ", {jwt_audience="...)
			dst = scalar.AppendHCL(dst, s.Registration.AWS.Audience)
			dst = append(dst, ", jwt_svid_file_name=\"aws.token\"}"...)
		case "gcp":
			dst = append(dst, ", {jwt_audience="...)
			dst = scalar.AppendHCL(dst, s.Registration.GCP.Audience)
			dst = append(dst, ", jwt_svid_file_name=\"gcp.token\"}"...)
		}
	}
	dst = append(dst, "]\n"...)
	// The proxies, which run as another user, read the token too.
	line("jwt_svid_file_mode = 0644\n")
	line("health_checks {\n")
	line("  listener_enabled = true\n")
	line("  bind_port = ")
	dst = scalar.AppendInt(dst, s.SPIFFE.HealthPort)
	dst = append(dst, '\n')
	line("  liveness_path = \"/live\"\n")
	line("  readiness_path = \"/ready\"\n")
	line("}\n")
	return dst
}

// appendRoutes writes the token processor's routes: first match wins. Behind
// the author's rules come the hosts that must not get tokens, then the default.
func appendRoutes(dst []byte, s *identity.Settings, indent string) []byte {
	if !s.Outbound.TokenExchange {
		return append(append(dst, indent...), "[]\n"...)
	}
	for i := range s.Outbound.Rules {
		r := &s.Outbound.Rules[i]
		dst = append(append(dst, indent...), "- host: "...)
		dst = scalar.AppendYAML(dst, r.Host)
		if r.Passthrough {
			dst = append(append(append(dst, '\n'), indent...), "  passthrough: true\n"...)
			continue
		}
		dst = appendTarget(dst, &r.Target, indent)
		if r.TokenURL != "" {
			dst = append(append(dst, indent...), "  token_url: "...)
			dst = append(scalar.AppendYAML(dst, r.TokenURL), '\n')
		}
	}
	direct := func(endpoint string) {
		if host := hostOf(endpoint); host != "" {
			dst = append(append(dst, indent...), "- host: "...)
			dst = scalar.AppendYAML(dst, host)
			dst = append(append(append(dst, '\n'), indent...), "  passthrough: true\n"...)
		}
	}
	if s.Registration.Provider == "keycloak" {
		direct(s.Registration.URL)
	}
	for i := range s.Trace.Exporters {
		direct(s.Trace.Exporters[i].Endpoint)
	}
	if s.Trace.MLflow.Enabled {
		direct(s.Trace.MLflow.TrackingURI)
	}
	dst = append(append(dst, indent...), "- host: \"**\""...)
	return appendTarget(dst, &s.Outbound.Default, indent)
}

func appendTarget(dst []byte, t *identity.Target, indent string) []byte {
	dst = append(append(append(dst, '\n'), indent...), "  target_audience: "...)
	dst = scalar.AppendYAML(dst, t.Audience)
	dst = append(append(append(dst, '\n'), indent...), "  token_scopes: \""...)
	return append(appendJoined(dst, t.Scopes, ' '), '"', '\n')
}

// appendJoined appends scopes or paths inside quotes. What is not escaped has
// been checked to need none; the rest is.
func appendJoined(dst []byte, items []string, separator byte) []byte {
	for i, item := range items {
		if i > 0 {
			dst = append(dst, separator)
		}
		dst = scalar.AppendInner(dst, item)
	}
	return dst
}

// hostOf gives the host of host:port or a URL, without brackets.
func hostOf(endpoint string) string {
	if _, rest, found := strings.Cut(endpoint, "://"); found {
		endpoint = rest
	}
	if i := strings.IndexAny(endpoint, "/?#"); i >= 0 {
		endpoint = endpoint[:i]
	}
	if strings.HasPrefix(endpoint, "[") {
		host, _, _ := strings.Cut(endpoint[1:], "]")
		return host
	}
	if i := strings.LastIndexByte(endpoint, ':'); i >= 0 {
		endpoint = endpoint[:i]
	}
	return endpoint
}

// appendAWSConfig writes an AWS shared configuration file with a profile that
// trades the JWT SVID for the role's credentials.
func appendAWSConfig(dst []byte, s *identity.Settings, indent string) []byte {
	a := &s.Registration.AWS
	session := a.SessionName
	if session == "" {
		session = s.Name
	}
	line := func(key, value string) {
		dst = append(append(append(dst, indent...), key...), " = "...)
		dst = append(appendINI(dst, value), '\n')
	}
	dst = append(append(dst, indent...), "[default]\n"...)
	line("role_arn", a.RoleARN)
	line("web_identity_token_file", TokenPath+"/aws.token")
	line("role_session_name", session)
	line("region", a.Region)
	if a.STSEndpoint != "" {
		line("services", "sts-endpoint")
		dst = append(append(dst, indent...), "[services sts-endpoint]\n"...)
		dst = append(append(dst, indent...), "sts =\n"...)
		line("  endpoint_url", a.STSEndpoint)
	}
	return dst
}

// appendINI appends s without what would end a line or start a comment; the
// format has no escapes.
func appendINI(dst []byte, s string) []byte {
	for _, r := range s {
		if r > ' ' && r != 0x7f && r != ';' && r != '#' {
			dst = append(dst, string(r)...)
		}
	}
	return dst
}

// appendGCPCredentials writes an external account's credential configuration,
// which holds no secret.
func appendGCPCredentials(dst []byte, s *identity.Settings, indent string) []byte {
	g := &s.Registration.GCP
	pair := func(key, value, end string) {
		dst = append(append(dst, indent...), key...)
		dst = append(scalar.AppendJSON(dst, value), end...)
	}
	dst = append(append(dst, indent...), "{\n"...)
	pair(`  "type": `, "external_account", ",\n")
	pair(`  "audience": `, g.ProviderResource, ",\n")
	pair(`  "subject_token_type": `, "urn:ietf:params:oauth:token-type:jwt", ",\n")
	pair(`  "token_url": `, "https://sts.googleapis.com/v1/token", ",\n")
	if g.ServiceAccountEmail != "" {
		pair(`  "service_account_impersonation_url": `,
			"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"+g.ServiceAccountEmail+":generateAccessToken", ",\n")
	}
	if g.ProjectID != "" {
		pair(`  "quota_project_id": `, g.ProjectID, ",\n")
	}
	dst = append(append(dst, indent...), "  \"credential_source\": {\"file\": "...)
	dst = scalar.AppendJSON(dst, TokenPath+"/gcp.token")
	dst = append(dst, "}\n"...)
	return append(append(dst, indent...), "}\n"...)
}

// appendValues writes what the programs read as environment variables, which
// the containers take from these keys.
func appendValues(dst []byte, s *identity.Settings) []byte {
	text := func(key, value string) {
		dst = append(append(append(dst, "  "...), key...), ": "...)
		dst = append(scalar.AppendYAML(dst, value), '\n')
	}
	if s.ClientRegistration.Enabled {
		text("PROVIDER", s.Registration.Provider)
		text("SPIRE_ENABLED", strconv.FormatBool(s.SPIFFE.Enabled))
		if s.Registration.Provider == "keycloak" {
			text("KEYCLOAK_URL", s.Registration.URL)
			text("KEYCLOAK_REALM", s.Registration.Realm)
			text("KEYCLOAK_TOKEN_EXCHANGE_ENABLED", strconv.FormatBool(s.Registration.TokenExchange))
		}
	}
	if (s.AuthProxy.Enabled || s.EnvoyProxy.Enabled) && s.Inbound.Enabled && s.Inbound.Validate {
		text("ISSUER", s.Inbound.Issuer)
		text("JWKS_URL", s.Inbound.JWKSURL)
		if s.Inbound.Audience != "self" && s.Inbound.Audience != "any" {
			text("EXPECTED_AUDIENCE", s.Inbound.Audience)
		}
		if len(s.Inbound.RequiredScopes) > 0 {
			dst = append(dst, "  REQUIRED_SCOPES: \""...)
			dst = append(appendJoined(dst, s.Inbound.RequiredScopes, ' '), '"', '\n')
		}
		dst = append(dst, "  BYPASS_INBOUND_PATHS: \""...)
		dst = appendJoined(dst, s.Inbound.BypassPaths, ',')
		comma := len(s.Inbound.BypassPaths) > 0
		for _, p := range s.ProbePaths {
			if open, ok := identity.OpenProbe(p); ok {
				if comma {
					dst = append(dst, ',')
				}
				dst, comma = scalar.AppendInner(dst, open), true
			}
		}
		dst = append(dst, '"', '\n')
	}
	if s.AuthProxy.Enabled {
		dst = append(dst, "  LISTEN_PORT: \""...)
		dst = scalar.AppendInt(dst, s.Inbound.Port)
		dst = append(dst, "\"\n  TARGET_SERVICE_URL: \"http://127.0.0.1:"...)
		dst = scalar.AppendInt(dst, s.Inbound.TargetPort)
		dst = append(dst, "\"\n"...)
	}
	if s.EnvoyProxy.Enabled {
		text("TOKEN_URL", s.Outbound.TokenURL)
		if s.Outbound.TokenExchange {
			text("DEFAULT_OUTBOUND_POLICY", "exchange")
			text("TARGET_AUDIENCE", s.Outbound.Default.Audience)
			dst = append(dst, "  TARGET_SCOPES: \""...)
			dst = append(appendJoined(dst, s.Outbound.Default.Scopes, ' '), '"', '\n')
		} else {
			text("DEFAULT_OUTBOUND_POLICY", "passthrough")
		}
	}
	return dst
}
