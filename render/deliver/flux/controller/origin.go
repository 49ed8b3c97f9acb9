package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/version"
)

// FluxSources is the API group of Flux's sources, and of ExternalArtifact.
var FluxSources = schema.GroupVersion{Group: "source.toolkit.fluxcd.io", Version: "v1"}

// externalArtifact is the kind that is published. It can be a source as well.
const externalArtifact = "ExternalArtifact"

// ociRepository is the kind whose artifacts a policy can judge.
const ociRepository = "OCIRepository"

// sourceKinds are the kinds that a RenderedSource may refer to.
var sourceKinds = []string{"GitRepository", ociRepository, "Bucket", externalArtifact}

func newSource(kind string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(FluxSources.WithKind(kind))
	return o
}

// artifactOf decodes status.artifact. It returns nil if the source has none.
func artifactOf(source *unstructured.Unstructured) (*meta.Artifact, error) {
	value, ok, err := unstructured.NestedMap(source.Object, "status", "artifact")
	if err != nil || !ok {
		return nil, err
	}
	a := &meta.Artifact{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(value, a); err != nil {
		return nil, fmt.Errorf("reading status.artifact of %s %s: %w", source.GetKind(),
			source.GetName(), err)
	}
	return a, nil
}

// maxChain bounds the RenderedSources that render each other, since each reconcile reads all of
// those before its own.
const maxChain = 32

// cycle returns a failure if a RenderedSource renders what it publishes, directly or through
// others: each render would be a new revision for the next one, forever.
func (r *Reconciler) cycle(ctx context.Context, source *api.RenderedSource) *process.Failure {
	own := client.ObjectKeyFromObject(source)
	chain := []client.ObjectKey{own}
	for at := source; at.Spec.SourceRef.Kind == externalArtifact; {
		key := originKey(at)
		if key == own {
			var names []string
			for _, k := range append(chain, key) {
				names = append(names, strings.TrimPrefix(k.String(), own.Namespace+"/"))
			}
			return process.Stalled(reasonCycle,
				fmt.Errorf("%s: a RenderedSource cannot render what it publishes: "+
					"refer to another source", strings.Join(names, " → ")))
		}
		if slices.Contains(chain, key) || key.Namespace != at.Namespace && !r.CrossNamespace {
			return nil // another source reports the cycle, or the reference is rejected
		}
		if len(chain) > maxChain {
			return process.Stalled(reasonCycle, fmt.Errorf("it renders the last of more than %d "+
				"RenderedSources that render each other: refer to an earlier source", maxChain))
		}
		chain = append(chain, key)
		at = &api.RenderedSource{}
		err := r.Live.Get(ctx, key, at) // it may be in another shard
		switch {
		case apierrors.IsNotFound(err):
			return nil // another program publishes it
		case err != nil:
			return process.Retry(reasonSource,
				fmt.Errorf("reading RenderedSource %s: %w", key, err))
		}
	}
	return nil
}

// archiveFile matches the name of an archive's file, which is a revision or a digest.
var archiveFile = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// fetcher downloads archives from the hosts that serve Flux's archives.
type fetcher struct {
	hosts  []string // names, or names with a port
	client *http.Client
}

func newFetcher(hosts []string) *fetcher {
	transport := &http.Transport{ // no proxy: the hosts are in the cluster
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: time.Minute, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	}
	noRedirect := func(*http.Request, []*http.Request) error {
		return errors.New("a redirect is not followed")
	}
	f := &fetcher{client: &http.Client{Transport: transport, Timeout: time.Minute,
		CheckRedirect: noRedirect}}
	for _, h := range hosts {
		f.hosts = append(f.hosts, canonicalHost(h))
	}
	return f
}

// canonicalHost returns host:port in lower case, without the dot that may end a name.
func canonicalHost(host string) string {
	name, port, found := strings.Cut(strings.ToLower(host), ":")
	name = strings.TrimSuffix(name, ".")
	if found {
		return name + ":" + port
	}
	return name
}

// check returns an error unless an address is one of a source's archives, in the layout of the
// source-controller: http://HOST/KIND/NAMESPACE/NAME/FILE. A user who may write the status of a
// source could name an archive of another namespace, so it accepts no other spelling.
func (f *fetcher) check(address, kind string, source client.ObjectKey) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf(
			"status.artifact.url of %s %s: not the address of an archive of this source", kind, source)
	}
	host := canonicalHost(u.Host)
	name, _, _ := strings.Cut(host, ":")
	if !slices.Contains(f.hosts, host) && !slices.Contains(f.hosts, name) {
		return fmt.Errorf(
			"status.artifact.url of %s %s: %q: archives are not fetched from this host: "+
				"the operator allows hosts with --source-hosts", kind, source, u.Host)
	}
	folder := u.Scheme + "://" + u.Host + "/" +
		path.Join(strings.ToLower(kind), source.Namespace, source.Name) + "/"
	if file, ok := strings.CutPrefix(address, folder); !ok || !archiveFile.MatchString(file) {
		return fmt.Errorf(
			"status.artifact.url of %s %s: not the address of an archive of this source, "+
				"which is %sFILE: let Flux's controllers alone write the status of sources", kind,
			source, folder)
	}
	return nil
}

// get downloads an archive of at most limit bytes from a checked address.
func (f *fetcher) get(ctx context.Context, address string, limit int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
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
		return nil, fmt.Errorf("fetching the source's archive from %s: %s", request.URL.Host,
			response.Status)
	}
	var data []byte
	if response.ContentLength <= limit {
		if data, err = io.ReadAll(io.LimitReader(response.Body, limit+1)); err != nil {
			return nil, fmt.Errorf("fetching the source's archive: %w", err)
		}
	}
	if size := max(response.ContentLength, int64(len(data))); size > limit {
		return nil, fmt.Errorf("the source's archive has at least %d bytes: %w of %d: "+
			"leave out files with spec.ignore of the source", size, archive.ErrLimit, limit)
	}
	return data, nil
}
