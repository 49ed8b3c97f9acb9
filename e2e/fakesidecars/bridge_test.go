package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

const (
	testIssuer = "https://keycloak.example.com/realms/agents"
	testClient = "spiffe://example.com/ns/weather/sa/agent"
)

// bridged is a stand-in between a caller, its agent and a tool, whose tokens come from
// a realm.
type bridged struct {
	*bridge
	text     string
	realm    *realm
	keycloak *httptest.Server
	away     atomic.Bool // Keycloak does not answer
	asked    atomic.Int32
}

const testConfig = `
mode: proxy-sidecar
listener:
  roles: [reverse, forward]
  reverse_proxy_addr: ":8000"
  reverse_proxy_backend: "http://127.0.0.1:8001"
  forward_proxy_addr: "127.0.0.1:8081"
  transparent_proxy_addr: "127.0.0.1:8082"
  session_api_addr: "127.0.0.1:9094"
  skip_hosts: ["collector"]
pipeline:
  inbound:
    plugins:
    - name: jwt-validation
      config:
        issuer: ` + testIssuer + `
        jwks_url: KEYCLOAK` + realmPath + `certs
        audience: ` + testClient + `
        bypass_paths: ["/healthz", "/static/*"]
  outbound:
    plugins:
    - name: token-exchange
      config:
        token_url: KEYCLOAK` + realmPath + `token
        default_policy: passthrough
        no_token_policy: allow
        identity: {type: spiffe, client_id: "` + testClient + `", jwt_audience: "` + testIssuer + `"}
        routes:
          rules:
          - {host: 127.0.0.1, target_audience: tool, token_scopes: openid, action: exchange}
          - {host: localhost, target_audience: tool, token_scopes: admin, action: exchange}
stats: {address: ":9093"}
spiffe: {socket: "unix:///run/spire.sock"}
mtls: {mode: permissive}
`

func startBridge(t *testing.T, changes ...string) *bridged {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b := new(bridged)
	b.realm, err = newRealm(testIssuer,
		&jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "svid"}}},
		[]string{testClient})
	if err != nil {
		t.Fatal(err)
	}
	b.keycloak = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.asked.Add(1)
		if b.away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		b.realm.ServeHTTP(w, r)
	}))
	t.Cleanup(b.keycloak.Close)
	b.text = strings.NewReplacer(append(changes, "KEYCLOAK", b.keycloak.URL)...).Replace(testConfig)
	if b.bridge, err = newBridge([]byte(b.text), noVariables); err != nil {
		t.Fatal(err)
	}
	b.x509 = newIdentity(t)
	b.jwt = func(_ context.Context, audience string) (string, error) {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
			Key: jose.JSONWebKey{Key: key, KeyID: "svid"}}, nil)
		if err != nil {
			return "", err
		}
		return jwt.Signed(signer).Claims(jwt.Claims{Subject: testClient,
			Audience: jwt.Audience{audience},
			Expiry:   jwt.NewNumericDate(time.Now().Add(time.Hour))}).Serialize()
	}
	return b
}

func noVariables(string) (string, bool) { return "", false }

// newIdentity is an SVID of a trust domain that has one authority.
func newIdentity(t *testing.T) x509Identity {
	t.Helper()
	id := spiffeid.RequireFromString(testClient)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		URIs: []*url.URL{id.TrustDomain().ID().URL()}}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, URIs: []*url.URL{id.URL()}}
	var made []*x509.Certificate
	for _, c := range []*x509.Certificate{authority, leaf} {
		der, err := x509.CreateCertificate(rand.Reader, c, authority, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, parsed)
	}
	return struct {
		*x509svid.SVID
		*x509bundle.Bundle
	}{&x509svid.SVID{ID: id, Certificates: made[1:], PrivateKey: key},
		x509bundle.FromX509Authorities(id.TrustDomain(), made[:1])}
}

