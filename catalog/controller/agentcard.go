package controller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
)

// Defaults of 001, "Pillar 2: AgentCard CR". agent-card.json is A2A's own name
// for the card; 001's agent.json is requested if the card does not exist.
const (
	defaultPort   = 8081
	defaultPeriod = 30 * time.Second
)

var defaultPaths = []string{"/.well-known/agent-card.json", "/.well-known/agent.json"}

// Limits of a card and of a status: a cluster's objects are at most 1.5 MiB.
const (
	maxCard        = 1 << 20 // bytes of a card
	maxStatusCards = 64
	maxStatusBytes = 512 << 10
)

// askAgent fetches the cards of all ready pods that an AgentCard selects.
func (r *Reconciler) askAgent(ctx context.Context, o client.Object, before store.Entry, memory *ask.Share) (answer, error) {
	spec, status := kinds.CardOf(o)
	a := answer{entry: kinds.New(o, before), next: period(spec)}
	pods, err := readyPods(ctx, r.Client, r.Live, o.GetNamespace(), spec)
	if problem := (*ask.MissingError)(nil); errors.As(err, &problem) {
		a.fail(problem)
		a.write = cardStatus(o, *status, a, nil, r.now())
		return a, nil
	}
	if err != nil {
		return a, err
	}
	got := r.fetchAll(ctx, spec, pods, before, memory)
	a.entry.Instances, a.entry.Images = nil, images(pods)
	if worst, ok := worstVerdict(got); ok {
		a.entry.Signature, a.entry.SignedBy = worst.Verdict, worst.SignedBy
	}
	good := -1
	for i, f := range got {
		a.entry.Instances = append(a.entry.Instances, f.Instance)
		if f.card != nil && good < 0 {
			good = i
		}
	}
	failed := slices.IndexFunc(got, func(f fetched) bool { return f.card == nil })
	switch {
	case len(got) == 0:
		a.entry.Health, a.entry.Message = store.Unknown, "no selected pod is ready"
	case good < 0:
		a.fail(got[0].err)
	default:
		got[good].card.Fill(&a.entry)
		kinds.Describe(&a.entry, spec.Metadata)
		a.replace = true
		a.entry.Fetched = r.now()
		a.entry.Health, a.entry.Message = store.Healthy, ""
		if failed >= 0 {
			a.entry.Health = store.Degraded
			a.entry.Message = fmt.Sprintf("pod %s: %s", got[failed].Pod, ask.Reason(got[failed].err))
			a.err = got[failed].err
		}
	}
	if !slices.Equal(a.entry.Images, before.Images) {
		if a.entry.Builds, err = buildsOf(ctx, r.Live, a.entry); err != nil {
			return a, err
		}
	}
	a.write = cardStatus(o, *status, a, got, r.now())
	return a, nil
}

func period(spec *api.AgentCardSpec) time.Duration {
	if d, err := time.ParseDuration(spec.SyncPeriod); err == nil && d >= time.Second {
		return d
	}
	return defaultPeriod
}

// fetched is what one pod answered.
type fetched struct {
	store.Instance
	ip   string
	card *kinds.Card
	// verdict is on the card, as it was answered.
	verdict kinds.Verdict
	err     error
}

// fetchAll asks the pods, a few at once, within one time-out for each.
func (r *Reconciler) fetchAll(ctx context.Context, spec *api.AgentCardSpec, pods []corev1.Pod, before store.Entry, memory *ask.Share) []fetched {
	out := make([]fetched, len(pods))
	var group errgroup.Group
	group.SetLimit(8)
	for i := range pods {
		group.Go(func() error {
			out[i] = r.fetch(ctx, spec, &pods[i], memory)
			if old := slices.IndexFunc(before.Instances, func(o store.Instance) bool { return o.Pod == pods[i].Name }); old >= 0 && out[i].card == nil {
				out[i].Version = before.Instances[old].Version
				out[i].Instance.Signature, out[i].Instance.SignedBy = before.Instances[old].Signature, before.Instances[old].SignedBy
				if out[i].Fetched = before.Instances[old].Fetched; before.Instances[old].Status == api.FetchSuccess {
					out[i].Fetched = before.Fetched // kept up to date while all goes well
				}
			}
			return nil
		})
	}
	_ = group.Wait() // each one's error is its own
	return out
}

