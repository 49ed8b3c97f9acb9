package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
)

// FindConfig reads the configuration of a package: the named file, or
// armature.yaml at the root of the folder. A folder that was rendered has that of its
// package. No file at the root means the defaults; a named one has to be there.
func FindConfig(named, root string) (*api.RenderConfig, []krm.Finding, error) {
	if list, err := os.ReadFile(filepath.Join(root, listFile)); named == "" && err == nil {
		if pkg, _ := readList(list); pkg != "" && pkg != "-" {
			at := filepath.Join(root, filepath.FromSlash(pkg))
			if info, err := os.Stat(at); err == nil && !info.IsDir() {
				at = filepath.Dir(at)
			}
			if _, err := os.Stat(filepath.Join(root, render.ConfigFile)); errors.Is(err, os.ErrNotExist) {
				root = at
			}
		}
	}
	return find(named, root, render.ConfigFile, "configuration", render.ReadConfig)
}

// FindLock reads the lock of a package: the named file, or armature.lock at the
// root of the folder. No file at the root means no lock; a named one has to be
// there.
func FindLock(named, root string) (*api.ImageLock, []krm.Finding, error) {
	return find(named, root, render.LockFile, "lock", render.ReadLock)
}

// FindTools reads the definitions of tools beside a lock. Without the file, or the lock,
// nobody knows them.
func FindTools(root string, lock *api.ImageLock) ([]tools.Server, []krm.Finding, error) {
	if lock == nil {
		return nil, nil, nil
	}
	file := filepath.Join(root, tools.File)
	if info, err := os.Stat(file); err == nil && info.Size() > tools.MaxFile {
		return nil, nil, fmt.Errorf("reading %s: it has more than %d MiB", file, tools.MaxFile>>20)
	}
	found, findings, err := find("", root, tools.File, "definitions of tools", func(data []byte, file string) (*[]tools.Server, []krm.Finding) {
		servers, findings := tools.Parse(data, file, lock)
		return &servers, findings
	})
	if found == nil {
		return nil, findings, err
	}
	return *found, findings, err
}

// find reads what a package has beside its manifests.
func find[T any](named, root, usual, what string, read func(data []byte, file string) (*T, []krm.Finding)) (*T, []krm.Finding, error) {
	file, shown := named, named
	if file == "" {
		file, shown = filepath.Join(root, usual), usual
	}
	data, err := os.ReadFile(file)
	switch {
	case named == "" && errors.Is(err, os.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading the %s: %w", what, err)
	}
	found, findings := read(data, shown)
	return found, findings, nil
}
