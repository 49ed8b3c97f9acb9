package render

import (
	"fmt"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/krm"
)

// LockFile is the name of the ImageLock at the root of a package.
const LockFile = "armature.lock"

// ReadLock reads an ImageLock. Unknown fields, and every other kind of object,
// are errors. The render checks its entries.
func ReadLock(data []byte, file string) (*api.ImageLock, []krm.Finding) {
	found, findings := only(data, file, "pin-images/lock", "lock", "ImageLock")
	if found == nil {
		return nil, findings
	}
	if found.APIVersion != api.RenderV1alpha1 || found.Kind != "ImageLock" {
		return nil, []krm.Finding{found.Finding(krm.Error, "pin-images/lock", found.Get("kind"),
			fmt.Sprintf("%s %s is not a lock", found.APIVersion, found.Kind), "run `armature pin` to write the lock")}
	}
	lock := &api.ImageLock{Origin: contract.OriginOf(found)}
	return lock, found.Decode("pin-images/field", lock)
}
