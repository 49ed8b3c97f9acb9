package attester

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/finding"
)

// The bill of materials of a run is a blob beside its image. It is read only by the digest
// that the step reported: tags, and what refers to the image, can be changed by all who may
// push.

const (
	// maxSBOM is of a bill of materials, in bytes. It is held in memory several times
	// while it is signed and read back.
	maxSBOM = 8 << 20
	// sbomTimeout bounds the reading of one.
	sbomTimeout = time.Minute
)

// bill of materials that is to be attested.
type bill struct {
	of       name.Digest
	kind     string
	document json.RawMessage
}

// readBill reads a bill of materials that the run reported.
func (p *pushed) readBill(ctx context.Context, reported attest.Bill) (*bill, error) {
	ctx, cancel := context.WithTimeout(ctx, sbomTimeout)
	defer cancel()
	options := p.access.options(ctx)
	at := p.artifact.Context().Digest(reported.Digest)
	document, err := readBlob(at, options)
	var answer *transport.Error
	switch {
	case errors.Is(err, errTooLarge):
		return nil, invalidSBOM(p.build, "%s has more than %d MiB", at, maxSBOM>>20)
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return nil, invalidSBOM(p.build, "the registry does not have %s, which the run reported", at)
	case err != nil:
		return nil, registryFault(p.build, at, err)
	}
	read, err := attest.ReadSBOM(document)
	if err != nil {
		return nil, invalidSBOM(p.build, "%s: %v", at, err)
	}
	out := &bill{of: p.artifact.Context().Digest(read.Of), kind: read.Type, document: document}
	if want := cmp.Or(reported.Of, p.built.Digest); read.Of == want {
		return out, nil
	} else if reported.Of != "" {
		return nil, invalidSBOM(p.build, "%s describes the image %s, and has to describe that of its platform, %s", at, read.Of, want)
	}
	parts, err := listImages(p.artifact, options)
	if err != nil {
		return nil, registryFault(p.build, p.artifact, err)
	}
	if !slices.ContainsFunc(parts, func(d v1.Descriptor) bool { return d.Digest.String() == read.Of }) {
		return nil, invalidSBOM(p.build, "%s describes the image %s, and the run built %s", at, read.Of, p.built.Digest)
	}
	return out, nil
}

func invalidSBOM(build *api.AgentBuild, format string, args ...any) *finding.Finding {
	return compose.Place(build).Fault(api.ReasonSBOMInvalid, "the SBOM: "+fmt.Sprintf(format, args...),
		"see docs/builds-attest.md for what a step has to leave, then start again with `armature build rerun`")
}

var errTooLarge = errors.New("it is too large")

// readBlob reads a blob of at most maxSBOM bytes, which has to have its digest.
func readBlob(at name.Digest, options []remote.Option) ([]byte, error) {
	blob, err := remote.Layer(at, options...)
	if err != nil {
		return nil, err
	}
	content, err := blob.Compressed() // as it was sent; compares what comes with the digest
	if err != nil {
		return nil, err
	}
	defer content.Close()
	document, err := io.ReadAll(io.LimitReader(content, maxSBOM+1))
	if err == nil && len(document) > maxSBOM {
		err = errTooLarge
	}
	return document, err
}
