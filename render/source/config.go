package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
)

// FindConfig reads the configuration of a package: the named file, or the nearest armature.yaml
// from the package's folder upwards, as found by Nearest. A rendered folder has the configuration
// of its package. Without a file it returns nil for the defaults; a named file has to exist.
func FindConfig(named, root, top string) (*api.RenderConfig, []finding.Finding, error) {
	if named != "" {
		return find(named, named, true, "configuration", render.ReadConfig)
	}
	from := root
	if pkg := RenderedFrom(root); pkg != "" {
		if _, err := os.Lstat(filepath.Join(root, render.ConfigFile)); errors.Is(err, fs.ErrNotExist) {
			from = existing(filepath.Join(root, pkg))
		}
	}
	folder, err := Nearest(from, top)
	if err != nil || folder == "" {
		return nil, nil, err
	}
	file, misnamed := filepath.Join(folder, render.ConfigFile), filepath.Join(folder,
		render.MisnamedConfig)
	shown := shownFrom(root, file)
	if _, err := os.Lstat(misnamed); err == nil {
		_, err := os.Lstat(file)
		return nil, []finding.Finding{render.Misnamed(shownFrom(root, misnamed), err == nil)}, nil
	}
	return find(file, shown, false, "configuration", render.ReadConfig)
}

// existing returns the nearest existing path at or above a path.
func existing(at string) string {
	for {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			return at
		}
		at = filepath.Dir(at)
	}
}

// RenderedFrom returns the folder of the package from which a folder was rendered, relative to that
// folder. It returns "" if no render wrote the folder, or if it was rendered from standard input.
func RenderedFrom(folder string) string {
	list, err := readFile(filepath.Join(folder, ListFile), nil)
	if err != nil {
		return ""
	}
	pkg, _ := readList(list)
	if pkg == "" || pkg == "-" {
		return ""
	}
	pkg = filepath.FromSlash(pkg)
	if info, err := os.Stat(filepath.Join(folder, pkg)); err == nil && !info.IsDir() ||
		err != nil && render.IsManifest(pkg) {
		return filepath.Dir(pkg)
	}
	return pkg
}

// shownFrom returns the name of a file in findings on a package: its path relative to the package's
// root.
func shownFrom(root, file string) string {
	if root, err := physical(root); err == nil {
		if relative, err := filepath.Rel(root, file); err == nil {
			return filepath.ToSlash(relative)
		}
	}
	return file
}

// Nearest returns the nearest folder with an armature.yaml, or a misnamed one, from a folder
// upwards to top, or "" if there is none. If top is "", the search ends at the root of the Git
// repository. Outside of a repository it ends at the working folder if that is above the folder,
// and otherwise at the folder itself.
func Nearest(folder, top string) (string, error) {
	at, err := physical(folder)
	if err != nil {
		return "", err
	}
	if top == "" {
		top = topOf(at)
	} else if top, err = physical(top); err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		for _, name := range [...]string{render.ConfigFile, render.MisnamedConfig} {
			if _, err := os.Lstat(filepath.Join(at, name)); err == nil {
				return at, nil
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		if at == top || at == filepath.Dir(at) {
			return "", nil
		}
	}
}

// topOf returns the folder at which Nearest ends.
func topOf(folder string) string {
	for at := folder; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	if here, err := physical("."); err == nil {
		if inside, err := filepath.Rel(here, folder); err == nil && filepath.IsLocal(inside) {
			return here
		}
	}
	return folder
}

// physical returns a folder's absolute path without symbolic links.
func physical(folder string) (string, error) {
	absolute, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(absolute)
}

// FindLock reads the lock of a package: the named file, or armature.lock at the root of the folder.
// It returns nil if there is no file at the root; a named file has to exist.
func FindLock(named, root string) (*api.ImageLock, []finding.Finding, error) {
	file, shown := fileOf(named, root, render.LockFile)
	return find(file, shown, named != "", "lock", render.ReadLock)
}

// FindTools reads the definitions of tools in the folder of a lock. It returns nil without the file
// or the lock.
func FindTools(root string, lock *api.ImageLock) ([]tools.Server, []finding.Finding, error) {
	if lock == nil {
		return nil, nil, nil
	}
	file := filepath.Join(root, tools.File)
	if info, err := os.Stat(file); err == nil && info.Size() > tools.MaxFile {
		return nil, nil, fmt.Errorf("reading %s: it has more than %d MiB", file, tools.MaxFile>>20)
	}
	found, findings, err := find(file, tools.File, false, "definitions of tools",
		func(data []byte, file string) (*[]tools.Server, []finding.Finding) {
			servers, findings := tools.Parse(data, file, lock)
			return &servers, findings
		})
	if found == nil {
		return nil, findings, err
	}
	return *found, findings, err
}

// fileOf returns the named file, or else the default one at the root, and its name in findings.
func fileOf(named, root, fallback string) (file, shown string) {
	if named != "" {
		return named, named
	}
	return filepath.Join(root, fallback), fallback
}

// find reads and parses a file of a package other than a manifest.
func find[T any](file, shown string, required bool, what string,
	read func(data []byte, file string) (*T, []finding.Finding)) (*T, []finding.Finding, error) {
	from := os.ReadFile // the user may name a pipe
	if !required {
		from = func(name string) ([]byte, error) { return readFile(name, nil) }
	}
	data, err := from(file)
	switch {
	case !required && errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading the %s: %w", what, err)
	}
	found, findings := read(data, shown)
	return found, findings, nil
}
