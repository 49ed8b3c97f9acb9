package kinds

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process"
)

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

// Found describes what an entry offers, such as "2 skills".
func (a *Answer) Found() string { return cmp.Or(store.Offers(a.Entry), "answered") }
