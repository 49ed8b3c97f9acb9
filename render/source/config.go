package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// FindConfig reads the configuration of a package: the named file, or
// armature.yaml at the root of the folder. No file at the root means the
// defaults; a named one has to be there.
func FindConfig(named, root string) (*api.RenderConfig, []krm.Finding, error) {
	file := named
	if file == "" {
		file = filepath.Join(root, render.ConfigFile)
	}
	data, err := os.ReadFile(file)
	switch {
	case named == "" && errors.Is(err, os.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading the configuration: %w", err)
	}
	shown := named
	if named == "" {
		shown = render.ConfigFile
	}
	config, findings := render.ReadConfig(data, shown)
	return config, findings, nil
}

// FindLock reads the lock of a package: the named file, or armature.lock at the
// root of the folder. No file at the root means no lock; a named one has to be
// there.
func FindLock(named, root string) (*api.ImageLock, []krm.Finding, error) {
	file, shown := named, named
	if file == "" {
		file, shown = filepath.Join(root, render.LockFile), render.LockFile
	}
	data, err := os.ReadFile(file)
	switch {
	case named == "" && errors.Is(err, os.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading the lock: %w", err)
	}
	lock, findings := render.ReadLock(data, shown)
	return lock, findings, nil
}