// token is a user's for an audience.
func (b *bridged) token(t *testing.T, audience string) string {
	t.Helper()
	answer, err := http.PostForm(b.keycloak.URL+realmPath+"token",
		url.Values{"grant_type": {"password"}, "username": {"alice"}, "audience": {audience}})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), `"access_token":"`)
	token, _, found := strings.Cut(rest, `"`)
	if !found {
		t.Fatalf("Keycloak answers %s", text)
	}
	return token
}

// reverse serves the reverse proxy before an agent that says what it was asked.
func (b *bridged) reverse(t *testing.T) (address string) {
	t.Helper()
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s forwarded host %q", strings.Split(r.Host, ":")[0], r.URL.Path,
			r.Header.Get("X-Forwarded-Host"))
	}))
	t.Cleanup(agent.Close)
	backend, err := url.Parse(agent.URL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: b.inbound(backend), ReadHeaderTimeout: time.Minute}
	go server.Serve(b.secured(listener))
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// forward is a client of the forward proxy, for both schemes.
func (b *bridged) forward(t *testing.T) *http.Client {
	t.Helper()
	proxy := httptest.NewServer(b.outbound())
	t.Cleanup(proxy.Close)
	address, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(address), DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
}

// request returns the status and the body of an answer, or the status 0 without one.
func request(t *testing.T, client *http.Client,
	method, address, authorization string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, strings.TrimSpace(string(text))
}

// TestBridgePaths: paths are cleaned before they are compared with the patterns, which
// do not cross slashes.
func TestBridgePaths(t *testing.T) {
	b := startBridge(t)
	address := b.reverse(t)
	good := b.token(t, testClient)
	client := &http.Client{Transport: &http.Transport{}}
	for path, want := range map[string]int{
		"/healthz": 200, "/healthz?full=1": 200, "/healthz/": 200, "//healthz": 200,
		"/static/a": 200, "/static/a/b": 401, "/": 401, "//ask": 401, "/healthz/../ask": 401,
		"/healthz;x": 401, "/static/%2e%2e/ask": 401, "/static/..%2fask": 401, "/metrics": 401,
	} {
		if got, text := request(t, client, http.MethodGet, "http://"+address+path, ""); got != want {
			t.Errorf("%s without a token: %d %s, want %d", path, got, text, want)
		}
	}
	for authorization, want := range map[string]int{
		"Bearer " + good: 200, "bearer " + good: 200, good: 401, "Bearer x": 401,
		"Bearer " + b.token(t, "other"): 401,
	} {
		if got, text := request(t, client, http.MethodGet, "http://"+address+"/ask",
			authorization); got != want {
			t.Errorf("%.10s…: %d %s, want %d", authorization, got, text, want)
		}
	}
	if _, text := request(t, client, http.MethodGet, "http://"+address+"/ask",
		"Bearer "+good); text != `127.0.0.1 /ask forwarded host ""` {
		t.Errorf("the agent sees %s", text)
	}
	for paths, want := range map[string]string{`["//"]`: "401 401", "[]": "200 200"} {
		b := startBridge(t, `["/healthz", "/static/*"]`, paths)
		address := b.reverse(t)
		health, _ := request(t, client, http.MethodGet, "http://"+address+"/healthz", "")
		metrics, _ := request(t, client, http.MethodGet, "http://"+address+"/metrics", "")
		if got := fmt.Sprint(health, metrics); got != want {
			t.Errorf("bypass_paths %s: %s, want %s", paths, got, want)
		}
	}
}

// TestBridgeRefuses: what keeps the program from starting.
func TestBridgeRefuses(t *testing.T) {
	for change, want := range map[[2]string]string{
		{`"/static/*"`,
			`"/*"`}: `bypass pattern "/*" is too broad; use specific path globs`,
		{`["collector"]`,
			`["fd00::1"]`}: `listener.skip_hosts: skiphost: pattern "fd00::1" must not contain a port`,
		{"token_url:", "token_uri:"}:                        `unknown field "token_uri"`,
		{"no_token_policy: allow", "no_token_policy: pass"}: `no_token_policy "pass"`,
	} {
		if _, err := newBridge([]byte(strings.Replace(testConfig, change[0], change[1], 1)),
			noVariables); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", change[1], err, want)
		}
	}
}

