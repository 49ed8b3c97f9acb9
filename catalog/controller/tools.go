package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	functionsapi "github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/tools"
)

// lock is how what a server offers compares with the lock of its package.
type lock struct {
	state   store.ToolLock
	message string
}

// judgeLock compares tools with the digest that a render wrote onto the object. The tools
// that the catalog had before say which of them changed.
func (r *Reconciler) judgeLock(ctx context.Context, o client.Object, before store.Entry, items []store.Item, memory *ask.Share) (lock, error) {
	want := o.GetAnnotations()[keys.ToolsDigest]
	if want == "" {
		return lock{}, nil
	}
	server := kinds.ToolServer(o)
	is, refused, err := lockOf(ctx, server, items, memory)
	switch {
	case err != nil:
		return lock{}, err
	case refused != "":
		return lock{store.ToolsDrifted, refused}, nil
	case is.Digest == want:
		return lock{store.ToolsLocked, "the server offers the tools of the lock, " + want}, nil
	}
	message := drifted(is.Digest)
	if before.ToolLock == store.ToolsLocked {
		storing, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		if known, err := r.Store.Get(storing, before.Key); err == nil {
			if was, refused, err := lockOf(ctx, server, known.Items, memory); err == nil && refused == "" {
				message += changed(was, is)
			}
		}
	}
	return lock{store.ToolsDrifted, message}, nil
}

// lockOf gives what a lock has of tools, or why they cannot be locked. It reads one tool at a
// time, whose memory counts meanwhile.
func lockOf(ctx context.Context, server functionsapi.ToolServer, items []store.Item, memory *ask.Share) (locked functionsapi.LockedToolServer, refused string, err error) {
	locked.ToolServer = server
	digests := make(map[string]string)
	for _, i := range items {
		if i.Kind != store.Tool {
			continue
		}
		if _, twice := digests[i.Name]; twice {
			return locked, fmt.Sprintf("the server has two tools of the name %s", clip(tools.Visible(i.Name), 128)), nil
		}
		cost := ask.DecodingCost(i.Document)
		if err := memory.Add(ctx, cost); err != nil {
			return locked, "", err
		}
		d, err := tools.Read(i.Document)
		if err != nil {
			return locked, "its tools cannot be read", nil
		}
		if problems := tools.Check([]tools.Definition{d}); len(problems) > 0 {
			p := problems[0]
			return locked, fmt.Sprintf("the tool %s cannot be locked: %s: %s; %s", p.Tool, p.Field, p.Message, p.Hint), nil
		}
		digest, err := d.Digest()
		if err != nil {
			return locked, "its tools cannot be read", nil
		}
		digests[i.Name] = digest
		locked.Tools = append(locked.Tools, functionsapi.LockedTool{Name: i.Name, Digest: digest})
		memory.Settle(cost)
	}
	if locked.Digest, err = tools.SetDigest(digests); err != nil {
		return locked, "its tools cannot be read", nil
	}
	return locked, "", nil
}

// drifted begins the message of a condition. apply looks for the digest in it.
func drifted(digest string) string {
	return fmt.Sprintf("the tools of the server differ from the lock: %s; `armature tools verify` shows the difference", digest)
}

// changed names the tools that differ: "; changed: search; removed: fetch".
func changed(was, is functionsapi.LockedToolServer) (text string) {
	names := make(map[string][]string)
	for _, c := range tools.Compare(tools.Side{Locked: []functionsapi.LockedToolServer{was}}, tools.Side{Locked: []functionsapi.LockedToolServer{is}}) {
		names[c.Effect] = append(names[c.Effect], clip(tools.Visible(c.Tool), 128))
	}
	for _, effect := range []string{tools.Changed, tools.Removed, tools.Added} {
		if of := names[effect]; len(of) > maxNamed {
			text += fmt.Sprintf("; %s: %s and %d more", effect, strings.Join(of[:maxNamed], ", "), len(of)-maxNamed)
		} else if len(of) > 0 {
			text += "; " + effect + ": " + strings.Join(of, ", ")
		}
	}
	return text
}

// maxNamed is how many tools a message names.
const maxNamed = 10

// lockCondition states whether a server offers the tools of the lock. An object that no
// lock knows has no such condition. The verdict on the last good answer stays while a server
// does not answer.
func lockCondition(list *[]metav1.Condition, o client.Object, a answer, now time.Time) {
	if o.GetAnnotations()[keys.ToolsDigest] == "" {
		meta.RemoveStatusCondition(list, api.ConditionToolsLocked)
		return
	}
	if !a.replace {
		return
	}
	c := metav1.Condition{
		Type: api.ConditionToolsLocked, ObservedGeneration: o.GetGeneration(), LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
		Status: metav1.ConditionTrue, Reason: string(a.lock.state), Message: a.lock.message,
	}
	if a.lock.state == store.ToolsDrifted {
		c.Status = metav1.ConditionFalse
		if before := meta.FindStatusCondition(*list, c.Type); before != nil && strings.HasPrefix(before.Message, c.Message) {
			c.Message = before.Message // which names the tools
		}
	}
	meta.SetStatusCondition(list, c)
}
