package compare

import (
	"bytes"
	"maps"
	"reflect"
	"slices"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/tokenexchange"
)

// config finds the keys of ConfigMaps and Secrets whose values differ.
func (c *comparison) config() {
	c.changedKeys = make(map[key]map[string]bool)
	for k, is := range c.after.items {
		was := c.before.items[k]
		if k.group != "" || k.kind != "ConfigMap" && k.kind != "Secret" || was == nil || bytes.Equal(was.text, is.text) {
			continue
		}
		changed := make(map[string]bool)
		for _, field := range [...]string{"data", "binaryData", "stringData"} {
			a, b := values(was.decoded(), field), values(is.decoded(), field)
			all := maps.Clone(a)
			maps.Copy(all, b)
			for name := range all {
				if !reflect.DeepEqual(a[name], b[name]) {
					changed[name] = true
				}
			}
		}
		if len(changed) > 0 {
			c.changedKeys[k] = changed
		}
	}
}

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
	u := usage{c: c, namespace: w.Object.Namespace, atStart: make(map[string]bool), mounted: make(map[string]bool)}
	spec := pod.Spec()
	components, injected := identity.Components(), inject.Injected(o)
	for _, list := range [...]string{"initContainers", "containers"} {
		for container := range spec.Get(list).Items() {
			u.environment(container)
			u.component = injected && slices.Contains(components[:], container.Get("name").Text())
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
	for k := range u.c.changedKeys[key{"", kind, u.namespace, name, ""}] {
		switch name := kind + " " + name + ": " + k; {
		case only != "" && only != k:
		case u.component && tokenexchange.ReadAtStart(k):
			u.atStart[name] = true
		default:
			to[name] = true
		}
	}
}

func (u *usage) environment(container krm.Node) {
	for e := range container.Get("env").Items() {
		for field, kind := range map[string]string{"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"} {
			if r := e.Get("valueFrom", field); r.IsMap() {
				u.changed(u.atStart, kind, r.Get("name").Text(), r.Get("key").Text())
			}
		}
	}
	for e := range container.Get("envFrom").Items() {
		for field, kind := range map[string]string{"configMapRef": "ConfigMap", "secretRef": "Secret"} {
			if r := e.Get(field); r.IsMap() {
				u.changed(u.atStart, kind, r.Get("name").Text(), "")
			}
		}
	}
}

func (u *usage) mounts(container, volumes krm.Node) {
	for m := range container.Get("volumeMounts").Items() {
		to := u.mounted
		if m.Get("subPath").Text() != "" || m.Get("subPathExpr").Text() != "" {
			to = u.atStart
		}
		v := volumes.Named("name", m.Get("name").Text())
		u.source(to, v.Get("configMap"), "ConfigMap", "name")
		u.source(to, v.Get("secret"), "Secret", "secretName")
		for s := range v.Get("projected", "sources").Items() {
			u.source(to, s.Get("configMap"), "ConfigMap", "name")
			u.source(to, s.Get("secret"), "Secret", "name")
		}
	}
}

func (u *usage) source(to map[string]bool, source krm.Node, kind, nameField string) {
	if !source.IsMap() {
		return
	}
	name, items := source.Get(nameField).Text(), source.Get("items")
	if items.Len() == 0 {
		u.changed(to, kind, name, "")
	}
	for item := range items.Items() {
		u.changed(to, kind, name, item.Get("key").Text())
	}
}
