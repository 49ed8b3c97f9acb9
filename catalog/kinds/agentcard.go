package kinds

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
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
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/process/copies"
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

// cardKind returns AgentCard in the group of source 001, or in that in which the kagenti operator
// publishes it.
func cardKind(resource string, gv schema.GroupVersion, empty func() client.Object) Kind {
	read := []string{"get", "list"}
	return Kind{
		Resource: resource, GVK: gv.WithKind("AgentCard"), New: empty, SelectsPods: true,
		read: readAgentCard, ask: askAgent, report: reportAgentCard,
		rights: []Right{
			{"", "pods", []string{"get", "list", "watch"}, "whom to ask for cards"},
			{"apps", "deployments", read,
				"workloads that an AgentCard refers to, which the console shows"},
			{"apps", "statefulsets", read, ""}, {"apps", "daemonsets", read, ""},
			{"apps", "replicasets", []string{"get"}, ""},
			{"batch", "jobs", read, ""}, {"batch", "cronjobs", read, ""},
		},
	}
}

// CardOf returns the parts of an AgentCard of either group.
func CardOf(o client.Object) (*api.AgentCardSpec, *api.AgentCardStatus) {
	if c, ok := o.(*AgentCard); ok {
		return &c.Spec, &c.Status
	}
	c := o.(*api.AgentCard)
	return &c.Spec, &c.Status
}

func readAgentCard(e *store.Entry, object client.Object) {
	spec, status := CardOf(object)
	e.Type, e.Title, e.Protocol = store.Agent, e.Name, "a2a"
	good := false
	for _, c := range status.Cards {
		i := store.Instance{Pod: c.PodName, URL: c.URL, Status: c.FetchStatus, Signature: c.Verdict,
			SignedBy: c.SignedBy}
		if c.LastFetchTime != nil {
			i.Fetched = c.LastFetchTime.UTC()
			if e.Fetched.Before(i.Fetched) {
				e.Fetched = i.Fetched
			}
		}
		e.Instances = append(e.Instances, i)
		if c.Card == nil || good {
			continue
		}
		if card, err := ReadCard(c.Card.Raw); err == nil {
			card.Fill(e)
			good = true
		}
	}
	if signed := meta.FindStatusCondition(status.Conditions, api.ConditionSigned); signed != nil {
		e.Signature = signed.Reason
		if len(e.Instances) > 0 && signed.Status == metav1.ConditionTrue {
			e.SignedBy = e.Instances[0].SignedBy
		}
	}
	describe(e, spec.Metadata)
	if !good && spec.Metadata != nil {
		e.Title = cmp.Or(spec.Metadata.Name, e.Title)
	}
	e.Message = status.Message
	if h, ok := map[api.Phase]store.Health{api.PhaseActive: store.Healthy,
		api.PhaseDegraded: store.Degraded, api.PhaseFailed: store.Failing}[status.Phase]; ok {
		e.Health = h
	}
}

// describe describes an agent by its AgentCard if its own card does not.
func describe(e *store.Entry, m *api.CardMetadata) {
	if m == nil {
		return
	}
	e.Title = cmp.Or(e.Title, m.Name)
	e.Description = cmp.Or(e.Description, m.Description)
	e.Tags = m.Tags
}

// askAgent fetches the cards of all ready pods that an AgentCard selects.
func askAgent(ctx context.Context, by *Asker, o client.Object, a *Answer,
	memory *answers.Share) error {
	spec, _ := CardOf(o)
	a.Next = defaultPeriod
	if d, err := time.ParseDuration(spec.SyncPeriod); err == nil && d >= time.Second {
		a.Next = d
	}
	pods, err := by.readyPods(ctx, o.GetNamespace(), spec)
	if err != nil {
		return err
	}
	before := a.Entry
	a.cards = by.fetchAll(ctx, spec, pods, before, memory)
	a.Entry.Instances, a.Entry.Images = nil, images(pods)
	if worst, ok := worstVerdict(a.cards); ok {
		a.Entry.Signature, a.Entry.SignedBy = worst.Verdict, worst.SignedBy
	}
	for _, f := range a.cards {
		a.Entry.Instances = append(a.Entry.Instances, f.Instance)
	}
	good := slices.IndexFunc(a.cards, func(f fetched) bool { return f.card != nil })
	bad := slices.IndexFunc(a.cards, func(f fetched) bool { return f.card == nil })
	switch {
	case len(a.cards) == 0:
		a.Entry.Health, a.Entry.Message = store.Unknown, "no selected pod is ready"
	case good < 0:
		a.fail(a.cards[0].failure)
	default:
		a.cards[good].card.Fill(&a.Entry)
		describe(&a.Entry, spec.Metadata)
		a.Complete = true
		a.Entry.Fetched = by.Now()
		a.Entry.Health, a.Entry.Message = store.Healthy, ""
		if bad >= 0 {
			a.Failure = a.cards[bad].failure
			a.Entry.Health = store.Degraded
			a.Entry.Message = fmt.Sprintf("pod %s: %s", a.cards[bad].Pod, a.Failure.Reason)
		}
	}
	if !slices.Equal(a.Entry.Images, before.Images) {
		a.Entry.Builds, err = buildsOf(ctx, by.Live, a.Entry)
	}
	return err
}