// TestBridgeHTTP1: the reverse proxy knows no HTTP/2, so that gRPC gets no answer of its
// own, and TLS without the client's SVID fails.
func TestBridgeHTTP1(t *testing.T) {
	address := startBridge(t).reverse(t)
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(connection).ReadString('\n'); err != nil ||
		!strings.HasPrefix(line, "HTTP/1.1 4") && !strings.HasPrefix(line, "HTTP/1.1 5") {
		t.Errorf("HTTP/2 is answered by %q, %v", line, err)
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			ForceAttemptHTTP2: true}}
	if status, text := request(t, client, http.MethodGet, "https://"+address+"/healthz",
		""); status != 0 {
		t.Errorf("HTTPS without an SVID: %d %s", status, text)
	}
}

// TestBridgeMTLS: strict closes plain connections of callers, and speaks TLS to each
// plain HTTP host; permissive does neither.
func TestBridgeMTLS(t *testing.T) {
	tool := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer tool.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer secure.Close()
	for mode, want := range map[string][]int{"permissive": {200, 200, 200, 200},
		"strict": {0, 200, 502, 200}} {
		b := startBridge(t, "mode: permissive", "mode: "+mode)
		address := b.reverse(t)
		plain, _ := request(t, &http.Client{Transport: &http.Transport{}}, http.MethodGet,
			"http://"+address+"/healthz", "")
		peer := &http.Client{
			Transport: &http.Transport{TLSClientConfig: tlsconfig.MTLSClientConfig(b.x509, b.x509,
				tlsconfig.AuthorizeAny())}}
		mutual, problem := request(t, peer, http.MethodGet, "https://"+address+"/healthz", "")
		forward := b.forward(t)
		out, text := request(t, forward, http.MethodGet, tool.URL, "")
		connect, _ := request(t, forward, http.MethodGet, secure.URL, "")
		if diff := gocmp.Diff(want, []int{plain, mutual, out, connect}); diff != "" {
			t.Errorf("%s (-want +got)\n%s%s\n%s", mode, diff, problem, text)
		}
	}
	// An agent in the mode strict answers another one, with its own identity.
	b := startBridge(t, "mode: permissive", "mode: strict")
	if status, text := request(t, b.forward(t), http.MethodGet, "http://"+b.reverse(t)+"/healthz",
		""); status != http.StatusOK {
		t.Errorf("from agent to agent: %d %s", status, text)
	}
}

// TestBridgeOutbound: a request with a token gets the rule's, once for each audience; one
// without passes if no_token_policy allows that, and CONNECT never has one.
func TestBridgeOutbound(t *testing.T) {
	var b *bridged
	tool := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if claims, err := verified(bearer(r), b.realm.keys(), testIssuer, "tool"); err == nil {
			fmt.Fprint(w, claims.Subject, " by ", claims.Client)
			return
		}
		fmt.Fprint(w, cmp.Or(bearer(r), "none"))
	}))
	defer tool.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "end to end")
	}))
	defer secure.Close()
	const refusal = `401 {"error":"upstream.token-exchange-failed","message":"missing Authorization header","plugin":"token-exchange"}`
	for policy, want := range map[string][]string{
		"allow": {"200 alice by " + testClient, "200 none", "200 end to end"},
		"deny":  {"200 alice by " + testClient, refusal, "0 refused"},
	} {
		b = startBridge(t, "no_token_policy: allow", "no_token_policy: "+policy)
		client := b.forward(t)
		var got []string
		status, text := request(t, client, http.MethodGet, tool.URL,
			"Bearer "+b.token(t, testClient))
		got = append(got, fmt.Sprint(status, " ", text))
		status, text = request(t, client, http.MethodGet, tool.URL, "")
		got = append(got, fmt.Sprint(status, " ", text))
		if status, text = request(t, client, http.MethodGet, secure.URL, ""); strings.Contains(text,
			"Unauthorized") {
			text = "refused"
		}
		got = append(got, fmt.Sprint(status, " ", text))
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", policy, diff)
		}
	}
	b = startBridge(t, "127.0.0.1, target", "elsewhere, target", "host: localhost", `host: "127.**"`)
	client := b.forward(t)
	token := "Bearer " + b.token(t, testClient)
	asked := b.asked.Load()
	for range 2 {
		if _, text := request(t, client, http.MethodGet, tool.URL,
			token); text != "alice by "+testClient {
			t.Errorf("a pattern's host gets %s", text)
		}
	}
	if n := b.asked.Load() - asked; n != 1 {
		t.Errorf("Keycloak exchanged %d tokens, want 1", n)
	}
	routes := filepath.Join(t.TempDir(), "routes.yaml")
	if err := os.WriteFile(routes, []byte("[{host: 127.0.0.1, action: passthrough}]"),
		0o600); err != nil {
		t.Fatal(err)
	}
	b = startBridge(t, "          rules:", "          file: "+routes+"\n          rules:")
	if _, text := request(t, b.forward(t), http.MethodGet, tool.URL,
		"Bearer caller"); text != "caller" {
		t.Errorf("a route of the file comes before the rules: %q, want the caller's token", text)
	}
	b = startBridge(t, "127.0.0.1, target", "elsewhere, target", "host: localhost", "host: nowhere")
	if _, text := request(t, b.forward(t), http.MethodGet, tool.URL,
		"Bearer caller"); text != "caller" {
		t.Errorf("a host without a rule gets %q, want the caller's token", text)
	}
}

