package build

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/kio"
	"sigs.k8s.io/kustomize/kyaml/yaml"
	syaml "sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// maxVisits bounds how often kustomizations are visited: two bases that each
// have the next two as bases are two to the power of their number.
const maxVisits = 500

// kustomizing is held while kustomize works: its schema of Kubernetes is global.
// It reads from memory only, so the lock never waits for a network.
var kustomizing sync.Mutex

// origin is where the source has an object of a built kustomization.
type origin struct {
	file       string
	kind, name string // as kustomize gives them
}

// Kustomize builds the kustomization of a folder as Run does: a file for each object.
func Kustomize(files map[string][]byte, folder string) ([]render.File, []krm.Finding) {
	b := builder{files: files, folder: folder}
	return b.kustomize(b.kustomization(folder))
}

// kustomize builds a kustomization, after it has made sure that it needs nothing
// from outside the source, and gives a file for each object.
func (b *builder) kustomize(file string) (inputs []render.File, findings []krm.Finding) {
	w := walk{builder: b, folders: map[string]bool{}}
	top := w.visit(file, nil)
	if krm.Failed(w.findings) || top == nil {
		return nil, w.findings
	}
	text, findings := b.outermost(top, file)
	if krm.Failed(findings) {
		return nil, findings
	}
	disk := filesys.MakeFsInMemory()
	if err := disk.WriteFile(path.Join("/", b.folder, referencesFile), references()); err != nil {
		return nil, []krm.Finding{problem("source/kustomize", file, err.Error(), "")}
	}
	var left []krm.Finding // what a build may read as a file, and not as YAML
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		data := b.files[name]
		if name == file {
			data = text
		}
		if w.reads(name) && path.Base(name) != referencesFile {
			if _, beyond := limit(name, data); len(beyond) > 0 {
				left = append(left, beyond...)
				continue
			}
			// A name that kustomize does not allow cannot be referred to either.
			_ = disk.WriteFile("/"+name, data)
		}
	}
	objects, err := runKustomize(disk, path.Join("/", b.folder))
	if err != nil {
		message := strings.ReplaceAll(err.Error(), "'/", "'")
		return nil, append(left, problem("source/kustomize", file, krm.Printable(message), "kustomize build "+b.folder+" shows the same"))
	}
	return b.collect(objects)
}

// runKustomize gives an error where the library panics, which input can make it do.
func runKustomize(disk filesys.FileSystem, folder string) (objects resmap.ResMap, err error) {
	kustomizing.Lock()
	defer kustomizing.Unlock()
	defer func() {
		if p := recover(); p != nil {
			objects, err = nil, fmt.Errorf("kustomize cannot read this package: %v", p)
		}
	}()
	options := krusty.MakeDefaultOptions() // no plugins, no functions, no files from outside a root
	return krusty.MakeKustomizer(options).Run(disk, folder)
}

// outermost prepares the outermost kustomization: objects say where they are
// from, and Armature, which runs afterwards, is not one of its transformers.
func (b *builder) outermost(k *types.Kustomization, file string) (text []byte, findings []krm.Finding) {
	k.Transformers = slices.DeleteFunc(k.Transformers, func(entry string) bool {
		name := path.Join(path.Dir(file), entry)
		if !isRenderConfig(b.files[name]) {
			return false
		}
		if b.config == "" {
			b.config = name
		}
		return true
	})
	k.Configurations = append(k.Configurations, referencesFile)
	if !slices.Contains(k.BuildMetadata, types.OriginAnnotations) {
		k.BuildMetadata = append(k.BuildMetadata, types.OriginAnnotations)
	}
	text, err := syaml.Marshal(k)
	if err != nil {
		return nil, []krm.Finding{problem("source/kustomize", file, err.Error(), "")}
	}
	return text, nil
}

// referencesFile is beside the outermost kustomization while it is built.
const referencesFile = "armature-name-references.yaml"

