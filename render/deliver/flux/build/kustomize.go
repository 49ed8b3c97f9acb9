package build

import (
	"bytes"
	"cmp"
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
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/workload"
	"github.com/armature-dev/armature/render"
)

// maxVisits bounds the visits of kustomizations: the number of visits can be exponential in the
// number of bases.
const maxVisits = 500

// kustomizing is held while kustomize runs, because its schema of Kubernetes is global. Kustomize
// reads only from memory, so it never waits for a network.
var kustomizing sync.Mutex

// origin is the place in the source of an object of a built kustomization.
type origin struct{ file, kind, name string }

// Kustomize builds the kustomization of a folder as Run does, and returns a file for each object.
func Kustomize(files map[string][]byte, folder string) ([]render.File, []finding.Finding) {
	b := builder{files: files, folder: folder}
	return b.kustomize(b.kustomization(folder)), b.findings
}

// kustomize checks that a kustomization needs nothing from outside the source, builds it, and
// returns a file for each object.
func (b *builder) kustomize(file string) (inputs []render.File) {
	b.folders = map[string]bool{}
	top := b.visit(file, nil)
	if finding.Failed(b.findings) || top == nil {
		return nil
	}
	disk := filesys.MakeFsInMemory()
	content, err := b.outermost(top, file)
	if err == nil {
		err = disk.WriteFile(path.Join("/", b.folder, referencesFile), references())
	}
	if err != nil {
		b.report("source/kustomize", file, err.Error(), "")
		return nil
	}
	var excluded builder // its findings explain why the build lacks a file
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		data := b.files[name]
		if name == file {
			data = content
		}
		if !b.reads(name) || path.Base(name) == referencesFile {
			continue
		}
		if _, within := excluded.limit(name, data); within {
			// A name that kustomize rejects cannot be referred to either.
			_ = disk.WriteFile("/"+name, data)
		}
	}
	objects, err := runKustomize(disk, path.Join("/", b.folder))
	if err != nil {
		message := strings.ReplaceAll(err.Error(), "'/", "'")
		b.findings = append(b.findings, excluded.findings...)
		b.report("source/kustomize", file, text.Printable(message),
			"kustomize build "+b.folder+" shows the same")
		return nil
	}
	return b.collect(objects)
}

// runKustomize runs the library. It returns an error if the library panics, which the input can
// cause.
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

// outermost prepares the outermost kustomization. Kustomize annotates objects with their origin,
// and does not run Armature as a transformer, because Armature runs afterwards.
func (b *builder) outermost(k *types.Kustomization, file string) ([]byte, error) {
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
	return syaml.Marshal(k)
}

// referencesFile is a file in the folder of the outermost kustomization while it is built.
const referencesFile = "armature-name-references.yaml"

// references returns a configuration with which kustomize updates the names that custom resources
// refer to. As a transformer, Armature does that itself; here it runs after kustomize, when the
// original names are lost.
func references() []byte {
	var b strings.Builder
	b.WriteString("nameReference:\n")
	for _, kind := range workload.Names() {
		fmt.Fprintf(&b, "- kind: %s\n  fieldSpecs:\n", kind)
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

// collect writes each object to a separate file, named after the object.
func (b *builder) collect(objects resmap.ResMap) (inputs []render.File) {
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
			b.report("source/kustomize", "",
				fmt.Sprintf("reading %s %s: %v", o.GetKind(), o.GetName(), err), "")
			return nil
		}
		name := fileName(o.GetKind(), o.GetNamespace(), o.GetName(), o.GetGvk().Group)
		for n := 2; b.origins[name] != (origin{}); n++ {
			name = fileName(o.GetKind(), o.GetNamespace(), o.GetName(), o.GetGvk().Group, strconv.Itoa(n))
		}
		at := origin{b.kustomization(b.folder), o.GetKind(), o.GetName()}
		if from != nil && cmp.Or(from.Path, from.ConfiguredIn) != "" {
			at.file = path.Join(b.folder, cmp.Or(from.Path, from.ConfiguredIn))
		}
		b.origins[name] = at
		inputs = append(inputs, render.File{Path: name, Data: text})
	}
	slices.SortFunc(inputs, func(a, b render.File) int { return strings.Compare(a.Path, b.Path) })
	return inputs
}