// fetched is the answer of one pod.
type fetched struct {
	store.Instance
	ip   string
	card *Card
	// verdict is on the card, as it was answered.
	verdict Verdict
	failure *ask.Failure // nil if there is a card
}

// fetchAll asks the pods, a few at the same time, each within its own timeout.
func (by *Asker) fetchAll(ctx context.Context, spec *api.AgentCardSpec, pods []corev1.Pod,
	before store.Entry, memory *answers.Share) []fetched {
	out := make([]fetched, len(pods))
	var group errgroup.Group
	group.SetLimit(8)
	for i := range pods {
		group.Go(func() error {
			out[i] = by.fetch(ctx, spec, &pods[i], memory)
			at := slices.IndexFunc(before.Instances,
				func(o store.Instance) bool { return o.Pod == pods[i].Name })
			if f := &out[i]; at >= 0 && f.card == nil {
				old := before.Instances[at]
				f.Version, f.Fetched = old.Version, old.Fetched
				f.Instance.Signature, f.Instance.SignedBy = old.Signature, old.SignedBy
				if old.Status == api.FetchSuccess {
					f.Fetched = before.Fetched // kept up to date while all goes well
				}
			}
			return nil
		})
	}
	_ = group.Wait() // each error is in out
	return out
}

func (by *Asker) fetch(ctx context.Context, spec *api.AgentCardSpec, pod *corev1.Pod,
	memory *answers.Share) fetched {
	ctx, cancel := context.WithTimeout(ctx, by.CardTimeout)
	defer cancel()
	scheme, port, paths := "http", int32(defaultPort), defaultPaths
	if e := spec.Endpoint; e != nil {
		scheme, port = cmp.Or(e.Scheme, scheme), cmp.Or(e.Port, port)
		if e.Path != "" {
			paths = []string{e.Path}
		}
	}
	base := scheme + "://" + net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port))
	f := fetched{Instance: store.Instance{Pod: pod.Name, URL: base}, ip: pod.Status.PodIP}
	transport := ask.Transport(by.Dial, by.Roots, "")
	defer transport.CloseIdleConnections()
	for _, path := range paths {
		var data []byte
		var decoding atomic.Int64
		var err error
		if data, err = ask.Get(ctx, transport, base+path, maxCard, memory, &decoding); err == nil {
			f.card, err = ReadCard(data)
		}
		if err == nil {
			f.failure = nil
			f.verdict = by.cardKeys.now(ctx, by.CardKeys).Verify(data, pod.Namespace)
		}
		memory.Settle(decoding.Load() / 4 * 3) // the card stays
		if err != nil {
			f.failure = ask.FailureOf(err)
		}
		if f.failure == nil || f.failure.Status != http.StatusNotFound {
			break
		}
	}
	if f.failure != nil {
		f.Status = f.failure.Reason
		return f
	}
	f.Status, f.Version, f.Fetched = api.FetchSuccess, f.card.Version, by.Now()
	f.Instance.Signature, f.Instance.SignedBy = f.verdict.Verdict, f.verdict.SignedBy
	return f
}

