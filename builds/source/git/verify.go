package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/source/commit"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/text"
)

// A Git host serves every commit by its SHA: those of forks, of pull requests, and those that were
// removed from a branch. A full SHA therefore does not show who accepted the commit. If a policy
// judges the commit, the controller reads the history itself before it creates the run. The run is
// created for that commit, and the clone step can check out no other.
//
// The controller requests the objects that a branch has and the commit lacks ("want" the branch,
// "have" the commit), without trees and files. These are a few commits if the commit is on the
// branch, and the history of the branch since they diverged if it is a fork's. The controller
// computes the hash of each object. A server can therefore hide that a commit is reachable, but
// cannot make one reachable from the branch that it advertises.

// Reasons are the reasons of refusals by a policy.
var Reasons = []string{api.ReasonSourcePolicy, api.ReasonNotReachable, api.ReasonNotSigned,
	api.ReasonHistoryTooLarge}

// Policy is a policy for the commit of a build, in a ConfigMap. Tenants write some of them, so that
// they are parsed outside of the reconciles, as servers are asked.
type Policy struct {
	Key types.NamespacedName // of the ConfigMap
	// Platform is true for the policy of the template, which the tenant cannot write.
	Platform bool
	// Digest is the digest of the ConfigMap's content.
	Digest string
	field  string            // the field that names the ConfigMap
	files  map[string][]byte // nil while its question waits
}

// Policies returns the policies of a build, without reading them: that of its template, in the
// platform's namespace, and that of its spec. template is empty if the template names none.
func Policies(b *api.AgentBuild, platform, template string) (out []Policy) {
	if template != "" {
		key := types.NamespacedName{Namespace: platform, Name: template}
		out = append(out, Policy{Key: key, field: "spec.mode", Platform: true})
	}
	if ref := b.Spec.Source.Verify; ref != nil {
		key := types.NamespacedName{Namespace: b.Namespace, Name: ref.Name}
		out = append(out, Policy{Key: key, field: "spec.source.verify.name"})
	}
	return out
}

// ReadPolicies reads policies from the API server. A *finding.Finding is for the author of the
// policy.
func ReadPolicies(ctx context.Context, live client.Reader, b *api.AgentBuild,
	policies []Policy) ([]Policy, error) {
	out := slices.Clone(policies)
	for i, p := range out {
		files, err := ReadFiles(ctx, live, p.Key)
		switch {
		case apierrors.IsNotFound(err):
			return nil, p.unfit(b, errors.New("it does not exist"))
		case apierrors.IsForbidden(err):
			return nil, p.unfit(b, errors.New("the controller may not read it"))
		case err != nil:
			return nil, fmt.Errorf("reading ConfigMap %s: %w", p.Key, err)
		}
		out[i].files, out[i].Digest = files, commit.Digest(files)
	}
	return out, nil
}

// ReadFiles reads all keys of a ConfigMap.
func ReadFiles(ctx context.Context, live client.Reader,
	key types.NamespacedName) (map[string][]byte, error) {
	var from corev1.ConfigMap
	if err := live.Get(ctx, key, &from); err != nil {
		return nil, err
	}
	files := make(map[string][]byte, len(from.Data)+len(from.BinaryData))
	for name, text := range from.Data {
		files[name] = []byte(text)
	}
	maps.Copy(files, from.BinaryData)
	return files, nil
}

// unfit returns the finding about a policy that cannot be used.
func (p Policy) unfit(b *api.AgentBuild, err error) error {
	return compose.Place(b).At(p.field).Fault(api.ReasonSourcePolicy,
		fmt.Sprintf("the policy for the source, ConfigMap %s, cannot be used: %v", p.Key, err),
		"see docs/builds-attest.md, Verified sources; the build continues automatically")
}

// server reads the commits of a repository.
type server struct{ *gitremote.Conversation }

