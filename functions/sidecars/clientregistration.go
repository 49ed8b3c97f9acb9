package sidecars

import (
	"cmp"
	_ "embed"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// ClientRegistration registers the workload's client with the identity provider.
const ClientRegistration = "client-registration"

func clientRegistration() identity.Sidecar {
	return identity.Sidecar{
		Name: ClientRegistration, Registers: true,
		Default: component(repository+"client-registration"+imageTag, "50m", "64Mi", "100m",
			"128Mi"),
		Container: registrationContainer,
		Mounts: func(s *identity.Settings) []identity.Mount {
			mounts := []identity.Mount{writable(sharedName(s), "/shared")}
			if s.SPIFFE.Enabled {
				// The published program reads the token in /opt, whichever TokenDir is set.
				mounts = append(mounts, readOnly(SVIDVolume(s), "/opt"))
			}
			mounts = append(mounts, readOnly(ConfigVolume, MountPath))
			if s.Registration.Provider != "keycloak" && s.SPIFFE.Enabled {
				mounts = append(mounts, readOnly(SVIDVolume(s), TokenPath))
			}
			return mounts
		},
		Values: clientValues,
	}
}

// registerSH runs the published program, which registers once and fails if Keycloak does not
// answer. The shell waits for the token, retries, and stays, because a sidecar that ends is started
// again. The client's ID is the token's "sub". The program reads variables; the shell takes the
// address of Keycloak from the mounted files, and registers again when one of them changes.
//
//go:embed files/register.sh
var registerSH string

func registrationContainer(s *identity.Settings) identity.Container {
	keycloak := s.Registration.Provider == "keycloak"
	script := filled(registerSH, map[string]bool{"spiffe": s.SPIFFE.Enabled,
		"name": !s.SPIFFE.Enabled, "keycloak": keycloak, "cloud": !keycloak},
		"MountPath", MountPath)
	test := "test -s /shared/client-id.txt"
	if keycloak {
		test += " && test -s /shared/client-secret.txt"
	}

	env := append([]block.Node{configured(s, "SPIRE_ENABLED")}, clientName(s)...)
	if s.SPIFFE.Enabled {
		env = append(env, variable("TOKEN", s.SPIFFE.TokenDir+"/jwt_svid.token"))
	}
	env = append(env, configured(s, "PROVIDER"))
	if keycloak {
		env = append(env,
			secretVariable("KEYCLOAK_ADMIN_USERNAME", s.Registration.AdminSecret),
			secretVariable("KEYCLOAK_ADMIN_PASSWORD", s.Registration.AdminSecret),
			variable("SECRET_FILE_PATH", "/shared/client-secret.txt"))
	} else if name, file := CloudFile(s); name != "" {
		env = append(env, variable(name, file))
	}

	return identity.Container{
		Program: block.List("command", block.Plain("", "/bin/sh"), block.Plain("", "-ec"),
			block.File("", script)),
		Env:      env,
		Startup:  startup(block.Map("exec", words("command", "/bin/sh", "-c", test))),
		Security: helperSecurity,
	}
}

// placeholders are the placeholders of a client name's template that become variables of the pod.
var placeholders = [...]struct{ name, variable, field string }{
	{"PodName", "POD_NAME", "metadata.name"},
	{"PodNamespace", "POD_NAMESPACE", "metadata.namespace"},
	{"PodIP", "POD_IP", "status.podIP"},
	{"NodeName", "NODE_NAME", "spec.nodeName"},
}

// clientName returns CLIENT_NAME, preceded by the variables that Kubernetes expands in it.
func clientName(s *identity.Settings) (env []block.Node) {
	used := make(map[string]bool)
	parts := strings.Split(s.Registration.ClientName, "{{")
	value := scalar.AppendEnvInner(nil, parts[0])
	for _, part := range parts[1:] {
		inner, literal, _ := strings.Cut(part, "}}")
		name := strings.TrimPrefix(strings.TrimSpace(inner), ".")
		switch name {
		case "ServiceAccount":
			value = scalar.AppendEnvInner(value, s.Subject.ServiceAccount)
		case "WorkloadName":
			value = scalar.AppendEnvInner(value, s.Subject.Name)
		case "WorkloadKind":
			value = scalar.AppendEnvInner(value, s.Subject.Kind)
		}
		for _, p := range placeholders {
			if p.name == name {
				value, used[name] = append(value, "$("+p.variable+")"...), true
			}
		}
		value = scalar.AppendEnvInner(value, literal)
	}

	for _, p := range placeholders {
		if used[p.name] {
			env = append(env, field(p.variable, p.field))
		}
	}
	return append(env, expanded("CLIENT_NAME", value))
}

func clientValues(s *identity.Settings) (values []block.Node) {
	switch cloud(s) {
	case "aws":
		values = append(values, block.File(AWSConfig, awsConfig(s)))
	case "gcp":
		values = append(values, block.File(GCPCredentials, gcpCredentials(s)))
	}
	values = append(values,
		block.Text("PROVIDER", s.Registration.Provider),
		block.Text("SPIRE_ENABLED", strconv.FormatBool(s.SPIFFE.Enabled)))
	if s.Registration.Provider == "keycloak" {
		values = append(values,
			block.Text("KEYCLOAK_URL", s.Registration.URL),
			block.Text("KEYCLOAK_REALM", s.Registration.Realm),
			block.Text("KEYCLOAK_TOKEN_EXCHANGE_ENABLED",
				strconv.FormatBool(s.Registration.TokenExchange)))
	}
	return values
}

// CloudFile returns the file with which the SDKs of the provider get credentials for the workload,
// and the variable that names the file. Both are empty for Keycloak.
func CloudFile(s *identity.Settings) (variable, file string) {
	switch cloud(s) {
	case "aws":
		return "AWS_CONFIG_FILE", MountPath + "/" + AWSConfig
	case "gcp":
		return "GOOGLE_APPLICATION_CREDENTIALS", MountPath + "/" + GCPCredentials
	}
	return "", ""
}

// cloud returns the identity provider of a workload, or "".
func cloud(s *identity.Settings) string {
	if s.On(ClientRegistration) {
		return s.Registration.Provider
	}
	return ""
}

//go:embed files/aws-config
var awsConfigText string

// awsConfig returns an AWS shared configuration file with a profile that exchanges the JWT SVID for
// the role's credentials.
func awsConfig(s *identity.Settings) string {
	a := &s.Registration.AWS
	plain := func(value string) string { return strings.Map(iniRune, value) }
	return filled(awsConfigText, map[string]bool{"endpoint": a.STSEndpoint != ""},
		"RoleARN", plain(a.RoleARN), "TokenPath", TokenPath,
		"Session", plain(cmp.Or(a.SessionName, s.Subject.Name)), "Region", plain(a.Region),
		"Endpoint", plain(a.STSEndpoint))
}

// iniRune drops characters that would end a line or start a comment; the format has no escapes.
func iniRune(r rune) rune {
	if r > ' ' && r != 0x7f && r != ';' && r != '#' {
		return r
	}
	return -1
}

//go:embed files/gcp-credentials.json
var gcpCredentialsText string

// gcpCredentials returns an external account's credential configuration, which holds no secret.
func gcpCredentials(s *identity.Settings) string {
	g := &s.Registration.GCP
	quoted := func(text string) string { return string(scalar.AppendJSON(nil, text)) }
	return filled(gcpCredentialsText,
		map[string]bool{"account": g.ServiceAccountEmail != "", "project": g.ProjectID != ""},
		"Audience", quoted(g.ProviderResource), "TokenPath", TokenPath, "Impersonation",
		quoted("https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"+
			g.ServiceAccountEmail+":generateAccessToken"),
		"Project", quoted(g.ProjectID))
}
