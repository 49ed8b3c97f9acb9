package sidecars

import (
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// ClientRegistration registers the workload's client with the identity provider.
const ClientRegistration = "client-registration"

func clientRegistration() identity.Sidecar {
	return identity.Sidecar{
		Name: ClientRegistration, Registers: true,
		Default:   identity.Component{Enabled: true, Image: repository + "client-registration" + imageTag, ImagePullPolicy: "IfNotPresent", CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "100m", MemoryLimit: "128Mi"},
		Container: appendClientRegistration,
		Mounts: func(s *identity.Settings) []identity.Mount {
			mounts := []identity.Mount{writable(sharedName(s), "/shared")}
			if s.SPIFFE.Enabled {
				// The published program reads the token in /opt, wherever else it is.
				mounts = append(mounts, readOnly(SVIDVolume(s), "/opt"))
			}
			mounts = append(mounts, readOnly(ConfigVolume, MountPath))
			if s.Registration.Provider != "keycloak" && s.SPIFFE.Enabled {
				mounts = append(mounts, readOnly(SVIDVolume(s), TokenPath))
			}
			return mounts
		},
		Values: appendClientValues,
	}
}

// The published program registers once and ends with an error where Keycloak
// does not answer, so that a shell waits for the token, tries again, and stays:
// a sidecar that ends is started again. The client's ID is the token's "sub".
// The program reads variables; the shell takes those that say where Keycloak is
// from the mounted files, and registers again when one of them changes.
const (
	trapSignals  = "    trap 'exit 0' TERM INT\n"
	waitForToken = `    until [ -s "$TOKEN" ]; do sleep 1; done
    python -c 'import base64, json, sys; p = sys.stdin.read().split(".")[1]; print(json.loads(base64.urlsafe_b64decode(p + "=" * (-len(p) % 4)))["sub"], end="")' <"$TOKEN" >/shared/client-id.txt
`
	nameAsID = "    printf %s \"$CLIENT_NAME\" >/shared/client-id.txt\n"
	register = `    registered=
    while :; do
      for name in KEYCLOAK_URL KEYCLOAK_REALM KEYCLOAK_TOKEN_EXCHANGE_ENABLED; do
        value=
        IFS= read -r value <"` + MountPath + `/$name" || [ -n "$value" ]
        export "$name=$value"
      done
      settings="$KEYCLOAK_URL $KEYCLOAK_REALM $KEYCLOAK_TOKEN_EXCHANGE_ENABLED"
      if [ "$settings" != "$registered" ] && python client_registration.py; then registered=$settings; fi
      sleep 5 & wait $!
    done
`
	stayAlive = "    while :; do sleep 3600 & wait $!; done\n"
)

func appendClientRegistration(dst []byte, s *identity.Settings) []byte {
	w := writer{dst, s}
	keycloak := s.Registration.Provider == "keycloak"
	w.text("  command:\n  - /bin/sh\n  - -ec\n  - |\n" + trapSignals)
	if s.SPIFFE.Enabled {
		w.text(waitForToken)
	} else {
		w.text(nameAsID)
	}
	if keycloak {
		w.text(register)
	} else {
		w.text(stayAlive)
	}
	w.text("  env:\n")
	w.configured("SPIRE_ENABLED")
	w.clientName()
	if s.SPIFFE.Enabled {
		w.env("TOKEN", s.SPIFFE.TokenDir+"/jwt_svid.token")
	}
	w.configured("PROVIDER")
	if keycloak {
		w.secret("KEYCLOAK_ADMIN_USERNAME", s.Registration.AdminSecret)
		w.secret("KEYCLOAK_ADMIN_PASSWORD", s.Registration.AdminSecret)
		w.env("SECRET_FILE_PATH", "/shared/client-secret.txt")
	} else if variable, file := CloudFile(s); variable != "" {
		w.env(variable, file)
	}
	w.text("  startupProbe:\n    exec:\n      command:\n      - /bin/sh\n      - -c\n      - test -s /shared/client-id.txt")
	if keycloak {
		w.text(" && test -s /shared/client-secret.txt")
	}
	w.text("\n")
	w.probe()
	w.resources(s.Component(ClientRegistration))
	w.text(helperSecurity)
	return w.dst
}

// clientName appends CLIENT_NAME, and before it the variables that Kubernetes
// expands in it.
func (w *writer) clientName() {
	template := w.s.Registration.ClientName
	for _, v := range [...]struct{ placeholder, variable, field string }{
		{"PodName", "POD_NAME", "metadata.name"},
		{"PodNamespace", "POD_NAMESPACE", "metadata.namespace"},
		{"PodIP", "POD_IP", "status.podIP"},
		{"NodeName", "NODE_NAME", "spec.nodeName"},
	} {
		if uses(template, v.placeholder) {
			w.field(v.variable, v.field)
		}
	}
	w.text("  - name: CLIENT_NAME\n    value: ")
	w.dst = append(appendClientName(w.dst, w.s), '\n')
}

// uses reports whether a client name's template holds a placeholder.
func uses(template, placeholder string) bool {
	for {
		_, after, found := strings.Cut(template, "{{")
		if !found {
			return false
		}
		var inner string
		inner, template, _ = strings.Cut(after, "}}")
		if strings.TrimPrefix(strings.TrimSpace(inner), ".") == placeholder {
			return true
		}
	}
}

func appendClientName(dst []byte, s *identity.Settings) []byte {
	dst = append(dst, '"')
	for rest := s.Registration.ClientName; ; {
		literal, after, found := strings.Cut(rest, "{{")
		dst = scalar.AppendEnvInner(dst, literal)
		if !found {
			return append(dst, '"')
		}
		inner, tail, _ := strings.Cut(after, "}}")
		switch strings.TrimPrefix(strings.TrimSpace(inner), ".") {
		case "PodName":
			dst = append(dst, "$(POD_NAME)"...)
		case "PodNamespace":
			dst = append(dst, "$(POD_NAMESPACE)"...)
		case "PodIP":
			dst = append(dst, "$(POD_IP)"...)
		case "NodeName":
			dst = append(dst, "$(NODE_NAME)"...)
		case "ServiceAccount":
			dst = scalar.AppendEnvInner(dst, s.Subject.ServiceAccount)
		case "WorkloadName":
			dst = scalar.AppendEnvInner(dst, s.Subject.Name)
		case "WorkloadKind":
			dst = scalar.AppendEnvInner(dst, s.Subject.Kind)
		}
		rest = tail
	}
}

func appendClientValues(dst []byte, s *identity.Settings) []byte {
	switch cloud(s) {
	case "aws":
		dst = appendAWSConfig(append(dst, "  aws-config: |\n"...), s)
	case "gcp":
		dst = appendGCPCredentials(append(dst, "  gcp-credentials.json: |\n"...), s)
	}
	dst = appendValue(dst, "PROVIDER", s.Registration.Provider)
	dst = appendValue(dst, "SPIRE_ENABLED", strconv.FormatBool(s.SPIFFE.Enabled))
	if s.Registration.Provider == "keycloak" {
		dst = appendValue(dst, "KEYCLOAK_URL", s.Registration.URL)
		dst = appendValue(dst, "KEYCLOAK_REALM", s.Registration.Realm)
		dst = appendValue(dst, "KEYCLOAK_TOKEN_EXCHANGE_ENABLED", strconv.FormatBool(s.Registration.TokenExchange))
	}
	return dst
}

// CloudFile gives the file by which the SDKs of the provider get credentials for
// the workload, and the variable that leads them to it. Both are empty for
// Keycloak.
func CloudFile(s *identity.Settings) (variable, file string) {
	switch cloud(s) {
	case "aws":
		return "AWS_CONFIG_FILE", MountPath + "/" + AWSConfig
	case "gcp":
		return "GOOGLE_APPLICATION_CREDENTIALS", MountPath + "/" + GCPCredentials
	}
	return "", ""
}

// cloud is the identity provider of a workload that has one.
func cloud(s *identity.Settings) string {
	if s.On(ClientRegistration) {
		return s.Registration.Provider
	}
	return ""
}

// appendAWSConfig writes an AWS shared configuration file with a profile that
// trades the JWT SVID for the role's credentials.
func appendAWSConfig(dst []byte, s *identity.Settings) []byte {
	a := &s.Registration.AWS
	session := a.SessionName
	if session == "" {
		session = s.Subject.Name
	}
	line := func(key, value string) {
		dst = append(dst, blockIndent+key+" = "...)
		dst = append(appendINI(dst, value), '\n')
	}
	dst = append(dst, blockIndent+"[default]\n"...)
	line("role_arn", a.RoleARN)
	line("web_identity_token_file", TokenPath+"/aws.token")
	line("role_session_name", session)
	line("region", a.Region)
	if a.STSEndpoint != "" {
		line("services", "sts-endpoint")
		dst = append(dst, blockIndent+"[services sts-endpoint]\n"...)
		dst = append(dst, blockIndent+"sts =\n"...)
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
func appendGCPCredentials(dst []byte, s *identity.Settings) []byte {
	g := &s.Registration.GCP
	pair := func(key, value, end string) {
		dst = append(dst, blockIndent+key...)
		dst = append(scalar.AppendJSON(dst, value), end...)
	}
	dst = append(dst, blockIndent+"{\n"...)
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
	dst = append(dst, blockIndent+"  \"credential_source\": {\"file\": "...)
	dst = scalar.AppendJSON(dst, TokenPath+"/gcp.token")
	dst = append(dst, "}\n"...)
	return append(dst, blockIndent+"}\n"...)
}
