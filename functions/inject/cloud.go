package inject

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// With a cloud identity provider, the application itself requests credentials: its SDK finds the
// rendered file by a variable, and the token to present in the file.

// cloudMounts returns the paths of the mounts of an application container, with their volumes.
func cloudMounts(s *identity.Settings) [2]struct{ path, volume string } {
	return [...]struct{ path, volume string }{
		{sidecars.MountPath, sidecars.ConfigVolume},
		{sidecars.TokenPath, sidecars.SVIDVolume(s)},
	}
}

// cloud records the additions to a container. It returns its entries of volumeMounts, and env with
// its variables appended. A variable that the author set stays.
func (r *record) cloud(env []byte, c krm.Node, s *identity.Settings) (mounts, all []byte) {
	variable, file := sidecars.CloudFile(s)
	if variable == "" {
		return nil, env
	}
	name := c.Get("name").Text()
	for _, m := range cloudMounts(s) {
		mounts = append(mounts,
			"- name: "+m.volume+"\n  mountPath: "+m.path+"\n  readOnly: true\n"...)
		r.path(name, m.path)
	}
	if !c.Get("env").Named("name", variable).Exists() {
		env = r.variable(env, variable, file)
	}
	return mounts, env
}

// path records a mount of a container.
func (r *record) path(container, path string) { note(&r.Paths, container, path) }

// variable appends a variable of the current container and records it. value is YAML.
func (r *record) variable(env []byte, name, value string) []byte {
	r.added = append(r.added, name)
	env = append(append(env, "- name: "...), name...)
	return append(append(append(env, "\n  value: "...), value...), '\n')
}

func note(in *map[string][]string, container string, values ...string) {
	if len(values) == 0 {
		return
	}
	if *in == nil {
		*in = make(map[string][]string)
	}
	(*in)[container] = append((*in)[container], values...)
}

// cloud reports applications that do not get the credentials of the cloud.
func (c *checker) cloud() {
	variable, file := sidecars.CloudFile(c.Settings)
	if variable == "" {
		return
	}
	for container := range c.containers() {
		for m := range container.Get("volumeMounts").Items() {
			for _, injected := range cloudMounts(c.Settings) {
				if path := m.Get("mountPath"); path.Is(injected.path) {
					c.error("reserved-mount", path,
						"the credentials of the identity provider are mounted here",
						"mount yours elsewhere")
				}
			}
		}
		if own := container.Get("env").Named("name", variable); own.Exists() &&
			!own.Get("value").Is(file) {
			c.report(finding.Info, "own-credentials", own, fmt.Sprintf("the application sets %s "+
				"itself, and does not use the identity of this workload", variable),
				fmt.Sprintf("leave the variable out, or set it to %s", file))
		}
	}
}

// set reports whether the record has a variable of a container and the variable has an injected
// value.
func (r *record) set(container string, variable krm.Node) bool {
	name, value := variable.Get("name").Text(), variable.Get("value").Text()
	return r.has(r.Env, container, name) &&
		(strings.HasPrefix(value, sidecars.MountPath+"/") || value == sidecars.TraceConfigFile ||
			authBridgeValue(name, value))
}

// has looks up a value of a container. The author has renamed a container that the record does not
// know, so all containers are searched.
func (r *record) has(in map[string][]string, container, value string) bool {
	if slices.Contains(r.Mounts, container) {
		return slices.Contains(in[container], value)
	}
	for _, values := range in {
		if slices.Contains(values, value) {
			return true
		}
	}
	return false
}
