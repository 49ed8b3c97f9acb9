package ask

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
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/version"
)

// maxItems of each kind that one server may list.
const maxItems = 10000

// Endpoint is an MCP server and how to reach it.
type Endpoint struct {
	URL         string
	SSE         bool
	Headers     http.Header
	Secrets     []string // values that must never be stored
	Roots       *x509.CertPool
	Host        string // name that the certificate has to be for; empty is the URL's
	Timeout     time.Duration
	Silence     time.Duration // how long nothing may come; zero is the timeout
	Terminate   bool
	Description string // of the resource; overrides the server's own
	ToolsAlone  bool   // no resources and prompts
	// version of MCP without sessions that the server spoke last, "" if it is not known
	Stateless string
}

// Discovery is a server's report about itself.
type Discovery struct {
	Info  *mcp.InitializeResult
	Items []store.Item
	// Fresh is how long the tools stay valid, according to the server. Private means that they are
	// only for the client that asked.
	Fresh   time.Duration
	Private bool

	memory *answers.Share
}

// Discover asks an MCP server for its tools, resources and prompts. memory accounts for its
// answers. Its error is a *Failure.
func Discover(ctx context.Context, dial Dial, at Endpoint,
	memory *answers.Share) (found *Discovery, err error) {
	ctx, cancel := context.WithTimeout(ctx, at.Timeout)
	defer cancel()
	base, err := url.Parse(at.URL)
	if err != nil {
		return nil, Failed("its URL cannot be read")
	}
	guard := &guard{
		next: Transport(dial, at.Roots, at.Host), base: base, headers: at.Headers,
		keep: !at.Terminate, silence: at.Silence, memory: memory, stateless: at.Stateless,
	}
	guard.left.Store(maxDiscovery)
	defer func() { err = guard.explain(ctx, err) }()
	web := &http.Client{Transport: guard,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			return guard.note(sameHost(r, via))
		}}
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: at.URL, HTTPClient: web,
		MaxRetries: -1, DisableStandaloneSSE: true, MaxEventSize: maxDiscovery}
	if at.SSE {
		transport = &mcp.SSEClientTransport{Endpoint: at.URL, HTTPClient: web, MaxEventSize: maxDiscovery}
	}
	// The SDK would log the servers' text.
	options := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{},
		Logger: slog.New(slog.DiscardHandler)}
	session, err := mcp.NewClient(&mcp.Implementation{Name: Program, Version: version.String()},
		options).Connect(ctx, transport, nil)
	if err != nil {
		return nil, err
	}
	// The lists are valid, however the session ends.
	defer func() { _ = session.Close() }()
	found = &Discovery{Info: session.InitializeResult(), memory: memory}
	if err := found.list(ctx, session, at.ToolsAlone); err != nil {
		return nil, err
	}
	for i := range found.Items {
		if err := redact(&found.Items[i], at.Secrets); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (d *Discovery) list(ctx context.Context, session *mcp.ClientSession, toolsAlone bool) error {
	has := d.Info.Capabilities
	if has == nil {
		return nil
	}
	err := collect(ctx, d, "tools", has.Tools != nil, d.tools(ctx, session),
		func(t *mcp.Tool) store.Item {
			title := t.Title
			if t.Annotations != nil {
				title = cmp.Or(title, t.Annotations.Title)
			}
			return store.Item{Kind: store.Tool, Name: t.Name, Title: title,
				Description: t.Description}
		})
	if toolsAlone {
		return err
	}
	if err == nil {
		err = collect(ctx, d, "resources", has.Resources != nil, session.Resources(ctx, nil),
			func(r *mcp.Resource) store.Item {
				return store.Item{Kind: store.Resource, Name: cmp.Or(r.Name, r.URI), Title: r.Title,
					Description: r.Description}
			})
	}
	if err == nil {
		err = collect(ctx, d, "prompts", has.Prompts != nil, session.Prompts(ctx, nil),
			func(p *mcp.Prompt) store.Item {
				return store.Item{Kind: store.Prompt, Name: p.Name, Title: p.Title,
					Description: p.Description}
			})
	}
	return err
}

// tools returns the tools of all pages, and records how long they may be cached.
func (d *Discovery) tools(ctx context.Context,
	session *mcp.ClientSession) iter.Seq2[*mcp.Tool, error] {
	return func(yield func(*mcp.Tool, error) bool) {
		ask := &mcp.ListToolsParams{}
		for page := 0; ; page++ {
			found, err := session.ListTools(ctx, ask)
			if err != nil {
				yield(nil, err)
				return
			}
			fresh := time.Duration(min(max(0, found.TTLMs), int(maxFresh/time.Millisecond))) *
				time.Millisecond
			if page == 0 || fresh < d.Fresh {
				d.Fresh = fresh
			}
			d.Private = d.Private || found.CacheScope == "private"
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

// maxFresh bounds how long a server may delay the next query: changes in between are not seen.
const maxFresh = 10 * time.Minute

// collect reads all pages of one kind, if the server offers it, and sorts the items by name:
// servers need not keep an order of their own, and a new order does not count as a change.
func collect[T any](ctx context.Context, d *Discovery, kind string, offered bool,
	pages iter.Seq2[*T, error], item func(*T) store.Item) error {
	if !offered {
		return nil
	}
	begin := len(d.Items)
	for one, err := range pages {
		if err != nil {
			return fmt.Errorf("listing %s: %w", kind, err)
		}
		if len(d.Items)-begin == maxItems {
			return ErrTooLarge
		}
		i := item(one)
		if i.Document, err = json.Marshal(one); err != nil {
			return err
		}
		if err := d.memory.Add(ctx,
			itemCost+int64(len(i.Document)+len(i.Title)+len(i.Description))); err != nil {
			return err
		}
		d.Items = append(d.Items, i)
	}
	slices.SortStableFunc(d.Items[begin:],
		func(a, b store.Item) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// redact removes secrets from a server's text. The server knows them because it was sent them.
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

// Fill writes a server's report about itself into an entry.
func (d *Discovery) Fill(e *store.Entry, at Endpoint) {
	clean := func(text string) string {
		for _, s := range at.Secrets {
			text = strings.ReplaceAll(text, s, redacted)
		}
		return text
	}
	e.Items, e.Health, e.Message = d.Items, store.Healthy, ""
	if d.Private { // readers of the catalog are other clients
		for i := range e.Items {
			if e.Items[i].Kind == store.Tool {
				e.Items[i] = store.Item{Kind: store.Tool, Name: e.Items[i].Name}
			}
		}
	}
	if info := d.Info.ServerInfo; info != nil {
		e.Title, e.Version = clean(cmp.Or(info.Title, info.Name)), clean(info.Version)
	}
	e.Description = cmp.Or(at.Description, clean(d.Info.Instructions))
}

// guard is between the SDK and the network. It sends the headers only to the named host, counts
// bytes, and records the errors of the network: the SDK's errors may quote the server.
type guard struct {
	next    http.RoundTripper
	base    *url.URL
	headers http.Header
	keep    bool // leave the session to the server
	silence time.Duration
	memory  *answers.Share
	// stateless is the version with which guard answers server/discover, without a request; "" asks
	// the server.
	stateless string
	left      atomic.Int64
	problem   atomic.Pointer[error]
	// decoding is the memory of the answer to the last request, which is decoded when the next one
	// is sent.
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
		g.memory.Settle(g.decoding.Swap(0))
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
		_ = g.note(answered(response.StatusCode))
	}
	counted := meter(request.Context(), response.Body, g.memory, &g.decoding)
	response.Body = &body{Reader: counted, Closer: response.Body, guard: g}
	return response, nil
}

// discovered answers server/discover for a server that is known to speak a version without
// sessions, and to have tools.
func (g *guard) discovered(request *http.Request) (*http.Response, error) {
	var asked struct {
		ID json.RawMessage `json:"id"`
	}
	defer request.Body.Close()
	if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
		return nil, err
	}
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": asked.ID, "result": map[string]any{
		"resultType": "complete", "supportedVersions": []string{g.stateless},
		"capabilities": map[string]any{"tools": map[string]any{}}, "ttlMs": 0,
		"cacheScope": "private",
	}})
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: http.StatusOK, Header: header,
		Body: io.NopCloser(bytes.NewReader(answer)), ContentLength: int64(len(answer)),
		Request: request}, nil
}

