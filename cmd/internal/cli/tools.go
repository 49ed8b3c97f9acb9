package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	catalogapi "github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// ToolServers says where the tools of a package's servers are read: from each server, or from the
// catalog that has queried them in the cluster.
type ToolServers struct {
	Cluster
	catalog Catalog
}

// Flags adds the flags of a command that queries tool servers.
func (t *ToolServers) Flags(cmd *cobra.Command) {
	t.Cluster.LoginFlags(cmd)
	t.catalog.Flags(cmd.Flags(), "catalog-server",
		"address of a catalog that has queried the tool servers, such as https://localhost:8443 "+
			"(default: query each server)")
}

// ToolsFile returns the path of the file with the definitions, next to a lock.
func ToolsFile(lock string) string { return filepath.Join(filepath.Dir(lock), tools.File) }

// named is a tool server of a package, and where the package names it.
type named struct {
	server api.ToolServer
	place  finding.Place
	object client.Object // nil if an agent binds a server that is not in the package
}

// Ask requests the tools of all servers that a package names. The result is not valid if one of the
// findings is an error.
func (t *ToolServers) Ask(cmd *cobra.Command, src render.Source,
	opt render.Options) (offered []tools.Server, locked []api.LockedToolServer,
	findings []finding.Finding, err error) {
	servers, findings, err := toolServers(src, opt)
	if err != nil || finding.Failed(findings) {
		return nil, nil, findings, err
	}
	ask, err := t.source(cmd, opt.Lock)
	if err != nil {
		return nil, nil, nil, err
	}
	var done atomic.Int64
	activity := Begin(cmd.ErrOrStderr(), false, "asking tool servers")
	defer activity.End()
	activity.Show(func() string {
		return fmt.Sprintf("asking tool servers: %d of %d", done.Load(), len(servers))
	})
	answers := make([]answer, len(servers))
	multi.Each(len(servers), func(i int) error {
		answers[i] = servers[i].ask(cmd.Context(), ask)
		done.Add(1)
		return nil // errors are in answers
	})
	if err := cmd.Context().Err(); err != nil {
		return nil, nil, nil, ErrInterrupted
	}
	for i, a := range answers {
		findings = append(findings, a.findings...)
		offered, locked =
			append(offered, tools.Server{ToolServer: servers[i].server, Tools: a.offered}),
			append(locked, a.locked)
	}
	finding.Sort(findings)
	return offered, locked, findings, nil
}

// answer is the answer of a server, or findings that say why it is not valid.
type answer struct {
	offered  []tools.Definition
	locked   api.LockedToolServer
	findings []finding.Finding
}

// asking queries one server.
type asking func(ctx context.Context,
	s named) (found []tools.Definition, protocol string, err error)

func (s named) ask(ctx context.Context, asked asking) (a answer) {
	report := func(field, message, hint string) {
		place := s.place
		place.Field = field
		a.findings = append(a.findings, finding.Finding{Rule: "pin-images/tools",
			Severity: finding.Error, Place: place, Message: message, Hint: hint})
	}
	found, protocol, err := asked(ctx, s)
	if err != nil {
		hint := "run it where the server is reachable, or name the catalog with --catalog-server"
		if errors.Is(err, ask.ErrTooLarge) {
			hint = "reduce what the server offers: at most 8 MiB, 10,000 tools and 64 " +
				"levels are read"
		}
		report("", fmt.Sprintf("the tools of %s are not known: %v", s.server, err), hint)
		return a
	}
	for _, p := range tools.Check(found) {
		report("", fmt.Sprintf("the tool %s of %s cannot be locked: %s: %s", p.Tool, s.server,
			p.Field, p.Message), p.Hint)
	}
	if a.offered = found; len(a.findings) > 0 {
		return a
	}
	if a.locked, err = tools.Lock(s.server, found); err != nil {
		report("", err.Error(), "")
	}
	a.locked.Protocol = protocol
	return a
}

// toolServers returns the servers that a package describes, and those that its agents bind.
func toolServers(src render.Source,
	opt render.Options) (all []named, findings []finding.Finding, err error) {
	var bound []named
	for _, f := range src.Files {
		if f.AsIs || !render.IsManifest(f.Path) || opt.Excludes(f.Path) {
			continue
		}
		data, err := src.Content(f.Path)
		if err != nil {
			return nil, nil, err
		}
		render.Objects(render.File{Path: f.Path, Data: data}, func(o *krm.Object) {
			if server, ok := tools.ServerOf(o); ok {
				s := named{server: server,
					place: o.Finding(finding.Error, "", o.Get("spec"), "", "").Place}
				var failed error
				if s.object, failed = typed(o); failed != nil {
					findings = append(findings, o.Finding(finding.Error, "pin-images/tools",
						krm.Node{}, failed.Error(), ""))
				}
				all = append(all, s)
			}
			for _, b := range tools.Bindings(o) {
				bound = append(bound, named{server: b.Server,
					place: o.Finding(finding.Error, "", b.At, "", "").Place})
			}
		})
	}
	for _, b := range bound {
		if !slices.ContainsFunc(all, func(s named) bool { return tools.Same(s.server, b.server) }) {
			all = append(all, b)
		}
	}
	slices.SortStableFunc(all, func(a, b named) int { return a.server.Compare(b.server) })
	return all, findings, nil
}

