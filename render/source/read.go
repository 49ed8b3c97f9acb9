// Package source connects a render with the file system: it lists and reads a package or a stream,
// and writes the rendered files together or not at all.
package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// Limits of files and streams. A manifest beyond them is a mistake or an attack.
const (
	MaxFile   = 64 << 20
	MaxStream = 1 << 30
)

// ErrTooLarge means that a file or stream exceeds the limits.
var ErrTooLarge = errors.New("larger than a manifest may be")

// errNotFile is the error for a pipe or device, from which a read may never return.
var errNotFile = errors.New("it is not a file")

// Explain returns the text of an error. It adds a hint for a file or folder that does not exist, is
// not accessible, is too large, or is a folder in place of a file.
func Explain(err error) string {
	text := err.Error()
	var about *fs.PathError
	if !errors.As(err, &about) || about.Op == "fork/exec" || strings.Contains(text, "\n") {
		return text
	}
	hint := ""
	switch {
	case errors.Is(about, fs.ErrNotExist):
		hint = "name a file or folder that exists"
		if folder, err := os.Getwd(); err == nil && !filepath.IsAbs(about.Path) {
			hint += ": relative paths start at " + folder
		}
	case errors.Is(about, fs.ErrPermission) && (about.Op == "mkdir" || about.Op == "create"):
		hint = "name a folder that this user may write to"
	case errors.Is(about, fs.ErrPermission):
		hint = "let this user read it, as by chmod, or leave it out with spec.exclude in " +
			"armature.yaml"
	case errors.Is(about, syscall.EISDIR):
		hint = "rename the folder, or name a file in it"
	case errors.Is(about, errNotFile):
		hint = "replace the link, pipe or device by a regular file"
	case errors.Is(about, ErrTooLarge):
		hint = "split it, or leave it out with spec.exclude in armature.yaml"
	default:
		return text
	}
	return strings.Replace(text, about.Error(), about.Path+": "+about.Err.Error(), 1) +
		"\n  hint: " + hint
}

// ReadStream returns standard input, or any other stream, as a source.
func ReadStream(r io.Reader) (render.Source, error) {
	size := 64 << 10
	if f, ok := r.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() < MaxStream {
			size = int(info.Size()) + 1 // the extra byte detects the end
		}
	}
	data := make([]byte, 0, size)
	for {
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case len(data) > MaxStream:
			return render.Source{}, fmt.Errorf("standard input: %w (1 GiB)", ErrTooLarge)
		case err == io.EOF:
			return render.Source{Files: []render.File{{Path: "-", Data: data}}}, nil
		case err != nil:
			return render.Source{}, fmt.Errorf("reading standard input: %w", err)
		case len(data) == cap(data):
			data = slices.Grow(data, len(data))
		}
	}
}

// LinkRule is the rule of findings on symbolic links that are not followed.
const LinkRule = "package/link"

// ChartRule is the rule of findings on Helm charts, which are not rendered.
const ChartRule = "package/helm-chart"

// Tree lists a folder, or a single file, as a source that reads on demand. It omits folders whose
// name starts with a dot, and skip, which is the output folder. A link that leads nowhere or out of
// the folder is an error finding, unless excluded, which may be nil, returns true for its path.
// Patches that a kustomization names and templates of Helm charts are text, not objects: they are
// passed unchanged.
func Tree(root, skip string,
	excluded func(file string) bool) (render.Source, []finding.Finding, error) {
	info, err := os.Stat(root)
	if err != nil {
		return render.Source{}, nil, err
	}
	if !info.IsDir() {
		switch {
		case !render.IsManifest(filepath.Base(root)):
			return render.Source{}, nil, fmt.Errorf("%s is not a manifest by its name: name it "+
				".yaml, .yml or .json, or pass it to standard input, as -", root)
		case info.Size() > MaxFile:
			return render.Source{}, nil, tooLarge(root)
		}
		return render.Source{Files: []render.File{{Path: filepath.Base(root)}},
			Read: reader(filepath.Dir(root))}, nil, nil
	}
	root = filepath.Clean(root)
	if link, err := os.Lstat(root); err == nil && link.Mode()&fs.ModeSymlink != 0 {
		if root, err = filepath.EvalSymlinks(root); err != nil { // WalkDir follows no links
			return render.Source{}, nil, err
		}
	}
	folder, err := filepath.EvalSymlinks(root)
	if err != nil {
		return render.Source{}, nil, err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return render.Source{}, nil, err
	}
	t := tree{root: root, skip: skip, excluded: excluded, asIs: make(map[string]bool)}
	if err := filepath.WalkDir(root, t.visit); err != nil {
		return render.Source{}, nil, err
	}
	for i := range t.files {
		t.files[i].AsIs = t.asIs[t.files[i].Path]
	}
	return render.Source{Files: t.files, Folder: folder, Read: reader(root)}, t.findings, nil
}

