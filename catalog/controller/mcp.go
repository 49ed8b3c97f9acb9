package controller

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/render/version"
)

// maxItems of each kind that one server may list.
const maxItems = 10000

// endpoint is an MCP server and how to reach it.
type endpoint struct {
	url         string
	sse         bool
	headers     http.Header
	secrets     []string // values that must never be stored
	roots       *x509.CertPool
	host        string // name that the certificate has to be for; empty is the URL's
	timeout     time.Duration
	silence     time.Duration // how long nothing may come; zero is the timeout
	terminate   bool
	description string // that the resource gives, before the server's own
	toolsAlone  bool   // no resources and prompts
	stateless   string // version of MCP without sessions that the server spoke last, "" if it is not known
}

// discovery is what a server reports about itself.
type discovery struct {
	info   *mcp.InitializeResult
	items  []store.Item
	memory *share
	// fresh is how long the server says that the tools stay as they are. private says that
	// they are for whoever asked alone.
	fresh   time.Duration
	private bool
}

// discover asks an MCP server for its tools, resources and prompts.
// memory is held for what it answers.
func discover(ctx context.Context, dial Dial, at endpoint, memory *share) (found *discovery, err error) {
	ctx, cancel := context.WithTimeout(ctx, at.timeout)
	defer cancel()
	base, err := url.Parse(at.url)
	if err != nil {
		return nil, &missingError{"its URL cannot be read"}
	}
	guard := &guard{
		next: newTransport(dial, at.roots, at.host), base: base, headers: at.headers, keep: !at.terminate, silence: at.silence, memory: memory, stateless: at.stateless,
	}
	guard.left.Store(maxDiscovery)
	defer func() { err = guard.explain(ctx, err) }()
	web := &http.Client{Transport: guard, CheckRedirect: func(r *http.Request, via []*http.Request) error { return guard.note(sameHost(r, via)) }}
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: at.url, HTTPClient: web, MaxRetries: -1, DisableStandaloneSSE: true, MaxEventSize: maxDiscovery}
	if at.sse {
		transport = &mcp.SSEClientTransport{Endpoint: at.url, HTTPClient: web, MaxEventSize: maxDiscovery}
	}
	// The SDK would log what servers write.
	options := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}, Logger: slog.New(slog.DiscardHandler)}
	session, err := mcp.NewClient(&mcp.Implementation{Name: program, Version: version.String()}, options).Connect(ctx, transport, nil)
	if err != nil {
		return nil, err
	}
	// The lists are valid, however the session ends.
	defer func() { _ = session.Close() }()
	found = &discovery{info: session.InitializeResult(), memory: memory}
	if err := found.list(ctx, session, at.toolsAlone); err != nil {
		return nil, err
	}
	for i := range found.items {
		if err := redact(&found.items[i], at.secrets); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (d *discovery) list(ctx context.Context, session *mcp.ClientSession, toolsAlone bool) error {
	has := d.info.Capabilities
	if has == nil {
		return nil
	}
	err := collect(ctx, d, "tools", has.Tools != nil, d.tools(ctx, session), func(t *mcp.Tool) store.Item {
		return store.Item{Kind: store.Tool, Name: t.Name, Title: toolTitle(t), Description: t.Description}
	})
	if toolsAlone {
		return err
	}
	if err == nil {
		err = collect(ctx, d, "resources", has.Resources != nil, session.Resources(ctx, nil), func(r *mcp.Resource) store.Item {
			return store.Item{Kind: store.Resource, Name: cmp.Or(r.Name, r.URI), Title: r.Title, Description: r.Description}
		})
	}
	if err == nil {
		err = collect(ctx, d, "prompts", has.Prompts != nil, session.Prompts(ctx, nil), func(p *mcp.Prompt) store.Item {
			return store.Item{Kind: store.Prompt, Name: p.Name, Title: p.Title, Description: p.Description}
		})
	}
	return err
}

// tools gives those of all pages, and notes what the pages say of keeping them.
func (d *discovery) tools(ctx context.Context, session *mcp.ClientSession) iter.Seq2[*mcp.Tool, error] {
	return func(yield func(*mcp.Tool, error) bool) {
		ask := &mcp.ListToolsParams{}
		for page := 0; ; page++ {
			found, err := session.ListTools(ctx, ask)
			if err != nil {
				yield(nil, err)
				return
			}
			fresh := time.Duration(min(max(0, found.TTLMs), int(maxFresh/time.Millisecond))) * time.Millisecond
			if page == 0 || fresh < d.fresh {
				d.fresh = fresh
			}
			d.private = d.private || found.CacheScope == "private"
			for _, t := range found.Tools {
				if !yield(t, nil) {
					return
				}
			}
			if found.NextCursor == "" {
				return
			}
			ask.Cursor = found.NextCursor
			ask.Meta = nil
		}
	}
}

// maxFresh bounds how long a server may keep the catalog from asking again: what it
// changes in between is not seen.
const maxFresh = 10 * time.Minute

// collect all pages of one kind, where the server offers it, in the order of their names: servers need not
// keep an order of their own, and a new order does not count as a change.
func collect[T any](ctx context.Context, d *discovery, kind string, offered bool, pages iter.Seq2[*T, error], item func(*T) store.Item) error {
	if !offered {
		return nil
	}
	begin := len(d.items)
	for one, err := range pages {
		if err != nil {
			return fmt.Errorf("listing %s: %w", kind, err)
		}
		if len(d.items)-begin == maxItems {
			return errTooLarge
		}
		i := item(one)
		if i.Document, err = json.Marshal(one); err != nil {
			return err
		}
		if err := d.memory.add(ctx, itemCost+int64(len(i.Document)+len(i.Title)+len(i.Description))); err != nil {
			return err
		}
		d.items = append(d.items, i)
	}
	slices.SortStableFunc(d.items[begin:], func(a, b store.Item) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func toolTitle(t *mcp.Tool) string {
	if t.Title == "" && t.Annotations != nil {
		return t.Annotations.Title
	}
	return t.Title
}

// redact takes secrets out of what a server wrote, which knows them since it was
// sent them.
func redact(item *store.Item, secrets []string) error {
	for _, secret := range secrets {
		item.Name = strings.ReplaceAll(item.Name, secret, redacted)
		item.Title = strings.ReplaceAll(item.Title, secret, redacted)
		item.Description = strings.ReplaceAll(item.Description, secret, redacted)
		inJSON, err := json.Marshal(secret)
		if err != nil {
			return err
		}
		item.Document = bytes.ReplaceAll(item.Document, inJSON[1:len(inJSON)-1], []byte(redacted))
	}
	return nil
}

const redacted = "[redacted]"

// guard is between the SDK and the network. It sends our headers only to the
// named host, counts bytes, and remembers what went wrong: the
// SDK's errors may quote the server.
type guard struct {
	next    http.RoundTripper
	base    *url.URL
	headers http.Header
	keep    bool // leave the session to the server
	silence time.Duration
	memory  *share
	// stateless is the version that server/discover is answered with here, without a
	// request; "" asks the server.
	stateless string
	left      atomic.Int64
	problem   atomic.Pointer[error]
	// decoding is what the answer to the last request takes, which is decoded when the
	// next one is sent.
	decoding atomic.Int64
}

func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Host != g.base.Host || request.URL.Scheme != g.base.Scheme {
		return nil, g.note(errOtherHost)
	}
	if g.keep && request.Method == http.MethodDelete {
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: request}, nil
	}
	if g.stateless != "" && request.Header.Get("Mcp-Method") == "server/discover" {
		return g.discovered(request)
	}
	if request.Method == http.MethodPost {
		g.memory.settle(g.decoding.Swap(0))
	}
	request = request.Clone(request.Context())
	request.Header.Set("User-Agent", UserAgent())
	for name, values := range g.headers {
		request.Header[name] = values
	}
	response, err := g.next.RoundTrip(request)
	if err != nil {
		return nil, g.note(err)
	}
	if response.StatusCode >= 400 && request.Method == http.MethodPost {
		_ = g.note(statusError(response.StatusCode))
	}
	counted := &metered{Reader: response.Body, ctx: request.Context(), memory: g.memory, decoding: &g.decoding}
	response.Body = &body{Reader: counted, Closer: response.Body, guard: g}
	return response, nil
}

// discovered answers server/discover in the place of a server that is known to speak a
// version without sessions, and to have tools.
func (g *guard) discovered(request *http.Request) (*http.Response, error) {
	var asked struct {
		ID json.RawMessage `json:"id"`
	}
	defer request.Body.Close()
	if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
		return nil, err
	}
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": asked.ID, "result": map[string]any{
		"resultType": "complete", "supportedVersions": []string{g.stateless}, "capabilities": map[string]any{"tools": map[string]any{}}, "ttlMs": 0, "cacheScope": "private",
	}})
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(bytes.NewReader(answer)), ContentLength: int64(len(answer)), Request: request}, nil
}

