package render

import (
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
)

// LockFile is the name of the ImageLock at the root of a package.
const LockFile = "armature.lock"

// ReadLock reads an ImageLock. Unknown fields, and every other kind of object,
// are errors. The render checks its entries.
func ReadLock(data []byte, file string) (*api.ImageLock, []finding.Finding) {
	found, findings := only(data, file, "pin-images/lock", "lock", "ImageLock", "run `armature pin` to write the lock")
	if found == nil {
		return nil, findings
	}
	lock := &api.ImageLock{Origin: contract.OriginOf(found)}
	return lock, found.Decode("pin-images/field", lock)
}
