package render

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
)

// LockFile is the name of the ImageLock at the root of a package.
const LockFile = "armature.lock"

// ReadLock reads an ImageLock. Unknown fields, and every other kind of object,
// are errors. What its entries say is judged by the render.
func ReadLock(data []byte, file string) (*api.ImageLock, []krm.Finding) {
	found, findings := only(data, file, "pin-images/lock", "lock", "ImageLock")
	if found == nil {
		return nil, findings
	}
	if found.APIVersion != api.RenderV1alpha1 || found.Kind != "ImageLock" {
		return nil, []krm.Finding{found.Finding(krm.Error, "pin-images/lock", found.Get("kind"),
			fmt.Sprintf("%s %s is no lock", found.APIVersion, found.Kind), "run `armature pin` to write the lock")}
	}
	lock := &api.ImageLock{Origin: api.Origin{File: found.Origin.File, Line: found.Origin.Line, LineOf: found.LineOf}}
	return lock, found.Decode("pin-images/field", lock)
}

// FindLock reads the lock of a package: the named file, or armature.lock at the
// root of the folder. No file at the root means no lock; a named one has to be
// there.
func FindLock(named, root string) (*api.ImageLock, []krm.Finding, error) {
	file, shown := named, named
	if file == "" {
		file, shown = filepath.Join(root, LockFile), LockFile
	}
	data, err := os.ReadFile(file)
	switch {
	case named == "" && errors.Is(err, os.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading the lock: %w", err)
	}
	lock, findings := ReadLock(data, shown)
	return lock, findings, nil
}