func (g *guard) note(err error) error {
	if err != nil {
		g.problem.Store(&err)
	}
	return err
}

// explain replaces the SDK's error by what the network did, where that is known.
func (g *guard) explain(ctx context.Context, err error) error {
	if err == nil || errors.As(err, new(*missingError)) {
		return err
	}
	if noted := g.problem.Load(); noted != nil && !errors.Is(*noted, context.Canceled) {
		return *noted
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errTooLarge) || errors.Is(err, errBusy) {
		return err
	}
	return &missingError{"it does not speak MCP as the protocol demands"}
}

// body counts what is read of a response, and gives up on silence.
type body struct {
	io.Reader
	io.Closer
	guard *guard
}

func (b *body) Read(p []byte) (int, error) {
	if b.guard.silence > 0 {
		timer := time.AfterFunc(b.guard.silence, func() {
			_ = b.guard.note(context.DeadlineExceeded)
			_ = b.Close() // ends the read
		})
		defer timer.Stop()
	}
	n, err := b.Reader.Read(p)
	if b.guard.left.Add(-int64(n)) < 0 {
		n, err = 0, errTooLarge
	}
	if errors.Is(err, errTooLarge) || errors.Is(err, errBusy) {
		return 0, b.guard.note(err)
	}
	return n, err
}

