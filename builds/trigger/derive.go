package trigger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process/copies"
)

// A branch, tag or pull request other than the build's own branch gets its own AgentBuild, which is
// a copy of the build with another revision and image. Its runs, status and queue are those of any
// other build, and do not affect the original. The copy depends only on objects of the cluster, not
// on content of the repository.

const (
	// maxDerived bounds the builds of each kind (branches, tags, pull requests) that are derived
	// from one build.
	maxDerived = 50
	// maxForks bounds the builds of pull requests from other repositories. They do not count
	// towards maxDerived.
	maxForks = 10
	// maxTags bounds the tags in the status of one build.
	maxTags = 2000
	// maxSlug bounds the part of a branch's name in the name of its build, in bytes.
	maxSlug = 30
)

// plain matches the names of branches and tags that are built. They contain no character with a
// meaning in a spec, a message, a path or a command.
var plain = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+=-]{0,199}$`)

// derives reports whether builds are derived from a build.
func derives(b *api.AgentBuild) bool {
	t := b.Spec.Trigger
	return t.PullRequest != nil || t.Push != nil && len(t.Push.Branches)+len(t.Push.Tags) > 0
}

// ownRef returns the full name of a build's own branch.
func ownRef(b *api.AgentBuild) string {
	if b.Status.Source != nil && b.Status.Source.Git.Ref != "" {
		return b.Status.Source.Git.Ref
	}
	if revision := b.Spec.Source.SourceRevision; strings.HasPrefix(revision, "refs/") {
		return revision
	}
	return "refs/heads/" + cmp.Or(b.Spec.Source.SourceRevision, "main")
}

// derive derives the builds of a build's branches, tags and pull requests, and deletes those of
// references that no longer exist.
func (t *Triggers) derive(ctx context.Context, r *remote, b *api.AgentBuild) error {
	if b.Spec.BuildOutput == nil {
		t.event(b, "NothingDerived",
			"spec.trigger builds branches, tags and pull requests only with spec.buildOutput, "+
				"from which their images are named")
		return nil
	}
	if _, ok := r.refs[ownRef(b)]; !ok {
		return nil // the server may have lost other references as well
	}
	from := client.Reader(t)
	if t.Shard.Key != "" { // some builds may be in the former shard of the build
		from = t.Live
	}
	derived, err := derivedFrom(ctx, from, b)
	if err != nil {
		return err
	}
	var errs []error
	branches, tags := t.matching(b, r)
	wanted := make(map[string]bool)
	for _, name := range branches {
		wanted["refs/heads/"+name] = true
		want := branchOf(t.Group, b, name)
		errs = append(errs, t.put(ctx, r, b, derived[want.Name], want))
	}
	for _, name := range tags {
		wanted["refs/tags/"+name] = true
	}
	errs = append(errs, t.newTags(ctx, r, b, tags))
	for name, have := range derived {
		ref := have.Spec.Source.SourceRevision
		if strings.HasPrefix(ref, "refs/") && !wanted[ref] {
			errs = append(errs,
				t.remove(ctx, b, have, ref+" was deleted, or is no longer in spec.trigger"))
			delete(derived, name)
		}
	}
	for _, old := range oldestTags(derived) {
		errs = append(errs, t.remove(ctx, b, old, "newer tags are built"))
	}
	errs = append(errs, t.pulls(ctx, r, b, derived))
	return multi.Errors(errs...)
}

// prune deletes the builds that were derived from a build whose trigger no longer derives any.
func (t *Triggers) prune(ctx context.Context, all []api.AgentBuild) error {
	barren := make(map[types.UID]*api.AgentBuild)
	for i := range all {
		if b := &all[i]; b.Spec.Trigger == nil || !derives(b) {
			barren[b.UID] = b
		}
	}
	var errs []error
	for i := range all {
		owner := metav1.GetControllerOf(&all[i])
		if owner == nil || barren[owner.UID] == nil || all[i].DeletionTimestamp != nil {
			continue
		}
		errs = append(errs,
			t.remove(ctx, barren[owner.UID], &all[i], "spec.trigger no longer includes it"))
	}
	return multi.Errors(errs...)
}

// matching returns the branches and tags that match the trigger, sorted by name.
func (t *Triggers) matching(b *api.AgentBuild, r *remote) (branches, tags []string) {
	push := b.Spec.Trigger.Push
	if push == nil {
		return nil, nil
	}
	for ref := range r.refs {
		branch, isBranch := strings.CutPrefix(ref, "refs/heads/")
		tag, isTag := strings.CutPrefix(ref, "refs/tags/")
		switch {
		case !plain.MatchString(cmp.Or(branch, tag)) || strings.Contains(ref, ".."):
		case isBranch && ref != ownRef(b) && matches(push.Branches, branch):
			branches = append(branches, branch)
		case isTag && matches(push.Tags, tag):
			tags = append(tags, tag)
		}
	}
	slices.Sort(branches)
	slices.Sort(tags)
	if len(branches) > maxDerived {
		t.event(b, "TooManyBranches",
			"%d branches match spec.trigger.push.branches, and the first %d by name are built",
			len(branches), maxDerived)
		branches = branches[:maxDerived]
	}
	return branches, tags
}

// newTags starts the builds of tags that status does not list yet.
func (t *Triggers) newTags(ctx context.Context, r *remote, b *api.AgentBuild, tags []string) error {
	push := b.Spec.Trigger.Push
	if push == nil || len(push.Tags) == 0 {
		return nil
	}
	if len(tags) > maxTags {
		t.event(b, "TooManyTags",
			"%d tags match spec.trigger.push.tags, and at most %d are remembered: none is built "+
				"until the patterns are narrower", len(tags), maxTags)
		return nil
	}
	if was := b.Status.Tags; was != nil && slices.Equal(was.Patterns, push.Tags) {
		if slices.Equal(was.Seen, tags) {
			return nil
		}
		started := slices.DeleteFunc(slices.Clone(tags),
			func(tag string) bool { return slices.Contains(was.Seen, tag) })
		if len(started) > maxDerived {
			t.event(b, "TooManyTags", "%d tags are new at once, and the last %d by name are built",
				len(started), maxDerived)
			started = started[len(started)-maxDerived:]
		}
		// The builds come before the status: deriving a build again has no effect.
		for _, tag := range started {
			if err := t.put(ctx, r, b, nil, tagOf(t.Group, b, tag)); err != nil {
				return err
			}
		}
	}
	after := b.DeepCopy()
	after.Status.Tags = &api.TagsStatus{Patterns: push.Tags, Seen: tags}
	patch := client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})
	err := t.Status().Patch(ctx, after, patch, client.FieldOwner(t.FieldOwner))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		r.again = true
		return nil
	}
	return err
}

// oldestTags returns the oldest builds of tags beyond maxDerived.
func oldestTags(derived map[string]*api.AgentBuild) []*api.AgentBuild {
	var all []*api.AgentBuild
	for _, have := range derived {
		if strings.HasPrefix(have.Spec.Source.SourceRevision, "refs/tags/") {
			all = append(all, have)
		}
	}
	slices.SortFunc(all, func(x, y *api.AgentBuild) int {
		return y.CreationTimestamp.Compare(x.CreationTimestamp.Time)
	})
	return all[min(len(all), maxDerived):]
}

// derivedFrom returns the builds that were derived from a build, by name.
func derivedFrom(ctx context.Context, c client.Reader,
	b *api.AgentBuild) (map[string]*api.AgentBuild, error) {
	var all api.AgentBuildList
	if err := c.List(ctx, &all, client.InNamespace(b.Namespace)); err != nil {
		return nil, err
	}
	derived := make(map[string]*api.AgentBuild)
	for i := range all.Items {
		if have := &all.Items[i]; have.DeletionTimestamp == nil && metav1.IsControlledBy(have, b) {
			derived[have.Name] = have
		}
	}
	return derived, nil
}

// branchOf derives the build of a branch, which follows the branch as the build follows its own.
func branchOf(group string, b *api.AgentBuild, branch string) *api.AgentBuild {
	ref := "refs/heads/" + branch
	slug := slugOf(branch)
	c := copyOf(group, b, slug+"-"+hashOf(ref), ref,
		strings.NewReplacer("/", "-", "+", "-", "=", "-").Replace(branch[:min(len(branch), 100)])+
			"-"+hashOf(ref))
	c.Spec.Trigger = copies.Of(b.Spec.Trigger)
	c.Spec.Trigger.PullRequest = nil
	if push := c.Spec.Trigger.Push; push != nil {
		push.Branches, push.Tags = nil, nil
	}
	return c
}

// imageTag matches the tags of images.
var imageTag = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// tagOf derives the build of a tag. Its image has the same tag if that is valid for an image.
func tagOf(group string, b *api.AgentBuild, tag string) *api.AgentBuild {
	ref, image := "refs/tags/"+tag, tag
	if !imageTag.MatchString(tag) || tag == b.Spec.BuildOutput.ImageTag {
		image = slugOf(tag) + "-" + hashOf(ref)
	}
	return copyOf(group, b, slugOf(tag)+"-"+hashOf(ref), ref, image)
}

// copyOf returns a copy of a build with another revision and another tag of its image.
func copyOf(group string, b *api.AgentBuild, suffix, revision, tag string) *api.AgentBuild {
	name := b.Name
	if len(name)+len(suffix) > 240 {
		name = name[:240-len(suffix)-17] + "-" + hashOf(name)
	}
	c := &api.AgentBuild{Spec: b.DeepCopy().Spec,
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: name + "-" + suffix,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: api.GroupVersion(group).String(),
				Kind: api.Kind, Name: b.Name, UID: b.UID, Controller: ptr.To(true)}}}}
	if name := b.Labels[queue.QueueLabel]; name != "" {
		c.Labels = map[string]string{queue.QueueLabel: name}
	}
	c.Spec.Source.SourceRevision, c.Spec.BuildOutput.ImageTag, c.Spec.Trigger = revision, tag, nil
	withoutParameters(&c.Spec, "revision", "image")
	return c
}

// withoutParameters removes parameters, which would override fields of the spec.
func withoutParameters(spec *api.AgentBuildSpec, names ...string) {
	if spec.Pipeline == nil {
		return
	}
	named := func(p api.Parameter) bool { return slices.Contains(names, templates.Canonical(p.Name)) }
	spec.Pipeline.Parameters = slices.DeleteFunc(spec.Pipeline.Parameters, named)
	for i := range spec.Pipeline.Steps {
		spec.Pipeline.Steps[i].Parameters = slices.DeleteFunc(spec.Pipeline.Steps[i].Parameters, named)
	}
}

// slugOf converts the beginning of a name to a valid part of an object's name.
func slugOf(name string) string {
	slug := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name[:min(len(name), maxSlug)]))
	return strings.Trim(slug, "-")
}

// hashOf returns a hash that distinguishes names with the same slug.
func hashOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// put creates a derived build, or updates it if it differs. have is the existing build, or nil if
// it is not known.
func (t *Triggers) put(ctx context.Context, r *remote, b, have, want *api.AgentBuild) error {
	label, key := b.Labels[t.Shard.Key], t.Shard.Key
	if label != "" {
		metav1.SetMetaDataLabel(&want.ObjectMeta, key, label)
	}
	if have == nil {
		span := t.startSpan(ctx, want)
		want.Annotations = span.Annotate(want.Annotations)
		err := t.Create(ctx, want, client.FieldOwner(t.FieldOwner))
		if !apierrors.IsAlreadyExists(err) {
			if err == nil {
				span.End(time.Now(), false)
				t.event(b, "Derived", "AgentBuild %s builds %s", want.Name,
					want.Spec.Source.SourceRevision)
			}
			return err
		}
		have = &api.AgentBuild{}
		if err := t.Live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
			return client.IgnoreNotFound(err)
		}
		if !metav1.IsControlledBy(have, b) {
			t.event(b, "NameTaken",
				"%s is not built: the AgentBuild %s is not derived from this one",
				want.Spec.Source.SourceRevision, want.Name)
			return nil
		}
	}
	if is, ref := have.Spec.Source.SourceRevision, want.Spec.Source.SourceRevision; is != ref &&
		strings.HasPrefix(is, "refs/") {
		// A user who may push can choose a name with the same hash as another one.
		t.event(b, "NameTaken", "%s is not built: the AgentBuild %s is that of %s", ref, want.Name, is)
		return nil
	}
	if have.Spec.Source.SourceRevision == want.Spec.Source.SourceRevision {
		// A user may have cancelled the derived build.
		want.Spec.Cancel = want.Spec.Cancel || have.Spec.Cancel
	}
	if have.DeletionTimestamp != nil {
		r.again = true // the name will be available
		return nil
	}
	same := equality.Semantic.DeepEqual(have.Spec, want.Spec)
	if same && have.Labels[key] == label {
		return nil
	}
	after, span := have.DeepCopy(), traces.Span{}
	if after.Spec = want.Spec; !same {
		span = t.startSpan(ctx, want)
		after.Annotations = span.Annotate(after.Annotations)
	}
	if delete(after.Labels, key); label != "" {
		metav1.SetMetaDataLabel(&after.ObjectMeta, key, label)
	}
	err := t.Patch(ctx, after, client.MergeFrom(have), client.FieldOwner(t.FieldOwner))
	if err == nil {
		span.End(time.Now(), false)
	}
	return client.IgnoreNotFound(err)
}

// remove deletes a derived build with its runs.
func (t *Triggers) remove(ctx context.Context, b, old *api.AgentBuild, why string) error {
	err := t.Delete(ctx, old, client.Preconditions{UID: &old.UID},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err == nil {
		t.event(b, "DerivedRemoved", "AgentBuild %s is deleted: %s", old.Name, why)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