var notInNames = regexp.MustCompile(`[^a-z0-9.-]+`)

// fileName joins the words that name an object. It returns at most 200 characters, so that any file
// system accepts the name.
func fileName(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	name := notInNames.ReplaceAllString(strings.ToLower(strings.Join(parts, "_")), "_")
	return name[:min(len(name), 200)] + ".yaml"
}

// trace replaces the files of objects in findings with those of the source.
func (b *builder) trace(findings []finding.Finding) []finding.Finding {
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

// lineOf returns the line of a field in the author's file, in the object whose name is the longest
// part of the name that kustomize wrote. For a field that a patch added, it is the line of the
// nearest parent.
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

// reads reports whether a build may read a file. Kustomize reads files at or below the root of a
// kustomization.
func (b *builder) reads(file string) bool {
	for dir := path.Dir(file); ; dir = path.Dir(dir) {
		if b.folders[dir] {
			return true
		}
		if dir == "." || dir == "/" {
			return false
		}
	}
}

// refuse reports an error of a kustomization or of a file that it names.
func (b *builder) refuse(file, message, hint string) *finding.Finding {
	return b.report("source/kustomization", file, message, hint)
}

// visit checks a kustomization and its bases. above are the folders that lead to it.
func (b *builder) visit(file string, above []string) *types.Kustomization {
	folder := path.Dir(file)
	if slices.Contains(above, folder) {
		chain := strings.Join(append(above, folder), " → ")
		b.refuse(file, "the kustomization is its own base: "+chain,
			"remove one of these references")
		return nil
	}
	if b.visits++; b.visits == maxVisits+1 {
		b.refuse(file, fmt.Sprintf("the build has more than %d bases", maxVisits),
			"refer to each base once")
	}
	if b.visits > maxVisits || !b.limited(file) {
		return nil
	}
	k := &types.Kustomization{}
	if err := k.Unmarshal(b.files[file]); err != nil {
		f := b.refuse(file, text.Printable(err.Error()), "correct the kustomization")
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			f.Line, _ = strconv.Atoi(m[1])
		}
		return nil
	}
	k.FixKustomization()
	b.folders[folder] = true
	b.local(file, b.files[file], free)
	if len(k.HelmCharts) > 0 {
		b.refuse(file, "helmCharts are not rendered here",
			"use a HelmRelease, or commit the output of helm template")
	}
	for _, entry := range slices.Concat(k.Resources, k.Components) {
		b.entry(file, entry, append(slices.Clone(above), folder))
	}
	for _, entry := range slices.Concat(k.Generators, k.Transformers, k.Validators) {
		b.plugin(file, entry, len(above) == 0)
	}
	return k
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// entry checks a resource or component, which is a file of the source or a folder with a
// kustomization.
func (b *builder) entry(file, entry string, above []string) {
	// Each remote base of kustomize has one of these.
	if strings.ContainsAny(entry, ":@?") ||
		strings.HasPrefix(strings.ToLower(entry), "github.com/") {
		text := fmt.Sprintf("%q is a remote base, which is not fetched", text.Shown(entry))
		b.refuse(file, text, "put its files into the source")
		return
	}
	name := path.Join(path.Dir(file), entry)
	if data, ok := b.files[name]; ok {
		if b.limited(name) {
			b.syntax(name, data)
		}
		return
	}
	base := b.kustomization(name)
	if path.IsAbs(entry) || strings.HasPrefix(name, "..") || base == "" {
		text := fmt.Sprintf(
			"the source has neither a file %q nor a folder of that name with a kustomization", entry)
		b.refuse(file, text, "correct the reference")
		return
	}
	b.visit(base, above)
}

// limited reports whether a file, together with all files that were read before, is within the
// limits.
func (b *builder) limited(file string) bool {
	before := b.values
	values, within := b.limit(file, b.files[file])
	if b.values += values; before <= maxBuilt && b.values > maxBuilt {
		b.report("source/limit", file,
			fmt.Sprintf("with this file the build reads more than %d values", maxBuilt),
			"build the package in parts")
	}
	return within && b.values <= maxBuilt
}

// syntax reports the syntax errors in a file of resources with their lines, which kustomize omits.
func (b *builder) syntax(name string, data []byte) {
	render.EachDocument(data, func(d krm.Document, item bool, line int) {
		var o krm.Object
		if _, err := o.Read(data, d, item, krm.Origin{File: name, Line: line}); err != nil {
			b.findings = append(b.findings, render.SyntaxFinding(err, data[d.Start:d.End]))
		}
	})
}

// plugin checks the configuration of a generator, transformer or validator. It must be one of
// kustomize's own, and have no URLs, which kustomize would fetch.
func (b *builder) plugin(file, entry string, outermost bool) {
	content, where := []byte(entry), file
	if data, ok := b.files[path.Join(path.Dir(file), entry)]; ok {
		content, where = data, path.Join(path.Dir(file), entry)
		if !b.limited(where) {
			return
		}
		if outermost && isRenderConfig(data) {
			return // it is Armature's, which runs afterwards
		}
	}
	nodes, err := (&kio.ByteReader{Reader: bytes.NewReader(content),
		OmitReaderAnnotations: true}).Read()
	for _, n := range nodes {
		if err == nil && n.YNode().Kind != yaml.MappingNode {
			err = fmt.Errorf("%q is neither a file of the source nor a configuration", text.Shown(entry))
		}
		if err != nil {
			break
		}
		// Unlike Lookup, the accessors of RNode panic if there is a list instead of a mapping.
		function, wrong := n.Pipe(yaml.Lookup("metadata", "annotations", "config.kubernetes.io/function"))
		if err = wrong; function != nil {
			err = fmt.Errorf("%q is a function, and functions do not run here", text.Shown(entry))
		}
	}
	if err != nil {
		b.refuse(where, text.Printable(err.Error()),
			"name a file with the configuration of one of kustomize's "+
				"own plugins; armature.yaml belongs into the outermost kustomization")
		return
	}
	b.local(where, content, nil)
}

// free are the fields of a kustomization whose strings are never files, and those whose entries are
// checked separately.
var free = []string{
	"commonAnnotations", "commonLabels", "labels", "metadata", "literals", "options",
	"generatorOptions", "patch", "sourceValue", "resources", "bases", "components", "generators",
	"transformers", "validators",
}

// local reports the URLs in all fields of a file except the free ones, which kustomize would fetch.
func (b *builder) local(file string, data []byte, free []string) {
	nodes, err := (&kio.ByteReader{Reader: bytes.NewReader(data),
		OmitReaderAnnotations: true}).Read()
	if err != nil {
		b.refuse(file, text.Printable(err.Error()), "correct the kustomization")
		return
	}
	seen := map[*yaml.Node]bool{} // aliases may repeat a node any number of times
	var visit func(*yaml.Node)
	visit = func(n *yaml.Node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		if n.Kind == yaml.ScalarNode && remote(n.Value) {
			b.refuse(file, fmt.Sprintf("%q is not fetched", text.Shown(n.Value)),
				"put the file into the source")
		}
		visit(n.Alias)
		for i, child := range n.Content {
			if n.Kind != yaml.MappingNode || i%2 == 0 ||
				!slices.Contains(free, n.Content[i-1].Value) {
				visit(child)
			}
		}
	}
	for _, n := range nodes {
		visit(n.YNode())
	}
}

// remote reports whether kustomize would fetch a file: whether it is a URL, alone or after the key
// of a generated file.
func remote(text string) bool {
	_, behind, _ := strings.Cut(text, "=")
	for _, s := range []string{text, behind} {
		if u, err := url.Parse(s); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
			return true
		}
	}
	return false
}
