// Package sidecars has the generations of the platform and their sidecars. Each profile and each
// sidecar is a value in its own file. A sidecar defines its container, mounts, ports and its part
// of the workload's ConfigMap.
package sidecars

import (
	"sync"

	"github.com/armature-dev/armature/functions/identity"
)

// All returns the profiles, the oldest first and the default last. It is the only list of them.
var All = sync.OnceValue(func() *identity.Profiles {
	return identity.NewProfiles(kagenti(), rossoctl(), published(), authBridge())
})

// Names of the profiles. A profile selects the defaults that all inputs override.
const (
	// Kagenti is source 001.
	Kagenti = "kagenti"
	// Rossoctl is the same profile under the name that the project took in 2026.
	Rossoctl = "rossoctl"
	// Published is the generation whose sidecars were published: it has no auth-proxy, and Envoy's
	// external processor validates inbound tokens.
	Published = "kagenti-published"
	// AuthBridge is the generation of 2026-08: one proxy, which holds the workload's SPIFFE
	// identity itself.
	AuthBridge = "authbridge"
)

const (
	repository = "ghcr.io/kagenti/kagenti-extensions/"
	// imageTag is the newest generation for which spiffe-helper,
	// client-registration and envoy-with-processor are separate images.
	imageTag = ":v0.4.0-alpha.10"
)

// component returns the default of a sidecar, with its requests and limits.
func component(image, cpuRequest, memoryRequest, cpuLimit, memoryLimit string) identity.Component {
	return identity.Component{
		Enabled: true, Image: image, ImagePullPolicy: "IfNotPresent",
		CPURequest: cpuRequest, MemoryRequest: memoryRequest, CPULimit: cpuLimit,
		MemoryLimit: memoryLimit,
	}
}

// portOfAgent returns the port of the agent behind a proxy.
func portOfAgent(s *identity.Settings) identity.Port {
	return identity.Port{Number: s.Inbound.TargetPort, Name: "the agent", Field: identity.AgentPort,
		Key: identity.TargetPort, Agent: true}
}
