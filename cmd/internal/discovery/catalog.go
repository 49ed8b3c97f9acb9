// Package discovery has the commands that show which agents and tools there are: catalog and
// console.
package discovery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/objects"
)

// CatalogCommand returns `armature catalog`, which lists agents and tools.
func CatalogCommand() *cobra.Command {
	c := &catalog{server: cli.Catalog{Address: os.Getenv("ARMATURE_CATALOG")}}
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "List and search running agents and tools",
		Long: `Catalog shows the agents and tool servers that run, with their skills, tools and addresses.
It queries a catalog server (--server, or ARMATURE_CATALOG) with the token of the
kubeconfig or of --token-file. With -f, it reads the discovered data from the status of
manifests instead, and queries no server.`,
		Example: `  armature catalog list -A --server https://localhost:8443 --certificate-authority ca.crt
  armature catalog search "weather forecast" -A -o wide
  armature catalog get team1/weather -o yaml
  kubectl get agentcards,remotemcpservers -A -o yaml | armature catalog list -f -`,
	}
	f := cmd.PersistentFlags()
	c.server.Flags(f, "server", "address of the catalog, such as https://localhost:8443")
	f.StringSliceVarP(&c.files, "filename", "f", nil,
		"manifests to read instead: files, folders, or - for standard input")
	cli.Group(cmd, c.listCommand(), c.getCommand(), c.searchCommand())
	return cmd
}

// catalog holds the flags.
type catalog struct {
	cli.Cluster
	server cli.Catalog
	files  []string
	query  store.Query
	limit  int
	format string
}

// catalogEntries reads the entries of a server or of a local store.
type catalogEntries interface {
	List(context.Context, store.Query) ([]store.Entry, error)
	Get(context.Context, store.Key) (store.Entry, error)
	Search(context.Context, store.Query) ([]store.Hit, error)
}

// ask passes a server to question, or a store with the contents of manifests.
func (c *catalog) ask(cmd *cobra.Command, question func(catalogEntries) error) error {
	switch {
	case len(c.files) > 0 && cmd.Flags().Changed("server"):
		return cli.Usagef("--server and -f exclude each other")
	case len(c.files) > 0:
		c.query.Namespace = c.Namespace // without one, all that the files have
		s, err := c.manifests(cmd)
		if err != nil {
			return err
		}
		return question(offline{s})
	case c.server.Address == "":
		return cli.Usagef("name a catalog: --server https://…, or -f with manifests")
	}
	namespace, err := c.InNamespace()
	if err != nil {
		return err
	}
	c.query.Namespace = namespace
	s, err := c.server.Connect(cmd, c.Loader().ClientConfig)
	if err != nil {
		return err
	}
	return question(s)
}

func (c *catalog) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List agents and tool servers",
		Example: `  armature catalog list --type agent -n team1
  armature catalog list -f examples/ -o wide`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.ask(cmd, func(s catalogEntries) error {
				entries, err := s.List(cmd.Context(), c.query)
				if err != nil {
					return err
				}
				return c.table(store.EntryList{Items: append([]store.Entry{}, entries...)},
					entries).Print(cmd, c.format)
			})
		},
	}
	c.Flags(cmd)
	c.AllFlag(cmd)
	cli.ChoiceFlag(cmd, (*string)(&c.query.Type), "type", "both", string(store.Agent),
		string(store.Server))
	cli.ChoiceFlag(cmd, (*string)(&c.query.Health), "health", "any", string(store.Healthy),
		string(store.Degraded), string(store.Failing), string(store.Unknown))
	cli.ListFlag(cmd, &c.format)
	return cmd
}

func (c *catalog) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get NAMESPACE/NAME [RESOURCE]",
		Short:   "Show one agent or tool server with its skills or tools",
		Example: `  armature catalog get team1/weather agentcards.kagenti.io -o json`,
		Args:    cli.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return c.ask(cmd, func(s catalogEntries) error {
				e, err := c.find(cmd.Context(), s, a)
				if err != nil {
					return err
				}
				if err := c.table(e, []store.Entry{e}).Print(cmd, c.format); err != nil ||
					c.format != "table" && c.format != "wide" {
					return err
				}
				var rows [][]string
				for _, i := range e.Items {
					rows = append(rows, []string{i.Name, i.Kind, short(i.Description)})
				}
				return cli.PrintTable(cmd.OutOrStdout(), "\nOFFERS\tKIND\tDESCRIPTION", rows)
			})
		},
	}
	c.Flags(cmd)
	cli.ListFlag(cmd, &c.format)
	return cmd
}

// find returns the one entry that the arguments name.
func (c *catalog) find(ctx context.Context, s catalogEntries, a []string) (store.Entry, error) {
	namespace, name, ok := strings.Cut(a[0], "/")
	if !ok {
		namespace, name = c.query.Namespace, a[0]
	}
	if len(a) == 2 && namespace != "" {
		e, err := s.Get(ctx, store.Key{Resource: a[1], Namespace: namespace, Name: name})
		if err != nil {
			err = fmt.Errorf("%s: %w", strings.Join(a, " "), err)
		}
		return e, err
	}
	q := c.query
	q.Namespace = namespace
	entries, err := s.List(ctx, q)
	if err != nil {
		return store.Entry{}, err
	}
	entries = slices.DeleteFunc(entries,
		func(e store.Entry) bool { return e.Name != name || len(a) == 2 && e.Resource != a[1] })
	switch len(entries) {
	case 0:
		return store.Entry{}, fmt.Errorf("%s: %w", strings.Join(a, " "), store.ErrNotFound)
	case 1:
		return s.Get(ctx, entries[0].Key)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Namespace+"/"+e.Name+" "+e.Resource)
	}
	return store.Entry{}, cli.Usagef("%s names several: choose from %s", a[0], strings.Join(names, ", "))
}

