package attester

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/controller/library"
	"github.com/armature-dev/armature/builds/registry"
	"github.com/armature-dev/armature/render/deliver/sign"
)

const (
	// statementTimeout bounds the reading of the attestations of one image.
	statementTimeout = 30 * time.Second
	// maxStatements limits the cache. A verified statement stays valid.
	maxStatements = 4096
)

// Verifier reads from the registry what the attester attested about the image of a build.
type Verifier struct {
	attester *Attester
	library  *library.Library
	// known maps a statementKey to an attest.Statement, and the digest of a signer to the
	// sign.Policy that accepts it.
	known *lru.Cache
}

// statementKey has everything that an answer depends on. It includes the build, so that a tenant
// without a login does not get the answer for another tenant, whose login the registry accepts.
type statementKey struct {
	signer [sha256.Size]byte
	image  string
	build  types.UID
	spec   string
}

// NewVerifier returns a verifier of an attester's statements, for builds of a library's templates.
func NewVerifier(a *Attester, l *library.Library) *Verifier {
	return &Verifier{attester: a, library: l, known: lru.New(maxStatements)}
}

// Statement returns the statement about an image of a build, or the zero Statement if the mode of
// the build is not attested. In an attested mode it refuses an image without a statement about this
// build. A *finding.Finding is a refusal; every other error is temporary.
func (v *Verifier) Statement(ctx context.Context, build *api.AgentBuild,
	image string) (none attest.Statement, _ error) {
	a := v.attester
	at, err := attest.ImageOf(build, image)
	if err == nil {
		at, err = attest.ImageOf(build, image, a.reach(at).Names()...)
	}
	if err != nil {
		return none, err
	}
	found, err := v.library.Find(ctx, build)
	switch {
	case err != nil:
		return none, err
	case found.Template == nil: // the mode may be attested
		return none, found.Problem
	case !found.Template.Attest:
		return none, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	policy, signer, err := v.policy(ctx, build, at)
	if err != nil {
		return none, err
	}
	spec, _ := compose.InputHashes(build, templates.NoTemplate(), nil)
	key := statementKey{signer, at.String(), build.UID, spec}
	if known, ok := v.known.Get(key); ok {
		return known.(attest.Statement), nil
	}
	policy.PlainHTTP, policy.Transport = a.reach(at).PlainHTTP, a.transport
	if policy.Keychain, err = registry.Login(ctx, a.live, build); err != nil {
		return none, err
	}
	all, err := sign.Provenances(ctx, at, policy)
	if err != nil && mayPass(ctx, err) {
		return none, registryFault(build, at, err)
	} else if err != nil {
		return none, compose.Place(build).Fault(api.ReasonNotAttested,
			fmt.Sprintf("the registry has no attestation of %s by the platform: %s", at,
				refusalText(err)),
			"start again with `armature build rerun`; if the registry lost the attestation, or "+
				"the platform has a new key, that attests it again")
	}
	out, err := attest.Find(build, all)
	if err == nil {
		v.known.Add(key, out)
	}
	return out, err
}

// policy returns a policy that accepts the attester's signatures. It reads the key each time, and
// caches the policy by the digest of the signer.
func (v *Verifier) policy(ctx context.Context, build *api.AgentBuild,
	at name.Digest) (policy sign.Policy, signer [sha256.Size]byte, err error) {
	to, err := v.attester.signer(ctx, build)
	if err != nil {
		return policy, signer, err
	}
	text, err := json.Marshal([][]byte{[]byte(to.Key), to.PrivateKey, to.TrustedRoot})
	if err != nil {
		return policy, signer, err
	}
	signer = sha256.Sum256(text)
	if known, ok := v.known.Get(signer); ok {
		return known.(sign.Policy), signer, nil
	}
	session, err := v.attester.open(ctx, to)
	if err == nil {
		policy, err = session.Policy()
	}
	if err != nil {
		return policy, signer, v.attester.signingFault(ctx, build, at, err)
	}
	v.known.Add(signer, policy)
	return policy, signer, nil
}
