package install

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/templates"
)

// CatalogGroups are the API groups of the catalog's kinds.
var CatalogGroups = []string{"kagenti.io", "agent.kagenti.dev", "kagent.dev"}

// Catalog of agents and tools.
type Catalog struct {
	Install bool `json:"enabled,omitempty"`
	// Secret with the address of its PostgreSQL; empty is SQLite.
	Secret string `json:"storeSecret,omitempty"`
	// CRDs are the API groups whose CRDs the catalog brings along.
	CRDs []string `json:"crds,omitempty"`
}

func (c Catalog) check() error {
	if c.Secret != "" && !c.Install {
		return errors.New("catalog.storeSecret requires catalog.enabled or --catalog")
	}
	for _, g := range c.CRDs {
		if !slices.Contains(CatalogGroups, g) {
			return fmt.Errorf("catalog.crds %q: use some of %v", g, CatalogGroups)
		}
	}
	return nil
}

// files are the files of the requested CRDs.
func (c Catalog) files() []string {
	entries, err := templates.Files.ReadDir("crds/catalog")
	if err != nil {
		panic(err) // it is embedded
	}
	files := []string{}
	for _, e := range entries {
		if group, _, ok := strings.Cut(e.Name(), "_"); ok && slices.Contains(c.CRDs, group) {
			files = append(files, e.Name())
		}
	}
	return files
}

// postgres lets two replicas share a database whose address a Secret holds.
func (c Catalog) postgres() map[string]any {
	return map[string]any{
		"target": map[string]any{"kind": "Deployment", "name": "armature-catalog"},
		"patch": fmt.Sprintf(`- {op: replace, path: /spec/replicas, value: 2}
- {op: replace, path: /spec/strategy, value: {type: RollingUpdate}}
- {op: replace, path: /spec/template/spec/containers/0/args/5, value: --catalog-store-file=/etc/catalog/address}
- {op: replace, path: /spec/template/spec/containers/0/volumeMounts/0, value: {name: data, mountPath: /etc/catalog, readOnly: true}}
- {op: replace, path: /spec/template/spec/volumes/0, value: {name: data, secret: {secretName: %q}}}
`, c.Secret),
	}
}
