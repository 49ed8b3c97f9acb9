package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/templates"
)

// catalogGroups are the API groups of the catalog's kinds.
var catalogGroups = []string{"kagenti.io", "agent.kagenti.dev", "kagent.dev"}

func (i installation) checkCatalog() error {
	if i.secret != "" && !i.catalog {
		return usageError{errors.New("--catalog-store-secret requires --catalog")}
	}
	for _, g := range i.crds {
		if !slices.Contains(catalogGroups, g) {
			return usageError{fmt.Errorf("--catalog-crds %q: use some of %v", g, catalogGroups)}
		}
	}
	return nil
}

// catalogCRDs is the kustomization of the requested CRDs.
func (i installation) catalogCRDs() []byte {
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
	entries, err := templates.Files.ReadDir("crds/catalog")
	if err != nil {
		panic(err) // it is embedded
	}
	n := 0
	for _, e := range entries {
		group, _, ok := strings.Cut(e.Name(), "_")
		if ok && slices.Contains(i.crds, group) {
			text += "  - " + e.Name() + "\n"
			n++
		}
	}
	if n == 0 {
		text = strings.TrimSuffix(text, "\n") + " []\n"
	}
	return []byte(text)
}

// postgres lets two replicas share a database whose address a Secret holds.
func (i installation) postgres() map[string]any {
	return map[string]any{
		"target": map[string]any{"kind": "Deployment", "name": "armature-catalog"},
		"patch": fmt.Sprintf(`- {op: replace, path: /spec/replicas, value: 2}
- {op: replace, path: /spec/strategy, value: {type: RollingUpdate}}
- {op: replace, path: /spec/template/spec/containers/0/args/5, value: --catalog-store-file=/etc/catalog/address}
- {op: replace, path: /spec/template/spec/containers/0/volumeMounts/0, value: {name: data, mountPath: /etc/catalog, readOnly: true}}
- {op: replace, path: /spec/template/spec/volumes/0, value: {name: data, secret: {secretName: %q}}}
`, i.secret),
	}
}
