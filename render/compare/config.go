package compare

import (
	"bytes"
	"maps"
	"reflect"
	"slices"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// config collects the keys of ConfigMaps and Secrets whose values differ.
func (c *comparison) config() {
	c.changedKeys = make(map[key]map[string]change)
	for k, is := range c.after.items {
		was := c.before.items[k]
		if k.group != "" || k.kind != "ConfigMap" && k.kind != "Secret" || was == nil ||
			bytes.Equal(was.text, is.text) {
			continue
		}
		changed := make(map[string]change)
		for _, field := range [...]string{"data", "binaryData", "stringData"} {
			a, b := values(was.decoded(), field), values(is.decoded(), field)
			for _, side := range [...]map[string]any{a, b} {
				for name := range side {
					if !reflect.DeepEqual(a[name], b[name]) {
						changed[name] = change{a[name], b[name]}
					}
				}
			}
		}
		if len(changed) > 0 {
			c.changedKeys[k] = changed
		}
	}
}

// change is the value of a key before and after; nil if there is none.
type change struct{ was, is any }

func values(object any, field string) map[string]any {
	m, _ := object.(map[string]any)
	data, _ := m[field].(map[string]any)
	return data
}

// files determines which files and variables change for the pods of a workload. Mounted keys reach
// running pods. Keys that are read as variables or mounted by subPath do not until the pod starts
// again, and neither do keys that an injected program reads once.
func (c *comparison) files(w *Workload, o *krm.Object, pod krm.PodTemplate) {
	if len(c.changedKeys) == 0 {
		return
	}
	atStart, mounted := make(map[string]bool), make(map[string]bool)
	component := false // the current container is an injected one
	note := func(to map[string]bool, references []krm.Reference) {
		for _, r := range references {
			at := key{kind: r.Kind, namespace: w.Object.Namespace, name: r.Name.Text()}
			for k, v := range c.changedKeys[at] {
				into := to
				if component && sidecars.NeedsRestart(k, v.was, v.is) {
					into = atStart
				}
				if len(r.Keys) == 0 ||
					slices.ContainsFunc(r.Keys, func(n krm.Node) bool { return n.Is(k) }) {
					into[r.Kind+" "+r.Name.Text()+": "+k] = true
				}
			}
		}
	}
	components, injected := sidecars.All().Sidecars(), identity.Injected(o)
	for _, container := range pod.Containers() {
		component = injected && slices.Contains(components, container.Get("name").Text())
		note(atStart, krm.EnvironmentReferences(container))
		for m := range container.Get("volumeMounts").Items() {
			to := mounted
			if m.Get("subPath").Text() != "" || m.Get("subPathExpr").Text() != "" {
				to = atStart
			}
			note(to, krm.VolumeReferences(pod.Spec().Get("volumes").Named("name",
				m.Get("name").Text())))
		}
	}
	for name := range atStart {
		delete(mounted, name)
	}
	w.Restart, w.Reloads = slices.Sorted(maps.Keys(atStart)), slices.Sorted(maps.Keys(mounted))
	switch {
	case w.Effect == Rolls || w.Effect == Replaced:
	case len(w.Restart) > 0:
		w.Effect = Restart
	case len(w.Reloads) > 0:
		w.Effect = Reloads
	}
}