// references lets kustomize follow the names that custom resources refer to. As
// its transformer Armature does that itself; here it runs after kustomize, which
// has forgotten the names by then.
func references() []byte {
	var b strings.Builder
	b.WriteString("nameReference:\n")
	for _, workload := range []string{"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"} {
		fmt.Fprintf(&b, "- kind: %s\n  fieldSpecs:\n", workload)
		for _, kind := range []string{"TokenExchange", "AgentTrace", "AgentCard"} {
			fmt.Fprintf(&b, "  - {kind: %s, path: spec/targetRef/name}\n", kind)
		}
	}
	return []byte(b.String())
}

func isRenderConfig(data []byte) (is bool) {
	render.Objects(render.File{Data: data}, func(o *krm.Object) {
		is = is || o.Kind == "RenderConfig" && o.Group() == keys.Group
	})
	return is
}

// collect gives each object a file of its own, named after it.
func (b *builder) collect(objects resmap.ResMap) (inputs []render.File, findings []krm.Finding) {
	b.origins = map[string]origin{}
	for _, o := range objects.Resources() {
		from, err := o.GetOrigin()
		if err == nil {
			err = o.SetOrigin(nil)
		}
		var text []byte
		if err == nil {
			text, err = o.AsYAML()
		}
		if err != nil {
			return nil, []krm.Finding{problem("source/kustomize", "", fmt.Sprintf("reading %s %s: %v", o.GetKind(), o.GetName(), err), "")}
		}
		name := fileName(o.GetKind(), o.GetNamespace(), o.GetName(), o.GetGvk().Group)
		for n := 2; b.origins[name] != (origin{}); n++ {
			name = fileName(o.GetKind(), o.GetNamespace(), o.GetName(), o.GetGvk().Group, strconv.Itoa(n))
		}
		at := origin{kind: o.GetKind(), name: o.GetName()}
		switch {
		case from != nil && from.Path != "":
			at.file = path.Join(b.folder, from.Path)
		case from != nil && from.ConfiguredIn != "":
			at.file = path.Join(b.folder, from.ConfiguredIn)
		default:
			at.file = b.kustomization(b.folder)
		}
		b.origins[name] = at
		inputs = append(inputs, render.File{Path: name, Data: text})
	}
	slices.SortFunc(inputs, func(a, b render.File) int { return strings.Compare(a.Path, b.Path) })
	return inputs, nil
}

var notInNames = regexp.MustCompile(`[^a-z0-9.-]+`)

// fileName joins what names an object, of at most 200 characters, so that any
// file system takes it.
func fileName(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	name := notInNames.ReplaceAllString(strings.ToLower(strings.Join(parts, "_")), "_")
	return name[:min(len(name), 200)] + ".yaml"
}

// trace names in findings the files that the source has, instead of those that
// were made for the objects of a kustomization.
func (b *builder) trace(findings []krm.Finding) []krm.Finding {
	findings = slices.Clone(findings)
	for i := range findings {
		f := &findings[i]
		if at, ok := b.origins[f.File]; ok {
			f.File, f.Line = at.file, b.lineOf(at, f.Field)
		}
		f.Message, f.Hint = b.traceText(f.Message), b.traceText(f.Hint)
	}
	return findings
}

var place = regexp.MustCompile(`([a-z0-9._-]+\.yaml):(\d+)`)

func (b *builder) traceText(text string) string {
	return place.ReplaceAllStringFunc(text, func(p string) string {
		file, _, _ := strings.Cut(p, ":")
		at, ok := b.origins[file]
		if !ok {
			return p
		}
		return fmt.Sprintf("%s:%d", at.file, b.lineOf(at, ""))
	})
}

