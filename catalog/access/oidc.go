package access

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/render/answers"
)

// LoginConfig is the configuration of the OpenID provider in a file. The fields about claims mean
// what the flags of the API server with these names mean, so that the same person has the same
// name.
type LoginConfig struct {
	// Issuer is the provider's address, such as https://login.example.com.
	Issuer string `json:"issuer"`
	// ClientID of the console at the provider.
	ClientID string `json:"clientID"`
	// ClientSecretFile has the client's secret. If omitted, the client is a public one.
	ClientSecretFile string `json:"clientSecretFile,omitempty"`
	// CAFile has the authorities of the provider's certificate. If omitted, they are the system's.
	CAFile string `json:"caFile,omitempty"`
	// URL of the console as browsers see it, such as https://console.example.com.
	URL string `json:"url"`
	// Scopes to ask for beside openid, profile and email, such as groups. Default: none.
	Scopes []string `json:"scopes,omitempty"`
	// UsernameClaim has a person's name. Default sub.
	UsernameClaim string `json:"usernameClaim,omitempty"`
	// UsernamePrefix is put before the name; "-" is none. Default: the issuer and #, or none
	// for the claim email.
	UsernamePrefix string `json:"usernamePrefix,omitempty"`
	// GroupsClaim has a person's groups, as a text or a list of texts. If omitted, nobody has
	// groups.
	GroupsClaim string `json:"groupsClaim,omitempty"`
	// GroupsPrefix is put before each group. Default: none.
	GroupsPrefix string `json:"groupsPrefix,omitempty"`

	secret string
	roots  *x509.CertPool
}

// ReadLogin reads a LoginConfig from a file. Files that it names are relative to it. Unknown
// fields are errors.
func ReadLogin(file string) (LoginConfig, error) {
	c, err := readLogin(file)
	if err != nil {
		return LoginConfig{}, fmt.Errorf("reading the OpenID provider's settings: %s: %w", file, err)
	}
	return c, nil
}

func readLogin(file string) (c LoginConfig, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, err
	}
	for _, field := range []struct{ name, value string }{{"issuer", c.Issuer},
		{"clientID", c.ClientID}, {"url", c.URL}} {
		if field.value == "" {
			return c, fmt.Errorf("%s is missing", field.name)
		}
	}
	for name, address := range map[string]string{"issuer": c.Issuer, "url": c.URL} {
		u, err := url.Parse(address)
		local := err == nil && slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, u.Hostname())
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
			u.Scheme != "https" && !(u.Scheme == "http" && local) {
			return c, fmt.Errorf("%s: %q must be an https address, or http of localhost", name, address)
		}
	}
	c.URL = strings.TrimSuffix(c.URL, "/")
	if u, err := url.Parse(c.URL); err != nil || u.Path != "" {
		return c, fmt.Errorf("url: %q has a path, and the console is at the root of its host", c.URL)
	}
	readFile := func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(file), name)
		}
		return os.ReadFile(name)
	}
	if c.ClientSecretFile != "" {
		secret, err := readFile(c.ClientSecretFile)
		if err != nil {
			return c, fmt.Errorf("clientSecretFile: %w", err)
		}
		if c.secret = strings.TrimSpace(string(secret)); c.secret == "" {
			return c, fmt.Errorf("clientSecretFile: %s is empty", c.ClientSecretFile)
		}
	}
	if c.CAFile != "" {
		pem, err := readFile(c.CAFile)
		if err != nil {
			return c, fmt.Errorf("caFile: %w", err)
		}
		if c.roots = x509.NewCertPool(); !c.roots.AppendCertsFromPEM(pem) {
			return c, fmt.Errorf("caFile: %s has no certificate", c.CAFile)
		}
	}
	return c, nil
}

func (c *LoginConfig) secure() bool { return strings.HasPrefix(c.URL, "https:") }

func (c *LoginConfig) scopes() []string {
	return append([]string{oidc.ScopeOpenID, "profile", "email"}, c.Scopes...)
}

// Bounds of a provider's answers.
const (
	maxAnswer = 1 << 20
	maxGroups = 1000
	maxName   = 1024
)

// asking bounds the time and the size of the provider's answers.
func (l *Login) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	if l.Config.roots != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: l.Config.roots,
			MinVersion: tls.VersionTLS12}
	}
	client := &http.Client{Timeout: patience,
		Transport: answers.Bounded{RoundTripper: transport,
			Limit: func(*http.Request, *http.Response) (int64, error) {
				return maxAnswer, answers.ErrTooLarge
			}}}
	return context.WithTimeout(oidc.ClientContext(ctx, client), patience)
}

// refused is the reason why a person is not signed in, for that person.
type refused string

func (r refused) Error() string { return "login: " + string(r) }

// person returns the session of the person that the claims name.
func (c *LoginConfig) person(claims map[string]any) (v store.Session, err error) {
	claim := cmp.Or(c.UsernameClaim, "sub")
	name, _ := claims[claim].(string)
	prefix := c.UsernamePrefix
	switch {
	case name == "":
		return v, refused(fmt.Sprintf("The OpenID provider sends no claim %q.", claim))
	case claim == "email" && claims["email_verified"] != nil && claims["email_verified"] != true:
		return v, refused("The OpenID provider has not verified your e-mail address.")
	case prefix == "" && claim != "email":
		prefix = c.Issuer + "#"
	case prefix == "-":
		prefix = ""
	}
	v.Name = prefix + name
	groups, err := texts(claims[c.GroupsClaim])
	if err != nil || len(groups) > maxGroups {
		return v, refused(
			fmt.Sprintf("The claim %q of the OpenID provider is not a list of at most %d groups.",
				c.GroupsClaim, maxGroups))
	}
	for _, group := range groups {
		v.Groups = append(v.Groups, c.GroupsPrefix+group)
	}
	// A provider must not assign Kubernetes' own names, such as system:masters.
	for _, one := range append([]string{v.Name}, v.Groups...) {
		if strings.HasPrefix(one, "system:") || len(one) > maxName {
			return store.Session{}, refused("The OpenID provider sends a user or group name that " +
				"Kubernetes reserves, or that is too long.")
		}
	}
	return v, nil
}

// texts returns the texts of a claim that is a text, a list of texts, or omitted.
func texts(claim any) ([]string, error) {
	switch v := claim.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		var out []string
		for _, one := range v {
			text, ok := one.(string)
			if !ok {
				return nil, errors.New("not a text")
			}
			out = append(out, text)
		}
		return out, nil
	}
	return nil, errors.New("not a list")
}
