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

// config finds the keys of ConfigMaps and Secrets whose values differ.
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

// change is the value of a key before and after, nil where there is none.
type change struct{ was, is any }

func values(object any, field string) map[string]any {
	m, _ := object.(map[string]any)
	data, _ := m[field].(map[string]any)
	return data
}

// files finds what changes under the pods of a workload: keys that are mounted
// reach running pods, keys that are read as variables or mounted by subPath do
// not until the pod starts again. Neither does what an injected program reads once.
func (c *comparison) files(w *Workload, o *krm.Object, pod krm.PodTemplate) {
	if len(c.changedKeys) == 0 {
		return
	}
	atStart, mounted := make(map[string]bool), make(map[string]bool)
	component := false // the container at hand is an injected one
	reads := func(to map[string]bool, references []krm.Reference) {
		for _, r := range references {
			at := key{kind: r.Kind, namespace: w.Object.Namespace, name: r.Name.Text()}
			for k, v := range c.changedKeys[at] {
				of := to
				if component && sidecars.NeedsRestart(k, v.was, v.is) {
					of = atStart
				}
				if len(r.Keys) == 0 ||
					slices.ContainsFunc(r.Keys, func(n krm.Node) bool { return n.Is(k) }) {
					of[r.Kind+" "+r.Name.Text()+": "+k] = true
				}
			}
		}
	}
	components, injected := sidecars.All().Sidecars(), identity.Injected(o)
	for _, container := range pod.Containers() {
		component = injected && slices.Contains(components, container.Get("name").Text())
		reads(atStart, krm.EnvironmentReferences(container))
		for m := range container.Get("volumeMounts").Items() {
			to := mounted
			if m.Get("subPath").Text() != "" || m.Get("subPathExpr").Text() != "" {
				to = atStart
			}
			reads(to, krm.VolumeReferences(pod.Spec().Get("volumes").Named("name",
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
