package lint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/render"
)

// Limits of one kustomization's input. kustomize's time grows with the square of the number of
// objects.
const (
	maxBuiltObjects = 2000
	maxBuiltBytes   = 32 << 20
)

// kustomization is a kustomization of a source.
type kustomization struct {
	file      string // its path in the source
	component bool
	names     []string // files and folders that it names, as paths in the source
}

// kustomizations returns the kustomizations of a source by folder.
func kustomizations(src render.Source, opt *render.Options) (map[string]*kustomization, error) {
	all := make(map[string]*kustomization)
	for _, f := range src.Files {
		if src.Folder == "" || !render.IsKustomization(f.Path) || opt.Excludes(f.Path) {
			continue
		}
		data, err := src.Content(f.Path)
		if err != nil {
			return nil, err
		}
		var fields map[string]any
		k := &kustomization{file: f.Path}
		if yaml.Unmarshal(data, &fields) == nil { // else the build fails
			k.component = fields["kind"] == "Component"
			eachString("", fields, func(field, text string) {
				if slices.Contains(pathFields, field) {
					k.names = append(k.names, path.Join(path.Dir(f.Path), text))
				}
			})
		}
		all[path.Dir(f.Path)] = k
	}
	return all, nil
}

// pathFields are the fields of a kustomization, in lower case, that name files and folders.
var pathFields = []string{"resources", "bases", "components", "crds", "configurations",
	"generators", "transformers", "validators",
	"files", "envs", "env", "path", "patchesstrategicmerge"}

// freeText are the fields of a kustomization whose values never name a file.
var freeText = []string{"literals", "labels", "annotations", "commonlabels", "commonannotations",
	"pairs", "images", "options", "patch", "metadata", "vars"}

// eachString calls visit for each string of a kustomization that may name a file, with its field. A
// generator's KEY=FILE names the file.
func eachString(field string, value any, visit func(field, text string)) {
	switch v := value.(type) {
	case map[string]any:
		for key, value := range v {
			if key = strings.ToLower(key); !slices.Contains(freeText, key) {
				eachString(key, value, visit)
			}
		}
	case []any:
		for _, value := range v {
			eachString(field, value, visit)
		}
	case string:
		if _, file, found := strings.Cut(v, "="); found && field == "files" {
			v = file
		}
		visit(field, v)
	}
}

// roots returns the kustomizations that no other kustomization includes, and the files that any of
// them names. If kustomizations include each other, one of them is a root.
func roots(all map[string]*kustomization) (found []*kustomization, named map[string]bool) {
	named = make(map[string]bool)
	for _, k := range all {
		for _, name := range k.names {
			named[name] = true
		}
	}
	reached := make(map[string]bool)
	var reach func(folder string)
	reach = func(folder string) {
		if k := all[folder]; k != nil && !reached[folder] {
			reached[folder] = true
			for _, name := range k.names {
				reach(name)
			}
		}
	}
	folders := slices.Sorted(maps.Keys(all))
	for _, circle := range []bool{false, true} {
		for _, folder := range folders {
			if !reached[folder] && (circle || !named[folder]) {
				found = append(found, all[folder])
				reach(folder)
			}
		}
	}
	return found, named
}

// patch is the text of a patch that a build applies.
type patch struct {
	file string
	line int // of the file, where the text starts
	text []byte
}

// builder is the read-only file system of one build by kustomize. It contains the rendered
// manifests in place of the originals, and all other files of the disk. It excludes what kustomize
// would fetch or execute.
type builder struct {
	filesys.FileSystem
	root      string            // absolute, without symbolic links
	manifests map[string][]byte // rendered, by path in the source
	asIs      map[string]bool   // files that configure kustomize, by absolute path

	objects, bytes int
	read           map[string]bool     // files of the source
	skipped        []lintrules.Unbuilt // excluded parts
	patches        []patch
	refused        error // the first refused read, which kustomize may not return
}

