// Package build renders a folder of a source into the files of an artifact. It is pure: it maps
// files to files or findings. It is not part of the engine, because kustomize's library starts
// slowly, and not of the controller, so that it can be tested without one.
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
	// Path is the folder to render, relative to the source's root. "" is the root.
	Path string
	// Config is the file of the RenderConfig, relative to the source's root. "" is the nearest
	// armature.yaml from Path up to the source's root, or the defaults if there is none.
	Config string
	// Images requests Result.Images, for which every object is decoded completely.
	Images bool
}

// Result is a rendered folder.
type Result struct {
	// Files of the artifact by path, or nil if a finding is an error.
	Files map[string][]byte
	// Findings name files relative to the source's root.
	Findings []finding.Finding
	// Objects is the number of Kubernetes objects in Files.
	Objects int
	// Images are the images in the objects of Files, if Options.Images is set.
	Images []Image
	Stats  render.Stats
}

// Image is an image, and the place in the source of the image or of an object that runs it.
type Image struct {
	images.Image
	Place finding.Place
}

// Run renders a folder of a source. files are the files of the source, by their path relative to
// its root. If a finding is an error, the result has no files.
func Run(files map[string][]byte, o Options) Result {
	b := builder{files: files, folder: path.Clean("./" + o.Path), config: o.Config, withImages: o.Images}
	r := b.run()
	if r.Findings = b.findings; finding.Failed(r.Findings) {
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
	findings   []finding.Finding

	folders map[string]bool   // roots of kustomizations
	visits  int               // visited kustomizations
	values  int               // values that kustomize reads
	origins map[string]origin // of the files of a built kustomization
}

// report adds an error about a file of the source.
func (b *builder) report(rule, file, message, hint string) *finding.Finding {
	b.findings = append(b.findings, finding.Finding{Rule: rule, Severity: finding.Error,
		Message: message, Hint: hint, Place: finding.Place{File: file}})
	return &b.findings[len(b.findings)-1]
}

func (b *builder) run() (r Result) {
	if strings.HasPrefix(b.folder, "../") || b.folder == ".." {
		b.report("source/path", "", fmt.Sprintf("the path %q leads out of the source", b.folder),
			"name a folder inside the source")
		return r
	}
	var inputs []render.File
	if kustomization := b.kustomization(b.folder); kustomization != "" {
		inputs = b.kustomize(kustomization)
	} else {
		inputs = b.plain()
	}
	if !finding.Failed(b.findings) {
		b.settings()
	}
	if finding.Failed(b.findings) {
		return r
	}
	rendered, err := render.Run(render.Source{Files: inputs}, b.opt)
	r.Stats = rendered.Stats
	b.findings = append(b.findings, b.locate(inputs, rendered.Findings)...)
	if err != nil {
		b.report("source/render", "", err.Error(), "")
	}
	if finding.Failed(b.findings) {
		return r
	}
	r.Files = make(map[string][]byte, len(rendered.Files))
	for _, f := range rendered.Files {
		text, objects, err := host.ForCluster(f)
		if err != nil {
			b.report("source/render", f.Path, err.Error(), "")
			continue
		}
		if objects == 0 {
			continue
		}
		name := f.Path
		if path.Ext(name) == ".json" { // Flux reads only files with the extension of YAML
			name += ".yaml"
		}
		r.Files[name] = text
		r.Objects += objects
		if b.withImages {
			b.images(&r, render.File{Path: f.Path, Data: text})
		}
	}
	b.locateImages(inputs, r.Images)
	if r.Objects == 0 {
		b.report("source/empty", "",
			fmt.Sprintf("no Kubernetes object is left of the folder %s", b.folder),
			"an empty artifact would delete everything that the last one applied: "+
				"correct spec.path, or delete the RenderedSource")
		return r
	}
	found, _, err := verify.Run(render.Source{Files: rendered.Files}, b.opt)
	found = slices.DeleteFunc(found, func(f finding.Finding) bool {
		return f.Severity != finding.Error
	})
	if b.findings = append(b.findings, b.locate(inputs, found)...); err != nil {
		b.report("source/render", "", err.Error(), "")
	}
	return r
}

// images adds the images of a file to the result. An object that cannot be decoded is an error,
// since it may run an image.
func (b *builder) images(r *Result, f render.File) {
	own, _ := images.Rows(b.opt.Config) // the render has reported the error
	render.Objects(f, func(o *krm.Object) {
		value, err := o.Value()
		if err != nil {
			text := "looking for images: " + err.Error()
			f := o.Finding(finding.Error, "source/render", krm.Node{}, text, "")
			b.findings = append(b.findings, f)
			return
		}
		for _, image := range images.Judged(value, own...) {
			r.Images = append(r.Images,
				Image{image, o.Finding(finding.Error, "", krm.Node{}, "", "").Place})
		}
	})
}

// locateImages sets the places of images to files and lines of the source. An image that the render
// has added has no line.
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
func (b *builder) plain() (inputs []render.File) {
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
			b.report("source/kustomization", file,
				"the folder above it has no kustomization, so this one is not built",
				"add a kustomization.yaml to "+b.folder+", or name this folder in spec.path")
		case base == "Chart.yaml":
			b.report("source/helm-chart", file, "a Helm chart is not rendered here",
				"use a HelmRelease, or commit the output of helm template")
		case relative == render.ConfigFile || relative == render.MisnamedConfig ||
			relative == render.LockFile:
		case render.IsManifest(file):
			b.limit(file, b.files[file])
			inputs = append(inputs, render.File{Path: relative, Data: b.files[file]})
		}
	}
	if !exists {
		b.report("source/path", "", "the source has no folder "+b.folder, "correct spec.path")
	}
	return inputs
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

func (b *builder) settings() {
	b.opt.ObjectsOnly = true
	file := path.Clean(b.config)
	for at := b.folder; b.config == ""; at = path.Dir(at) {
		file = path.Join(at, render.ConfigFile)
		_, found := b.files[file]
		if misnamed := path.Join(at, render.MisnamedConfig); b.files[misnamed] != nil {
			b.findings = append(b.findings, render.Misnamed(misnamed, found))
			return
		}
		if found || at == "." {
			break
		}
	}
	data, ok := b.files[file]
	if !ok && b.config != "" {
		b.report("config/invalid", file, "the source does not have this file",
			"correct spec.config")
		return
	}
	lock := path.Join(b.folder, render.LockFile)
	b.limit(file, b.files[file])
	b.limit(lock, b.files[lock])
	if finding.Failed(b.findings) {
		return
	}
	var ofConfig, ofLock []finding.Finding
	if ok {
		b.opt.Config, ofConfig = render.ReadConfig(data, file)
	}
	if data, ok := b.files[lock]; ok {
		b.opt.Lock, ofLock = render.ReadLock(data, lock)
	}
	b.findings = slices.Concat(b.findings, ofConfig, ofLock)
}

// locate replaces the files in findings with those of the source.
func (b *builder) locate(inputs []render.File, findings []finding.Finding) []finding.Finding {
	if b.origins != nil {
		return b.trace(findings)
	}
	return host.From(b.folder, inputs, findings)
}
