package console

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
)

// pageSize is how many rows a page of a list has.
const pageSize = 50

// listData is a list of agents or tool servers.
type listData struct {
	Path, Title, Lead, Noun string
	// Filter is the state of the list, which is in its address.
	Filter            url.Values
	Namespaces, Kinds []string
	Rows              []row
	Total             int
	Next              string // the address of the page after this one
}

// row is an entry, with the items that a search found in it.
type row struct {
	store.Entry
	Found []store.Item
}

// State returns the state of the entry.
func (r row) State() State { return stateOf(r.Health, Unknown) }

// Drifted reports whether its tools differ from the lock.
func (r row) Drifted() bool { return r.ToolLock == store.ToolsDrifted }

// Label returns the name of the entry for people.
func (r row) Label() string { return cmp.Or(r.Title, r.Name) }

// Path returns the path of its page.
func (r row) Path() string { return entryPath(r.Key) }

// Offers describes its items.
func (r row) Offers() string { return offers(r.Entry) }

func agents(v *Visit) (*Page, error) {
	return list(v, store.Agent, listData{Path: "/agents", Title: "Agents", Noun: "agent",
		Lead: "The agents that run here, with their skills and addresses."})
}

func servers(v *Visit) (*Page, error) {
	return list(v, store.Server,
		listData{Path: "/tools", Title: "Tool servers", Noun: "tool server",
			Lead: "MCP servers with their tools, and which agents are bound to them."})
}

func list(v *Visit, kind store.Type, data listData) (*Page, error) {
	scope, err := v.Catalog()
	if err != nil {
		return nil, err
	}
	data.Namespaces, data.Kinds, err = choices(v, scope, kind)
	if err != nil {
		return nil, err
	}
	data.Filter = v.filter()
	get := data.Filter.Get
	q := store.Query{Scope: scope, Type: kind, Namespace: get("namespace"), Resource: get("kind"),
		Health: store.Health(get("health")), Skill: get("skill"), Tag: get("tag"), Text: get("q"),
		Limit: pageSize}
	var ok bool
	if q.After, ok = store.ParseKey(v.URL.Query().Get("after")); !ok {
		return nil, access.Refuse(400, "This page of the list does not exist.",
			"Begin with its first page.")
	}
	if q.Text != "" {
		q.Limit = 2 * pageSize
		hits, err := v.Console.Store.Search(v.Context(), q)
		if err != nil {
			return nil, err
		}
		data.Rows = found(hits)
		data.Total = len(data.Rows)
	} else {
		q.Limit++
		entries, total, err := v.Console.Store.Page(v.Context(), q)
		if err != nil {
			return nil, err
		}
		data.Total = total
		if len(entries) > pageSize {
			entries = entries[:pageSize]
			next := v.URL.Query()
			next.Set("after", entries[pageSize-1].Key.Cursor())
			data.Next = data.Path + "?" + next.Encode()
		}
		for _, e := range entries {
			data.Rows = append(data.Rows, row{Entry: e})
		}
	}
	return &Page{Title: data.Title, Section: data.Path,
		Parts: []Part{{"filters", "list-filters", data}, {"list", "list", data}}}, nil
}

// filter returns the filters in the address of a list.
func (v *Visit) filter() url.Values {
	out := url.Values{}
	for name, given := range v.URL.Query() {
		text := strings.TrimSpace(strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) { // a person may have pasted other characters
				return r
			}
			return -1
		}, given[0]))
		if text != "" && name != "after" && name != "page" {
			out.Set(name, text)
		}
	}
	return out
}

// found groups hits by entry, in the order of the best hit of each.
func found(hits []store.Hit) (rows []row) {
	for _, h := range hits {
		at := slices.IndexFunc(rows, func(r row) bool { return r.Key == h.Entry.Key })
		if at < 0 {
			if len(rows) == pageSize {
				continue
			}
			at, rows = len(rows), append(rows, row{Entry: h.Entry})
		}
		if h.Item != nil && len(rows[at].Found) < 5 {
			rows[at].Found = append(rows[at].Found, *h.Item)
		}
	}
	return rows
}

// choices returns the namespaces and resources in which the caller may see something of a type.
func choices(v *Visit, scope store.Scope, of store.Type) (namespaces, kinds []string, err error) {
	places, err := store.Places(v.Context(), v.Console.Store, of)
	for resource, in := range places {
		for _, namespace := range in {
			if scope.Allows(store.Key{Resource: resource, Namespace: namespace}) {
				namespaces, kinds = append(namespaces, namespace), append(kinds, resource)
			}
		}
	}
	slices.Sort(namespaces)
	slices.Sort(kinds)
	return slices.Compact(namespaces), slices.Compact(kinds), err
}

// Chips returns the filters that are set and have no field of their own, each with the address
// without it.
func (d listData) Chips() (out [][2]string) {
	for _, name := range []string{"skill", "tag"} {
		if value := d.Filter.Get(name); value != "" {
			others := maps.Clone(d.Filter)
			others.Del(name)
			out = append(out, [2]string{name + ": " + value, d.Path + "?" + others.Encode()})
		}
	}
	return out
}
