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
	// maxStatements are remembered. What was verified once stays true.
	maxStatements = 4096
)

// Verifier answers what the attester attested about the image of a build, by what the registry has.
type Verifier struct {
	attester *Attester
	library  *library.Library
	// statementKey -> attest.Statement, digest of a signer -> the sign.Policy that accepts it
	known *lru.Cache
}

// statementKey has all that an answer depends on. Its build is part of it, so that no tenant gets
// the answer to another one, whose login the registry accepts.
type statementKey struct {
	signer [sha256.Size]byte
	image  string
	build  types.UID
	spec   string
}

// NewVerifier returns a verifier of what an attester attests, for builds of the templates of a
// library.
func NewVerifier(a *Attester, l *library.Library) *Verifier {
	return &Verifier{attester: a, library: l, known: lru.New(maxStatements)}
}

// Statement about an image of a build: the zero Statement if the mode of the build is not
// attested. Where the mode is attested, an image without a statement about this build is refused.
// A *finding.Finding is a refusal; every other error may pass.
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
	case found.Template == nil: // nobody knows whether the mode is attested
		return none, found.Problem
	case !found.Template.Attest:
		return none, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	judged, signer, err := v.policy(ctx, build, at)
	if err != nil {
		return none, err
	}
	spec, _ := compose.InputHashes(build, templates.NoTemplate(), nil)
	key := statementKey{signer, at.String(), build.UID, spec}
	if known, ok := v.known.Get(key); ok {
		return known.(attest.Statement), nil
	}
	judged.PlainHTTP, judged.Transport = a.reach(at).PlainHTTP, a.transport
	if judged.Keychain, err = registry.Login(ctx, a.live, build); err != nil {
		return none, err
	}
	all, err := sign.Provenances(ctx, at, judged)
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

// policy accepts what the attester signs. Its key is read each time; the rest is remembered by
// the digest of the signer.
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
