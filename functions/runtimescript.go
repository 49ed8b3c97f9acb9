package functions

import (
	"unicode/utf8"

	"github.com/armature-dev/armature/functions/krm"
)

// RuntimeScriptFile is the file of the package that holds the runtime script of
// AsyncActors, "" where the configuration names none.
func (p *Package) RuntimeScriptFile() string {
	if a := p.Config.Asya; a != nil && a.RuntimeScriptFile != nil {
		return *a.RuntimeScriptFile
	}
	return ""
}

// maxScript is what fits a ConfigMap beside its metadata.
const maxScript = 1<<20 - 8<<10

// UseRuntimeScript takes in the content of RuntimeScriptFile; nil says that the
// package does not have the file.
func (p *Package) UseRuntimeScript(text []byte) {
	problem := ""
	switch {
	case p.Config.Asya.RuntimeScript != nil:
		problem = "is named beside a runtimeScript: keep one of them"
	case text == nil:
		problem = "is no file of the package"
	case !utf8.Valid(text):
		problem = "is not text"
	case len(text) > maxScript:
		problem = "does not fit a ConfigMap"
	}
	if problem != "" {
		const field = "spec.asya.runtimeScriptFile"
		line := p.configured.Line
		if p.configured.LineOf != nil {
			line = p.configured.LineOf(field)
		}
		p.findings = append(p.findings, krm.Finding{
			Rule: "config/runtime-script", Severity: krm.Error, File: p.configured.File, Line: line, Field: field,
			Message: p.RuntimeScriptFile() + " " + problem,
			Hint:    "correct the path, which is relative to the package; where a host passes manifests only, write the text to spec.asya.runtimeScript",
		})
	}
	p.scripted = true
	script := string(text)
	asya := *p.Config.Asya
	asya.RuntimeScript, asya.RuntimeScriptFile = &script, nil
	p.Config.Asya = &asya
}
