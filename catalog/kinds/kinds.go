// Package kinds has the kinds of objects that the catalog follows, one file for each: how an
// object is read, how the agent or tool server behind it is asked, what is written into its
// status, and which rights all that takes.
//
// Reading an object makes no request and needs no cluster, so that commands read manifests.
package kinds

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/copies"
)

// All returns the kinds of the catalog. Their roles, and what the console lists, follow from them.
func All() []Kind {
	return []Kind{
		cardKind("agentcards."+keys.LabelPrefix, api.GroupVersion,
			func() client.Object { return &api.AgentCard{} }),
		cardKind("agentcards."+keys.Kagenti, published,
			func() client.Object { return &AgentCard{} }),
		remoteServer(), server(),
		agent(), agentOfKagent1(), remoteServerOfKagent1(),
	}
}

// Kind is a kind of objects that the catalog follows.
type Kind struct {
	// Resource is its name in the API, such as agentcards.kagenti.io.
	Resource string
	GVK      schema.GroupVersionKind
	// New returns an empty object of the kind.
	New func() client.Object
	// SelectsPods reports whether objects of the kind select the pods to ask.
	SelectsPods bool
	// rights are the rights that asking needs, in addition to reading the objects and writing their
	// status.
	rights []Right

	// read fills an entry from an object itself.
	read func(*store.Entry, client.Object)
	// ask fills an answer from the agent or server of an object. An *ask.Failure becomes the state
	// of the entry, any other error is the API server's. It is nil for objects whose agents and
	// servers kagent asks.
	ask func(ctx context.Context, by *Asker, o client.Object, a *Answer,
		memory *answers.Share) error
	// report writes an answer into the status of an object. It is nil if ask is.
	report func(o client.Object, a *Answer, now time.Time)
}

// Right is a right to use a resource of the API server.
type Right struct {
	Group, Resource string
	Verbs           []string
	// For says what needs the right.
	For string
}

// Rights returns the rights to read the objects of the kind, to ask, and to report.
func (k Kind) Rights() []Right {
	name, group, _ := strings.Cut(k.Resource, ".")
	all := []Right{{group, name, []string{"get", "list", "watch"},
		k.GVK.Kind + " of " + k.GVK.GroupVersion().String()}}
	if k.report != nil {
		all = append(all, Right{group, name + "/status", []string{"patch"}, ""})
	}
	return append(all, k.rights...)
}

// GVR returns the resource of the kind in the version that is read.
func (k Kind) GVR() schema.GroupVersionResource {
	name, _, _ := strings.Cut(k.Resource, ".")
	return k.GVK.GroupVersion().WithResource(name)
}

// ListKind returns the kind of a list of objects.
func (k Kind) ListKind() schema.GroupVersionKind {
	return k.GVK.GroupVersion().WithKind(k.GVK.Kind + "List")
}

// Asker asks agents and servers.
type Asker struct {
	// Client reads from the caches and writes to the API server.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Store of the catalog.
	Store store.Followed
	// Dial opens connections to agents and servers.
	Dial ask.Dial
	// Roots are trusted with agents' certificates; nil is the system's.
	Roots *x509.CertPool
	// ServerPeriod is how often MCP servers are asked.
	ServerPeriod time.Duration
	// CardTimeout bounds the fetch of one card.
	CardTimeout time.Duration
	// CardKeys is a folder with the keys that verify agent cards, as ReadCardKeys reads them; "" is
	// none.
	CardKeys string
	// Now returns the time.
	Now func() time.Time

	cardKeys keyFolder
}

// Answer is the result of asking the agent or server of one object.
type Answer struct {
	Entry store.Entry
	// Complete reports whether the entry has all items; otherwise those stored before remain.
	Complete bool
	// Failure is the reason why the answer is missing or not complete, or nil.
	Failure *ask.Failure
	// Next is when to ask again while all goes well; zero is never.
	Next time.Duration
	// Lock compares the tools of a server with the lock of its package.
	Lock Lock

	kind  Kind
	cards []fetched
}

// Ask asks the agent or server of an object. before is the stored entry, without items. memory
// accounts for the answer until it is stored.
func (k Kind) Ask(ctx context.Context, by *Asker, o client.Object, before store.Entry,
	memory *answers.Share) (*Answer, error) {
	if k.ask == nil {
		return &Answer{Entry: k.Entry(o, store.Entry{}), Complete: true, Next: by.ServerPeriod}, nil
	}
	a := &Answer{kind: k, Entry: k.Entry(o, before)}
	err := k.ask(ctx, by, o, a, memory)
	if failure := (*ask.Failure)(nil); errors.As(err, &failure) {
		a.fail(failure)
		return a, nil
	}
	return a, err
}

// Unasked returns a failed answer for an object that no controller asks, with the reason.
func (k Kind) Unasked(o client.Object, before store.Entry, why error) *Answer {
	a := &Answer{kind: k, Entry: k.Entry(o, before)}
	a.fail(ask.Failed("%v", why))
	return a
}

// fail keeps the last good answer and records the failure.
func (a *Answer) fail(failure *ask.Failure) {
	a.Failure = failure
	a.Entry.Health, a.Entry.Message = store.Failing, failure.Reason
}

