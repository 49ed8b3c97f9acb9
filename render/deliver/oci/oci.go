// Package oci stores rendered packages in registries, as the OCI artifacts of Flux: one layer with
// a gzipped tar archive of manifests.
package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render/version"
)

// Media types of Flux's artifacts (fluxcd/pkg/oci, constants.go).
const (
	ConfigMediaType  types.MediaType = "application/vnd.cncf.flux.config.v1+json"
	ContentMediaType types.MediaType = "application/vnd.cncf.flux.content.v1.tar+gzip"
)

// Annotations of the manifest, as the OCI image specification names them.
const (
	SourceAnnotation   = "org.opencontainers.image.source"
	RevisionAnnotation = "org.opencontainers.image.revision"
	CreatedAnnotation  = "org.opencontainers.image.created"
)

// Scheme starts a reference to an artifact: oci://registry/repository:tag.
const Scheme = "oci://"

// Access configures access to registries. The zero value suits most users.
type Access struct {
	// Keychain returns credentials; nil is the docker configuration ($DOCKER_CONFIG,
	// ~/.docker/config.json) with its credential helpers.
	Keychain authn.Keychain
	// PlainHTTP uses http also for registries on other machines.
	PlainHTTP bool
	// Transport sends the requests; nil is the result of the function Transport.
	Transport http.RoundTripper
}

// Options configure how artifacts are stored and fetched.
type Options struct {
	Access
	// Verify is called with the digest of an artifact before its content is fetched. An error
	// refuses the artifact. nil accepts every artifact.
	Verify func(ctx context.Context, artifact name.Digest) error
	// Attach is called after a push and before the artifact gets its tag, for example to attach
	// signatures. An error leaves the tag unchanged. It may be nil.
	Attach func(ctx context.Context, artifact name.Digest) error
	// Progress is called with the number of bytes done and the total; it may be nil.
	Progress func(done, total int64)
}

// Result is an artifact in a registry.
type Result struct {
	// Ref is the reference with the digest: registry/repository@sha256:….
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
	Origin
	// Files and Bytes are the number and the total size of the unpacked files.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Origin contains the annotations of an artifact; "" for a missing one.
type Origin struct {
	Source   string `json:"source,omitempty"`
	Revision string `json:"revision,omitempty"`
	Created  string `json:"created,omitempty"`
}

func originOf(annotations map[string]string) Origin {
	return Origin{annotations[SourceAnnotation], annotations[RevisionAnnotation],
		annotations[CreatedAnnotation]}
}

// Parse parses a reference that starts with oci://. Without a tag or digest it means the tag
// latest.
func (a Access) Parse(ref string) (name.Reference, error) {
	plain, ok := strings.CutPrefix(ref, Scheme)
	if !ok {
		return nil, fmt.Errorf(
			"%s is not a reference to an artifact: write %sREGISTRY/REPOSITORY:TAG", ref, Scheme)
	}
	r, err := name.ParseReference(plain, a.Names()...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: write %sREGISTRY/REPOSITORY:TAG, in small letters", ref,
			err, Scheme)
	}
	return r, nil
}

// Names returns the options of go-containerregistry for references.
func (a Access) Names() (options []name.Option) {
	if a.PlainHTTP {
		options = append(options, name.Insecure)
	}
	return options
}

// Remote returns the options of go-containerregistry's client. The client retries four times in
// seven seconds if a registry is busy or a connection breaks.
func (a Access) Remote(ctx context.Context) []remote.Option {
	if a.Keychain == nil {
		a.Keychain = authn.DefaultKeychain
	}
	if a.Transport == nil {
		a.Transport = Transport()
	}
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(a.Transport),
		remote.WithAuthFromKeychain(a.Keychain),
		remote.WithUserAgent(version.UserAgent("armature")),
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Second / 2, Factor: 2, Jitter: 0.1,
			Steps: 5}),
		remote.WithRetryStatusCodes(http.StatusRequestTimeout, http.StatusTooManyRequests,
			http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
			http.StatusGatewayTimeout),
	}
}

// explain adds to an error the attempted operation, the artifact and the remedy for usual causes.
func explain(doing string, ref name.Reference, err error) error {
	hint := ""
	if refused := (*transport.Error)(nil); errors.As(err, &refused) {
		switch refused.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			hint = fmt.Sprintf(" (log in first: docker login %s)", ref.Context().RegistryStr())
		case http.StatusNotFound:
			hint = " (the artifact does not exist)"
		}
	}
	return fmt.Errorf("%s %s: %w%s", doing, ref, err, hint)
}