type tree struct {
	root, skip string
	excluded   func(file string) bool
	files      []render.File
	asIs       map[string]bool
	findings   []finding.Finding
}

func (t *tree) visit(name string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	relative, err := t.relative(name)
	if err != nil {
		return err
	}
	if d.IsDir() {
		if relative != "." &&
			(strings.HasPrefix(d.Name(), ".") || t.skip != "" && Same(name, t.skip)) {
			return fs.SkipDir
		}
		if pkg := RenderedFrom(name); relative != "." && pkg != "" {
			if filepath.IsLocal(path.Join(relative, filepath.ToSlash(pkg))) {
				t.findings = append(t.findings, finding.Finding{Rule: "package/rendered",
					Severity: finding.Info, Place: finding.Place{File: relative},
					Message: "a render of this package wrote the folder: left out"})
				return fs.SkipDir
			}
		}
		chart := path.Join(relative, "Chart.yaml")
		if _, err := os.Stat(filepath.Join(name, "Chart.yaml")); err == nil &&
			(t.excluded == nil || !t.excluded(chart)) {
			t.findings = append(t.findings, finding.Finding{Rule: ChartRule,
				Severity: finding.Error, Place: finding.Place{File: chart, Line: 1},
				Message: "this is a Helm chart, whose templates are not manifests",
				Hint: "render them first, as by helm template NAME CHART | armature render -, " +
					"or leave the chart out with spec.exclude in armature.yaml"})
		}
		return nil
	}
	if d.Type()&fs.ModeSymlink != 0 {
		return t.link(name, relative)
	}
	if !d.Type().IsRegular() {
		t.findings = append(t.findings,
			finding.Finding{Rule: "package/not-a-file", Severity: finding.Warning,
				Place: finding.Place{File: relative}, Message: "neither file nor folder: left out"})
		return nil
	}
	if d.Name() == ListFile {
		return nil
	}
	t.files = append(t.files, render.File{Path: relative})
	switch d.Name() {
	case "kustomization.yaml", "kustomization.yml", "Kustomization":
		return t.kustomization(name, path.Dir(relative))
	}
	if isTemplate(t.root, relative) {
		t.asIs[relative] = true
	}
	return nil
}

// relative returns the path of a file below the root, with slashes.
func (t *tree) relative(name string) (string, error) {
	// The walk's names begin with the root, except for roots such as "." and "/".
	if rest, ok := strings.CutPrefix(name, t.root+string(filepath.Separator)); ok {
		return filepath.ToSlash(rest), nil
	}
	relative, err := filepath.Rel(t.root, name)
	return filepath.ToSlash(relative), err
}

// below returns the path of a file of a source. Unlike filepath.Join it does not clean the path,
// which for ten thousand files would take as long as reading them.
func below(root, file string) string {
	if root == "." {
		return filepath.FromSlash(file)
	}
	return root + string(filepath.Separator) + filepath.FromSlash(file)
}

// isTemplate reports whether a file is a template of a Helm chart.
func isTemplate(root, relative string) bool {
	for dir := path.Dir(relative); dir != "."; dir = path.Dir(dir) {
		if path.Base(dir) == "templates" {
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(path.Dir(dir)), "Chart.yaml"))
			return err == nil
		}
	}
	return false
}

