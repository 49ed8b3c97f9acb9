package krm

import (
	"slices"

	"github.com/armature-dev/armature/functions/finding"
)

// Report collects the findings about a package as a whole. The zero Report is empty.
type Report struct {
	finding.List
	misread map[finding.Ref][]misread
	held    int // findings of misread
}

// misread is a custom resource with the findings of its decoding.
type misread struct {
	*Object
	findings []finding.Finding
}

// Decode reads an object into a Go value with JSON tags and adds the findings about it under a
// rule.
func (r *Report) Decode(o *Object, rule string, into any) {
	if findings := o.Decode(rule, into); len(findings) > 0 {
		r.Add(findings...)
		r.Misread(o, findings)
	}
}

// maxMisread bounds the findings that WithoutEchoes compares with others. If a package has more, it
// drops none.
const maxMisread = 10_000

// Misread notes the findings of an object's decoding for WithoutEchoes.
func (r *Report) Misread(o *Object, findings []finding.Finding) {
	if r.misread == nil {
		r.misread = make(map[finding.Ref][]misread)
	}
	if r.held += len(findings); r.held <= maxMisread {
		r.misread[o.Ref] = append(r.misread[o.Ref], misread{o, findings})
	}
}

// WithoutEchoes drops the findings about custom resources that may be consequences of faults in the
// same resource's fields.
func (r *Report) WithoutEchoes(findings []finding.Finding) []finding.Finding {
	if r.held > maxMisread {
		return findings
	}
	return slices.DeleteFunc(findings, func(f finding.Finding) bool {
		echoes := false
		for _, m := range r.misread[f.Object] { // several may have the name
			if slices.Contains(m.findings, f) {
				return false
			}
			echoes = echoes || f.File == m.Origin.File && m.FollowsFrom(m.findings, f.Field)
		}
		return echoes
	})
}
