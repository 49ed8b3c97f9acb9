package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/armature-dev/armature/catalog/entry"
	"github.com/armature-dev/armature/catalog/store"
)

// catalogCommand is `armature catalog`: which agents and tools there are.
func catalogCommand() *cobra.Command {
	c := &catalog{}
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "List and search the agents and tools that run",
		Long: `Catalog shows which agents and tool servers run, what they can do and how to reach
them. It queries a catalog server (--server, or ARMATURE_CATALOG) with the token of
the kubeconfig or of --token-file. With -f it reads the discovered data from the
status of manifests instead, and queries no server.`,
		Example: `  armature catalog list --server https://localhost:8443 --certificate-authority ca.crt
  armature catalog search "weather forecast" -o wide
  armature catalog get team1/weather -o yaml
  kubectl get agentcards,remotemcpservers -A -o yaml | armature catalog list -f -`,
	}
	f := cmd.PersistentFlags()
	f.StringVar(&c.server, "server", os.Getenv("ARMATURE_CATALOG"), "address of the catalog, such as https://localhost:8443")
	f.StringVar(&c.tokenFile, "token-file", "", "file that holds a Kubernetes token; empty takes the kubeconfig's")
	f.StringVar(&c.ca, "certificate-authority", "", "PEM file of the authority that signed the catalog's certificate")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file; empty is kubectl's choice")
	f.StringVar(&c.context, "context", "", "context of the kubeconfig; empty is its current one")
	f.StringSliceVarP(&c.files, "filename", "f", nil, "manifests to read instead: files, folders, or - for standard input")
	f.StringVarP(&c.query.Namespace, "namespace", "n", "", "namespace; empty is all")
	group(cmd, c.listCommand(), c.getCommand(), c.searchCommand())
	return cmd
}

// catalog is what the flags say.
type catalog struct {
	server, tokenFile, ca, kubeconfig, context string
	files                                      []string
	query                                      store.Query
	limit                                      int
	format                                     string
}

// catalogEntries are those of a server, or of a store of our own.
type catalogEntries interface {
	List(context.Context, store.Query) ([]store.Entry, error)
	Get(context.Context, store.Key) (store.Entry, error)
	Search(context.Context, store.Query) ([]store.Hit, error)
}

func (c *catalog) open(cmd *cobra.Command) (catalogEntries, func() error, error) {
	switch {
	case len(c.files) > 0 && cmd.Flags().Changed("server"):
		return nil, nil, usageError{errors.New("--server and -f exclude each other")}
	case len(c.files) > 0:
		return c.manifests(cmd.Context(), cmd.InOrStdin())
	case c.server == "":
		return nil, nil, usageError{errors.New("say which catalog: --server https://…, or -f with manifests")}
	}
	s, err := c.client(cmd.ErrOrStderr())
	return s, func() error { return nil }, err
}

func (c *catalog) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List agents and tool servers",
		Example: `  armature catalog list --type agent -n team1
  armature catalog list -f examples/ -o wide`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, end, err := c.open(cmd)
			if err != nil {
				return err
			}
			entries, err := s.List(cmd.Context(), c.query)
			if err := errors.Join(err, end()); err != nil {
				return err
			}
			if c.format == "json" || c.format == "yaml" {
				return printObjects(cmd.OutOrStdout(), c.format, store.EntryList{Items: append([]store.Entry{}, entries...)})
			}
			if len(entries) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "nothing found")
			}
			return c.table(cmd.OutOrStdout(), entries)
		},
	}
	c.typeFlag(cmd)
	choiceFlag(cmd, (*string)(&c.query.Health), "health", "any", string(store.Healthy), string(store.Degraded), string(store.Failing), string(store.Unknown))
	outputFlag(cmd, &c.format, "table", "table", "wide", "yaml", "json")
	return cmd
}

func (c *catalog) typeFlag(cmd *cobra.Command) {
	choiceFlag(cmd, (*string)(&c.query.Type), "type", "both", string(store.Agent), string(store.Server))
}

// choice is the value of a flag that takes one of a few words.
type choice struct {
	value *string
	words []string
}

func choiceFlag(cmd *cobra.Command, value *string, name, empty string, words ...string) {
	c := choice{value, words}
	cmd.Flags().Var(c, name, c.names()+"; empty is "+empty)
	if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag was added above
	}
}

func (c choice) names() string {
	last := len(c.words) - 1
	return strings.Join(c.words[:last], ", ") + " or " + c.words[last]
}

func (c choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}
func (c choice) Type() string { return "string" }
func (c choice) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return errors.New("use " + c.names())
	}
	*c.value = text
	return nil
}

func (c *catalog) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get NAMESPACE/NAME [RESOURCE]",
		Short:   "Show one agent or tool server with its skills or tools",
		Example: `  armature catalog get team1/weather agentcards.kagenti.io -o json`,
		Args:    args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			s, end, err := c.open(cmd)
			if err != nil {
				return err
			}
			e, err := c.find(cmd.Context(), s, a)
			if err := errors.Join(err, end()); err != nil {
				return err
			}
			if c.format == "json" || c.format == "yaml" {
				return printObjects(cmd.OutOrStdout(), c.format, e)
			}
			if err := c.table(cmd.OutOrStdout(), []store.Entry{e}); err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(table, "\nOFFERS\tKIND\tDESCRIPTION")
			for _, i := range e.Items {
				fmt.Fprintf(table, "%s\t%s\t%s\n", oneLine(i.Name), i.Kind, short(i.Description))
			}
			return table.Flush()
		},
	}
	outputFlag(cmd, &c.format, "table", "table", "wide", "yaml", "json")
	return cmd
}