// link adds a symbolic link to a file inside the tree.
func (t *tree) link(name, relative string) error {
	refuse := func(message, hint string) error {
		if t.excluded == nil || !t.excluded(relative) {
			t.findings = append(t.findings, finding.Finding{Rule: LinkRule, Severity: finding.Error,
				Place: finding.Place{File: relative, Line: 1}, Message: message,
				Hint: hint + ", or leave the link out with spec.exclude in armature.yaml"})
		}
		return nil
	}
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return refuse("the target of the link does not exist, or is the link itself", "fix or remove it")
	}
	root, err := filepath.EvalSymlinks(t.root)
	if err != nil {
		return err
	}
	inside, err := filepath.Rel(root, target)
	if err != nil || inside == ".." || strings.HasPrefix(inside, ".."+string(filepath.Separator)) {
		return refuse("the link leads out of the folder", "put the file into the folder")
	}
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		t.files = append(t.files, render.File{Path: relative})
		return nil
	}
	t.findings = append(t.findings, finding.Finding{Rule: LinkRule, Severity: finding.Warning,
		Place: finding.Place{File: relative}, Message: "a link to a folder is not followed"})
	return nil
}

// kustomization contains the fields of a kustomization that a render needs.
type kustomization struct {
	Resources  []string `yaml:"resources"`
	Bases      []string `yaml:"bases"`
	Components []string `yaml:"components"`
	Patches    []struct {
		Path string `yaml:"path"`
	} `yaml:"patches"`
	Merge []string `yaml:"patchesStrategicMerge"`
	JSON  []struct {
		Path string `yaml:"path"`
	} `yaml:"patchesJson6902"`
}

// Outside returns the first kustomization of a source with a base outside of it, and that base: a
// folder above the root, or a remote base. Both are "" if there is none.
func Outside(src render.Source) (file, base string) {
	for _, f := range src.Files {
		if !render.IsKustomization(f.Path) {
			continue
		}
		var k kustomization
		data, err := src.Content(f.Path)
		if err != nil || yaml.Unmarshal(data, &k) != nil {
			continue // reported when the file is read as a manifest
		}
		for _, base := range slices.Concat(k.Resources, k.Bases, k.Components) {
			local := path.Join(path.Dir(f.Path), base)
			if strings.Contains(base, "://") || strings.HasPrefix(base, "git@") ||
				strings.Contains(base, "?ref=") || local == ".." ||
				strings.HasPrefix(local, "../") {
				return f.Path, base
			}
		}
	}
	return "", ""
}

// kustomization records the patches that a kustomization names.
func (t *tree) kustomization(name, folder string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var k kustomization
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil // reported when the file is read as a manifest
	}
	note := func(file string) {
		if file != "" && !strings.Contains(file, "\n") {
			t.asIs[path.Join(folder, file)] = true
		}
	}
	for _, p := range k.Patches {
		note(p.Path)
	}
	for _, p := range k.Merge {
		note(p)
	}
	for _, p := range k.JSON {
		note(p.Path)
	}
	return nil
}

// Same reports whether two paths lead to one file or folder.
func Same(a, b string) bool {
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// reader returns the Read function of a source below a folder.
func reader(root string) func(string, []byte) ([]byte, error) {
	return func(file string, buf []byte) ([]byte, error) { return readFile(below(root, file), buf) }
}

// readFile reads a regular file. It may use buf.
func readFile(name string, buf []byte) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe does not wait
	if err != nil {
		return nil, err
	}
	defer f.Close()

	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = &fs.PathError{Op: "read", Path: name, Err: errNotFile}
	}
	if err != nil {
		return nil, err
	}
	data := bytes.NewBuffer(slices.Grow(buf[:0], 8<<10))
	if _, err = data.ReadFrom(io.LimitReader(f, MaxFile+1)); err == nil && data.Len() > MaxFile {
		err = tooLarge(name)
	}
	return data.Bytes(), err
}

func tooLarge(file string) error {
	return &fs.PathError{Op: "read", Path: file, Err: fmt.Errorf("%w (64 MiB)", ErrTooLarge)}
}
