package sidecars

import (
	"path"
	"slices"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// Names of injected volumes. They have a prefix, because an author may use a name such as
// "spire-agent-socket" or "envoy-config".
const (
	// SocketVolume is the volume with the socket for a SPIFFE ID, and ConfigVolume the one with the
	// files of the sidecars.
	SocketVolume = "armature-spire-socket"
	ConfigVolume = "armature-identity"
	// TraceVolume has the tracing settings.
	TraceVolume = "armature-trace"

	// The published generation uses the published name of the shared volume, so that an application
	// that mounts it keeps working, and a separate volume for the token.
	ownSharedVolume = "armature-shared"
	routesVolume    = "armature-routes"
	clientVolume    = "armature-client"
)

// ReservedVolumes returns the names that no volume of the author may have. Volumes with published
// names are shared with the author instead.
func ReservedVolumes() []string {
	return []string{ConfigVolume, ownSharedVolume, SocketVolume, TraceVolume, routesVolume, clientVolume}
}

// AppendVolumes appends the volumes that the sidecars mount and the author did not declare, and the
// tracing settings, as items of the pod's volumes. It returns their names.
func AppendVolumes(dst []byte, s *identity.Settings) (items []byte, names []string) {
	var few [12]string
	mounted := few[:0]
	for i := range s.Profile.Sidecars {
		if x := &s.Profile.Sidecars[i]; s.Components[i].Enabled && x.Mounts != nil {
			for _, m := range x.Mounts(s) {
				mounted = append(mounted, m.Volume)
			}
		}
	}
	add := func(name string, source block.Node) {
		dst, names =
			block.AppendItem(dst, 0, block.Plain("name", name), source), append(names, name)
	}

	if slices.Contains(mounted, ConfigVolume) {
		add(ConfigVolume, block.Map("configMap", configMapName(s)))
	}
	if slices.Contains(mounted, routesVolume) {
		add(routesVolume, namespaceRoutes)
	}
	if slices.Contains(mounted, clientVolume) {
		add(clientVolume, block.Map("secret",
			block.Plain("secretName", scalar.PlainText(s.AuthBridge.Secret))))
	}
	if needsShared(s) && !s.Declared.Volumes.Shared {
		add(sharedName(s), inMemory)
	}
	if ownSVIDVolume(s) && !s.Declared.Volumes.SVID {
		add(identity.SVIDVolume, inMemory)
	}
	switch {
	case !s.SPIFFE.Enabled:
	case s.SPIFFE.SocketVolume == "hostPath":
		socket := path.Dir(s.SPIFFE.SocketPath)
		add(SocketVolume,
			block.Map("hostPath", block.Text("path", socket), block.Plain("type", "Directory")))
	default:
		add(SocketVolume, spiffeCSI)
	}
	if s.Trace.Enabled {
		add(TraceVolume,
			block.Map("configMap", block.Plain("name", s.Scalar(identity.TraceConfigMap))))
	}
	return dst, names
}

// Volume sources that are the same for all workloads.
var (
	// namespaceRoutes are the optional routes of the namespace.
	namespaceRoutes = block.Map("configMap", block.Plain("name", "authproxy-routes"),
		block.Bool("optional", true))
	// inMemory is for credentials, which are deleted with the pod.
	inMemory = block.Map("emptyDir", block.Plain("medium", "Memory"),
		block.Plain("sizeLimit", "4Mi"))
	spiffeCSI = block.Map("csi", block.Plain("driver", "csi.spiffe.io"),
		block.Bool("readOnly", true))
)

func readOnly(volume, path string) identity.Mount {
	return identity.Mount{Volume: volume, Path: path, ReadOnly: true}
}

func writable(volume, path string) identity.Mount {
	return identity.Mount{Volume: volume, Path: path}
}

// Shares reports whether the sidecars write to the author's volume of a name.
func Shares(s *identity.Settings, volume string) bool {
	return needsShared(s) && volume == sharedName(s) ||
		ownSVIDVolume(s) && volume == identity.SVIDVolume
}

func needsShared(s *identity.Settings) bool {
	return s.Profile.SharedVolume != "" && s.AnyOn(SpiffeHelper, ClientRegistration, EnvoyProxy)
}

func sharedName(s *identity.Settings) string {
	if s.Declared.Volumes.Shared {
		return identity.SharedVolume
	}
	return s.Profile.SharedVolume
}

// ownSVIDVolume reports whether the token has a separate volume.
func ownSVIDVolume(s *identity.Settings) bool {
	return s.SPIFFE.Enabled && s.SPIFFE.TokenDir != "/shared"
}

// SVIDVolume returns the volume with the workload's SVIDs.
func SVIDVolume(s *identity.Settings) string {
	if ownSVIDVolume(s) {
		return identity.SVIDVolume
	}
	return sharedName(s)
}
