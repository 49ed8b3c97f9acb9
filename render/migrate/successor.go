package migrate

import (
	"bytes"
	"fmt"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/kagentagent"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/pinimages"
	"github.com/armature-dev/armature/render"
)

// ToSuccessor takes resources of kagent 0.x to those of 1.0. harness is the text of a Harness
// of 1.0, which says where and with which image agents run. All other objects stay.
func ToSuccessor(src render.Source, opt render.Options, harness []byte, sink render.Sink) ([]Report, []finding.Finding, error) {
	h := new(krm.Object)
	if is, err := h.Read(bytes.Clone(harness), krm.Document{End: len(harness)}, false, krm.Origin{}); err != nil || !is {
		return nil, nil, fmt.Errorf("reading the Harness: it is not one YAML document with an object: %w", err)
	}
	var lock pinimages.Lock
	m := &migration{src: src, succession: &kagentagent.Succession{Harness: h, Pin: lock.Image}}
	if opt.Lock != nil {
		m.findings = lock.Add(opt.Lock)
	}
	m.known = m.findings
	if err := m.succession.Begin(); err != nil {
		return nil, nil, fmt.Errorf("the Harness: %w", err)
	}
	if err := m.each(func(o *krm.Object) error { m.succession.Collect(o); return nil }); err != nil {
		return nil, nil, err
	}
	m.known = m.findings
	if err := m.files(); err != nil {
		return nil, nil, err
	}
	return m.finish(sink)
}

// succeed gives what becomes of an object in kagent 1.0.
func (m *migration) succeed(o *krm.Object, report Report) (texts [][]byte, different bool, err error) {
	done, ok, err := m.succession.Convert(o)
	if err != nil || !ok {
		return [][]byte{o.Append(nil)}, false, err
	}
	m.findings = append(m.findings, done.Findings...)
	report.Fields = done.Fields
	for _, text := range done.Texts {
		var made krm.Object
		if is, err := made.ReadMade(text, o); err != nil || !is {
			return nil, false, fmt.Errorf("the result is not an object: %w", err)
		}
		report.Becomes = append(report.Becomes, made.Ref)
	}
	m.reports = append(m.reports, report)
	return done.Texts, true, nil
}