// verify verifies a commit against each policy. A *finding.Finding is for the user; other errors
// may be temporary.
func (s *server) verify(ctx context.Context, b *api.AgentBuild, shown, sha string,
	policies []Policy, now time.Time) (out []api.SourceVerification, _ error) {
	if len(policies) == 0 {
		return nil, nil
	}
	at := compose.Place(b).At(revisionField)
	if !plumbing.IsHash(sha) {
		return nil, at.Fault(api.ReasonNotReachable,
			fmt.Sprintf("%s is a commit of SHA-256, which a policy cannot check", sha),
			"use a repository with SHA-1")
	}
	history, hash := &commit.History{}, plumbing.NewHash(sha)
	for _, p := range policies {
		refuse := func(reason, message, hint string) error {
			return at.Fault(reason, fmt.Sprintf("%s: commit %s %s (policy %s)", shown, sha, message,
				p.Key), hint)
		}
		tooLarge := func() error {
			const text = "is too far from the policy's branches and tags: at most %d MiB of " +
				"history are searched"
			return refuse(api.ReasonHistoryTooLarge, fmt.Sprintf(text, commit.MaxPack>>20),
				"build the head of a branch or a tag of the policy, or name fewer of them there")
		}
		policy, err := commit.ParsePolicy(p.files)
		if err != nil {
			return nil, p.unfit(b, err)
		}
		found, err := s.find(ctx, history, policy, hash)
		switch {
		case errors.Is(err, commit.ErrTooLarge):
			return nil, tooLarge()
		case err != nil:
			return nil, err
		case found == nil:
			return nil, refuse(api.ReasonNotReachable, "is not reachable from "+policyRefs(policy),
				"merge it there first; a commit of a fork or of a pull request is not built "+
					"under this policy")
		}
		verified := api.SourceVerification{
			Policy: p.Key.String(), PolicyDigest: p.Digest, Platform: p.Platform, Ref: found.name,
		}
		if policy.DemandsSignature() {
			object, err := s.object(ctx, history, *found, hash)
			if errors.Is(err, commit.ErrTooLarge) {
				return nil, tooLarge()
			} else if err != nil {
				return nil, err
			}
			if verified.Signer, err = policy.Signer(object, now); err != nil {
				return nil, refuse(api.ReasonNotSigned,
					"does not have a signature that the policy accepts: "+err.Error(),
					"sign it with a key that the policy allows, as with git commit -S")
			}
			verified.Signer = text.Plain(verified.Signer)
		}
		out = append(out, verified)
	}
	return out, nil
}

// policyRefs lists a policy's branches and tags for a message.
func policyRefs(p *commit.Policy) string {
	var parts []string
	for word, names := range map[string][]string{"branch": p.Branches, "tag": p.Tags} {
		if len(names) > 0 {
			parts = append(parts, word+" "+strings.Join(names, ", "))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " or ")
}

// tip is a branch or tag.
type tip struct {
	name     string // in full
	hash     plumbing.Hash
	distance int // of the commit in its history
}

// find returns a branch or tag of the policy that the commit is reachable from, or nil.
func (s *server) find(ctx context.Context, history *commit.History, policy *commit.Policy,
	sha plumbing.Hash) (*tip, error) {
	var tips []tip
	for name, hash := range s.Refs.References {
		if err := ctx.Err(); err != nil { // tenants decide how long the comparison takes
			return nil, err
		}
		if policy.Covers(name) {
			tips = append(tips, tip{name: name, hash: hash})
		}
	}
	slices.SortFunc(tips, func(a, b tip) int { return cmp.Compare(a.name, b.name) })
	for _, t := range tips {
		if peeled, is := s.Refs.Peeled[t.name]; is && peeled == sha || !is && t.hash == sha {
			return &t, nil
		}
	}
	if len(tips) == 0 {
		return nil, nil
	}
	if len(tips) > gitremote.MaxTips {
		return nil, commit.ErrTooLarge
	}
	reached := func() *tip {
		for _, t := range tips {
			if distance, ok := history.Reaches(t.hash, sha); ok {
				t.distance = distance
				return &t
			}
		}
		return nil
	}
	if t := reached(); t != nil { // the history that was read for another policy may suffice
		return t, nil
	}
	request := s.Request(packp.FilterTreeDepth(0), 0)
	for _, t := range tips {
		request.Wants = append(request.Wants, t.hash)
	}
	request.Haves = []plumbing.Hash{sha}
	asked := false
	err := s.History(ctx, history, request, func(hash plumbing.Hash) bool {
		if !hash.IsZero() || asked {
			return false
		}
		// From here on, a server that cannot leave out trees and files sends them.
		asked = true
		return reached() != nil
	})
	if t := reached(); t != nil {
		return t, nil
	}
	return nil, err
}

// object returns a commit that is in the history of a branch or tag. It requests the branch or tag,
// because not every server sends a commit by its SHA.
func (s *server) object(ctx context.Context, history *commit.History, from tip,
	sha plumbing.Hash) ([]byte, error) {
	if object := history.Commit(sha); object != nil {
		return object, nil
	}
	if !s.Refs.Capabilities.Supports(capability.Shallow) {
		return nil, errors.New("the server does not send a part of a history (capability shallow)")
	}
	request := s.Request(packp.FilterTreeDepth(0), from.distance+1, from.hash)
	if err := s.History(ctx, history, request,
		func(hash plumbing.Hash) bool { return hash == sha }); err != nil {
		return nil, err
	}
	if object := history.Commit(sha); object != nil {
		return object, nil
	}
	return nil, fmt.Errorf("it does not send the commit %s, which %s has", sha, from.name)
}
