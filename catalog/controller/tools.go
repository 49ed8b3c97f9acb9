package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/entry"
	"github.com/armature-dev/armature/catalog/store"
	functionsapi "github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/tools"
)

// Lister asks tool servers for commands, with the limits of the catalog. It reads no
// Secret: a server that needs one is an error.
type Lister struct {
	dial   Dial
	memory *budget
}

// NewLister makes a lister. dial opens connections.
func NewLister(dial Dial) *Lister { return &Lister{dial: dial, memory: newBudget()} }

// List gives the tools of a server, and the version of MCP that it spoke. stateless is a
// version without sessions that it is known to speak, which saves a request; "" for none.
func (l *Lister) List(ctx context.Context, o client.Object, stateless string) (found []tools.Definition, protocol string, err error) {
	at := endpoint{timeout: 30 * time.Second, terminate: true}
	switch o := o.(type) {
	case *kagent.RemoteMCPServer:
		if at, err = remoteEndpoint(ctx, nil, o); err != nil {
			return nil, "", errors.New(reason(err))
		}
	case *kagent.MCPServer:
		at.url = entry.ServiceOf(o)
	}
	at.toolsAlone, at.stateless = true, stateless
	ask := func() (*discovery, error) {
		memory := l.memory.share(o.GetNamespace() + "/" + o.GetName())
		defer memory.release()
		return discover(ctx, l.dial, at, memory)
	}
	d, err := ask()
	if stateless != "" && (errors.As(err, new(*missingError)) || errors.As(err, new(statusError))) {
		at.stateless = "" // it may speak another version by now
		d, err = ask()
	}
	if err != nil {
		return nil, "", errors.New(reason(err))
	}
	found, err = definitions(d.items)
	return found, d.info.ProtocolVersion, err
}

// definitions reads the tools among items.
func definitions(items []store.Item) (found []tools.Definition, err error) {
	for _, i := range items {
		if i.Kind != store.Tool {
			continue
		}
		d, err := tools.Read(i.Document)
		if err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	return found, nil
}

// lock is how what a server offers compares with the lock of its package.
type lock struct {
	state   store.ToolLock
	message string
}

// judgeLock compares tools with the digest that a render wrote onto the object. The tools
// that the catalog had before say which of them changed.
func (r *Reconciler) judgeLock(ctx context.Context, o client.Object, before store.Entry, items []store.Item) lock {
	want := o.GetAnnotations()[keys.ToolsDigest]
	if want == "" {
		return lock{}
	}
	offered, err := definitions(items)
	if err != nil {
		return lock{store.ToolsDrifted, "its tools cannot be read"}
	}
	if problems := tools.Check(offered); len(problems) > 0 {
		p := problems[0]
		return lock{store.ToolsDrifted, fmt.Sprintf("the tool %s cannot be locked: %s: %s; %s", p.Tool, p.Field, p.Message, p.Hint)}
	}
	is, err := tools.Lock(entry.ToolServer(o), offered)
	if err != nil {
		return lock{store.ToolsDrifted, "its tools cannot be read"}
	}
	if is.Digest == want {
		return lock{store.ToolsLocked, "the server offers the tools of the lock, " + want}
	}
	message := drifted(is.Digest)
	if before.ToolLock == store.ToolsLocked {
		storing, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		if known, err := r.Store.Get(storing, before.Key); err == nil {
			if had, err := definitions(known.Items); err == nil {
				message += changed(entry.ToolServer(o), had, offered)
			}
		}
	}
	return lock{store.ToolsDrifted, message}
}

// drifted begins the message of a condition. apply looks for the digest in it.
func drifted(digest string) string {
	return fmt.Sprintf("the server offers other tools than the lock has: %s; `armature verify --tools` shows the difference", digest)
}

// changed names the tools that differ: "; changed: search; gone: fetch".
func changed(server functionsapi.ToolServer, was, is []tools.Definition) (text string) {
	before, err := tools.SideOf(tools.Server{ToolServer: server, Tools: was})
	if err != nil {
		return ""
	}
	after, err := tools.SideOf(tools.Server{ToolServer: server, Tools: is})
	if err != nil {
		return ""
	}
	names := make(map[string][]string)
	for _, c := range tools.Compare(before, after) {
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
