package install

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/templates"
)

// CatalogGroups returns the API groups of the CRDs that the catalog may install.
func CatalogGroups() (groups []string) {
	for _, file := range catalogCRDs() {
		group, _, _ := strings.Cut(file, "_")
		groups = append(groups, group)
	}
	return slices.Compact(groups)
}

// catalogCRDs returns the files of these CRDs, whose names begin with the group.
func catalogCRDs() (files []string) {
	entries, err := templates.Files.ReadDir("crds/catalog")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), "_") {
			files = append(files, e.Name())
		}
	}
	return files
}

// Catalog is the catalog of agents and tools.
type Catalog struct {
	Install bool `json:"enabled,omitempty"`
	// Secret holds the address of a PostgreSQL database; empty means SQLite.
	Secret string `json:"storeSecret,omitempty"`
	// CRDs lists the API groups whose CRDs are installed with the catalog.
	CRDs []string `json:"crds,omitempty"`
}

func (c Catalog) check() error {
	if c.Secret != "" && !c.Install {
		return errors.New("catalog.storeSecret requires catalog.enabled or --catalog")
	}
	for _, g := range c.CRDs {
		if all := CatalogGroups(); !slices.Contains(all, g) {
			return fmt.Errorf("catalog.crds %q: use some of %v", g, all)
		}
	}
	return nil
}

// files returns the files of the requested CRDs.
func (c Catalog) files() []string {
	return slices.DeleteFunc(catalogCRDs(), func(file string) bool {
		group, _, _ := strings.Cut(file, "_")
		return !slices.Contains(c.CRDs, group)
	})
}

// postgres returns a patch for two replicas that share the database whose address the Secret holds.
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
