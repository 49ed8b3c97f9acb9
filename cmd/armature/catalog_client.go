package main

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
	"k8s.io/client-go/tools/clientcmd"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/render/version"
)

// catalogClient reads a catalog's HTTP API.
type catalogClient struct {
	base *url.URL
	http *http.Client
	// warn gets each warning of the catalog once.
	warn   io.Writer
	warned map[string]bool
}

func (c *catalog) client(warn io.Writer) (*catalogClient, error) {
	base, err := url.Parse(c.server)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, usageError{fmt.Errorf("--server %q: write it as https://host:port", c.server)}
	}
	config := &rest.Config{Host: c.server, UserAgent: version.UserAgent("armature")}
	config.TLSClientConfig.CAFile = c.ca
	if err := c.credentials(config); err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the catalog: %w", err)
	}
	// A redirect elsewhere must not take the token along.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	web := &http.Client{Transport: transport, Timeout: time.Minute, CheckRedirect: refuse}
	return &catalogClient{base: base, http: web, warn: warn, warned: map[string]bool{}}, nil
}

// credentials are those of the kubeconfig that end in a token.
func (c *catalog) credentials(config *rest.Config) error {
	if c.tokenFile != "" {
		text, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return fmt.Errorf("reading the token: %w", err)
		}
		if config.BearerToken = strings.TrimSpace(string(text)); config.BearerToken == "" {
			return fmt.Errorf("%s is empty\n  hint: `kubectl create token ACCOUNT >%s`", c.tokenFile, c.tokenFile)
		}
		return nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	kube, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context}).ClientConfig()
	if err != nil {
		return fmt.Errorf("finding a token in the kubeconfig: %w", err)
	}
	config.BearerToken, config.BearerTokenFile = kube.BearerToken, kube.BearerTokenFile
	config.ExecProvider, config.AuthProvider = kube.ExecProvider, kube.AuthProvider
	if config.BearerToken == "" && config.BearerTokenFile == "" && config.ExecProvider == nil && config.AuthProvider == nil {
		return errors.New("the kubeconfig has no token\n  hint: `kubectl create token ACCOUNT >token`, then --token-file token")
	}
	return nil
}

func (c *catalogClient) ask(ctx context.Context, path string, parameters url.Values, answer any) error {
	at := c.base.JoinPath(path)
	for name, values := range parameters {
		if values[0] == "" {
			parameters.Del(name)
		}
	}
	at.RawQuery = parameters.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return fmt.Errorf("asking the catalog: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("asking the catalog: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = fmt.Errorf("its answer is larger than %d MiB", maxAnswer>>20)
	}
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("asking the catalog: %w", err)
	}
	c.repeat(response.Header)
	if response.StatusCode != http.StatusOK {
		var problem struct{ Error string }
		if json.Unmarshal(data, &problem) != nil || problem.Error == "" {
			problem.Error = response.Status
		}
		if response.StatusCode == http.StatusNotFound && problem.Error == store.ErrNotFound.Error() {
			return store.ErrNotFound
		}
		return fmt.Errorf("the catalog answers: %s", problem.Error)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("reading the catalog's answer: %w", err)
	}
	return nil
}

// maxAnswer in bytes: a thousand entries with a card each.
const maxAnswer = 256 << 20

// repeat what the catalog warns of, such as that its store is away.
func (c *catalogClient) repeat(h http.Header) {
	warnings, _ := utilnet.ParseWarningHeaders(h.Values("Warning")) // an invalid warning is not repeated
	for _, w := range warnings {
		if text := oneLine(w.Text); !c.warned[text] {
			c.warned[text] = true
			fmt.Fprintln(c.warn, "Warning:", text)
		}
	}
}

func (c *catalogClient) List(ctx context.Context, q store.Query) (out []store.Entry, err error) {
	parameters := url.Values{"type": {string(q.Type)}, "namespace": {q.Namespace}, "health": {string(q.Health)}, "limit": {"1000"}}
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

func (c *catalogClient) Get(ctx context.Context, key store.Key) (e store.Entry, err error) {
	return e, c.ask(ctx, "api/v1/entries/"+url.PathEscape(key.Resource)+"/"+url.PathEscape(key.Namespace)+"/"+url.PathEscape(key.Name), url.Values{}, &e)
}

func (c *catalogClient) Search(ctx context.Context, q store.Query) ([]store.Hit, error) {
	var found store.HitList
	err := c.ask(ctx, "api/v1/search", url.Values{"q": {q.Text}, "kind": {q.Kind}, "type": {string(q.Type)}, "namespace": {q.Namespace}, "limit": {strconv.Itoa(q.Limit)}}, &found)
	return found.Items, err
}