func (g *guard) note(err error) error {
	if err != nil {
		g.problem.Store(&err)
	}
	return err
}

// explain replaces the SDK's error by the network's, if there is one.
func (g *guard) explain(ctx context.Context, err error) error {
	noted := g.problem.Load()
	switch {
	case err == nil:
		return nil
	case noted != nil && !errors.Is(*noted, context.Canceled):
		return FailureOf(*noted)
	case ctx.Err() != nil:
		return FailureOf(ctx.Err())
	case errors.Is(err, ErrTooLarge), errors.Is(err, answers.ErrBusy):
		return FailureOf(err)
	}
	return Failed("it does not follow the MCP protocol")
}

// body counts the bytes of a response, and fails on silence.
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
		n, err = 0, ErrTooLarge
	}
	if errors.Is(err, ErrTooLarge) || errors.Is(err, answers.ErrBusy) {
		return 0, b.guard.note(err)
	}
	return n, err
}

// RemoteEndpoint returns the endpoint that a RemoteMCPServer names. It reads Secrets and ConfigMaps
// from the API server, and keeps none.
func RemoteEndpoint(ctx context.Context, live client.Reader,
	s *kagent.RemoteMCPServer) (Endpoint, error) {
	at := Endpoint{URL: s.Spec.URL, SSE: s.Spec.Protocol == kagent.SSE, Headers: http.Header{},
		Timeout:   30 * time.Second,
		Terminate: s.Spec.TerminateOnClose == nil || *s.Spec.TerminateOnClose}
	if t := s.Spec.Timeout.Duration; t > 0 {
		at.Timeout = min(t, maxTimeout)
	}
	at.Silence = min(max(0, s.Spec.SseReadTimeout.Duration), maxTimeout)
	if base, err := url.Parse(s.Spec.URL); err != nil || base.Host == "" || base.User != nil ||
		base.Scheme != "http" && base.Scheme != "https" {
		return at, Failed("spec.url is not an http or https URL without user and password")
	}
	for _, h := range s.Spec.HeadersFrom {
		value := h.Value
		if h.ValueFrom != (kagent.ValueSource{}) {
			var err error
			if value, err = valueFrom(ctx, live, s.Namespace, h.ValueFrom); err != nil {
				return at, err
			}
			if h.ValueFrom.Type != "ConfigMap" { // valueFrom reads a Secret
				at.Secrets = append(at.Secrets, parts(value)...)
			}
		}
		if !validHeader(h.Name, value) {
			return at, Failed("header %q: its name or value is not valid in HTTP", h.Name)
		}
		at.Headers.Set(h.Name, value)
	}
	at.Host = s.Spec.TLS.ServerName
	if secret := s.Spec.TLS.CACertSecretRef; secret != "" {
		key := cmp.Or(s.Spec.TLS.CACertSecretKey, "ca.crt")
		pem, err := valueFrom(ctx, live, s.Namespace,
			kagent.ValueSource{Type: "Secret", Name: secret, Key: key})
		if err != nil {
			return at, err
		}
		if at.Roots, err = x509.SystemCertPool(); err != nil {
			at.Roots = x509.NewCertPool()
		}
		if !at.Roots.AppendCertsFromPEM([]byte(pem)) {
			return at, Failed("Secret %s holds no certificate under %s", secret, key)
		}
	}
	return at, nil
}

