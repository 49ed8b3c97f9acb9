package host

import (
	"bytes"
	"fmt"
	"sort"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// nothing is what Helm gets for a release without objects. Helm 4 takes an empty
// output for a failure.
const nothing = "# This release has no objects.\n"

// Helm renders the manifests of a release as Helm passes them to a post-renderer, and returns what
// Helm is to install: no custom resources that were consumed, and nothing that is annotated
// config.kubernetes.io/local-config. Findings name templates of the chart; with an error among them
// out is nil. For a stream without objects it returns a comment. It is an error if the stream has
// objects and none is for a cluster: Helm would delete the release's.
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
	// Documents without objects, such as what is left of a custom resource, go as well: Helm
	// keeps its manifests in a Secret, which has a limit.
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

// nameTemplates puts the chart's templates in the places of findings. Their lines are
// those of a stream that nobody has seen.
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

// template is where the manifests of a template begin.
type template struct {
	line int
	name string
}

// templates finds them by the comment that Helm 3 writes before each manifest, or the
// annotation that Helm 4 adds to it.
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