// build returns the objects that kustomize builds, each with the file that it comes from. The path
// begins with ../ if the file is outside of the source.
func (b *builder) build(k *kustomization) (objects []render.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kustomize failed: %v", r)
		}
	}()
	b.FileSystem, b.asIs, b.read =
		filesys.MakeFsOnDisk(), make(map[string]bool), make(map[string]bool)
	// kustomize prints warnings about deprecated fields.
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		defer func(stderr *os.File) { os.Stderr = stderr; null.Close() }(os.Stderr)
		os.Stderr = null
	}
	folder := path.Dir(k.file)
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(b,
		filepath.Join(b.root, filepath.FromSlash(folder)))
	if err = cmp.Or(b.refused, err); err != nil {
		return nil, err
	}
	for _, r := range m.Resources() {
		origin, err := r.GetOrigin()
		if err != nil {
			return nil, err
		}
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		file := ""
		if origin != nil {
			file = path.Join(folder, cmp.Or(origin.Path, origin.ConfiguredIn))
		}
		objects = append(objects, render.File{Path: file, Data: text})
	}
	return objects, nil
}

// ReadFile returns the content of a file for kustomize, and records the first error.
func (b *builder) ReadFile(name string) ([]byte, error) {
	data, err := b.readFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && b.refused == nil {
		b.refused = err
	}
	return data, err
}

// readFile reads a file within the limits.
func (b *builder) readFile(name string) ([]byte, error) {
	file := name
	if relative, err := filepath.Rel(b.root, name); err == nil {
		file = filepath.ToSlash(relative)
	}
	data := b.manifests[file]
	if len(data) == 0 || b.asIs[name] {
		info, err := os.Stat(name)
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular() || info.Size() > maxBuiltBytes:
			return nil, fmt.Errorf("%s is not a file, or larger than %d MiB", file, maxBuiltBytes>>20)
		}
		if data, err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	b.read[file] = true
	b.objects += 1 + bytes.Count(data, []byte("\n---"))
	b.bytes += len(data)
	if b.objects > maxBuiltObjects || b.bytes > maxBuiltBytes {
		return nil, fmt.Errorf(
			"more than %d documents or %d MiB to build: lint what `kustomize build` prints",
			maxBuiltObjects, maxBuiltBytes>>20)
	}
	if render.IsKustomization(file) {
		return b.kustomization(name, file, data)
	}
	return data, nil
}

// regular reports whether a file is a regular one within the limit. A link may lead to a device
// that has no end.
func regular(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Size() <= maxBuiltBytes
}

// remote matches what kustomize treats as a Git repository or fetches by HTTP. helmField matches
// the fields for which it runs helm.
var (
	remote = regexp.MustCompile(
		`(?i)^(git::)?((ssh|https?|file):|github\.com[/:]|[a-z][a-z0-9-]*@)`)
	helmField = regexp.MustCompile(`(?i)^helm`)
)