// Report writes an answer into the status of an object, and reports whether the kind has one.
func (k Kind) Report(o client.Object, a *Answer, now time.Time) bool {
	if k.report == nil {
		return false
	}
	k.report(o, a, now)
	return true
}

// Entry returns the entry of an object before the first request: the previous one, or what the
// object itself says.
func (k Kind) Entry(o client.Object, before store.Entry) store.Entry {
	e, gvk := before, o.GetObjectKind().GroupVersionKind()
	if gvk.Empty() { // objects from a cache do not say
		gvk = k.GVK
	}
	e.Key = store.Key{Resource: k.Resource, Namespace: o.GetNamespace(), Name: o.GetName()}
	e.UID, e.APIVersion, e.Kind = string(o.GetUID()), gvk.GroupVersion().String(), gvk.Kind
	e.Generation, e.Labels, e.Created =
		o.GetGeneration(), o.GetLabels(), o.GetCreationTimestamp().UTC()
	e.PublishedURL = o.GetAnnotations()[keys.PublishedURL]
	if before.UID == "" {
		e.Health = store.Unknown
		k.read(&e, o)
	}
	return e
}

// Of returns the entry of an object of the catalog's kinds, from its spec and the last good answer
// in its status. ok is false for other kinds.
func Of(u *unstructured.Unstructured) (e store.Entry, ok bool, err error) { return of(u, true) }

// OfLive returns the entry of an object of a cluster, as Of does. The CRDs of the cluster may have
// fields that the catalog does not know.
func OfLive(u *unstructured.Unstructured) (e store.Entry, ok bool, err error) { return of(u, false) }

func of(u *unstructured.Unstructured, strict bool) (e store.Entry, ok bool, err error) {
	all, gvk := All(), u.GroupVersionKind()
	at := slices.IndexFunc(all, func(k Kind) bool { return k.GVK.GroupKind() == gvk.GroupKind() })
	if at < 0 {
		return e, false, nil
	}
	k := all[at]
	o := k.New()
	if _, untyped := o.(*unstructured.Unstructured); untyped {
		o = u
	} else {
		strict = strict && gvk.Group != kagent.Group // the catalog knows some of kagent's fields
		if gvk.Version != k.GVK.Version {
			err = fmt.Errorf("its apiVersion %s is unknown: use %s", u.GetAPIVersion(),
				k.GVK.GroupVersion())
		} else {
			err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, o, strict)
		}
		if err != nil {
			return e, true, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	e = k.Entry(o, store.Entry{})
	e.UID = cmp.Or(e.UID, e.Resource+"/"+e.Namespace+"/"+e.Name)
	return e, true, nil
}

// AddToScheme adds the kinds of the catalog, except those whose types are kagent's own.
func AddToScheme(scheme *runtime.Scheme) error {
	copies.AddKind[AgentCard](scheme, published)
	if err := multi.Errors(api.AddToScheme(scheme), kagent.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("building the scheme: %w", err)
	}
	return nil
}

// untyped returns an empty object of a kind whose type is kagent's own.
func untyped(gvk schema.GroupVersionKind) func() client.Object {
	return func() client.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		return u
	}
}

// conditions writes the conditions of an object: kind says whether the last answer was good, Signed
// whether its cards are signed, and ToolsLocked whether a server offers the tools of the lock.
func (a *Answer) conditions(list *[]metav1.Condition, kind string, o client.Object, now time.Time) {
	conditions := process.Conditions{List: list, Generation: o.GetGeneration(), Now: now}
	switch a.Entry.Health {
	case store.Healthy:
		conditions.Set(kind, metav1.ConditionTrue, "Discovered", a.Found())
	case store.Degraded:
		conditions.Set(kind, metav1.ConditionTrue, "Degraded", a.Entry.Message)
	case store.Unknown:
		conditions.Set(kind, metav1.ConditionUnknown, "Pending", a.Entry.Message)
	default:
		conditions.Set(kind, metav1.ConditionFalse, "DiscoveryFailed", a.Entry.Message)
	}

	if worst, ok := worstVerdict(a.cards); ok && worst.Verdict == api.SignatureValid {
		conditions.Set(api.ConditionSigned, metav1.ConditionTrue, worst.Verdict,
			"signed by "+worst.SignedBy)
	} else if ok {
		conditions.Set(api.ConditionSigned, metav1.ConditionFalse, worst.Verdict, worst.Reason)
	}

	switch locked := o.GetAnnotations()[keys.ToolsDigest] != ""; {
	case a.Entry.Type != store.Server:
	case !locked:
		meta.RemoveStatusCondition(list, api.ConditionToolsLocked)
	case !a.Complete: // the verdict on the last good answer remains
	case a.Lock.State == store.ToolsDrifted:
		message := a.Lock.Message
		if before := meta.FindStatusCondition(*list, api.ConditionToolsLocked); before != nil &&
			strings.HasPrefix(before.Message, message) {
			message = before.Message // which names the tools
		}
		conditions.Set(api.ConditionToolsLocked, metav1.ConditionFalse, string(a.Lock.State), message)
	default:
		conditions.Set(api.ConditionToolsLocked, metav1.ConditionTrue, string(a.Lock.State),
			a.Lock.Message)
	}
}

// Found describes the offers of an entry, for example "2 skills".
func (a *Answer) Found() string { return cmp.Or(store.Offers(a.Entry), "answered") }