// remoteEndpoint is the one that a RemoteMCPServer names. Its Secrets and ConfigMaps
// are read from the API server, and none is kept.
func remoteEndpoint(ctx context.Context, live client.Reader, s *kagent.RemoteMCPServer) (endpoint, error) {
	at := endpoint{url: s.Spec.URL, sse: s.Spec.Protocol == kagent.SSE, headers: http.Header{}, timeout: 30 * time.Second, terminate: s.Spec.TerminateOnClose == nil || *s.Spec.TerminateOnClose}
	if t := s.Spec.Timeout.Duration; t > 0 {
		at.timeout = min(t, maxTimeout)
	}
	at.silence = min(max(0, s.Spec.SseReadTimeout.Duration), maxTimeout)
	if base, err := url.Parse(s.Spec.URL); err != nil || base.Host == "" || base.User != nil || base.Scheme != "http" && base.Scheme != "https" {
		return at, &missingError{"spec.url is not an http or https URL without user and password"}
	}
	for _, h := range s.Spec.HeadersFrom {
		value := h.Value
		if h.ValueFrom != (kagent.ValueSource{}) {
			var err error
			if value, err = valueFrom(ctx, live, s.Namespace, h.ValueFrom); err != nil {
				return at, err
			}
			if h.ValueFrom.Type == "Secret" {
				at.secrets = append(at.secrets, parts(value)...)
			}
		}
		if !validHeader(h.Name, value) {
			return at, &missingError{fmt.Sprintf("header %q: its name or value is none that HTTP allows", h.Name)}
		}
		at.headers.Set(h.Name, value)
	}
	at.host = s.Spec.TLS.ServerName
	if secret := s.Spec.TLS.CACertSecretRef; secret != "" {
		key := cmp.Or(s.Spec.TLS.CACertSecretKey, "ca.crt")
		pem, err := valueFrom(ctx, live, s.Namespace, kagent.ValueSource{Type: "Secret", Name: secret, Key: key})
		if err != nil {
			return at, err
		}
		if at.roots, err = x509.SystemCertPool(); err != nil {
			at.roots = x509.NewCertPool()
		}
		if !at.roots.AppendCertsFromPEM([]byte(pem)) {
			return at, &missingError{fmt.Sprintf("Secret %s holds no certificate under %s", secret, key)}
		}
	}
	return at, nil
}

// maxTimeout bounds what a RemoteMCPServer may ask for: a worker waits for it.
const maxTimeout = time.Minute

// parts of a Secret's value that must not show up anywhere: the whole, and what
// follows a scheme such as Bearer.
func parts(value string) (out []string) {
	if value != "" {
		out = append(out, value)
	}
	if _, after, ok := strings.Cut(value, " "); ok && after != "" {
		out = append(out, after)
	}
	return out
}

func validHeader(name, value string) bool {
	const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return name != "" && strings.Trim(name, token) == "" && !strings.ContainsAny(value, "\r\n\x00") &&
		!slices.Contains([]string{"Host", "Content-Length", "Transfer-Encoding", "Connection"}, http.CanonicalHeaderKey(name))
}

// valueFrom a key of a Secret or ConfigMap.
func valueFrom(ctx context.Context, live client.Reader, namespace string, from kagent.ValueSource) (string, error) {
	if live == nil {
		return "", &missingError{fmt.Sprintf("it needs %s %s, which is in the cluster", from.Type, from.Name)}
	}
	key := client.ObjectKey{Namespace: namespace, Name: from.Name}
	var value string
	var found bool
	var err error
	if from.Type == "ConfigMap" {
		var cm corev1.ConfigMap
		err = live.Get(ctx, key, &cm)
		value, found = cm.Data[from.Key]
	} else {
		var secret corev1.Secret
		err = live.Get(ctx, key, &secret)
		var data []byte
		data, found = secret.Data[from.Key]
		value = string(data)
	}
	switch {
	case apierrors.IsNotFound(err):
		return "", &missingError{fmt.Sprintf("%s %s is missing", from.Type, from.Name)}
	case apierrors.IsForbidden(err):
		return "", &missingError{fmt.Sprintf("%s %s may not be read by the catalog", from.Type, from.Name)}
	case err != nil:
		return "", fmt.Errorf("reading %s %s/%s: %w", from.Type, namespace, from.Name, err)
	case !found:
		return "", &missingError{fmt.Sprintf("%s %s has no key %s", from.Type, from.Name, from.Key)}
	}
	return strings.TrimSpace(value), nil
}
