package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/version"
	"github.com/armature-dev/armature/sources/api"
	"github.com/armature-dev/armature/sources/archive"
)

// FluxSources is the API group of Flux's sources, and of ExternalArtifact.
var FluxSources = schema.GroupVersion{Group: "source.toolkit.fluxcd.io", Version: "v1"}

// externalArtifact is the kind that is published, which can be a source as well.
const externalArtifact = "ExternalArtifact"

// ociRepository is the kind whose artifacts a policy can judge.
const ociRepository = "OCIRepository"

// sourceKinds that a RenderedSource may refer to.
var sourceKinds = []string{"GitRepository", ociRepository, "Bucket", externalArtifact}

// fluxArtifact is status.artifact of Flux's sources (RFC-0012).
type fluxArtifact struct {
	Digest         string            `json:"digest"`
	Path           string            `json:"path"`
	URL            string            `json:"url"`
	Revision       string            `json:"revision"`
	LastUpdateTime metav1.Time       `json:"lastUpdateTime"`
	Size           *int64            `json:"size,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
}

// newSource is an empty source of a kind.
func newSource(kind string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(FluxSources.WithKind(kind))
	return o
}

// artifactOf reads status.artifact, nil where there is none.
func artifactOf(source *unstructured.Unstructured) (*fluxArtifact, error) {
	value, ok, err := unstructured.NestedMap(source.Object, "status", "artifact")
	if err != nil || !ok {
		return nil, err
	}
	a := &fluxArtifact{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(value, a); err != nil {
		return nil, fmt.Errorf("reading status.artifact of %s %s: %w", source.GetKind(), source.GetName(), err)
	}
	return a, nil
}

// cycle fails where a RenderedSource renders, itself or by way of others, what it
// publishes: each render would be a new revision for the next one, for ever.
func (r *Reconciler) cycle(ctx context.Context, source *api.RenderedSource) *failure {
	own := client.ObjectKeyFromObject(source)
	path := []client.ObjectKey{own}
	for at := source; at.Spec.SourceRef.Kind == externalArtifact; {
		key := originKey(at)
		if key == own {
			var names []string
			for _, k := range append(path, key) {
				if k.Namespace == own.Namespace {
					names = append(names, k.Name)
				} else {
					names = append(names, k.String())
				}
			}
			return &failure{reasonCycle, true, fmt.Errorf("%s: a RenderedSource cannot render what it publishes: refer to another source", strings.Join(names, " → "))}
		}
		if slices.Contains(path, key) || key.Namespace != at.Namespace && !r.CrossNamespace {
			return nil // a cycle of others, who report it, or a reference that is refused
		}
		path = append(path, key)
		at = &api.RenderedSource{}
		err := r.Client.Get(ctx, key, at)
		switch {
		case apierrors.IsNotFound(err):
			return nil // somebody else publishes it
		case err != nil:
			return &failure{reasonSource, false, fmt.Errorf("reading RenderedSource %s: %w", key, err)}
		}
	}
	return nil
}

// errHost is an address that is not that of a source-controller.
var errHost = errors.New("archives are not fetched from this host")

// fetcher gets archives from the hosts that serve those of Flux.
type fetcher struct {
	// hosts are names, or names with a port.
	hosts  []string
	client *http.Client
}

func newFetcher(hosts []string) *fetcher {
	transport := &http.Transport{ // no proxy: the hosts are in the cluster
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: time.Minute,
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	}
	f := &fetcher{client: &http.Client{Transport: transport, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("a redirect is not followed")
	}}}
	for _, h := range hosts {
		f.hosts = append(f.hosts, canonicalHost(h))
	}
	return f
}

// canonicalHost writes host:port without the dot that may end a name.
func canonicalHost(host string) string {
	name, port, found := strings.Cut(strings.ToLower(host), ":")
	name = strings.TrimSuffix(name, ".")
	if found {
		return name + ":" + port
	}
	return name
}

// get an archive of at most limit bytes.
func (f *fetcher) get(ctx context.Context, address string, limit int64) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of an archive: %w", address, errHost)
	}
	host := canonicalHost(u.Host)
	name, _, _ := strings.Cut(host, ":")
	if !slices.Contains(f.hosts, host) && !slices.Contains(f.hosts, name) {
		return nil, fmt.Errorf("%s: %w: the operator allows hosts with --source-hosts", u.Host, errHost)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", version.UserAgent(program))
	response, err := f.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("fetching the source's archive: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetching the source's archive from %s: %s", u.Host, response.Status)
	}
	if response.ContentLength > limit {
		return nil, fmt.Errorf("the source's archive has %d bytes: %w of %d: leave out files with spec.ignore of the source", response.ContentLength, archive.ErrLimit, limit)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("fetching the source's archive: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("the source's archive has more than %d bytes: %w: leave out files with spec.ignore of the source", limit, archive.ErrLimit)
	}
	return data, nil
}