// find the one entry that the arguments name.
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
	entries = slices.DeleteFunc(entries, func(e store.Entry) bool { return e.Name != name || len(a) == 2 && e.Resource != a[1] })
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
	return store.Entry{}, usageError{fmt.Errorf("%s names several: say which of %s", a[0], strings.Join(names, ", "))}
}

func (c *catalog) searchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "search WORD…",
		Short: "Search names, descriptions, skills, tags and tools",
		Example: `  armature catalog search weather
  armature catalog search book hotel --kind tool -o json`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			if c.limit < 1 || c.limit > 1000 {
				return usageError{fmt.Errorf("--limit %d: use 1 to 1000", c.limit)}
			}
			s, end, err := c.open(cmd)
			if err != nil {
				return err
			}
			c.query.Text, c.query.Limit = strings.Join(words, " "), c.limit
			hits, err := s.Search(cmd.Context(), c.query)
			if err := errors.Join(err, end()); err != nil {
				return err
			}
			if c.format == "json" || c.format == "yaml" {
				return printObjects(cmd.OutOrStdout(), c.format, store.HitList{Items: append([]store.Hit{}, hits...)})
			}
			if len(hits) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "nothing found")
			}
			return c.hits(cmd.OutOrStdout(), hits)
		},
	}
	c.typeFlag(cmd)
	choiceFlag(cmd, &c.query.Kind, "kind", "any", string(store.Agent), string(store.Server), store.Skill, store.Tool, store.Resource, store.Prompt)
	cmd.Flags().IntVar(&c.limit, "limit", 20, "maximum number of results")
	outputFlag(cmd, &c.format, "table", "table", "wide", "yaml", "json")
	return cmd
}

func (c *catalog) table(out io.Writer, entries []store.Entry) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	head := "NAMESPACE\tNAME\tKIND\tTITLE\tHEALTH\tOFFERS\tANSWERED"
	if c.format == "wide" {
		head += "\tVERSION\tURL\tRESOURCE\tMESSAGE"
	}
	fmt.Fprintln(table, head)
	for _, e := range entries {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s", e.Namespace, e.Name, e.Kind, short(e.Title), e.Health, offers(e), answered(e))
		if c.format == "wide" {
			fmt.Fprintf(table, "\t%s\t%s\t%s\t%s", oneLine(e.Version), oneLine(e.URL), e.Resource, oneLine(e.Message))
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

func (c *catalog) hits(out io.Writer, hits []store.Hit) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	head := "FOUND\tKIND\tIN\tHEALTH\tDESCRIPTION"
	if c.format == "wide" {
		head += "\tURL\tRESOURCE"
	}
	fmt.Fprintln(table, head)
	for _, h := range hits {
		name, kind, description := h.Entry.Name, string(h.Entry.Type), h.Entry.Description
		if h.Item != nil {
			name, kind, description = h.Item.Name, h.Item.Kind, h.Item.Description
		}
		fmt.Fprintf(table, "%s\t%s\t%s/%s\t%s\t%s", oneLine(name), kind, h.Entry.Namespace, h.Entry.Name, h.Entry.Health, short(description))
		if c.format == "wide" {
			fmt.Fprintf(table, "\t%s\t%s", oneLine(h.Entry.URL), h.Entry.Resource)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

func offers(e store.Entry) string {
	var parts []string
	for _, kind := range []string{store.Skill, store.Tool, store.Resource, store.Prompt} {
		switch n := e.Counts[kind]; {
		case n == 1:
			parts = append(parts, "1 "+kind)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", n, kind))
		}
	}
	return strings.Join(parts, ", ")
}

func answered(e store.Entry) string {
	age, ok := e.Ago(time.Now())
	if !ok {
		return "never"
	}
	return duration.HumanDuration(age) + " ago"
}

func short(text string) string {
	runes := []rune(oneLine(text))
	if len(runes) > 60 {
		return string(runes[:59]) + "…"
	}
	return string(runes)
}

// manifests puts what files say into a store in memory.
func (c *catalog) manifests(ctx context.Context, stdin io.Reader) (_ catalogEntries, end func() error, err error) {
	s, err := store.Open(ctx, store.Memory)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	c.query.Scope = store.Everything()
	stdin = interruptibleReader{ctx, stdin}
	for _, name := range c.files {
		files, err := manifestFiles(name)
		if err != nil {
			return nil, nil, err
		}
		for _, file := range files {
			if err := readManifests(ctx, s, file, stdin); err != nil {
				return nil, nil, err
			}
		}
	}
	return offline{s}, s.Close, nil
}

// offline is a store of manifests. It lists all that there is, as a server's
// client does.
type offline struct{ *store.Store }

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
		if ext := filepath.Ext(path); err == nil && !entry.IsDir() && (ext == ".yaml" || ext == ".yml" || ext == ".json") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	return files, nil
}

func readManifests(ctx context.Context, s *store.Store, file string, stdin io.Reader) (err error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("reading manifests: %w", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		in = f
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(in, 4096)
	for n := 1; ; n++ {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s, document %d: %w", file, n, err)
		}
		objects := []unstructured.Unstructured{*u}
		if u.IsList() {
			list, err := u.ToList()
			if err != nil {
				return fmt.Errorf("%s, document %d: %w", file, n, err)
			}
			objects = list.Items
		}
		for i := range objects {
			e, ok, err := entry.Of(&objects[i])
			if err == nil && ok {
				_, err = s.Replace(ctx, e)
			}
			if err != nil {
				return fmt.Errorf("%s, document %d: %w", file, n, err)
			}
		}
	}
}