func (r *Reconciler) fetch(ctx context.Context, spec *api.AgentCardSpec, pod *corev1.Pod, memory *ask.Share) fetched {
	ctx, cancel := context.WithTimeout(ctx, r.CardTimeout)
	defer cancel()
	scheme, port, paths := "http", int32(defaultPort), defaultPaths
	if e := spec.Endpoint; e != nil {
		scheme = cmp.Or(e.Scheme, scheme)
		if e.Port > 0 {
			port = e.Port
		}
		if e.Path != "" {
			paths = []string{e.Path}
		}
	}
	base := scheme + "://" + net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port))
	f := fetched{Instance: store.Instance{Pod: pod.Name, URL: base}, ip: pod.Status.PodIP}
	transport := ask.Transport(r.Dial, r.Roots, "")
	defer transport.CloseIdleConnections()
	for _, path := range paths {
		var data []byte
		var decoding atomic.Int64
		if data, f.err = ask.Get(ctx, transport, base+path, maxCard, memory, &decoding); f.err == nil {
			f.card, f.err = kinds.ReadCard(data)
		}
		if f.err == nil {
			f.verdict = r.cardKeys.now(ctx, r.CardKeys).Verify(data, pod.Namespace)
		}
		memory.Settle(decoding.Load() / 4 * 3) // the card stays
		var status ask.StatusError
		if !errors.As(f.err, &status) || status != 404 {
			break
		}
	}
	if f.err != nil {
		f.Status = ask.Reason(f.err)
		return f
	}
	f.Status, f.Version, f.Fetched = api.FetchSuccess, f.card.Version, r.now()
	f.Instance.Signature, f.Instance.SignedBy = f.verdict.Verdict, f.verdict.SignedBy
	return f
}

// readyPods are those that a card selects, by name.
func readyPods(ctx context.Context, cache, live client.Reader, namespace string, spec *api.AgentCardSpec) ([]corev1.Pod, error) {
	selector, err := selectorOf(ctx, live, namespace, spec)
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := cache.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var ready []corev1.Pod
	for i := range list.Items {
		if podReady(&list.Items[i]) {
			ready = append(ready, list.Items[i])
		}
	}
	slices.SortFunc(ready, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return ready, nil
}

func podReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// selectorOf a card: its own, or that of the workload it refers to.
func selectorOf(ctx context.Context, live client.Reader, namespace string, spec *api.AgentCardSpec) (labels.Selector, error) {
	own := spec.Selector
	if ref := spec.TargetRef; ref != nil {
		var err error
		if own, err = targetSelector(ctx, live, namespace, ref); err != nil {
			return nil, err
		}
	}
	if own == nil || len(own.MatchLabels)+len(own.MatchExpressions) == 0 {
		return nil, &ask.MissingError{What: "the AgentCard selects no pods: set spec.selector.matchLabels or spec.targetRef"}
	}
	selector, err := metav1.LabelSelectorAsSelector(own)
	if err != nil {
		return nil, &ask.MissingError{What: "spec.selector cannot be read: " + err.Error()}
	}
	return selector, nil
}

// targetSelector is how a workload of any kind selects its pods. Without a
// selector it is the labels of its pod template.
func targetSelector(ctx context.Context, live client.Reader, namespace string, ref *api.TargetRef) (*metav1.LabelSelector, error) {
	gv, err := schema.ParseGroupVersion(cmp.Or(ref.APIVersion, "apps/v1"))
	if err != nil {
		return nil, &ask.MissingError{What: fmt.Sprintf("spec.targetRef.apiVersion %q cannot be read", ref.APIVersion)}
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gv.WithKind(ref.Kind))
	err = live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, u)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, &ask.MissingError{What: fmt.Sprintf("%s %s is missing", ref.Kind, ref.Name)}
	case apierrors.IsForbidden(err):
		return nil, &ask.MissingError{What: fmt.Sprintf("the catalog may not read %s %s: grant it get on that kind", ref.Kind, ref.Name)}
	case err != nil:
		return nil, fmt.Errorf("reading %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
	}
	if m, found, err := unstructured.NestedMap(u.Object, "spec", "selector"); err == nil && found {
		data, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		s := &metav1.LabelSelector{}
		if json.Unmarshal(data, s) == nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
			return s, nil
		}
	}
	for _, path := range [][]string{{"spec", "template"}, {"spec", "jobTemplate", "spec", "template"}} {
		if l, found, err := unstructured.NestedStringMap(u.Object, append(path, "metadata", "labels")...); err == nil && found && len(l) > 0 {
			return &metav1.LabelSelector{MatchLabels: l}, nil
		}
	}
	return nil, &ask.MissingError{What: fmt.Sprintf("%s %s has no pod selector and no labels on its pod template", ref.Kind, ref.Name)}
}

