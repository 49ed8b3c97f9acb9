// Package skill builds an image of an Agent Skills folder (agentskills.io): an ordinary image with
// one layer, whose root is the folder, so that it works as an image volume. It also checks images
// from other sources.
package skill

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/oci"
)

// Limits of a folder.
const (
	maxFiles = 1000
	maxFile  = 16 << 20 // bytes
	maxBytes = 64 << 20 // of all files
	maxHead  = 1 << 20  // bytes of SKILL.md

	maxPacked = 32 << 20 // bytes of the layer
)

// Manifest is the file that makes a folder a skill.
const Manifest = "SKILL.md"

// Skill is the front matter of SKILL.md.
type Skill struct {
	// Name has at most 64 lower-case letters, digits and hyphens, and is the name of the folder.
	Name string `json:"name"`
	// Description describes in at most 1,024 characters what the skill does and when to use it.
	Description   string            `json:"description"`
	License       string            `json:"license,omitempty"`
	Compatibility string            `json:"compatibility,omitempty"` // at most 500 characters
	Metadata      map[string]string `json:"metadata,omitempty"`
	AllowedTools  string            `json:"allowed-tools,omitempty"`

	files []archive.Entry
}

// Files returns the files of the folder in lexical order.
func (s *Skill) Files() (files []render.File) {
	for _, f := range s.files {
		files = append(files, render.File{Path: f.Name, Data: f.Data})
	}
	return files
}

// Read reads and checks a folder. Only ordinary files and folders are allowed, because a link may
// lead out of the folder, here or where the image is mounted.
func Read(folder string) (s *Skill, err error) {
	absolute, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = multi.Errors(err, root.Close()) }()
	files, err := readAll(root)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(files, func(f archive.Entry) bool { return f.Name == Manifest })
	if at < 0 {
		return nil, fmt.Errorf("%s has no %s: it is not a skill", folder, Manifest)
	}
	if s, err = parse(files[at].Data); err != nil {
		return nil, fmt.Errorf("%s: %w", Manifest, err)
	}
	if base := filepath.Base(absolute); s.Name != base {
		return nil, fmt.Errorf("%s: the name %q is not the folder's, %q: rename one of the two",
			Manifest, text.Shown(s.Name), text.Shown(base))
	}
	s.files = files
	return s, nil
}

func readAll(root *os.Root) (files []archive.Entry, err error) {
	total := int64(0)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case checkName(name) != nil:
			return checkName(name)
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf(
				"%s is a link or a device: a skill has ordinary files and folders alone", name)
		case len(files) == maxFiles:
			return fmt.Errorf("more than %d files", maxFiles)
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not an ordinary file", name)
		}
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			err = fmt.Errorf("%s is set-uid or set-gid: chmod ug-s it", name)
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(io.LimitReader(f, maxFile+1))
		}
		if err = multi.Errors(err, f.Close()); err != nil {
			return err
		}
		if total += int64(len(data)); len(data) > maxFile || total > maxBytes {
			return fmt.Errorf("%s: a file has at most %d MiB, and a skill %d MiB", name,
				maxFile>>20, maxBytes>>20)
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		files = append(files, archive.Entry{Name: name, Mode: mode, Data: data})
		return nil
	})
	return files, err
}

// checkName returns an error for names that people or clients of a registry interpret in another
// way: a file .wh.NAME in a layer removes NAME of the layer below.
func checkName(name string) error {
	hidden := strings.ContainsFunc(name, func(r rune) bool {
		return r == '\\' || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
	})
	if hidden || !utf8.ValidString(name) || strings.Contains("/"+name, "/.wh") {
		return fmt.Errorf("%q: a name of an image's file has no control characters and "+
			"backslashes, is valid UTF-8, and does not start with .wh", text.Shown(name))
	}
	return nil
}

// parse parses and checks the front matter, as agentskills.io specifies it.
func parse(content []byte) (*Skill, error) {
	if len(content) > maxHead {
		return nil, fmt.Errorf("more than %d bytes", maxHead)
	}
	content = bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))
	rest, begins := bytes.CutPrefix(content, []byte("---\n"))
	head, _, ends := bytes.Cut(rest, []byte("\n---\n"))
	if !ends {
		head, ends = bytes.CutSuffix(rest, []byte("\n---"))
	}
	if !begins || !ends {
		return nil, errors.New("no front matter between two lines ---")
	}
	s := &Skill{}
	if err := yaml.UnmarshalStrict(head, s); err != nil {
		return nil, fmt.Errorf("its front matter: %w", err)
	}
	switch {
	case !skills.ValidName(s.Name):
		return nil, fmt.Errorf(
			"the name %q: at most 64 lower-case letters, digits and single hyphens between them",
			text.Shown(s.Name))
	case strings.TrimSpace(s.Description) == "" || utf8.RuneCountInString(s.Description) > 1024:
		return nil, errors.New("the description has 1 to 1,024 characters")
	case utf8.RuneCountInString(s.Compatibility) > 500:
		return nil, errors.New("compatibility has at most 500 characters")
	}
	return s, nil
}

// Image returns the image of the skill. Equal folders have the same digest.
func (s *Skill) Image() (v1.Image, error) {
	packed, err := archive.Pack(gzip.DefaultCompression, s.files...) // in the order of WalkDir
	if err != nil {
		return nil, err
	}
	if len(packed) > maxPacked {
		return nil, fmt.Errorf("packed, it has %d MiB, more than %d MiB", len(packed)>>20, maxPacked>>20)
	}
	return oci.Image(packed, types.OCILayer, types.OCIConfigJSON, v1.ConfigFile{OS: "linux",
		Architecture: "amd64", Created: v1.Time{Time: time.Unix(0, 0).UTC()}},
		map[string]string{"org.opencontainers.image.title": s.Name,
			"org.opencontainers.image.description": s.Description})
}