// typed decodes a server's manifest.
func typed(o *krm.Object) (client.Object, error) {
	var object client.Object = &kagent.RemoteMCPServer{}
	if o.Kind == "MCPServer" {
		object = &kagent.MCPServer{}
	}
	text, err := o.JSON()
	if err == nil {
		err = json.Unmarshal(text, object)
	}
	return object, err
}

var errNotDescribed = errors.New("the package has no such object")

// source returns the function that queries the servers.
func (t *ToolServers) source(cmd *cobra.Command, lock *api.ImageLock) (asking, error) {
	if t.catalog.Address != "" {
		return t.fromCatalog(cmd)
	}
	spoken := make(map[api.ToolServer]string)
	if lock != nil {
		for _, l := range lock.Spec.Tools {
			if l.Protocol >= firstStateless {
				spoken[l.ToolServer] = l.Protocol
			}
		}
	}
	lister := ask.NewLister((&net.Dialer{Timeout: 5 * time.Second}).DialContext)
	return func(ctx context.Context, s named) ([]tools.Definition, string, error) {
		if s.object == nil {
			return nil, "", errNotDescribed
		}
		if m, ok := s.object.(*kagent.MCPServer); ok && m.Namespace == "" {
			return nil, "", errors.New("its address is not known without its namespace")
		}
		return lister.List(ctx, s.object, spoken[s.server])
	}, nil
}

// firstStateless is the first version of MCP without sessions.
const firstStateless = "2026-07-28"

// fromCatalog returns a function that reads the tools of a server from a catalog.
func (t *ToolServers) fromCatalog(cmd *cobra.Command) (asking, error) {
	c, err := t.catalog.Connect(cmd, t.Loader().ClientConfig)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // a client is for one caller at a time
	return func(ctx context.Context,
		s named) (found []tools.Definition, protocol string, err error) {
		mu.Lock()
		defer mu.Unlock()
		resource := strings.ToLower(s.server.Kind) + "s." + s.server.Group
		e, err := c.Get(ctx, store.Key{Resource: resource,
			Namespace: cmp.Or(s.server.Namespace, "default"), Name: s.server.Name})
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil, "", errors.New("the catalog does not have it")
		case err != nil:
			return nil, "", err
		case e.Health != store.Healthy:
			return nil, "", fmt.Errorf("the catalog reports: %s",
				cmp.Or(e.Message, string(e.Health)))
		}
		for _, i := range e.Items {
			if i.Kind != store.Tool {
				continue
			}
			if len(i.Document) == 0 {
				return nil, "", errors.New("the server limits its list to the client that asks, " +
					"so the catalog keeps no definitions: query the server directly")
			}
			d, err := tools.Read(i.Document)
			if err != nil {
				return nil, "", err
			}
			found = append(found, d)
		}
		return found, "", nil
	}, nil
}

// CheckTools refuses objects if the catalog has found that their tool servers offer other tools
// than the lock of the package has. Without a catalog in the cluster, nothing is compared.
func (k *Cluster) CheckTools(ctx context.Context, objects []apply.Object) (refused error) {
	var c client.Client
	for _, o := range objects {
		digest := o.GetAnnotations()[keys.ToolsDigest]
		if digest == "" {
			continue
		}
		config, namespace, err := k.Rest()
		if err != nil {
			return err
		}
		if c == nil {
			if c, err = client.New(config, client.Options{}); err != nil {
				return fmt.Errorf("connecting to the cluster: %w", err)
			}
		}
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(o.GroupVersionKind())
		err = c.Get(ctx, client.ObjectKey{Namespace: cmp.Or(o.GetNamespace(), namespace),
			Name: o.GetName()}, live)
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading what the catalog has found of %s %s: %w", o.GetKind(),
				o.GetName(), err)
		}
		if message, drifted := driftOf(live); drifted && !strings.Contains(message, digest) {
			place := o.File
			if o.Line > 0 {
				place = fmt.Sprintf("%s:%d", o.File, o.Line)
			}
			refused = multi.Errors(refused,
				fmt.Errorf("%s: %s %s: %s\n  hint: review it, then run `armature tools pin` and "+
					"commit armature.lock", place, o.GetKind(), o.GetName(), OneLine(message)))
		}
	}
	return refused
}

// driftOf returns the message of the catalog's condition if that is false.
func driftOf(live *unstructured.Unstructured) (message string, drifted bool) {
	conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	for _, one := range conditions {
		if c, ok := one.(map[string]any); ok && c["type"] == catalogapi.ConditionToolsLocked &&
			c["status"] == "False" {
			message, _ = c["message"].(string)
			return message, true
		}
	}
	return "", false
}
