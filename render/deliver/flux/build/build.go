// Package build renders a folder of a source into the files of an artifact. It is pure: files go
// in, and files or findings come out. It is not part of the engine, because kustomize's library is
// slow to start, and not of the controller, so that it can be tested without one.
package build

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/verify"
)

// Options say what to render.
type Options struct {
	// Path is the folder to render, relative to the source's root; "" is the root.
	Path string
	// Config is the file of the RenderConfig, relative to the source's root. "" is
	// the nearest armature.yaml from Path up to the source's root, or the defaults where
	// there is none.
	Config string
	// Images asks for those of the result, for which every object is read as a whole.
	Images bool
}

// Result is a rendered folder.
type Result struct {
	// Files of the artifact, by path; nil where a finding is an error.
	Files map[string][]byte
	// Findings name files relative to the source's root.
	Findings []finding.Finding
	// Objects is the number of Kubernetes objects in Files.
	Objects int
	// Images are what the objects in Files name of them, where they are asked for.
	Images []Image
	Stats  render.Stats
}

// Image is an image, and a place where the source names it or an object that runs it.
type Image struct {
	images.Image
	Place finding.Place
}

// Run renders a folder of a source. files are those of the source, by their path
// relative to its root. What is wrong is among the findings; an error among them
// leaves no files.
func Run(files map[string][]byte, o Options) (r Result) {
	b := builder{files: files, folder: path.Clean("./" + o.Path), config: o.Config, withImages: o.Images}
	r = b.run()
	if finding.Failed(r.Findings) {
		r.Files, r.Images, r.Objects = nil, nil, 0
	}
	return r
}

type builder struct {
	files      map[string][]byte // of the source
	folder     string            // "." is the root
	config     string
	opt        render.Options
	withImages bool

	origins map[string]origin // of the files of a built kustomization
}

// problem is a finding about a file of the source.
func problem(rule, file, message, hint string) finding.Finding {
	return finding.Finding{Rule: rule, Severity: finding.Error, Message: message, Hint: hint,
		Place: finding.Place{File: file}}
}

func (b *builder) run() (r Result) {
	report := func(rule, file, message, hint string) {
		r.Findings = append(r.Findings, problem(rule, file, message, hint))
	}
	if strings.HasPrefix(b.folder, "../") || b.folder == ".." {
		message := fmt.Sprintf("the path %q leads out of the source", b.folder)
		report("source/path", "", message, "name a folder inside the source")
		return r
	}
	var inputs []render.File
	if kustomization := b.kustomization(b.folder); kustomization != "" {
		inputs, r.Findings = b.kustomize(kustomization)
	} else {
		inputs, r.Findings = b.plain()
	}
	if finding.Failed(r.Findings) {
		return r
	}
	if r.Findings = append(r.Findings, b.settings()...); finding.Failed(r.Findings) {
		return r
	}
	rendered, err := render.Run(render.Source{Files: inputs}, b.opt)
	r.Stats = rendered.Stats
	r.Findings = append(r.Findings, b.locate(inputs, rendered.Findings)...)
	if err != nil {
		report("source/render", "", err.Error(), "")
	}
	if finding.Failed(r.Findings) {
		return r
	}
	r.Files = make(map[string][]byte, len(rendered.Files))
	for _, f := range rendered.Files {
		text, objects, err := host.ForCluster(f)
		if err != nil {
			report("source/render", f.Path, err.Error(), "")
			continue
		}
		if objects == 0 {
			continue
		}
		name := f.Path
		if path.Ext(name) == ".json" { // Flux looks for YAML, which JSON is
			name += ".yaml"
		}
		r.Files[name] = text
		r.Objects += objects
		if b.withImages {
			r.Findings = append(r.Findings, b.images(&r, render.File{Path: f.Path, Data: text})...)
		}
	}
	b.locateImages(inputs, r.Images)
	if r.Objects == 0 {
		report("source/empty", "", fmt.Sprintf("no Kubernetes object is left of the folder %s",
			b.folder),
			"an empty artifact would delete everything that the last one applied: "+
				"correct spec.path, or delete the RenderedSource")
		return r
	}
	found, _, err := verify.Run(render.Source{Files: rendered.Files}, b.opt)
	found = slices.DeleteFunc(found, func(f finding.Finding) bool {
		return f.Severity != finding.Error
	})
	if r.Findings = append(r.Findings, b.locate(inputs, found)...); err != nil {
		report("source/render", "", err.Error(), "")
	}
	return r
}