func (c *catalog) searchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "search WORD…",
		Short: "Search names, descriptions, skills, tags and tools",
		Example: `  armature catalog search weather
  armature catalog search book hotel --kind tool -o json`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			if c.limit < 1 || c.limit > 1000 {
				return cli.Usagef("--limit %d: use 1 to 1000", c.limit)
			}
			return c.ask(cmd, func(s catalogEntries) error {
				c.query.Text, c.query.Limit = strings.Join(words, " "), c.limit
				hits, err := s.Search(cmd.Context(), c.query)
				if err != nil {
					return err
				}
				return c.hits(hits).Print(cmd, c.format)
			})
		},
	}
	c.Flags(cmd)
	c.AllFlag(cmd)
	cli.ChoiceFlag(cmd, &c.query.Kind, "kind", "any", string(store.Agent), string(store.Server),
		store.Skill, store.Tool, store.Resource, store.Prompt)
	cmd.Flags().IntVar(&c.limit, "limit", 20, "maximum number of results")
	cli.ListFlag(cmd, &c.format)
	return cmd
}

// table returns a table of entries; answer is the output for programs.
func (c *catalog) table(answer any, entries []store.Entry) cli.Listing {
	l := cli.Listing{
		Columns: []string{"NAMESPACE", "NAME", "KIND", "TITLE", "HEALTH", "OFFERS", "ANSWERED"},
		Wide:    []string{"VERSION", "URL", "RESOURCE", "MESSAGE"},
		Objects: answer,
		Empty:   "nothing found" + cli.Where(c.query.Namespace),
	}
	for _, e := range entries {
		l.Add(e.Namespace+"/"+e.Name, e.Namespace, e.Name, e.Kind, short(e.Title), string(e.Health),
			store.Offers(e), answered(e), e.Version, e.URL, e.Resource, e.Message)
	}
	return l
}

func (c *catalog) hits(hits []store.Hit) cli.Listing {
	l := cli.Listing{
		Columns: []string{"FOUND", "KIND", "IN", "HEALTH", "DESCRIPTION"},
		Wide:    []string{"URL", "RESOURCE"},
		Objects: store.HitList{Items: append([]store.Hit{}, hits...)},
		Empty:   "nothing found" + cli.Where(c.query.Namespace),
	}
	for _, h := range hits {
		name, kind, description := h.Entry.Name, string(h.Entry.Type), h.Entry.Description
		if h.Item != nil {
			name, kind, description = h.Item.Name, h.Item.Kind, h.Item.Description
		}
		in := h.Entry.Namespace + "/" + h.Entry.Name
		l.Add(in, name, kind, in, string(h.Entry.Health), short(description), h.Entry.URL,
			h.Entry.Resource)
	}
	return l
}

func answered(e store.Entry) string {
	if e.Fetched.IsZero() {
		return "never"
	}
	return duration.HumanDuration(max(0, time.Since(e.Fetched))) + " ago"
}

func short(text string) string {
	runes := []rune(cli.OneLine(text))
	if len(runes) > 60 {
		return string(runes[:59]) + "…"
	}
	return string(runes)
}

// manifests reads files into a store in memory.
func (c *catalog) manifests(cmd *cobra.Command) (store.Store, error) {
	s := store.NewMemory()
	c.query.Scope = store.Everything()
	for _, name := range c.files {
		files, err := manifestFiles(name)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := readManifests(cmd, s, file); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// offline is a store of manifests. It lists all entries, as the client of a server does.
type offline struct{ store.Store }

func (o offline) List(ctx context.Context, q store.Query) (all []store.Entry, err error) {
	q.Limit = 1000
	for {
		page, err := o.Store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); len(page) < q.Limit {
			return all, nil
		}
		q.After = page[len(page)-1].Key
	}
}

func manifestFiles(name string) (files []string, err error) {
	info, err := os.Stat(name)
	if name == "-" || err == nil && !info.IsDir() {
		return []string{name}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	err = filepath.WalkDir(name, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && render.IsManifest(path) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	return files, nil
}

func readManifests(cmd *cobra.Command, s store.Store, file string) error {
	text, err := cli.ReadFile(cmd, "manifests", file)
	if err != nil {
		return err
	}
	all, err := objects.Every(file, text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, o := range all {
		list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*o.Unstructured}}
		if o.IsList() {
			list, err = o.ToList()
		}
		for i := 0; err == nil && i < len(list.Items); i++ {
			var e store.Entry
			var ok bool
			if e, ok, err = kinds.Of(&list.Items[i]); err == nil && ok {
				_, err = s.Put(cmd.Context(), e, true)
			}
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", file, o.Line, err)
		}
	}
	return nil
}
