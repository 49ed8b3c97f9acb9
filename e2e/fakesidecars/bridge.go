package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/armature-dev/armature/e2e/fakesidecars/authbridge"
	"github.com/armature-dev/armature/functions/multi"
)

// bridge is the container of the profile authbridge in its modes proxy-sidecar and lite. It behaves
// as rossoctl/cortex da955ea was observed to behave.
type bridge struct {
	config   *authbridge.Config // with which it started
	x509     x509Identity
	jwt      func(ctx context.Context, audience string) (string, error)
	pipeline atomic.Pointer[pipeline]
	status   atomic.Pointer[reloadStatus]
}

// x509Identity is the workload's SVID, with the certificates of its trust domain.
type x509Identity interface {
	x509svid.Source
	x509bundle.Source
}

// pipeline is the part that a reload replaces: the plugins with their cached keys and tokens.
type pipeline struct {
	*authbridge.Config
	lock   sync.Mutex
	asked  time.Time // when Keycloak was asked for its keys
	keys   *jose.JSONWebKeySet
	tokens map[[2]string]string // by the caller's token and the audience
}

// reloadStatus is the answer of /reload/status.
type reloadStatus struct {
	OK     int    `json:"reloads_ok"`
	Failed int    `json:"reloads_failed"`
	Error  string `json:"last_error"`
	Active string `json:"active_config_sha256"`
}

// authBridge runs a bridge. It ends if the configuration has an unknown key.
func authBridge() error {
	if len(os.Args) != 4 || os.Args[2] != "--config" {
		return fmt.Errorf("the arguments are %q", os.Args[2:])
	}
	file := os.Args[3]
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b, err := newBridge(text, os.LookupEnv)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if b.config.SPIFFE == nil {
		return fmt.Errorf("%s: an identity is missing", file)
	}
	if err := b.identify(); err != nil {
		return err
	}
	servers, err := b.listen()
	if err != nil {
		return err
	}
	go b.watch(file, text)
	for _, probe := range []string{"/healthz", "/readyz"} {
		http.HandleFunc(probe, func(http.ResponseWriter, *http.Request) {})
	}
	http.HandleFunc("/reload/status", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(b.status.Load()); err != nil {
			log.Print(err)
		}
	})
	if err := serve(":9091"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for _, s := range servers {
		err = multi.Errors(err, s.Shutdown(ctx))
	}
	return err
}

func newBridge(text []byte, lookup func(string) (string, bool)) (*bridge, error) {
	config, err := read(text, lookup)
	if err != nil {
		return nil, err
	}
	b := &bridge{config: config}
	b.pipeline.Store(&pipeline{Config: config})
	b.status.Store(&reloadStatus{Active: fmt.Sprintf("%x", sha256.Sum256(text))})
	return b, nil
}

// read reads a configuration, and the file with routes that it names. A change of that file alone
// is not noticed.
func read(text []byte, lookup func(string) (string, bool)) (*authbridge.Config, error) {
	config, err := authbridge.Read(text, lookup)
	if err == nil && config.Exchange != nil {
		err = config.Exchange.ReadFile()
	}
	return config, err
}

// listen serves all addresses of the configuration.
func (b *bridge) listen() (servers []*http.Server, err error) {
	l := b.config.Listener
	handlers := map[string]http.Handler{l.ForwardProxyAddr: b.outbound()}
	if l.ReverseProxyAddr != "" {
		backend, err := url.Parse(l.ReverseProxyBackend)
		if err != nil {
			return nil, err
		}
		handlers[l.ReverseProxyAddr] = b.inbound(backend)
	}
	for _, address := range b.config.Addresses() {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		if address == l.TransparentProxyAddr {
			go refuse(listener)
			continue
		}
		if address == l.ReverseProxyAddr {
			listener = b.secured(listener)
		}
		handler := handlers[address]
		if handler == nil {
			handler = http.NotFoundHandler()
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		servers = append(servers, server)
		go func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				log.Fatal(err)
			}
		}()
	}
	return servers, nil
}

// refuse closes connections that iptables have not redirected.
func refuse(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		connection.Close()
	}
}

// watch reloads the configuration whenever its file changes.
func (b *bridge) watch(file string, last []byte) {
	for ; ; time.Sleep(200 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if err != nil || bytes.Equal(text, last) {
			continue
		}
		last = text
		if err := b.reload(text, os.LookupEnv); err != nil {
			log.Print("reload: ", err)
		}
	}
}

// reload replaces the pipeline. It refuses the whole file if a listener differs. All other settings
// outside of the pipeline have no effect until the next start.
func (b *bridge) reload(text []byte, lookup func(string) (string, bool)) error {
	next, err := read(text, lookup)
	if err == nil {
		err = b.config.Reloadable(next)
	}
	status := *b.status.Load()
	if err != nil {
		status.Failed++
		status.Error = err.Error()
	} else {
		status.OK++
		status.Error, status.Active = "", fmt.Sprintf("%x", sha256.Sum256(text))
		b.pipeline.Store(&pipeline{Config: next})
	}
	b.status.Store(&status)
	return err
}