// maxTimeout bounds the timeouts of a RemoteMCPServer: a worker waits for them.
const maxTimeout = time.Minute

// parts returns the parts of a Secret's value that must not appear anywhere: the whole value, and
// the part after a scheme such as Bearer.
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
	return name != "" && strings.Trim(name, token) == "" &&
		!strings.ContainsAny(value, "\r\n\x00") &&
		!slices.Contains([]string{"Host", "Content-Length", "Transfer-Encoding", "Connection"},
			http.CanonicalHeaderKey(name))
}

// valueFrom reads a key of a Secret or ConfigMap.
func valueFrom(ctx context.Context, live client.Reader, namespace string,
	from kagent.ValueSource) (string, error) {
	if live == nil {
		return "", Failed("it needs %s %s, which is in the cluster", from.Type, from.Name)
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
		return "", Failed("%s %s is missing", from.Type, from.Name)
	case apierrors.IsForbidden(err):
		return "", Failed("the catalog may not read %s %s", from.Type, from.Name)
	case err != nil:
		return "", fmt.Errorf("reading %s %s/%s: %w", from.Type, namespace, from.Name, err)
	case !found:
		return "", Failed("%s %s has no key %s", from.Type, from.Name, from.Key)
	}
	return strings.TrimSpace(value), nil
}
