package identity

import "github.com/armature-dev/armature/functions/krm"

// Published names of the volumes that the sidecars share, also with the
// application.
const (
	SharedVolume = "shared-data"
	SVIDVolume   = "svid-output"
)

// authorVolumes finds the author's volumes that the sidecars use: published
// applications declare shared-data themselves, to read the client's ID from it.
func authorVolumes(pod krm.PodTemplate) (found Volumes) {
	for v := range pod.Spec().Get("volumes").Items() {
		switch name := v.Get("name"); {
		case name.Is(SharedVolume):
			found.Shared = IsEmptyDir(v)
		case name.Is(SVIDVolume):
			found.SVID = IsEmptyDir(v)
		}
	}
	return found
}

// IsEmptyDir reports whether a volume is an emptyDir, which one without a source
// is too.
func IsEmptyDir(volume krm.Node) bool {
	for key, source := range volume.Fields() {
		if key != "name" && key != "emptyDir" && !source.IsNull() {
			return false
		}
	}
	return true
}