// identify waits until the Workload API issues the pod's identity, which has to be the client's,
// and writes it to the files that other programs read.
func (b *bridge) identify() error {
	address := workloadapi.WithAddr(b.config.SPIFFE.Socket)
	b.jwt = func(ctx context.Context, audience string) (string, error) {
		svid, err := workloadapi.FetchJWTSVID(ctx, jwtsvid.Params{Audience: audience}, address)
		if err != nil {
			return "", err
		}
		return svid.Marshal(), nil
	}
	for last := ""; ; time.Sleep(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		svid, err := workloadapi.FetchX509SVID(ctx, address)
		cancel()
		if err != nil {
			if now := err.Error(); now != last {
				log.Print("no identity yet: ", now)
				last = now
			}
			continue
		}
		if x := b.config.Exchange; x != nil && x.Identity.Type == "spiffe" &&
			x.Identity.ClientID != svid.ID.String() {
			return fmt.Errorf("the client is %q, and the pod %q", x.Identity.ClientID, svid.ID)
		}
		if b.x509, err = workloadapi.NewX509Source(context.Background(),
			workloadapi.WithClientOptions(address)); err != nil {
			return err
		}
		certificates, key, err := svid.Marshal()
		return multi.Errors(err,
			os.WriteFile(filepath.Join(b.config.SPIFFE.MirrorDir, "svid.pem"), certificates, 0o644),
			os.WriteFile(filepath.Join(b.config.SPIFFE.MirrorDir, "svid_key.pem"), key, 0o600))
	}
}

// strict reports whether the program has started with mTLS in the mode strict.
func (b *bridge) strict() bool { return b.config.MTLS != nil && b.config.MTLS.Mode == "strict" }

// secured returns a listener that also accepts TLS of clients with an SVID, and in the mode strict
// nothing else.
func (b *bridge) secured(listener net.Listener) net.Listener {
	if b.config.MTLS == nil {
		return listener
	}
	return &mtlsListener{listener,
		tlsconfig.MTLSServerConfig(b.x509, b.x509, tlsconfig.AuthorizeAny()), b.strict()}
}

type mtlsListener struct {
	net.Listener
	config *tls.Config
	strict bool
}

func (l *mtlsListener) Accept() (net.Conn, error) {
	connection, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &mtlsConn{Conn: connection, listener: l}, nil
}

// mtlsConn is a connection whose first byte says whether it uses TLS.
type mtlsConn struct {
	net.Conn
	listener *mtlsListener
	once     sync.Once
	tls      net.Conn // nil for a plain connection
	first    io.Reader
	err      error
}

func (c *mtlsConn) Read(into []byte) (int, error) {
	c.once.Do(func() {
		raw := c.Conn
		reader := bufio.NewReader(raw)
		first, err := reader.Peek(1)
		const handshake = 0x16
		switch {
		case err != nil:
			c.err = err
		case first[0] == handshake:
			c.tls = tls.Server(&bufferedConn{raw, reader}, c.listener.config)
		case c.listener.strict:
			c.err = io.EOF
		default:
			c.first = reader
		}
	})
	switch {
	case c.err != nil:
		return 0, c.err
	case c.tls != nil:
		return c.tls.Read(into)
	}
	return c.first.Read(into)
}

func (c *mtlsConn) Write(p []byte) (int, error) {
	if c.tls != nil {
		return c.tls.Write(p)
	}
	return c.Conn.Write(p)
}

type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
}

func (c *bufferedConn) Read(into []byte) (int, error) { return c.reader.Read(into) }

// inbound admits requests that need no token, and those with a token for this workload. The agent
// sees 127.0.0.1 as the requested host.
func (b *bridge) inbound(agent *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{ErrorHandler: badGateway, Transport: &http.Transport{},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
			r.SetXForwarded()
			r.Out.Header.Del("X-Forwarded-Host")
			r.Out.Header.Del("X-Forwarded-Proto")
			r.SetURL(agent)
		}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := b.pipeline.Load()
		if v := p.Validation; v != nil && !v.Open(r.URL.Path) {
			if err := p.validate(r); err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
				return
			}
		}
		proxy.ServeHTTP(w, r)
	})
}

// validate checks the token of a request.
func (p *pipeline) validate(r *http.Request) error {
	token := bearer(r)
	if token == "" {
		return errors.New("missing Authorization header")
	}
	v := p.Validation
	keys, err := p.keysOf(r.Context(), v.JWKSURL)
	if err != nil {
		return err
	}
	for _, audience := range append([]string{v.Audience}, v.AllowedAudiences...) {
		if _, err = verified(token, keys, v.Issuer, audience); err == nil {
			return nil
		}
	}
	return err
}