// readyPods returns the ready pods that a card selects, by name.
func (by *Asker) readyPods(ctx context.Context, namespace string,
	spec *api.AgentCardSpec) ([]corev1.Pod, error) {
	selector, err := selectorOf(ctx, by.Live, namespace, spec)
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := by.Client.List(ctx, &list, client.InNamespace(namespace),
		client.MatchingLabelsSelector{Selector: selector},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var ready []corev1.Pod
	for i := range list.Items {
		if PodReady(&list.Items[i]) {
			ready = append(ready, list.Items[i])
		}
	}
	slices.SortFunc(ready, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return ready, nil
}

// PodReady reports whether a pod can be asked.
func PodReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// selectorOf returns the selector of a card: its own, or that of the workload it refers to.
func selectorOf(ctx context.Context, live client.Reader, namespace string,
	spec *api.AgentCardSpec) (labels.Selector, error) {
	own := spec.Selector
	if ref := spec.TargetRef; ref != nil {
		var err error
		if own, err = targetSelector(ctx, live, namespace, ref); err != nil {
			return nil, err
		}
	}
	if own == nil || len(own.MatchLabels)+len(own.MatchExpressions) == 0 {
		return nil, ask.Failed(
			"the AgentCard selects no pods: set spec.selector.matchLabels or spec.targetRef")
	}
	selector, err := metav1.LabelSelectorAsSelector(own)
	if err != nil {
		return nil, ask.Failed("spec.selector cannot be read: %v", err)
	}
	return selector, nil
}

// targetSelector returns the pod selector of a workload of any kind, or else the labels of its pod
// template.
func targetSelector(ctx context.Context, live client.Reader, namespace string,
	ref *api.TargetRef) (*metav1.LabelSelector, error) {
	gv, err := schema.ParseGroupVersion(cmp.Or(ref.APIVersion, "apps/v1"))
	if err != nil {
		return nil, ask.Failed("spec.targetRef.apiVersion %q cannot be read", ref.APIVersion)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gv.WithKind(ref.Kind))
	err = live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, u)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, ask.Failed("%s %s is missing", ref.Kind, ref.Name)
	case apierrors.IsForbidden(err):
		return nil, ask.Failed("the catalog may not read %s %s: grant it get on that kind",
			ref.Kind, ref.Name)
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
	for _, path := range [][]string{{"spec", "template"},
		{"spec", "jobTemplate", "spec", "template"}} {
		if l, found, err := unstructured.NestedStringMap(u.Object,
			append(path, "metadata", "labels")...); err == nil && found && len(l) > 0 {
			return &metav1.LabelSelector{MatchLabels: l}, nil
		}
	}
	return nil, ask.Failed("%s %s has no pod selector and no labels on its pod template", ref.Kind,
		ref.Name)
}

// images returns the digests of the images that the pods run, without duplicates.
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
var buildList = schema.GroupVersionKind{Group: keys.Kagenti, Version: "v1alpha1", Kind: "AgentBuildList"}

// buildsOf returns the AgentBuilds that made the images of an entry.
func buildsOf(ctx context.Context, live client.Reader,
	e store.Entry) (builds []store.Build, err error) {
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
		found := store.Build{Namespace: b.GetNamespace(), Name: b.GetName(), Image: image,
			Commit: commit, Repository: repository}
		if attested, _, _ := unstructured.NestedString(b.Object, "status", "attestation",
			"image"); strings.HasSuffix(attested, "@"+digest) {
			found.Builder, _, _ = unstructured.NestedString(b.Object, "status", "attestation",
				"builderID")
			found.Level, _, _ = unstructured.NestedInt64(b.Object, "status", "attestation", "level")
			found.Provenance, _, _ = unstructured.NestedString(b.Object, "status", "attestation",
				"provenance")
		}
		builds = append(builds, found)
	}
	return builds, nil
}

// reportAgentCard writes the result of a sync into the status of an AgentCard.
func reportAgentCard(o client.Object, a *Answer, now time.Time) {
	_, status := CardOf(o)
	old := *copies.Of(status)
	status.ObservedGeneration = o.GetGeneration()
	status.DiscoveredPods, status.SyncErrors = int32(len(a.cards)), 0
	status.Message = a.Entry.Message
	status.Phase = map[store.Health]api.Phase{
		store.Healthy: api.PhaseActive, store.Degraded: api.PhaseDegraded,
		store.Failing: api.PhaseFailed, store.Unknown: api.PhasePending,
	}[a.Entry.Health]
	if len(a.cards) > 0 {
		status.Cards = nil
	}
	left := maxStatusBytes
	for i, f := range a.cards {
		if f.card == nil {
			status.SyncErrors++
		}
		if i < maxStatusCards {
			status.Cards = append(status.Cards, fetchedCard(f, old.Cards, now, &left))
		}
	}
	if _, ok := o.(*AgentCard); ok && len(status.Cards) > 0 {
		status.Card, status.Protocol = status.Cards[0].Card, "a2a"
	}
	a.conditions(&status.Conditions, api.ConditionDiscovered, o, now)
	if !equality.Semantic.DeepEqual(*status, old) {
		at := metav1.NewTime(now).Rfc3339Copy()
		status.LastSyncTime = &at
	}
}

// worstVerdict returns the verdict on the cards of several pods; ok is false if no pod has answered
// with a card.
func worstVerdict(got []fetched) (worst Verdict, ok bool) {
	order := []string{api.SignatureInvalid, api.SignatureUnknownKey, api.SignatureUnsigned,
		api.SignatureValid}
	for _, f := range got {
		if f.card != nil &&
			(!ok || slices.Index(order, f.verdict.Verdict) < slices.Index(order, worst.Verdict)) {
			worst, ok = f.verdict, true
		}
	}
	return worst, ok
}

// fetchedCard returns the status of one pod. Times stay as they are while nothing changes.
func fetchedCard(f fetched, old []api.FetchedCard, now time.Time, left *int) api.FetchedCard {
	out := api.FetchedCard{PodName: f.Pod, PodIP: f.ip, URL: f.URL, FetchStatus: f.Status}
	var before api.FetchedCard
	if i := slices.IndexFunc(old, func(c api.FetchedCard) bool { return c.PodName == f.Pod }); i >= 0 {
		before = old[i]
	}
	if f.card == nil { // the last good one survives
		out.Card, out.LastFetchTime, out.Signature =
			before.Card, before.LastFetchTime, before.Signature
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
	return json.Unmarshal(a.Raw, &x) == nil && json.Unmarshal(b.Raw, &y) == nil &&
		equality.Semantic.DeepEqual(x, y)
}
