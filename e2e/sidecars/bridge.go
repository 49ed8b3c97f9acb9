package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/armature-dev/armature/e2e/sidecars/authbridge"
	"github.com/armature-dev/armature/functions/multi"
)

// bridge is the container of the profile authbridge in its modes proxy-sidecar and
// lite.
type bridge struct{ config *authbridge.Config }

// authBridge runs one. A key of the configuration that it does not know ends it.
func authBridge() error {
	if len(os.Args) != 4 || os.Args[2] != "--config" {
		return fmt.Errorf("the arguments are %q", os.Args[2:])
	}
	text, err := os.ReadFile(os.Args[3])
	if err != nil {
		return err
	}
	config, err := authbridge.Read(text, os.LookupEnv)
	if err != nil {
		return fmt.Errorf("%s: %w", os.Args[3], err)
	}
	if config.SPIFFE == nil || config.Validation == nil || config.Exchange == nil {
		return fmt.Errorf("%s: an identity or a plugin is missing", os.Args[3])
	}
	b := bridge{config}
	if err := b.identify(); err != nil {
		return err
	}
	backend, err := url.Parse(b.config.Listener.ReverseProxyBackend)
	if err != nil {
		return err
	}
	handlers := map[string]http.Handler{
		b.config.Listener.ReverseProxyAddr: b.inbound(httputil.NewSingleHostReverseProxy(backend)),
		b.config.Listener.ForwardProxyAddr: b.outbound(&httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}}),
	}
	for _, address := range b.config.Addresses() {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		handler := handlers[address]
		if handler == nil {
			handler = http.NotFoundHandler()
		}
		go func() { log.Fatal(http.Serve(listener, handler)) }()
	}
	for _, probe := range []string{"/healthz", "/readyz"} {
		http.HandleFunc(probe, func(http.ResponseWriter, *http.Request) {})
	}
	return serve(":9091")
}

// identify waits until the Workload API gives the pod its identity, which has to be
// the client's, and writes it where other programs find it.
func (b bridge) identify() error {
	for last := ""; ; time.Sleep(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		svid, err := workloadapi.FetchX509SVID(ctx, workloadapi.WithAddr(b.config.SPIFFE.Socket))
		cancel()
		if err != nil {
			if now := err.Error(); now != last {
				log.Print("no identity yet: ", now)
				last = now
			}
			continue
		}
		if client := b.config.Exchange.Identity.ClientID; client != svid.ID.String() {
			return fmt.Errorf("the client is %q, and the pod %q", client, svid.ID)
		}
		certificates, key, err := svid.Marshal()
		return multi.Errors(err,
			os.WriteFile(filepath.Join(b.config.SPIFFE.MirrorDir, "svid.pem"), certificates, 0o644),
			os.WriteFile(filepath.Join(b.config.SPIFFE.MirrorDir, "svid_key.pem"), key, 0o600))
	}
}

// inbound lets through what needs no token, and what has one for this workload.
func (b bridge) inbound(agent http.Handler) http.Handler {
	v := b.config.Validation
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, pattern := range v.BypassPaths {
			if found, _ := path.Match(pattern, r.URL.Path); found {
				agent.ServeHTTP(w, r)
				return
			}
		}
		if _, err := authorized(r, v.JWKSURL, v.Issuer, v.Audience); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		agent.ServeHTTP(w, r)
	})
}

// outbound is a forward proxy for plain HTTP. What goes to a host with a rule takes
// along another token than it came with.
func (b bridge) outbound(proxy http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, rule := range b.config.Exchange.Routes.Rules {
			if rule.Host != r.URL.Hostname() || rule.Action != "exchange" {
				continue
			}
			token, err := b.exchange(r.Context(), bearer(r), rule)
			if err != nil {
				log.Printf("no token for %s: %v", rule.Host, err)
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			r.Header.Set("Authorization", "Bearer "+token)
		}
		proxy.ServeHTTP(w, r)
	})
}

// exchange asks Keycloak for a token that a rule names, as the client that the pod's
// JWT SVID proves it to be.
func (b bridge) exchange(ctx context.Context, subject string, rule authbridge.Route) (string, error) {
	id := b.config.Exchange.Identity
	svid, err := workloadapi.FetchJWTSVID(ctx, jwtsvid.Params{Audience: id.JWTAudience}, workloadapi.WithAddr(b.config.SPIFFE.Socket))
	if err != nil {
		return "", err
	}
	form := url.Values{
		"grant_type": {tokenExchange}, "subject_token": {subject}, "subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"audience": {rule.TargetAudience}, "scope": {rule.TokenScopes},
		"client_id": {id.ClientID}, "client_assertion_type": {jwtSPIFFE}, "client_assertion": {svid.Marshal()},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.config.Exchange.TokenURL, strings.NewReader(form.Encode()))
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

// authorized are the claims of the token that a request has, if it is one of the
// issuer's for the audience.
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
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
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
