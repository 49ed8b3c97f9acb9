package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/commit"
	"github.com/armature-dev/armature/builds/compose"
)

// A host of Git repositories gives out every commit by its SHA: those of forks, of pull
// requests, and those that were taken back. So a full SHA says nothing about who let the
// commit in. Where a policy judges the commit, the controller asks for the history itself,
// before the run is created: the run is made for that commit, and the clone step can
// check out no other.
//
// The server is asked for what a branch has and the commit has not ("want" the branch,
// "have" the commit), without trees and files: a few commits where the commit is the
// branch's, the branch's part of the history where it is a fork's. The hash of each
// object is computed, so that a server can deny that a commit is reachable, and cannot
// make one reachable from the branch that it advertises.

// maxTips of branches and tags are looked at, where none of them is the commit itself.
const maxTips = 256

// sourceReasons are those of refusals by a policy.
var sourceReasons = []string{api.ReasonSourcePolicy, api.ReasonNotReachable, api.ReasonNotSigned, api.ReasonHistoryTooLarge}

// demand is a policy for the commit of a build, as its ConfigMap has it. A tenant writes
// some of them, so that they are parsed beside the reconciles, as servers are asked.
type demand struct {
	// name is the ConfigMap, as NAMESPACE/NAME, and field what names it.
	name, field string
	platform    bool
	files       map[string][]byte
	digest      string
}

