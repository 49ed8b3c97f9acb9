package inject

import (
	"path"

	"github.com/armature-dev/armature/functions/agenttrace"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// Names of the injected volumes. They have a prefix of their own, because an
// author may well call a volume "spire-agent-socket" or "envoy-config".
const (
	configVolume = "armature-identity"
	sharedVolume = "armature-shared"
	socketVolume = "armature-spire-socket"
	traceVolume  = "armature-trace"
	routesVolume = "armature-routes"
	clientVolume = "armature-client"

	// In the published generation the shared volume has its published name, so
	// that an application that mounts it keeps working, and the token a volume
	// of its own.
	publishedSharedVolume = identity.SharedVolume
	publishedSVIDVolume   = identity.SVIDVolume
)

// ReservedVolumes are the names that no volume of the author may have. Those that
// were published are shared with the author instead.
func ReservedVolumes() []string {
	return []string{configVolume, sharedVolume, socketVolume, traceVolume, routesVolume, clientVolume}
}

// VolumeNames are the volumes that AppendVolumes appends, in its order.
func VolumeNames(s *identity.Settings) []string {
	var names []string
	if s.Profile == identity.ProfileAuthBridge {
		return append(authBridgeVolumeNames(s), traceVolume)
	}
	if needsConfig(s) {
		names = append(names, configVolume)
	}
	names = append(names, memoryVolumes(s)...)
	if s.SpiffeHelper.Enabled {
		names = append(names, socketVolume)
	}
	return append(names, traceVolume)
}

// memoryVolumes are the emptyDirs that the sidecars need and the author did not
// declare.
func memoryVolumes(s *identity.Settings) (names []string) {
	if !needsShared(s) && !ownSVIDVolume(s) {
		return nil
	}
	if needsShared(s) && !s.Volumes.Shared {
		names = append(names, sharedName(s))
	}
	if ownSVIDVolume(s) && !s.Volumes.SVID {
		names = append(names, publishedSVIDVolume)
	}
	return names
}

func needsConfig(s *identity.Settings) bool {
	return s.SpiffeHelper.Enabled || s.ClientRegistration.Enabled || s.AuthProxy.Enabled || s.EnvoyProxy.Enabled
}

func needsShared(s *identity.Settings) bool {
	return s.Profile != identity.ProfileAuthBridge && (s.SpiffeHelper.Enabled || s.ClientRegistration.Enabled || s.EnvoyProxy.Enabled)
}

// needsSocket reports whether a sidecar talks to SPIRE's agent.
func needsSocket(s *identity.Settings) bool {
	return s.SpiffeHelper.Enabled || s.Profile == identity.ProfileAuthBridge && s.SPIFFE.Enabled
}

func sharedName(s *identity.Settings) string {
	if s.Profile == identity.ProfilePublished || s.Volumes.Shared {
		return publishedSharedVolume
	}
	return sharedVolume
}

func ownSVIDVolume(s *identity.Settings) bool {
	return (s.Profile == identity.ProfilePublished || s.Profile == identity.ProfileAuthBridge) && s.SPIFFE.Enabled
}

// svidName is the volume that spiffe-helper writes to.
func svidName(s *identity.Settings) string {
	if ownSVIDVolume(s) {
		return publishedSVIDVolume
	}
	return sharedName(s)
}

// AppendVolumes appends the items of the pod's volumes.
func AppendVolumes(dst []byte, s *identity.Settings) []byte {
	if s.Profile == identity.ProfileAuthBridge {
		dst = appendAuthBridgeVolumes(dst, s)
	} else if needsConfig(s) {
		dst = append(dst, "- name: "+configVolume+"\n  configMap:\n    name: "...)
		dst = append(s.AppendName(dst, identity.TokenExchangeConfigMap), '\n')
	}
	for _, name := range memoryVolumes(s) {
		// Credentials stay in memory and go with the pod.
		dst = append(append(append(dst, "- name: "...), name...), "\n  emptyDir:\n    medium: Memory\n    sizeLimit: 4Mi\n"...)
	}
	if needsSocket(s) {
		dst = append(dst, "- name: "+socketVolume+"\n"...)
		if s.SPIFFE.SocketVolume == "hostPath" {
			dst = append(dst, "  hostPath:\n    path: "...)
			dst = scalar.AppendYAML(dst, path.Dir(s.SPIFFE.SocketPath))
			dst = append(dst, "\n    type: Directory\n"...)
		} else {
			dst = append(dst, "  csi:\n    driver: csi.spiffe.io\n    readOnly: true\n"...)
		}
	}
	dst = append(dst, "- name: "+traceVolume+"\n  configMap:\n    name: "...)
	return append(s.AppendName(dst, identity.TraceConfigMap), '\n')
}

// AppendTraceMount appends the item of volumeMounts that an application
// container gets.
func AppendTraceMount(dst []byte, _ *identity.Settings) []byte {
	return append(dst, "- name: "+traceVolume+"\n  mountPath: "+agenttrace.MountPath+"\n  readOnly: true\n"...)
}
