package functions

import (
	"bytes"
	"strconv"
	"strings"
)

// Facts are what a file tells the package: the objects that it holds.
type Facts struct {
	// Names are the objects, and Lines where they stand.
	Names, Lines string
}

// Mark is the point in a first pass up to which facts are known.
type Mark struct{ entries, whole int }

// Mark gives the present point.
func (p *Package) Mark() Mark {
	whole := p.locks + len(p.sources) + len(p.resources) + len(p.tokenExchanges) + len(p.agentTraces) + len(p.agentCards) + len(p.findings) +
		len(p.overcommit.overcommits) + len(p.overcommit.classes) + len(p.classes)
	for _, ns := range p.namespaces {
		whole += len(ns)
	}
	return Mark{len(p.entries), whole}
}

// FactsSince gives the facts that came after a mark. all is false where the
// package learnt more than they say.
func (p *Package) FactsSince(m Mark) (facts Facts, all bool) {
	names, lines := p.scratch[0][:0], p.scratch[1][:0]
	for i := range p.entries[m.entries:] {
		e := &p.entries[m.entries+i]
		for _, field := range [...]string{e.apiVersion, e.kind, e.namespace, e.name} {
			names = append(append(names, field...), '\x1f')
		}
		names = append(strconv.AppendBool(names, e.generated), '\x1e')
		lines = append(strconv.AppendInt(lines, int64(e.line), 10), ' ')
	}
	p.scratch = [...][]byte{names, lines}
	facts = Facts{string(names), string(lines)}
	return facts, p.Mark().whole == m.whole && !bytes.ContainsAny(names, "\t\n") && bytes.Count(names, []byte{'\x1e'}) == len(p.entries)-m.entries
}

// Restore enters the facts of a file that does not have to be read again.
func (p *Package) Restore(file string, facts Facts) {
	lines := facts.Lines
	for names := facts.Names; names != ""; {
		var name, line string
		name, names, _ = strings.Cut(names, "\x1e")
		line, lines, _ = strings.Cut(lines, " ")
		var fields [5]string
		for i := range fields {
			fields[i], name, _ = strings.Cut(name, "\x1f")
		}
		at, _ := strconv.Atoi(line)
		p.enter(key{fields[1], fields[2], fields[3]}, entry{apiVersion: fields[0], file: file, line: int32(at), generated: fields[4] == "true"})
	}
}

// Selects reports whether the package has to see every workload: AgentCards look
// for them by their labels, which facts do not hold, overcommit counts them, and a
// script is no manifest.
func (p *Package) Selects() bool {
	if len(p.overcommit.overcommits) > 0 || p.scripted {
		return true
	}
	for _, c := range p.agentCards {
		if c.value.Spec.TargetRef == nil {
			return true
		}
	}
	return false
}
