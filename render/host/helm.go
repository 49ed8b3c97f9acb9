package host

import (
	"bytes"
	"fmt"
	"sort"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// nothing is the output for a release without objects, because Helm 4 treats an empty output as a
// failure.
const nothing = "# This release has no objects.\n"

// Helm renders the manifests of a release as Helm passes them to a post-renderer, and returns the
// manifests to install, without consumed custom resources and objects annotated
// config.kubernetes.io/local-config. Findings name templates of the chart. If one is an error, out
// is nil. For a stream without objects it returns a comment. It returns an error if the stream has
// objects and none is for a cluster, because Helm would then delete the objects of the release.
func Helm(stream []byte, opt render.Options) (out []byte, findings []finding.Finding, err error) {
	in := render.File{Path: "-", Data: stream}
	passed, _ := locals(stream)
	opt.ObjectsOnly, opt.Workers = true, 1
	rendered := in
	findings, _, err = render.Stream(render.Source{Files: []render.File{in}}, opt,
		func(_ string, data []byte) error {
			rendered.Data = bytes.Clone(data)
			return nil
		})
	if err != nil {
		return nil, nil, err
	}
	nameTemplates(stream, findings)
	if finding.Failed(findings) {
		return nil, findings, nil
	}
	// Documents without objects, for example the rest of a custom resource, are dropped as well:
	// Helm stores its manifests in a Secret, whose size is limited.
	out, objects, err := withObjects(rendered.Data)
	switch {
	case err != nil:
		return nil, findings, err
	case objects > 0:
		return out, findings, nil
	case passed > 0:
		return nil, findings, fmt.Errorf("none of the release's objects (%d) is for a cluster, "+
			"and Helm would delete the objects that it installed before", passed)
	}
	return []byte(nothing), findings, nil
}

// nameTemplates replaces the places of findings by the chart's templates, because no user sees the
// lines of the stream.
func nameTemplates(stream []byte, findings []finding.Finding) {
	if len(findings) == 0 {
		return
	}
	all := templates(stream)
	at := func(line int) string {
		i := sort.Search(len(all), func(i int) bool { return all[i].line > line })
		if i == 0 {
			return ""
		}
		return all[i-1].name
	}
	for i := range findings {
		if f := &findings[i]; f.File == "-" {
			f.File = at(f.Line)
			withoutLines(findings[i : i+1])
		}
	}
}

// template is the line of a stream where the manifests of a chart's template begin.
type template struct {
	line int
	name string
}

// templates returns the templates of a stream. It finds them by the comment that Helm 3 writes
// before each manifest, or by the annotation that Helm 4 adds to it.
func templates(stream []byte) (all []template) {
	start, line := 1, 0
	for text := range bytes.Lines(stream) {
		line++
		text := strings.TrimSpace(string(text))
		if text == "---" {
			start = line
		}
		name, ok := strings.CutPrefix(text, "# Source: ")
		if !ok {
			name, ok = strings.CutPrefix(text, "postrenderer.helm.sh/postrender-filename: ")
			name = strings.Trim(name, `'"`)
		}
		if ok {
			all = append(all, template{start, name})
		}
	}
	return all
}