// images adds the images of a file to the result. An object that cannot be read is an error, since
// it might run one.
func (b *builder) images(r *Result, f render.File) (findings []finding.Finding) {
	own, _ := images.Rows(b.opt.Config) // the render has reported what is wrong with them
	render.Objects(f, func(o *krm.Object) {
		value, err := o.Value()
		if err != nil {
			text := "looking for images: " + err.Error()
			findings = append(findings, o.Finding(finding.Error, "source/render", krm.Node{}, text, ""))
			return
		}
		for _, image := range images.Judged(value, own...) {
			r.Images = append(r.Images,
				Image{image, o.Finding(finding.Error, "", krm.Node{}, "", "").Place})
		}
	})
	return findings
}

// locateImages sets the files of the source, and the lines of images. An image that the render has
// added has no line.
func (b *builder) locateImages(inputs []render.File, images []Image) {
	for i := range images {
		at := &images[i].Place
		at.Line = 0
		*at = b.locate(inputs, []finding.Finding{{Place: *at}})[0].Place
		at.Line = 0
		if before, _, ok := bytes.Cut(b.files[at.File], []byte(images[i].Ref)); ok &&
			images[i].Ref != "" {
			at.Line = 1 + bytes.Count(before, []byte("\n"))
		}
	}
}

// plain lists the manifests of a folder without a kustomization.
func (b *builder) plain() (inputs []render.File, findings []finding.Finding) {
	exists := false
	for _, file := range slices.Sorted(maps.Keys(b.files)) {
		relative, inside := b.relative(file)
		if !inside {
			continue
		}
		exists = true
		switch base := path.Base(file); {
		case hidden(relative):
		case slices.Contains(konfig.RecognizedKustomizationFileNames(), base):
			findings = append(findings, problem("source/kustomization", file,
				"the folder above it has no kustomization, so this one is not built",
				"add a kustomization.yaml to "+b.folder+", or name this folder in spec.path"))
		case base == "Chart.yaml":
			findings = append(findings,
				problem("source/helm-chart", file, "a Helm chart is not rendered here",
					"use a HelmRelease, or commit the output of helm template"))
		case relative == render.ConfigFile || relative == render.MisnamedConfig ||
			relative == render.LockFile:
		case render.IsManifest(file):
			_, beyond := limit(file, b.files[file])
			findings = append(findings, beyond...)
			inputs = append(inputs, render.File{Path: relative, Data: b.files[file]})
		}
	}
	if !exists {
		text := fmt.Sprintf("the source has no folder %s", b.folder)
		findings = append(findings, problem("source/path", "", text, "correct spec.path"))
	}
	return inputs, findings
}

// relative returns the path of a file below the folder.
func (b *builder) relative(file string) (string, bool) {
	if b.folder == "." {
		return file, true
	}
	return strings.CutPrefix(file, b.folder+"/")
}

// hidden reports whether a file is in a folder whose name starts with a dot.
func hidden(file string) bool {
	return strings.HasPrefix(file, ".") && strings.Contains(file, "/") ||
		strings.Contains(path.Dir(file), "/.")
}

// kustomization names the kustomization of a folder, "" for none.
func (b *builder) kustomization(folder string) string {
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		if _, ok := b.files[path.Join(folder, name)]; ok {
			return path.Join(folder, name)
		}
	}
	return ""
}

func (b *builder) settings() (findings []finding.Finding) {
	b.opt.ObjectsOnly = true
	file := path.Clean(b.config)
	for at := b.folder; b.config == ""; at = path.Dir(at) {
		file = path.Join(at, render.ConfigFile)
		_, found := b.files[file]
		if misnamed := path.Join(at, render.MisnamedConfig); b.files[misnamed] != nil {
			return []finding.Finding{render.Misnamed(misnamed, found)}
		}
		if found || at == "." {
			break
		}
	}
	data, ok := b.files[file]
	if !ok && b.config != "" {
		f := problem("config/invalid", file, "the source does not have this file", "correct spec.config")
		return []finding.Finding{f}
	}
	lock := path.Join(b.folder, render.LockFile)
	for _, name := range []string{file, lock} {
		_, beyond := limit(name, b.files[name])
		findings = append(findings, beyond...)
	}
	if len(findings) > 0 {
		return findings
	}
	if ok {
		b.opt.Config, findings = render.ReadConfig(data, file)
	}
	if data, ok := b.files[lock]; ok {
		var found []finding.Finding
		b.opt.Lock, found = render.ReadLock(data, lock)
		findings = append(findings, found...)
	}
	return findings
}

// locate replaces the files in findings by those of the source.
func (b *builder) locate(inputs []render.File, findings []finding.Finding) []finding.Finding {
	if b.origins != nil {
		return b.trace(findings)
	}
	return host.From(b.folder, inputs, findings)
}