// keysOf returns Keycloak's keys. It queries Keycloak at most once in 15 minutes, even after a
// failure: until then, or a reload, every token is refused.
func (p *pipeline) keysOf(ctx context.Context, address string) (*jose.JSONWebKeySet, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if now := time.Now(); p.asked.IsZero() || now.Sub(p.asked) > 15*time.Minute {
		p.asked = now
		keys := new(jose.JSONWebKeySet)
		request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet,
			address, nil)
		if err != nil {
			return nil, err
		}
		if err := get(request, keys); err != nil {
			log.Print("keys: ", err)
		} else {
			p.keys = keys
		}
	}
	if p.keys == nil {
		return nil, errors.New("fetching JWKS: cached object is not a Set (was <nil>)")
	}
	return p.keys, nil
}

// outbound returns the forward proxy. It replaces the token of a request for a host with a rule, if
// it sees a token: it sees none in a connection for HTTPS.
func (b *bridge) outbound() http.Handler {
	transport := &http.Transport{}
	if b.strict() {
		// Every plain HTTP server counts as an agent.
		config := tlsconfig.MTLSClientConfig(b.x509, b.x509, tlsconfig.AuthorizeAny())
		transport.DialContext = (&tls.Dialer{Config: config}).DialContext
	}
	proxy := &httputil.ReverseProxy{ErrorHandler: badGateway, Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Header.Del("Connection")
			r.Out.Header.Del("Upgrade")
		}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.URL.Hostname()
		if host == "" {
			http.Error(w, "the request is not one for a proxy", http.StatusBadRequest)
			return
		}
		p := b.pipeline.Load()
		if x := p.Exchange; x != nil && !slices.Contains(b.config.Listener.SkipHosts, host) {
			if err := p.exchange(r, host, b.jwt); err != nil {
				log.Printf("no token for %s: %v", host, err)
				answer(w, http.StatusUnauthorized,
					map[string]string{"error": "upstream.token-exchange-failed",
						"message": err.Error(), "plugin": "token-exchange"})
				return
			}
		}
		if r.Method == http.MethodConnect {
			tunnel(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

func badGateway(w http.ResponseWriter, _ *http.Request, err error) {
	log.Print(err)
	answer(w, http.StatusBadGateway, map[string]string{"error": "bad gateway"})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.Print(err)
	}
}

// tunnel connects the client to the host that it names, end to end.
func tunnel(w http.ResponseWriter, r *http.Request) {
	server, err := (&net.Dialer{Timeout: time.Minute}).DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		badGateway(w, r, err)
		return
	}
	defer server.Close()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		badGateway(w, r, err)
		return
	}
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection Established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan struct{}, 2)
	relay := func(to net.Conn, from io.Reader) {
		_, _ = io.Copy(to, from)
		done <- struct{}{}
	}
	go relay(server, buffered)
	go relay(client, server)
	<-done
}

// exchange sets the token of a request by the first rule for its host.
func (p *pipeline) exchange(r *http.Request, host string,
	jwt func(context.Context, string) (string, error)) error {
	x := p.Exchange
	rule := x.Route(host)
	if rule == nil || rule.Action != "exchange" {
		return nil
	}
	subject := bearer(r)
	switch {
	case subject != "":
	case x.NoTokenPolicy == "allow":
		return nil
	default:
		return errors.New("missing Authorization header")
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	key := [2]string{subject, rule.TargetAudience}
	token, found := p.tokens[key]
	if !found {
		var err error
		if token, err = p.ask(r.Context(), subject, rule, jwt); err != nil {
			return err
		}
		if p.tokens == nil {
			p.tokens = make(map[[2]string]string)
		}
		p.tokens[key] = token
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return nil
}

// ask requests the token of a rule from Keycloak, as the client that the pod's JWT SVID proves.
func (p *pipeline) ask(ctx context.Context, subject string, rule *authbridge.Route,
	jwt func(context.Context, string) (string, error)) (string, error) {
	id := p.Exchange.Identity
	svid, err := jwt(ctx, id.JWTAudience)
	if err != nil {
		return "", err
	}
	form := url.Values{
		"grant_type": {tokenExchange}, "subject_token": {subject},
		"subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"audience":           {rule.TargetAudience}, "scope": {rule.TokenScopes},
		"client_id": {id.ClientID}, "client_assertion_type": {jwtSPIFFE},
		"client_assertion": {svid},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		cmp.Or(rule.TokenURL, p.Exchange.TokenURL), strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	var answer struct {
		Token string `json:"access_token"`
	}
	err = get(request, &answer)
	return answer.Token, err
}

// authorized returns the claims of a request's token, if the issuer issued it for the audience.
func authorized(r *http.Request, keysURL, issuer, audience string) (*tokenClaims, error) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, keysURL, nil)
	if err != nil {
		return nil, err
	}
	keys := new(jose.JSONWebKeySet)
	if err := get(request, keys); err != nil {
		return nil, err
	}
	return verified(bearer(r), keys, issuer, audience)
}

func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

func get(request *http.Request, into any) error {
	answer, err := (&http.Client{Timeout: 30 * time.Second}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", request.URL, answer.Status, body)
	}
	return json.Unmarshal(body, into)
}