// lineOf finds the line of a field in the file that its author wrote: of the
// object whose name has most in common with the one that kustomize gave it. A
// field that a patch brought is at the deepest value above it.
func (b *builder) lineOf(at origin, field string) (line int) {
	longest := -1
	render.Objects(render.File{Path: at.file, Data: b.files[at.file]}, func(o *krm.Object) {
		name := o.Get("metadata", "name").Text()
		if o.Kind == at.kind && strings.Contains(at.name, name) && len(name) > longest {
			line, longest = o.LineOf(field), len(name)
		}
	})
	return line
}

// walk visits the kustomizations that a build reads, and finds what a build must
// not do.
type walk struct {
	*builder
	folders  map[string]bool // roots of kustomizations
	visits   int
	values   int // that kustomize reads
	findings []krm.Finding
}

// reads reports whether a build may read a file: kustomize reads files at or
// below the root of a kustomization.
func (w *walk) reads(file string) bool {
	for dir := path.Dir(file); ; dir = path.Dir(dir) {
		if w.folders[dir] {
			return true
		}
		if dir == "." || dir == "/" {
			return false
		}
	}
}

func (w *walk) report(file, message, hint string) {
	w.findings = append(w.findings, problem("source/kustomization", file, message, hint))
}

// visit a kustomization and its bases. above are the folders that lead to it.
func (w *walk) visit(file string, above []string) *types.Kustomization {
	folder := path.Dir(file)
	if slices.Contains(above, folder) {
		w.report(file, "the kustomization is its own base: "+strings.Join(append(above, folder), " → "), "remove one of these references")
		return nil
	}
	if w.visits++; w.visits > maxVisits {
		if w.visits == maxVisits+1 {
			w.report(file, fmt.Sprintf("the build has more than %d bases", maxVisits), "refer to each base once")
		}
		return nil
	}
	if !w.limited(file) {
		return nil
	}
	k := &types.Kustomization{}
	if err := k.Unmarshal(w.files[file]); err != nil {
		f := problem("source/kustomization", file, krm.Printable(err.Error()), "correct the kustomization")
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			f.Line, _ = strconv.Atoi(m[1])
		}
		w.findings = append(w.findings, f)
		return nil
	}
	k.FixKustomization()
	w.folders[folder] = true
	w.checkStrings(file, k)
	if len(k.HelmCharts) > 0 {
		w.report(file, "helmCharts are not rendered here", "use a HelmRelease, or commit the output of helm template")
	}
	for _, entry := range slices.Concat(k.Resources, k.Components) {
		w.entry(file, entry, append(slices.Clone(above), folder))
	}
	for _, entry := range slices.Concat(k.Generators, k.Transformers, k.Validators) {
		w.plugin(file, entry, len(above) == 0)
	}
	return k
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// entry follows a resource or component: a file of the source, or a folder with
// a kustomization.
func (w *walk) entry(file, entry string, above []string) {
	// What has none of these is never a remote base to kustomize.
	if strings.ContainsAny(entry, ":@?") || strings.HasPrefix(strings.ToLower(entry), "github.com/") {
		w.report(file, fmt.Sprintf("%q is a remote base, which is not fetched", krm.Shown(entry)), "put its files into the source")
		return
	}
	name := path.Join(path.Dir(file), entry)
	if data, ok := w.files[name]; ok {
		if w.limited(name) {
			w.syntax(name, data)
		}
		return
	}
	base := w.kustomization(name)
	if path.IsAbs(entry) || strings.HasPrefix(name, "..") || base == "" {
		w.report(file, fmt.Sprintf("the source has neither a file %q nor a folder of that name with a kustomization", entry), "correct the reference")
		return
	}
	w.visit(base, above)
}

// limited reports whether a file, and all that was read before it, is within the limits.
func (w *walk) limited(file string) bool {
	before := w.values
	values, beyond := limit(file, w.files[file])
	w.findings = append(w.findings, beyond...)
	if w.values += values; before <= maxBuilt && w.values > maxBuilt {
		w.findings = append(w.findings, problem("source/limit", file, fmt.Sprintf("with this file the build reads more than %d values", maxBuilt), "build the package in parts"))
	}
	return len(beyond) == 0 && w.values <= maxBuilt
}

