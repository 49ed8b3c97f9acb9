package console

import "github.com/armature-dev/armature/catalog/store"

type homeData struct{ Agents, Servers int }

// home counts what the caller may see.
func home(v *Visit) (*Page, error) {
	if err := v.Allow(); err != nil {
		return nil, err
	}
	scope, err := v.Catalog()
	if err != nil {
		return nil, err
	}
	var data homeData
	for kind, into := range map[store.Type]*int{store.Agent: &data.Agents, store.Server: &data.Servers} {
		tally, err := v.Console.Store.Tally(v.Context(), store.Query{Scope: scope, Type: kind})
		if err != nil {
			return nil, err
		}
		for _, n := range tally {
			*into += n
		}
	}
	return &Page{Title: "Home", Section: "/", Parts: []Part{{"state", "home-state", data}}}, nil
}
