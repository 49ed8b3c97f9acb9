package ask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/version"
)

// Catalog is the address of a catalog's server, and how to reach it.
type Catalog struct {
	// Address such as https://localhost:8443.
	Address string
	// CA is a PEM file of the authority that signed its certificate.
	CA string
	// TokenFile holds a Kubernetes token. If it is empty, the kubeconfig's is used.
	TokenFile  string
	Kubeconfig func() (*rest.Config, error)
}

// ErrCatalogAddress is the error for an address that is not a URL of the catalog.
var ErrCatalogAddress = errors.New("write it as https://host:port")

// CatalogClient reads a catalog's HTTP API.
type CatalogClient struct {
	base *url.URL
	http *http.Client
	// warn gets each warning of the catalog once.
	warn   func(text string)
	warned map[string]bool
}

// Connect connects to the server. warn gets each of its warnings once.
func (s Catalog) Connect(warn func(text string)) (*CatalogClient, error) {
	base, err := url.Parse(s.Address)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, ErrCatalogAddress
	}
	config := &rest.Config{Host: s.Address, UserAgent: version.UserAgent("armature")}
	config.TLSClientConfig.CAFile = s.CA
	if err := s.credentials(config); err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the catalog: %w", err)
	}
	// A redirect must not carry the token to another server.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	web := &http.Client{Transport: transport, CheckRedirect: refuse}
	return &CatalogClient{base: base, http: web, warn: warn, warned: map[string]bool{}}, nil
}

// credentials sets the token of a file, or the credentials of the kubeconfig that end in a token.
func (s Catalog) credentials(config *rest.Config) error {
	if s.TokenFile != "" {
		text, err := os.ReadFile(s.TokenFile)
		if err != nil {
			return fmt.Errorf("reading the token: %w", err)
		}
		if config.BearerToken = strings.TrimSpace(string(text)); config.BearerToken == "" {
			return fmt.Errorf("%s is empty\n  hint: `kubectl create token ACCOUNT >%s`",
				s.TokenFile, s.TokenFile)
		}
		return nil
	}
	kube, err := s.Kubeconfig()
	if err != nil {
		return fmt.Errorf("finding a token in the kubeconfig: %w", err)
	}
	config.BearerToken, config.BearerTokenFile = kube.BearerToken, kube.BearerTokenFile
	config.ExecProvider, config.AuthProvider = kube.ExecProvider, kube.AuthProvider
	if config.BearerToken == "" && config.BearerTokenFile == "" && config.ExecProvider == nil &&
		config.AuthProvider == nil {
		return errors.New("the kubeconfig has no token\n  hint: `kubectl create token ACCOUNT " +
			">token`, then --token-file token")
	}
	return nil
}

func (c *CatalogClient) ask(ctx context.Context, path string, parameters url.Values, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	response, err := c.send(ctx, path, parameters)
	if err != nil {
		return err
	}
	c.repeat(response.Header)
	data, err := io.ReadAll(io.LimitReader(response.Body, maxCatalog+1))
	if err == nil && len(data) > maxCatalog {
		err = fmt.Errorf("its answer is larger than %d MiB", maxCatalog>>20)
	}
	if err := multi.Errors(err, response.Body.Close()); err != nil {
		return fmt.Errorf("asking the catalog: %w", err)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("reading the catalog's answer: %w", err)
	}
	return nil
}

// Open opens an answer of the server, which may take as long as the caller reads. The error is
// store.ErrNotFound if the object does not exist.
func (c *CatalogClient) Open(ctx context.Context, path string,
	parameters url.Values) (io.ReadCloser, error) {
	response, err := c.send(ctx, path, parameters)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// send sends a request. Its error says why the server refuses it.
func (c *CatalogClient) send(ctx context.Context, path string,
	parameters url.Values) (*http.Response, error) {
	at := c.base.JoinPath(path)
	for name, values := range parameters {
		if values[0] == "" {
			parameters.Del(name)
		}
	}
	at.RawQuery = parameters.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("asking the catalog: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking the catalog: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	data, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10)) // the status says enough
	_ = response.Body.Close()
	var problem struct{ Error string }
	if json.Unmarshal(data, &problem) != nil || problem.Error == "" {
		problem.Error = response.Status
	}
	if response.StatusCode == http.StatusNotFound && problem.Error == store.ErrNotFound.Error() {
		return nil, store.ErrNotFound
	}
	return nil, fmt.Errorf("the catalog answers: %s", problem.Error)
}

// maxCatalog is the maximum size of an answer in bytes: a thousand entries with a card each.
const maxCatalog = 256 << 20

// repeat repeats the warnings of the catalog, such as that its store does not answer.
func (c *CatalogClient) repeat(h http.Header) {
	// an invalid warning is not repeated
	warnings, _ := utilnet.ParseWarningHeaders(h.Values("Warning"))
	for _, w := range warnings {
		if !c.warned[w.Text] {
			c.warned[w.Text] = true
			c.warn(w.Text)
		}
	}
}

// List lists all entries that a query finds.
func (c *CatalogClient) List(ctx context.Context, q store.Query) (out []store.Entry, err error) {
	parameters := url.Values{"type": {string(q.Type)}, "namespace": {q.Namespace},
		"health": {string(q.Health)}, "limit": {"1000"}}
	for {
		var page store.EntryList
		if err := c.ask(ctx, "api/v1/entries", parameters, &page); err != nil {
			return nil, err
		}
		if out = append(out, page.Items...); page.Next == "" {
			return out, nil
		}
		parameters.Set("after", page.Next)
	}
}

// Get returns one entry.
func (c *CatalogClient) Get(ctx context.Context, key store.Key) (e store.Entry, err error) {
	return e, c.ask(ctx, "api/v1/entries/"+url.PathEscape(key.Resource)+"/"+
		url.PathEscape(key.Namespace)+"/"+url.PathEscape(key.Name), url.Values{}, &e)
}

// Search returns the hits of a query.
func (c *CatalogClient) Search(ctx context.Context, q store.Query) ([]store.Hit, error) {
	var found store.HitList
	err := c.ask(ctx, "api/v1/search",
		url.Values{"q": {q.Text}, "kind": {q.Kind}, "type": {string(q.Type)},
			"namespace": {q.Namespace}, "limit": {strconv.Itoa(q.Limit)}}, &found)
	return found.Items, err
}
