package kinds

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
	functionsapi "github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render/answers"
)

// Lock is how the tools of a server compare with the lock of its package.
type Lock struct {
	State   store.ToolLock
	Message string
}

// storeTimeout bounds a read of the store: a store that hangs must not occupy a worker forever.
const storeTimeout = 30 * time.Second

// judgeLock compares tools with the digest that a render wrote onto the object. The tools that
// the catalog had before say which of them changed.
func (by *Asker) judgeLock(ctx context.Context, o client.Object, a *Answer, items []store.Item,
	memory *answers.Share) (Lock, error) {
	want := o.GetAnnotations()[keys.ToolsDigest]
	if want == "" {
		return Lock{}, nil
	}
	server := functionsapi.ToolServer{Group: a.kind.GVK.Group, Kind: a.kind.GVK.Kind,
		Namespace: o.GetNamespace(), Name: o.GetName()}
	is, refused, err := lockOf(ctx, server, items, memory)
	switch {
	case err != nil:
		return Lock{}, ask.FailureOf(err)
	case refused != "":
		return Lock{store.ToolsDrifted, refused}, nil
	case is.Digest == want:
		return Lock{store.ToolsLocked, "the server offers the tools of the lock, " + want}, nil
	}
	// armature apply looks for the digest in the message.
	message := fmt.Sprintf("the tools of the server differ from the lock: %s; `armature tools "+
		"verify` shows the difference", is.Digest)
	if a.Entry.ToolLock == store.ToolsLocked {
		storing, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		if known, err := by.Store.Get(storing, a.Entry.Key); err == nil {
			if was, refused, err := lockOf(ctx, server, known.Items, memory); err == nil &&
				refused == "" {
				message += changed(was, is)
			}
		}
	}
	return Lock{store.ToolsDrifted, message}, nil
}

// lockOf returns the lock of tools, or why they cannot be locked. It reads one tool at a time, and
// counts its memory meanwhile.
func lockOf(ctx context.Context, server functionsapi.ToolServer, items []store.Item,
	memory *answers.Share) (locked functionsapi.LockedToolServer, refused string, err error) {
	locked.ToolServer = server
	digests := make(map[string]string)
	for _, i := range items {
		if i.Kind != store.Tool {
			continue
		}
		if _, twice := digests[i.Name]; twice {
			return locked, fmt.Sprintf("the server has two tools of the name %s",
				text.Cut(tools.Visible(i.Name), 128)), nil
		}
		cost := answers.Cost(i.Document)
		if err := memory.Add(ctx, cost); err != nil {
			return locked, "", err
		}
		d, err := tools.Read(i.Document)
		if err != nil {
			return locked, "its tools cannot be read", nil
		}
		if problems := tools.Check([]tools.Definition{d}); len(problems) > 0 {
			p := problems[0]
			return locked, fmt.Sprintf("the tool %s cannot be locked: %s: %s; %s", p.Tool, p.Field,
				p.Message, p.Hint), nil
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

// changed names the tools that differ: "; changed: search; removed: fetch".
func changed(was, is functionsapi.LockedToolServer) (list string) {
	names := make(map[string][]string)
	for _, c := range tools.Compare(tools.Side{Locked: []functionsapi.LockedToolServer{was}},
		tools.Side{Locked: []functionsapi.LockedToolServer{is}}) {
		names[c.Effect] = append(names[c.Effect], text.Cut(tools.Visible(c.Tool), 128))
	}
	for _, effect := range []string{tools.Changed, tools.Removed, tools.Added} {
		if of := names[effect]; len(of) > maxNamed {
			list += fmt.Sprintf("; %s: %s and %d more", effect, strings.Join(of[:maxNamed], ", "),
				len(of)-maxNamed)
		} else if len(of) > 0 {
			list += "; " + effect + ": " + strings.Join(of, ", ")
		}
	}
	return list
}

// maxNamed is how many tools a message names.
const maxNamed = 10
