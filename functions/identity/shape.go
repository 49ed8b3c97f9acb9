package identity

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/armature-dev/armature/functions/internal/scalar"
)

// Most workloads of a package have no settings of their own. Those that also declare the
// same have one shape: they get the same settings and, but for their names, the same texts,
// which are computed once.

// Part is a text that follows from the settings of a workload.
type Part int

// The parts.
const (
	PodContainers Part = iota
	PodVolumes
	configMapData // of the ConfigMap TokenExchangeConfigMap and those after it
	parts         = configMapData + 2
)

// shape is what workloads without settings of their own have in common.
type shape struct {
	settings Settings // of one of them
	ports    []Port

	mu    sync.Mutex
	texts [parts]*sharedText
}

// sharedText is a part of all workloads of a shape.
type sharedText struct {
	// pieces are what is between the names of the workload. Each but the first begins with
	// the letter of the name before it. They are nil for a text that is not shared, because
	// it contains the placeholder of a name.
	pieces [][]byte
	// names are those of the items of the text.
	names []string
}

// placeholder stands for a name of the workload, with the letter that tells which.
const placeholder = "armature0shape0"

// AppendPart appends what write appends, which returns the names of the items too. It may
// depend on nothing but the settings.
func (s *Settings) AppendPart(dst []byte, part Part,
	write func([]byte, *Settings) ([]byte, []string)) (text []byte, names []string) {
	if s.shape == nil {
		return write(dst, s)
	}
	t := s.shape.text(part, write)
	if t.pieces == nil {
		return write(dst, s)
	}
	dst = append(dst, t.pieces[0]...)
	for _, piece := range t.pieces[1:] {
		switch piece[0] {
		case 'n':
			dst = append(dst, s.Subject.Name...)
		case 's':
			dst = append(dst, s.Subject.Namespace...)
		case 'a':
			dst = append(dst, s.Subject.ServiceAccount...)
		}
		dst = append(dst, piece[1:]...)
	}
	return dst, t.names
}

func (x *shape) text(part Part, write func([]byte, *Settings) ([]byte, []string)) *sharedText {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.texts[part] == nil {
		named := func(lead string) (text []byte, names []string) {
			s := x.settings
			s.shape, s.Subject = nil, Subject{Kind: s.Subject.Kind, Namespace: lead + "s",
				Name: lead + "n", ServiceAccount: lead + "a"}
			return write(nil, &s)
		}
		t := &sharedText{}
		text, names := named(placeholder)
		if other, _ := named("other"); !bytes.Contains(other, []byte(placeholder)) {
			t.pieces, t.names = bytes.Split(text, []byte(placeholder)), slices.Clip(names)
		}
		x.texts[part] = t
	}
	return x.texts[part]
}

// maxShapes bounds what a package can make a render keep: each shape is some 30 KB.
const maxShapes = 64

// shapes are those of a package. The zero value is ready to use.
type shapes struct {
	mu    sync.Mutex
	known map[string]*shape
}

// appendShape appends what the settings of a workload depend on, beside the base and its
// names, and reports whether it has a shape at all: no settings of its own, and names that
// no text has to quote or shorten.
func (w *Workload) appendShape(dst []byte) (key []byte, ok bool) {
	if w.Runtime != nil || w.Alter != nil || w.TraceOnly || !scalar.Plain(w.Name) ||
		len(w.Name) > MaxName-longestAffix || w.ServiceAccount != "" && !scalar.Plain(w.ServiceAccount) ||
		w.Namespace != "" && !scalar.Plain(w.Namespace) {
		return dst, false
	}
	text := func(s string) {
		dst = append(binary.AppendUvarint(dst, uint64(len(s))), s...)
	}
	flag := func(b bool) {
		if b {
			text("1")
		} else {
			text("")
		}
	}
	text(w.Kind)
	flag(w.SPIFFE)
	flag(w.Volumes.Shared)
	flag(w.Volumes.SVID)
	dst = binary.AppendVarint(dst, int64(w.EnvPort))
	dst = binary.AppendUvarint(dst, uint64(len(w.Ports)))
	for _, port := range w.Ports {
		dst = binary.AppendVarint(dst, int64(port))
	}
	for _, p := range w.Probes {
		text(p.Path)
		dst = binary.AppendVarint(dst, int64(p.Port))
	}
	return dst, true
}

// find returns the shape of a key, nil where none is known.
func (x *shapes) find(key []byte) *shape {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.known[string(key)]
}

// add keeps the settings of a workload as those of its shape.
func (x *shapes) add(key []byte, s *Settings) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.known) == maxShapes {
		return
	}
	if x.known == nil {
		x.known = make(map[string]*shape)
	}
	of := &shape{settings: *s, ports: s.ports()}
	of.settings.AuthBridge.Ports = slices.Clone(s.AuthBridge.Ports)
	of.settings.shape = of
	x.known[string(key)] = of
}