// kustomization returns a kustomization without the parts that kustomize would fetch or execute.
// The result records the origin of objects.
func (b *builder) kustomization(name, file string, data []byte) ([]byte, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	exclude := func(part, why string) {
		line := 1
		if i := bytes.Index(data, []byte(part)); i >= 0 {
			line += bytes.Count(data[:i], []byte("\n"))
		}
		b.skipped = append(b.skipped,
			lintrules.Unbuilt{Place: finding.Place{File: file, Line: line}, Part: part, Why: why})
	}
	for field, value := range fields {
		list, _ := value.([]any)
		switch strings.ToLower(field) {
		case "resources", "bases", "components", "crds":
			fields[field] = slices.DeleteFunc(list, func(item any) bool {
				text, _ := item.(string)
				if remote.MatchString(text) {
					exclude(text, "is not fetched")
				}
				return remote.MatchString(text)
			})
			continue
		case "buildmetadata":
			delete(fields, field)
			continue
		case "generators", "transformers", "validators":
			var plugins []any
			for _, item := range list {
				own, err := b.plugin(filepath.Dir(name), item)
				if err != nil {
					return nil, err
				}
				if !own { // the input of the build is already rendered
					plugins = append(plugins, item)
				}
			}
			if fields[field] = plugins; len(plugins) == 0 {
				delete(fields, field)
			}
			continue
		}
		if helmField.MatchString(field) {
			exclude(field, "is not inflated")
			delete(fields, field)
			continue
		}
		var err error
		eachString(strings.ToLower(field), value, func(_, text string) {
			if remote.MatchString(text) {
				err = fmt.Errorf("%s is not fetched", text)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	b.notePatches(file, data, fields)
	if len(fields) > 0 { // kustomize refuses an empty one
		fields["buildMetadata"] = []string{"originAnnotations"}
	}
	return yaml.Marshal(fields)
}

// plugin returns an error for the configuration of a plugin from which kustomize would read a URL.
// kustomize never executes plugins here. own is true for a RenderConfig.
func (b *builder) plugin(folder string, item any) (own bool, err error) {
	text, _ := item.(string)
	data := []byte(text)
	if !strings.Contains(text, "\n") {
		name := filepath.Join(folder, filepath.FromSlash(text))
		if !regular(name) || remote.MatchString(text) {
			return false, fmt.Errorf("%s is not a file that configures a plugin", text)
		}
		if data, err = os.ReadFile(name); err != nil {
			return false, err
		}
		b.asIs[name] = true
	}
	if isConfig(data) {
		return true, nil
	}
	// A backslash may begin an escape that hides a URL.
	if bytes.Contains(data, []byte("://")) || bytes.Contains(data, []byte(`\`)) {
		return false, errors.New(
			"the configuration of a plugin may name a URL, which is not fetched")
	}
	return false, nil
}

// isConfig reports whether a file is a RenderConfig and nothing else.
func isConfig(data []byte) bool {
	if bytes.Contains(data, []byte("\n---")) || bytes.Contains(data, []byte("\n...")) {
		return false
	}
	text, err := yaml.YAMLToJSONStrict(data) // refuses duplicate fields
	if err != nil {
		return false
	}
	var fields map[string]any
	return json.Unmarshal(text, &fields) == nil && fields["apiVersion"] == api.RenderV1alpha1 &&
		fields["kind"] == "RenderConfig"
}

// notePatches records the patches of a kustomization, so that findings can name the one that sets a
// field.
func (b *builder) notePatches(file string, data []byte, fields map[string]any) {
	note := func(text string) {
		if name := path.Join(path.Dir(file), text); !strings.Contains(text, "\n") {
			file := filepath.Join(b.root, filepath.FromSlash(name))
			if !regular(file) {
				return
			}
			if read, err := os.ReadFile(file); err == nil {
				b.patches = append(b.patches, patch{name, 1, read})
			}
			return
		}
		first, _, _ := strings.Cut(strings.TrimLeft(text, "\n"), "\n")
		if i := bytes.Index(data, []byte(first)); i >= 0 {
			b.patches = append(b.patches,
				patch{file, 1 + bytes.Count(data[:i], []byte("\n")), []byte(text)})
		}
	}
	for field, value := range fields {
		list, _ := value.([]any)
		if !strings.HasPrefix(field, "patches") {
			continue
		}
		for _, item := range list {
			switch v := item.(type) {
			case string:
				note(v)
			case map[string]any:
				for _, key := range [...]string{"path", "patch"} {
					if text, ok := v[key].(string); ok {
						note(text)
					}
				}
			}
		}
	}
}

var errReadOnly = errors.New("kustomize may not write")

func (b *builder) Create(string) (filesys.File, error) { return nil, errReadOnly }
func (b *builder) Open(string) (filesys.File, error)   { return nil, errReadOnly }
func (b *builder) Mkdir(string) error                  { return errReadOnly }
func (b *builder) MkdirAll(string) error               { return errReadOnly }
func (b *builder) RemoveAll(string) error              { return errReadOnly }
func (b *builder) WriteFile(string, []byte) error      { return errReadOnly }