// noteImages in the entry of a server: those of the Deployment that kagent makes of an
// MCPServer, and the builds that made them.
func (r *Reconciler) noteImages(ctx context.Context, e *store.Entry) error {
	before := e.Images
	pods, err := readyPods(ctx, r.Client, r.Live, e.Namespace, &api.AgentCardSpec{TargetRef: &api.TargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: e.Name}})
	if errors.As(err, new(*ask.MissingError)) {
		return nil // kagent has not made it yet
	}
	if err != nil {
		return err
	}
	if e.Images = images(pods); !slices.Equal(e.Images, before) {
		e.Builds, err = buildsOf(ctx, r.Live, *e)
	}
	return err
}

// images by digest that the pods run, without doubles.
func images(pods []corev1.Pod) (out []string) {
	for _, pod := range pods {
		for _, c := range pod.Status.ContainerStatuses {
			if _, digest, ok := strings.Cut(c.ImageID, "@"); ok {
				out = append(out, digest)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// buildList is the list of AgentBuilds, which record where an image came from.
var buildList = schema.GroupVersionKind{Group: "agent.kagenti.dev", Version: "v1alpha1", Kind: "AgentBuildList"}

// buildsOf are the AgentBuilds that made the images of an entry.
func buildsOf(ctx context.Context, live client.Reader, e store.Entry) (builds []store.Build, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(buildList)
	err = live.List(ctx, list, client.InNamespace(e.Namespace))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil // the cluster has no builds, or the catalog may not read them
	}
	if err != nil {
		return nil, fmt.Errorf("listing AgentBuilds: %w", err)
	}
	for _, b := range list.Items {
		image, _, _ := unstructured.NestedString(b.Object, "status", "builtImage")
		_, digest, ok := strings.Cut(image, "@")
		if !ok || !slices.Contains(e.Images, digest) {
			continue
		}
		commit, _, _ := unstructured.NestedString(b.Object, "status", "source", "git", "commitSha")
		repository, _, _ := unstructured.NestedString(b.Object, "spec", "source", "sourceRepository")
		found := store.Build{Namespace: b.GetNamespace(), Name: b.GetName(), Image: image, Commit: commit, Repository: repository}
		if attested, _, _ := unstructured.NestedString(b.Object, "status", "attestation", "image"); strings.HasSuffix(attested, "@"+digest) {
			found.Builder, _, _ = unstructured.NestedString(b.Object, "status", "attestation", "builderID")
			found.Level, _, _ = unstructured.NestedInt64(b.Object, "status", "attestation", "level")
			found.Provenance, _, _ = unstructured.NestedString(b.Object, "status", "attestation", "provenance")
		}
		builds = append(builds, found)
	}
	return builds, nil
}

// cardStatus gives the write of what a sync found, or nil where the status says
// it already.
func cardStatus(o client.Object, old api.AgentCardStatus, a answer, got []fetched, now time.Time) func() {
	want := *old.DeepCopy()
	want.ObservedGeneration = o.GetGeneration()
	want.DiscoveredPods, want.SyncErrors = int32(len(got)), 0
	want.Message = a.entry.Message
	want.Phase = map[store.Health]api.Phase{store.Healthy: api.PhaseActive, store.Degraded: api.PhaseDegraded, store.Failing: api.PhaseFailed, store.Unknown: api.PhasePending}[a.entry.Health]
	if len(got) > 0 {
		want.Cards = nil
	}
	left := maxStatusBytes
	for i, f := range got {
		if f.card == nil {
			want.SyncErrors++
		}
		if i < maxStatusCards {
			want.Cards = append(want.Cards, fetchedCard(f, old.Cards, now, &left))
		}
	}
	if kinds.Published(o) && len(want.Cards) > 0 {
		want.Card, want.Protocol = want.Cards[0].Card, "a2a"
	}
	condition(&want.Conditions, api.ConditionDiscovered, o.GetGeneration(), a, now)
	if worst, ok := worstVerdict(got); ok {
		signed := metav1.Condition{Type: api.ConditionSigned, Status: metav1.ConditionFalse, Reason: worst.Verdict, Message: worst.Reason, ObservedGeneration: o.GetGeneration(), LastTransitionTime: metav1.NewTime(now).Rfc3339Copy()}
		if worst.Verdict == api.SignatureValid {
			signed.Status, signed.Message = metav1.ConditionTrue, "signed by "+worst.SignedBy
		}
		meta.SetStatusCondition(&want.Conditions, signed)
	}
	if equality.Semantic.DeepEqual(want, old) {
		return nil
	}
	at := metav1.NewTime(now).Rfc3339Copy()
	want.LastSyncTime = &at
	return func() {
		_, status := kinds.CardOf(o)
		*status = want
	}
}

// worstVerdict is the verdict on the cards of several pods; ok is false where no pod has
// answered with a card.
func worstVerdict(got []fetched) (worst kinds.Verdict, ok bool) {
	order := []string{api.SignatureInvalid, api.SignatureUnknownKey, api.SignatureUnsigned, api.SignatureValid}
	for _, f := range got {
		if f.card != nil && (!ok || slices.Index(order, f.verdict.Verdict) < slices.Index(order, worst.Verdict)) {
			worst, ok = f.verdict, true
		}
	}
	return worst, ok
}

// fetchedCard of one pod; times stay as they are while nothing changes.
func fetchedCard(f fetched, old []api.FetchedCard, now time.Time, left *int) api.FetchedCard {
	out := api.FetchedCard{PodName: f.Pod, PodIP: f.ip, URL: f.URL, FetchStatus: f.Status}
	var before api.FetchedCard
	if i := slices.IndexFunc(old, func(c api.FetchedCard) bool { return c.PodName == f.Pod }); i >= 0 {
		before = old[i]
	}
	if f.card == nil { // the last good one survives
		out.Card, out.LastFetchTime, out.Signature = before.Card, before.LastFetchTime, before.Signature
		if before.FetchStatus == api.FetchSuccess && !f.Fetched.IsZero() {
			at := metav1.NewTime(f.Fetched).Rfc3339Copy()
			out.LastFetchTime = &at
		}
		if out.Card != nil {
			*left -= len(out.Card.Raw)
		}
		return out
	}
	at := metav1.NewTime(now).Rfc3339Copy()
	out.LastFetchTime, out.Signature = &at, f.verdict.Signature
	if len(f.card.Document) <= *left {
		*left -= len(f.card.Document)
		out.Card = &apiextensionsv1.JSON{Raw: f.card.Document}
	}
	if before.FetchStatus == out.FetchStatus && sameJSON(before.Card, out.Card) {
		out.LastFetchTime, out.Card = before.LastFetchTime, before.Card
	}
	return out
}

func sameJSON(a, b *apiextensionsv1.JSON) bool {
	if a == nil || b == nil {
		return a == b
	}
	if bytes.Equal(a.Raw, b.Raw) {
		return true
	}
	var x, y any
	return json.Unmarshal(a.Raw, &x) == nil && json.Unmarshal(b.Raw, &y) == nil && equality.Semantic.DeepEqual(x, y)
}
