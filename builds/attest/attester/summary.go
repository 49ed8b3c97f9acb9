package attester

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// A platform may name a VerifyPolicy. After an image is attested, the controller verifies it by
// that policy as a consumer would, with the content of the registry, and attaches a verification
// summary (VSA) to an accepted image. Consumers then need only the controller's key and the
// policy's digest, and no knowledge about builders and sources.
//
// The policy is read before the first signature, so that an invalid policy is reported first. An
// image that the policy refuses stays attested: its provenance is still true.

// policyFile is the key of the policy's ConfigMap with the VerifyPolicy. The other keys are the
// files that the policy names.
const policyFile = "policy.yaml"

// maxRefusal limits the reason of a refusal in status, in bytes.
const maxRefusal = 1024

// summaryPolicy reads the platform's policy, or returns nil if there is none. An error is
// temporary: the platform can still write a policy.
func (a *Attester) summaryPolicy(ctx context.Context, to sign.Signer) (*sign.Policy, error) {
	if a.options.SummaryPolicy == "" {
		return nil, nil
	}
	key := types.NamespacedName{Namespace: a.namespace, Name: a.options.SummaryPolicy}
	files, err := git.ReadFiles(ctx, a.live, key)
	text, ok := files[policyFile]
	if err == nil && !ok {
		err = fmt.Errorf("it has no key %s with a VerifyPolicy", policyFile)
	}
	var p sign.Policy
	if err == nil {
		p, err = sign.ParsePolicy(text, files)
	}
	if err == nil && p.Name == "" {
		err = errors.New("a summary names the policy: give it a metadata.name")
	}
	if err != nil {
		return nil, fmt.Errorf("the policy for summaries, ConfigMap %s: %w", key, err)
	}
	p.Keychain, p.PlainHTTP, p.Transport = to.Keychain, to.PlainHTTP, to.Transport
	return &p, nil
}

// summarize verifies the attested images by the policy and attaches a summary to each accepted
// image. It stops at the first refusal, and returns nil if there is no policy.
func (a *Attester) summarize(ctx context.Context, p *pushed, session *sign.Session,
	policy *sign.Policy) (out *api.PolicyVerdict, _ error) {
	if policy == nil {
		return nil, nil
	}
	for _, image := range p.images() {
		out = &api.PolicyVerdict{Policy: a.namespace + "/" + a.options.SummaryPolicy,
			PolicyDigest: policy.Digest}
		verified, err := sign.Verify(ctx, image, *policy)
		if err != nil && mayPass(ctx, err) {
			return nil, registryFault(p.build, image, err)
		} else if err != nil {
			out.Refusal = refusalText(err)
			return out, nil
		}
		summary, err := sign.NewSummary(verified, *policy)
		if err != nil {
			return nil, fmt.Errorf("the policy for summaries, ConfigMap %s: %w", out.Policy, err)
		}
		if out.Summary, err = session.Attest(ctx, image, sign.SummaryType, summary); err != nil {
			return nil, a.signingFault(ctx, p.build, image, err)
		}
	}
	return out, nil
}

// refusalText returns the reason of a refusal for status, without the text of a registry's answer:
// the tenant chose the server.
func refusalText(err error) string {
	reason := text.Plain(err.Error())
	if answer := (*transport.Error)(nil); errors.As(err, &answer) {
		reason = fmt.Sprintf(
			"something that is attached to it leads nowhere: the registry answers %d %s",
			answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	return text.Cut(reason, maxRefusal)
}

// mayPass reports whether an error is temporary because a registry did not answer. An answer that
// content does not exist is final: a user with the right to push can attach dangling references.
func mayPass(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, gitremote.ErrForbiddenAddress) {
		return true
	}
	if answer := (*transport.Error)(nil); errors.As(err, &answer) {
		return answer.StatusCode >= http.StatusInternalServerError ||
			slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden,
				http.StatusTooManyRequests}, answer.StatusCode)
	}
	var broken net.Error
	return errors.As(err, &broken)
}
