package asyncactor

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/text"
)

// A connector in a container of its own reads and writes a store of spec.stateProxy. The runtime
// script passes it the handler's file operations below the store's path, over a socket.
const (
	stateVolume = "state-sockets"
	stateDir    = socketDir + "/state"
	connector   = "asya-state-proxy-"
	stateMounts = "ASYA_STATE_PROXY_MOUNTS"
)

var dnsLabel = text.Pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// checkStates reports errors of the stores and their connectors.
func checkStates(e *expander) {
	names, paths := map[string]bool{}, map[string]bool{}
	for i := range e.actor.Spec.StateProxy {
		s := &e.actor.Spec.StateProxy[i]
		at := fmt.Sprintf("spec.stateProxy[%d]", i)
		if !dnsLabel().MatchString(s.Name) || len(connector+s.Name) > 63 {
			e.Fail("state", at+".name",
				fmt.Sprintf("write at most %d lower-case letters, digits and -", 63-len(connector)),
				"%q does not name a container %s<name>", s.Name, connector)
		} else if names[s.Name] {
			e.Fail("state", at+".name", "rename one of them", "a second store is named %s", s.Name)
		}
		names[s.Name] = true
		clean, directory := path.Clean(s.Mount.Path), "cache"
		if dnsLabel().MatchString(s.Name) {
			directory = s.Name
		}
		if !path.IsAbs(clean) || clean == "/" || strings.ContainsAny(clean, ":;") {
			e.Fail("state", at+".mount.path",
				"write an absolute path without : and ;, such as /state/"+directory,
				"%q is not the path of a store", s.Mount.Path)
		} else if paths[clean] {
			e.Fail("state", at+".mount.path", "choose another path for one of them",
				"a second store is at %s", clean)
		}
		paths[clean] = true
		if m := s.WriteMode; m != "" && m != "buffered" && m != "passthrough" {
			e.Fail("state", at+".writeMode", "write buffered or passthrough",
				"%q is not a way to write", m)
		}
		checkPullPolicy(e, at+".connector.imagePullPolicy", s.Connector.ImagePullPolicy)
		e.CheckImage(at+".connector.image", s.Connector.Image)
		for j, v := range s.Connector.Env {
			e.FailIf(v["name"] == "CONNECTOR_SOCKET", "reserved-variable",
				fmt.Sprintf("%s.connector.env[%d]", at, j), "remove it",
				"CONNECTOR_SOCKET is set by what is added")
		}
	}
}

// addStates adds the connectors after the sidecar, and passes their mounts to the runtime.
func addStates(e *expander) {
	all := e.actor.Spec.StateProxy
	if len(all) == 0 {
		return
	}
	var mounts []string
	pod := node.Get(e.template, "spec")
	for i := range all {
		s := &all[i]
		mounts = append(mounts,
			fmt.Sprintf("%s:%s:write=%s", s.Name, path.Clean(s.Mount.Path),
				cmp.Or(s.WriteMode, "buffered")))
		env := []any{variable("CONNECTOR_SOCKET", stateDir+"/"+s.Name+".sock")}
		for _, v := range s.Connector.Env {
			env = append(env, v)
		}
		node.Extend(pod, "containers",
			node.Map("name", connector+s.Name, "image", s.Connector.Image, "imagePullPolicy",
				cmp.Or(s.Connector.ImagePullPolicy, "IfNotPresent"), "env", env,
				"resources", node.Given(s.Connector.Resources), "volumeMounts",
				[]node.Fields{node.Map("name", stateVolume, "mountPath", stateDir)}))
	}
	runtime := e.runtimeContainer()
	node.Extend(runtime, "env", variable(stateMounts, strings.Join(mounts, ";")))
	node.Extend(runtime, "volumeMounts", node.Map("name", stateVolume, "mountPath", stateDir))
	node.Extend(pod, "volumes", node.Map("name", stateVolume, "emptyDir", node.Fields{}))
}
