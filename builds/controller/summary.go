package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/sign"
)

// A platform may name a VerifyPolicy. Once an image is attested, the controller judges it
// by that policy as a consumer would, by what the registry has, and attaches a verification
// summary (VSA) to an image that is accepted. Consumers then need to know the controller's
// key and the policy's digest, and neither builders nor sources.
//
// The policy is read before anything is signed, so that one that cannot be used is noticed
// while there is nothing yet. An image that it refuses stays attested: what the provenance
// says is true all the same.

// policyFile of the policy's ConfigMap has the VerifyPolicy; the other keys are the files
// that it names.
const policyFile = "policy.yaml"

// maxRefusal is how much status keeps of why an image is refused, in bytes.
const maxRefusal = 1024

// summaryPolicy reads the platform's policy, nil where it has none. An error may pass: the
// platform can still write a policy.
func (r *Reconciler) summaryPolicy(ctx context.Context, to sign.Signer) (*sign.Policy, error) {
	if r.SummaryPolicy == "" {
		return nil, nil
	}
	key := types.NamespacedName{Namespace: r.Namespace, Name: r.SummaryPolicy}
	fail := func(err error) (*sign.Policy, error) {
		return nil, fmt.Errorf("the policy for summaries, ConfigMap %s: %w", key, err)
	}
	var from corev1.ConfigMap
	if err := r.Live.Get(ctx, key, &from); err != nil {
		return fail(err)
	}
	text, ok := from.Data[policyFile]
	if !ok {
		return fail(fmt.Errorf("it has no key %s with a VerifyPolicy", policyFile))
	}
	files := make(map[string][]byte, len(from.Data)+len(from.BinaryData))
	for name, data := range from.Data {
		files[name] = []byte(data)
	}
	for name, data := range from.BinaryData {
		files[name] = data
	}
	p, err := sign.ParsePolicy([]byte(text), files)
	if err != nil {
		return fail(err)
	}
	if p.Name == "" {
		return fail(errors.New("a summary names the policy: give it a metadata.name"))
	}
	p.Keychain, p.PlainHTTP, p.Transport = to.Keychain, to.PlainHTTP, to.Transport
	return &p, nil
}

// summarize judges an attested image by the policy, and attaches the summary where it is
// accepted. nil: there is no policy.
func (r *Reconciler) summarize(ctx context.Context, build *api.AgentBuild, session *sign.Session, artifact name.Digest, p *sign.Policy) (*api.PolicyVerdict, error) {
	if p == nil {
		return nil, nil
	}
	out := &api.PolicyVerdict{Policy: r.Namespace + "/" + r.SummaryPolicy, PolicyDigest: p.Digest}
	verified, err := sign.Verify(ctx, artifact, *p)
	if err != nil {
		if mayPass(ctx, err) {
			return nil, registryFault(build, artifact, err)
		}
		out.Refusal = refusalText(err)
		return out, nil
	}
	summary, err := sign.NewSummary(verified, *p)
	if err != nil {
		return nil, fmt.Errorf("the policy for summaries, ConfigMap %s: %w", out.Policy, err)
	}
	if err := session.Attest(ctx, artifact, sign.SummaryType, summary); err != nil {
		return nil, r.signingFault(ctx, build, artifact, err)
	}
	out.Summary = attachedTag(artifact) + ".att"
	return out, nil
}

// refusalText is for status. What a registry says is left out: the tenant chose the server.
func refusalText(err error) string {
	text := api.Plain(err.Error())
	if answer := (*transport.Error)(nil); errors.As(err, &answer) {
		text = fmt.Sprintf("something that is attached to it leads nowhere: the registry answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	return strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "")
}

// mayPass reports whether a verdict is missing because a registry did not answer. That it
// does not have something is a verdict: whoever may push can attach what leads nowhere.
func mayPass(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrForbiddenAddress) {
		return true
	}
	if answer := (*transport.Error)(nil); errors.As(err, &answer) {
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
			return true
		}
		return answer.StatusCode >= http.StatusInternalServerError
	}
	var broken net.Error
	return errors.As(err, &broken)
}