// TestBridgeReload: a reload replaces the pipeline alone, and a changed listener or a
// file that is not understood leaves everything as it was.
func TestBridgeReload(t *testing.T) {
	b := startBridge(t)
	address := b.reverse(t)
	client := &http.Client{Transport: &http.Transport{}}
	open := func(path string) bool {
		status, _ := request(t, client, http.MethodGet, "http://"+address+path, "")
		return status == http.StatusOK
	}
	reload := func(changes ...string) string {
		if err := b.reload([]byte(strings.NewReplacer(changes...).Replace(b.text)),
			noVariables); err != nil {
			return err.Error()
		}
		return b.status.Load().Error
	}
	if text := reload(`"/healthz"`, `"/up"`); text != "" || !open("/up") || open("/healthz") {
		t.Errorf("the pipeline is not reloaded: %q", text)
	}
	const restart = "unreloadable field changed, pod restart required: [listener.*]"
	if text := reload("collector", "other"); text != restart || !open("/up") || open("/healthz") {
		t.Errorf("a changed listener: %q, want %q and nothing reloaded", text, restart)
	}
	if text := reload("issuer:", "issuers:"); !strings.Contains(text, "issuers") || !open("/up") {
		t.Errorf("an unknown key: %q", text)
	}
	if text := reload("mode: permissive", "mode: strict"); text != "" || !open("/healthz") {
		t.Errorf("mtls: %q, want that it is accepted and plain HTTP still is", text)
	}
	if s := b.status.Load(); s.OK != 2 || s.Failed != 2 || s.Error != "" {
		t.Errorf("the status is %+v", s)
	}
}

// TestBridgeKeys: where Keycloak does not answer the first time, good tokens are refused
// until a reload.
func TestBridgeKeys(t *testing.T) {
	b := startBridge(t)
	address, token := b.reverse(t), "Bearer "+b.token(t, testClient)
	client := &http.Client{Transport: &http.Transport{}}
	b.away.Store(true)
	for range 2 {
		if status, text := request(t, client, http.MethodGet, "http://"+address+"/ask",
			token); status != 401 || !strings.Contains(text, "cached object is not a Set") {
			t.Errorf("without keys: %d %s", status, text)
		}
		b.away.Store(false)
	}
	if err := b.reload([]byte(b.text+"# changed\n"), noVariables); err != nil {
		t.Fatal(err)
	}
	if status, text := request(t, client, http.MethodGet, "http://"+address+"/ask",
		token); status != 200 {
		t.Errorf("after a reload: %d %s", status, text)
	}
}
