package objects

import (
	"bytes"
	"context"
	"path"
	"strings"

	"github.com/hashicorp/go-multierror"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/flux/build"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// ImagesIn returns the images of files from a render of src: those of all objects, and those in the
// output of each kustomization among the files. name returns the name of a file for people, and own
// are rows of a RenderConfig.
func ImagesIn(src render.Source, files []render.File, name func(file string) string,
	own []images.Row) []sign.Image {
	j := judgement{name: name, src: src, own: own, all: make(map[string][]byte)}
	for _, f := range files {
		j.all[f.Path] = f.Data
	}
	for _, f := range files {
		j.file(f)
	}
	return j.images
}

// judgement collects the images of files.
type judgement struct {
	name   func(file string) string // of a file, for people
	src    render.Source
	own    []images.Row
	all    map[string][]byte
	images []sign.Image
}

func (j *judgement) file(f render.File) {
	switch base := path.Base(f.Path); {
	case base == "Chart.yaml":
		j.problem(f.Path, "only Helm renders a chart")
	case path.Ext(base) == ".jsonnet":
		j.problem(f.Path, "it is a program")
	case strings.EqualFold(strings.TrimSuffix(base, path.Ext(base)), "kustomization"):
		j.kustomization(f)
	case render.IsManifest(f.Path) && !j.template(f.Path):
		objects, err := Every(f.Path, f.Data)
		if err != nil {
			j.problem(f.Path, err.Error())
		}
		if written, err := Original(j.src, f.Path); err == nil && !bytes.Equal(written, f.Data) {
			authorLines(f.Path, written, objects)
		}
		j.add(f.Path, objects)
	}
}

// template reports whether a file is a template of a chart, which is reported as a whole.
func (j *judgement) template(file string) bool {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if _, chart := j.all[path.Join(path.Dir(dir), "Chart.yaml")]; chart &&
			path.Base(dir) == "templates" {
			return true
		}
	}
	return false
}

// kustomization adds the images of the output of a kustomization. A component has no output of its
// own.
func (j *judgement) kustomization(f render.File) {
	var k struct{ Kind string }
	if err := yaml.Unmarshal(f.Data, &k); err == nil && k.Kind == "Component" {
		return
	}
	built, findings := build.Kustomize(j.all, path.Dir(f.Path))
	for _, found := range findings {
		if found.Severity == finding.Error {
			j.problem(f.Path, found.Place.String()+": "+found.Message)
			return
		}
	}
	for _, b := range built {
		objects, err := Every(f.Path, b.Data)
		if err != nil {
			j.problem(f.Path, err.Error())
		}
		for i := range objects {
			objects[i].Line = 0
		}
		j.add(f.Path, objects)
	}
}

func (j *judgement) problem(file, why string) {
	j.images = append(j.images, sign.Image{Image: images.Image{Problem: why}, File: file,
		Place: j.name(file)})
}

func (j *judgement) add(file string, objects []apply.Object) {
	for _, o := range objects {
		o.File = j.name(file)
		j.images = append(j.images, imagesOf(o, file, j.own)...)
	}
}

// imagesOf returns the images that an object names. file is its path in the package.
func imagesOf(o apply.Object, file string, own []images.Row) (found []sign.Image) {
	for _, i := range images.Judged(o.Object, own...) {
		found = append(found, sign.Image{Image: i, File: file, Place: o.Place()})
	}
	return found
}

// Verify verifies every image that objects run against a policy, and returns all errors. own are
// rows of a RenderConfig.
func Verify(ctx context.Context, objects []apply.Object, policy sign.Policy, own []images.Row) error {
	var all []sign.Image
	for _, o := range objects {
		all = append(all, imagesOf(o, "", own)...)
	}
	return multierror.Append(nil, sign.VerifyImages(ctx, all, policy)...).ErrorOrNil()
}
