//go:build linux

package cluster

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// goPrograms are the programs that go build runs without C.
var goPrograms = []string{"bin/go", "pkg/tool/linux_amd64/asm", "pkg/tool/linux_amd64/compile",
	"pkg/tool/linux_amd64/link"}

// golang adds the parts of this machine's Go that build programs without C, from the standard
// library and source alone, for every platform, as /usr/local/go.
func (a *archive) golang() error {
	command := exec.Command("go", "env", "GOROOT")
	command.Env = append(os.Environ(), "GOTOOLCHAIN=local")
	out, err := command.Output()
	if err != nil {
		return fmt.Errorf("asking the go command for its folder: %w", err)
	}
	root := strings.TrimSpace(string(out))
	add := func(name string, mode int64) error {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		a.file(path.Join("/usr/local/go", name), mode, content)
		return nil
	}
	for _, program := range goPrograms {
		if err := add(program, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"VERSION", "go.env"} {
		if err := add(name, 0o644); err != nil {
			return err
		}
	}
	for _, folder := range []string{"pkg/include", "src"} {
		if err := fs.WalkDir(os.DirFS(root), folder,
			func(at string, entry fs.DirEntry, err error) error {
				switch {
				case err != nil:
					return err
				case entry.IsDir() && (at == "src/cmd" || entry.Name() == "testdata"):
					return fs.SkipDir
				case entry.IsDir() || strings.HasSuffix(at, "_test.go"):
					return nil
				}
				return add(at, 0o644)
			}); err != nil {
			return err
		}
	}
	return nil
}