// demands that the template and the build make. They are read from the API server each
// time. A *krm.Finding is for whoever writes the policy.
func (r *Reconciler) demands(ctx context.Context, s *seen) (out []demand, _ error) {
	if name := s.template.VerifySource; name != "" {
		d, err := r.demand(ctx, s, types.NamespacedName{Namespace: r.Namespace, Name: name}, "spec.mode")
		if err != nil {
			return nil, err
		}
		d.platform = true
		out = append(out, d)
	}
	if ref := s.build.Spec.Source.Verify; ref != nil {
		d, err := r.demand(ctx, s, types.NamespacedName{Namespace: s.build.Namespace, Name: ref.Name}, "spec.source.verify.name")
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func (r *Reconciler) demand(ctx context.Context, s *seen, key types.NamespacedName, field string) (demand, error) {
	out := demand{name: key.String(), field: field}
	r.texts.note(key.Name)
	var from corev1.ConfigMap
	switch err := r.Live.Get(ctx, key, &from); {
	case apierrors.IsNotFound(err):
		return out, out.unfit(s.build, errors.New("it does not exist"))
	case apierrors.IsForbidden(err):
		return out, out.unfit(s.build, errors.New("the controller may not read it"))
	case err != nil:
		return out, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	out.files = make(map[string][]byte, len(from.Data)+len(from.BinaryData))
	for name, text := range from.Data {
		out.files[name] = []byte(text)
	}
	for name, data := range from.BinaryData {
		out.files[name] = data
	}
	out.digest = commit.Digest(out.files)
	return out, nil
}

// unfit is a policy that cannot be used, for whoever writes it.
func (d demand) unfit(b *api.AgentBuild, err error) error {
	return place(b).At(d.field).Fault(api.ReasonSourcePolicy, fmt.Sprintf("the policy for the source, ConfigMap %s, cannot be used: %v", d.name, err),
		"see docs/builds.md, Verified sources; the build continues by itself")
}

// source sets the commit of a run, and checks it against all policies for it. changed:
// the run has to be composed again. A *krm.Finding is for the user.
func (r *Reconciler) source(ctx context.Context, s *seen, v verdict, in *compose.Input, secret *corev1.Secret) (changed bool, _ error) {
	demands, err := r.demands(ctx, s)
	if err != nil || in.Commit != "" && len(demands) == 0 {
		return false, err
	}
	answer, err := r.commit(s, v, question{revision: compose.Revision(s.build, s.template), commit: in.Commit, demands: demands}, secret)
	if err != nil {
		return false, err
	}
	if in.Commit == "" {
		if in.Commit = answer.commit; answer.branch != "" {
			in.Ref = "refs/heads/" + answer.branch
		}
		if v.start == api.TriggerManual && knownCommit(s, knownInputs(s)) != answer.commit {
			in.Trigger = api.TriggerCommit
		}
	}
	in.Verified = answer.verified
	return true, nil
}

// commit that a revision names. A build that waits in the queue asks once, while
// the policies stay as they are.
func (r *Reconciler) commit(s *seen, v verdict, q question, secret *corev1.Secret) (resolved, error) {
	q.repository = compose.Repository(s.build, s.template)
	if known, ok := r.queue.resolved(types.NamespacedName{Namespace: s.build.Namespace, Name: s.build.Name}, s.want); ok && (q.commit == "" || q.commit == known.commit) && known.satisfies(q.demands) {
		return known, nil
	}
	return r.git.resolve(s.build, q, secret, v.start == api.TriggerManual)
}

// satisfies reports whether these policies judged the commit, as they are.
func (r resolved) satisfies(demands []demand) bool {
	return slices.EqualFunc(r.verified, demands, func(v api.SourceVerification, d demand) bool {
		return v.Policy == d.name && v.PolicyDigest == d.digest && v.Platform == d.platform
	})
}

// verify a commit against each policy. A *krm.Finding is for the user; other
// errors may pass.
func (g *gitServer) verify(ctx context.Context, b *api.AgentBuild, shown, sha string, demands []demand, now time.Time) (out []api.SourceVerification, _ error) {
	const rev = "spec.source.sourceRevision"
	if len(demands) == 0 {
		return nil, nil
	}
	if !plumbing.IsHash(sha) {
		return nil, place(b).At(rev).Fault(api.ReasonNotReachable, fmt.Sprintf("%s is a commit of SHA-256, which a policy cannot judge", sha), "use a repository with SHA-1")
	}
	history, hash := &commit.History{}, plumbing.NewHash(sha)
	for _, d := range demands {
		refuse := func(reason, message, hint string) error {
			return place(b).At(rev).Fault(reason, fmt.Sprintf("%s: commit %s %s (policy %s)", shown, sha, message, d.name), hint)
		}
		tooLarge := func() error {
			return refuse(api.ReasonHistoryTooLarge, fmt.Sprintf("is too far from the policy's branches and tags: at most %d MiB of history are looked at", commit.MaxPack>>20),
				"build the head of a branch or a tag of the policy, or name fewer of them there")
		}
		policy, err := commit.ParsePolicy(d.files)
		if err != nil {
			return nil, d.unfit(b, err)
		}
		found, err := g.find(ctx, history, policy, hash)
		switch {
		case errors.Is(err, commit.ErrTooLarge):
			return nil, tooLarge()
		case err != nil:
			return nil, err
		case found == nil:
			return nil, refuse(api.ReasonNotReachable, "is not reachable from "+policyRefs(policy),
				"merge it there first; a commit of a fork or of a pull request is not built under this policy")
		}
		verified := api.SourceVerification{Policy: d.name, PolicyDigest: d.digest, Platform: d.platform, Ref: found.name}
		if policy.DemandsSignature() {
			object, err := g.object(ctx, history, *found, hash)
			if errors.Is(err, commit.ErrTooLarge) {
				return nil, tooLarge()
			} else if err != nil {
				return nil, err
			}
			if verified.Signer, err = policy.Signer(object, now); err != nil {
				return nil, refuse(api.ReasonNotSigned, "does not have a signature that the policy accepts: "+err.Error(),
					"let somebody whom the policy allows sign it, as with git commit -S")
			}
			verified.Signer = api.Plain(verified.Signer)
		}
		out = append(out, verified)
	}
	return out, nil
}

// policyRefs lists a policy's branches and tags for people.
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
	name string // in full
	hash plumbing.Hash
	// distance of the commit, which is in its history.
	distance int
}

// find a branch or tag of the policy that the commit is reachable from; nil where there
// is none.
func (g *gitServer) find(ctx context.Context, history *commit.History, policy *commit.Policy, sha plumbing.Hash) (*tip, error) {
	var tips []tip
	for name, hash := range g.refs.References {
		if !policy.Covers(name) {
			continue
		}
		tips = append(tips, tip{name: name, hash: hash})
	}
	slices.SortFunc(tips, func(a, b tip) int { return cmp.Compare(a.name, b.name) })
	for _, t := range tips {
		if peeled, is := g.refs.Peeled[t.name]; is && peeled == sha || !is && t.hash == sha {
			return &t, nil
		}
	}
	if len(tips) == 0 {
		return nil, nil
	}
	if len(tips) > maxTips {
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
	if t := reached(); t != nil { // by what was read for another policy
		return t, nil
	}
	request := g.request()
	for _, t := range tips {
		request.Wants = append(request.Wants, t.hash)
	}
	request.Haves = []plumbing.Hash{sha}
	asked := false
	err := g.read(ctx, history, request, func(hash plumbing.Hash) bool {
		if !hash.IsZero() || asked {
			return false
		}
		// From here on come trees and files of a server that cannot leave them out.
		asked = true
		return reached() != nil
	})
	if t := reached(); t != nil {
		return t, nil
	}
	return nil, err
}

// object of a commit that is in the history of a branch or tag. It is asked for by way of
// these: not every server gives out a commit by its SHA.
func (g *gitServer) object(ctx context.Context, history *commit.History, from tip, sha plumbing.Hash) ([]byte, error) {
	if object := history.Commit(sha); object != nil {
		return object, nil
	}
	request := g.request()
	if !g.refs.Capabilities.Supports(capability.Shallow) {
		return nil, errors.New("the server does not give a part of a history (capability shallow)")
	}
	_ = request.Capabilities.Set(capability.Shallow)
	request.Wants, request.Depth = []plumbing.Hash{from.hash}, packp.DepthCommits(from.distance+1)
	if err := g.read(ctx, history, request, func(hash plumbing.Hash) bool { return hash == sha }); err != nil {
		return nil, err
	}
	if object := history.Commit(sha); object != nil {
		return object, nil
	}
	return nil, fmt.Errorf("it does not give the commit %s, which %s has", sha, from.name)
}

// request for commits and tags.
func (g *gitServer) request() *packp.UploadPackRequest {
	request := packp.NewUploadPackRequest()
	for _, can := range []capability.Capability{capability.OFSDelta, capability.Filter} {
		if g.refs.Capabilities.Supports(can) {
			_ = request.Capabilities.Set(can) // it takes no argument, and cannot fail
		}
	}
	if request.Capabilities.Supports(capability.Filter) {
		request.Filter = packp.FilterTreeDepth(0)
	}
	return request
}

func (g *gitServer) read(ctx context.Context, history *commit.History, request *packp.UploadPackRequest, enough func(plumbing.Hash) bool) error {
	pack, err := g.upload(ctx, request)
	if err != nil {
		return err
	}
	err = history.Read(pack, enough)
	_ = pack.Close() // what it still has is not of interest
	return err
}

// setVerified writes the condition SourceVerified of a run; runs without a policy have none.
func setVerified(run run, status *api.AgentBuildStatus, set func(kind string, state metav1.ConditionStatus, reason, message string)) {
	switch {
	case len(run.verified) == 0:
		meta.RemoveStatusCondition(&status.Conditions, api.ConditionVerified)
	case status.Source == nil || status.Source.Git.CommitSHA != run.commit:
		set(api.ConditionVerified, metav1.ConditionFalse, api.ReasonSourceReplaced, fmt.Sprintf("a step cloned another commit than %s, which was verified", run.commit))
	default:
		var found []string
		for _, v := range run.verified {
			text := "reachable from " + v.Ref
			if v.Signer != "" {
				text += " and signed by " + v.Signer
			}
			found = append(found, fmt.Sprintf("%s (policy %s)", text, v.Policy))
		}
		set(api.ConditionVerified, metav1.ConditionTrue, api.ReasonVerified, fmt.Sprintf("commit %s is %s", run.commit, strings.Join(found, "; ")))
	}
}
