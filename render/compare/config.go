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
			all := maps.Clone(a)
			maps.Copy(all, b)
			for name := range all {
				if !reflect.DeepEqual(a[name], b[name]) {
					changed[name] = change{a[name], b[name]}
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
	if data == nil {
		return make(map[string]any)
	}
	return data
}

// files finds what changes under the pods of a workload: keys that are mounted
// reach running pods, keys that are read as variables or mounted by subPath do
// not until the pod starts again. Neither does what an injected program reads once.
func (c *comparison) files(w *Workload, o *krm.Object, pod krm.PodTemplate) {
	if len(c.changedKeys) == 0 {
		return
	}
	u := usage{c: c, namespace: w.Object.Namespace, atStart: make(map[string]bool),
		mounted: make(map[string]bool)}
	spec := pod.Spec()
	components, injected := sidecars.All().Sidecars(), identity.Injected(o)
	for _, list := range [...]string{"initContainers", "containers"} {
		for container := range spec.Get(list).Items() {
			u.reads(u.atStart, krm.EnvironmentReferences(container))
			u.component = injected && slices.Contains(components, container.Get("name").Text())
			u.mounts(container, spec.Get("volumes"))
		}
	}
	for name := range u.atStart {
		delete(u.mounted, name)
	}
	w.Restart, w.Reloads = slices.Sorted(maps.Keys(u.atStart)), slices.Sorted(maps.Keys(u.mounted))
	switch {
	case w.Effect == Rolls || w.Effect == Replaced:
	case len(w.Restart) > 0:
		w.Effect = Restart
	case len(w.Reloads) > 0:
		w.Effect = Reloads
	}
}

// usage gathers how a pod uses changed keys.
type usage struct {
	c                *comparison
	namespace        string
	atStart, mounted map[string]bool
	component        bool // the container at hand is an injected one
}

// changed adds keys of an object to a set; only is the one key that counts, ""
// for all.
func (u *usage) changed(to map[string]bool, kind, name, only string) {
	for k, v := range u.c.changedKeys[key{"", kind, u.namespace, name, ""}] {
		switch name := kind + " " + name + ": " + k; {
		case only != "" && only != k:
		case u.component && sidecars.NeedsRestart(k, v.was, v.is):
			u.atStart[name] = true
		default:
			to[name] = true
		}
	}
}

// reads notes what the keys of a reference that changed are for.
func (u *usage) reads(to map[string]bool, references []krm.Reference) {
	for _, r := range references {
		if len(r.Keys) == 0 {
			u.changed(to, r.Kind, r.Name.Text(), "")
		}
		for _, key := range r.Keys {
			u.changed(to, r.Kind, r.Name.Text(), key.Text())
		}
	}
}

func (u *usage) mounts(container, volumes krm.Node) {
	for m := range container.Get("volumeMounts").Items() {
		to := u.mounted
		if m.Get("subPath").Text() != "" || m.Get("subPathExpr").Text() != "" {
			to = u.atStart
		}
		u.reads(to, krm.VolumeReferences(volumes.Named("name", m.Get("name").Text())))
	}
}