// syntax reports what cannot be read in a file of resources, with its line, which
// kustomize does not give.
func (w *walk) syntax(name string, data []byte) {
	render.EachDocument(data, func(d krm.Document, item bool, line int) {
		var o krm.Object
		if _, err := o.Read(data, d, item, krm.Origin{File: name, Line: line}); err != nil {
			w.findings = append(w.findings, render.SyntaxFinding(err, data[d.Start:d.End]))
		}
	})
}

// plugin checks the configuration of a generator, transformer or validator: of
// kustomize's own, and without URLs, which it would fetch.
func (w *walk) plugin(file, entry string, outermost bool) {
	text, where := []byte(entry), file
	if data, ok := w.files[path.Join(path.Dir(file), entry)]; ok {
		text, where = data, path.Join(path.Dir(file), entry)
		if !w.limited(where) {
			return
		}
		if outermost && isRenderConfig(data) {
			return // Armature itself, which runs afterwards
		}
	}
	nodes, err := (&kio.ByteReader{Reader: strings.NewReader(string(text)), OmitReaderAnnotations: true}).Read()
	for _, n := range nodes {
		if err == nil && n.YNode().Kind != yaml.MappingNode {
			err = fmt.Errorf("%q is neither a file of the source nor a configuration", krm.Shown(entry))
		}
		if err != nil {
			break
		}
		if _, ok := n.GetAnnotations()["config.kubernetes.io/function"]; ok {
			err = fmt.Errorf("%s %s is a function, and functions do not run here", n.GetKind(), n.GetName())
		}
	}
	if err != nil {
		w.report(where, krm.Printable(err.Error()), "name a file with the configuration of one of kustomize's own plugins; armature.yaml belongs into the outermost kustomization")
		return
	}
	for _, n := range nodes {
		eachString(n.YNode(), map[*yaml.Node]bool{}, func(text string) {
			if remote(text) {
				w.report(where, fmt.Sprintf("the plugin's configuration names %q, which is not fetched", krm.Shown(text)), "put the file into the source")
			}
		})
	}
}

// free are the fields of a kustomization whose strings are values, and never
// files.
var free = []string{"commonAnnotations", "commonLabels", "labels", "metadata", "literals", "options", "generatorOptions", "patch", "sourceValue"}

// checkStrings refuses URLs in each field of a kustomization that may name a file.
func (w *walk) checkStrings(file string, k *types.Kustomization) {
	short := *k
	short.Resources, short.Components = nil, nil // entry checks them
	short.Generators, short.Transformers, short.Validators = nil, nil, nil
	data, err := json.Marshal(short)
	var value any
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err != nil {
		w.report(file, err.Error(), "correct the kustomization")
		return
	}
	var visit func(any)
	visit = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if !slices.Contains(free, key) {
					visit(v[key])
				}
			}
		case []any:
			for _, item := range v {
				visit(item)
			}
		case string:
			if remote(v) {
				w.report(file, fmt.Sprintf("%q is not fetched", krm.Shown(v)), "put the file into the source")
			}
		}
	}
	visit(value)
}

// eachString visits the scalars of a document, each once however often an alias
// repeats it.
func eachString(n *yaml.Node, seen map[*yaml.Node]bool, visit func(string)) {
	if n == nil || seen[n] {
		return
	}
	seen[n] = true
	if n.Kind == yaml.ScalarNode {
		visit(n.Value)
	}
	eachString(n.Alias, seen, visit)
	for _, child := range n.Content {
		eachString(child, seen, visit)
	}
}

// remote reports whether kustomize would fetch a file: from an URL, alone or
// behind the key of a generated file.
func remote(text string) bool {
	_, behind, _ := strings.Cut(text, "=")
	for _, s := range []string{text, behind} {
		if u, err := url.Parse(s); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
			return true
		}
	}
	return false
}
