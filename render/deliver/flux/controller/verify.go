package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/deliver/flux/build"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/process"
)

// policyKey is the key of a ConfigMap that has the VerifyPolicy.
const policyKey = "policy.yaml"

// demands are the policies of a RenderedSource. A nil policy requires nothing.
type demands struct {
	origin, images *sign.Policy
	digest         string // of the policies and their files, or "" without a policy
}

// demands reads the policies. They are in ConfigMaps, because all their content is public, so that
// the controller needs no rights on Secrets.
func (r *Reconciler) demands(ctx context.Context,
	source *api.RenderedSource) (d demands, failed *process.Failure) {
	v := source.Spec.Verify
	if v == nil {
		return d, nil
	}
	if kind := source.Spec.SourceRef.Kind; v.Origin != nil && kind != ociRepository {
		return d, process.Stalled(reasonPolicy, // the CRD says so, too
			fmt.Errorf("spec.verify.origin is for an OCIRepository, not for a %s", kind))
	}
	var ofOrigin, ofImages string
	if d.origin, ofOrigin, failed = r.policy(ctx, source, v.Origin); failed != nil {
		return d, failed
	}
	if d.origin != nil {
		*d.origin = d.origin.OfPackages()
	}
	d.images, ofImages, failed = r.policy(ctx, source, v.Images)
	d.digest = ofOrigin + " " + ofImages
	return d, failed
}

// policy reads a policy and returns it with a digest of all its files. ref may be nil.
func (r *Reconciler) policy(ctx context.Context, source *api.RenderedSource,
	ref *api.PolicyReference) (*sign.Policy, string, *process.Failure) {
	if ref == nil {
		return nil, "", nil
	}
	if ref.Namespace != "" && ref.Namespace != source.Namespace {
		return nil, "", process.Stalled(reasonAccessDenied,
			fmt.Errorf("ConfigMap %s/%s is in another namespace: "+
				"a RenderedSource may only refer to its own", ref.Namespace, ref.Name))
	}
	// The ConfigMap is not watched, so a failure is retried.
	fail := func(err error) (*sign.Policy, string, *process.Failure) {
		return nil, "", process.Retry(reasonPolicy, fmt.Errorf("ConfigMap %s: %w", ref.Name, err))
	}
	var from corev1.ConfigMap
	key := client.ObjectKey{Namespace: source.Namespace, Name: ref.Name}
	if err := r.Live.Get(ctx, key, &from); err != nil {
		if apierrors.IsNotFound(err) {
			err = errors.New("it does not exist")
		}
		return fail(err)
	}
	files := make(map[string][]byte, len(from.Data)+len(from.BinaryData))
	for name, text := range from.Data {
		files[name] = []byte(text)
	}
	maps.Copy(files, from.BinaryData)
	text, ok := files[policyKey]
	if !ok {
		return fail(fmt.Errorf("it has no key %s with a VerifyPolicy", policyKey))
	}
	p, err := sign.ParsePolicy(text, files)
	if err != nil {
		return fail(err)
	}
	p.Transport = r.Registries
	return &p, archive.Digest(fmt.Appendf(nil, "%q", files)), nil // fmt sorts the keys
}

// verifyOrigin requires a signature of the artifact that an OCIRepository has fetched: of the
// digest in its revision, in the repository of its URL. It trusts the source-controller, which
// checks digests, that the archive has the content of that artifact.
func (r *Reconciler) verifyOrigin(ctx context.Context, source *api.RenderedSource,
	origin *meta.Artifact, d demands) *process.Failure {
	if d.origin == nil {
		return nil
	}
	repository := newSource(ociRepository)
	if err := r.Live.Get(ctx, originKey(source), repository); err != nil {
		err = fmt.Errorf("reading %s %s: %w", ociRepository, source.Spec.SourceRef.Name, err)
		return process.Retry(reasonSource, err)
	}
	url, _, err := unstructured.NestedString(repository.Object, "spec", "url")
	p := *d.origin
	if err == nil {
		p.PlainHTTP, _, err = unstructured.NestedBool(repository.Object, "spec", "insecure")
	}
	digest := origin.Revision[strings.LastIndexByte(origin.Revision, '@')+1:]
	var artifact name.Reference
	if err == nil {
		artifact, err = oci.Access{PlainHTTP: p.PlainHTTP}.Parse(url + "@" + digest)
	}
	if err != nil {
		return process.Stalled(reasonVerify, fmt.Errorf("the origin %s: %w", origin.Revision, err))
	}
	ctx, cancel := context.WithTimeout(ctx, r.VerifyTimeout)
	defer cancel()
	if _, err := sign.Verify(ctx, artifact.Context().Digest(digest), p); err != nil {
		return unverified(origin, false, oneLine(err))
	}
	return nil
}

// verifyImages requires signatures of all images in the rendered objects.
func verifyImages(ctx context.Context, timeout time.Duration, origin *meta.Artifact,
	images []build.Image, d demands) *process.Failure {
	if d.images == nil {
		return nil
	}
	var all []sign.Image
	for _, i := range images {
		all = append(all, sign.Image{Image: i.Image, Place: i.Place.String()})
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var texts []string
	stalled := true
	for _, err := range sign.VerifyImages(ctx, all, *d.images) {
		// A missing signature may be added later.
		stalled = stalled && (errors.Is(err, sign.ErrNoDigest) || errors.Is(err, sign.ErrNotJudged))
		texts = append(texts, oneLine(err))
	}
	if len(texts) == 0 {
		return nil
	}
	return unverified(origin, stalled, texts...)
}

func unverified(origin *meta.Artifact, stalled bool, texts ...string) *process.Failure {
	return &process.Failure{
		Reason: reasonVerify, Stalled: stalled,
		Err: errors.New(list(origin.Revision+" is not verified", texts)),
	}
}

// oneLine returns the text of an error on one line. It may repeat the answer of a registry.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		parts = append(parts, text.Printable(strings.TrimSpace(line)))
	}
	return strings.Join(parts, "; ")
}
