package needs

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// maxBrief bounds the text that Brief reads, so that a render of thousands of
// workloads costs no more.
const maxBrief = 1 << 20

// Brief sums up what rendered files need, in one line.
type Brief struct {
	mu    sync.Mutex
	files []render.File
	size  int
}

// Sink returns a sink that notes what next gets.
func (b *Brief) Sink(next render.Sink) render.Sink {
	return func(file string, data []byte) error {
		b.mu.Lock()
		if render.IsManifest(file) {
			if b.size += len(data); b.size <= maxBrief {
				b.files = append(b.files, render.File{Path: file, Data: bytes.Clone(data)})
			}
		}
		b.mu.Unlock()
		return next(file, data)
	}
}

// String names the needs; it is "" where there are none, or more than it reads.
func (b *Brief) String() string {
	if b.size > maxBrief {
		return ""
	}
	var words []string
	secrets := 0
	for _, n := range Of(b.files) {
		switch n.Kind {
		case Version:
			words = append(words, "Kubernetes "+n.Name)
		case CSIDriver:
			words = append(words, strings.Replace("the CSI driver "+n.Name, "the CSI driver csi.spiffe.io", "SPIRE with its CSI driver", 1))
		case Keycloak:
			words = append(words, "Keycloak at "+n.Name)
		case PodSecurity:
			if n.Name == Levels[len(Levels)-1] {
				words = append(words, "Pod Security privileged in "+InNamespace(n.Namespace))
			}
		case Secret:
			secrets++
		case Requests:
			words = append(words, n.Name+" for sidecars")
		}
	}
	if secrets > 0 {
		words = append(words, text.Count(secrets, "Secret"))
	}
	return strings.Join(words, ", ")
}

// Line is the sentence for a person who rendered a path.
func (b *Brief) Line(path string) string {
	if needs := b.String(); needs != "" {
		return fmt.Sprintf("needs: %s: see armature check %s\n", needs, path)
	}
	return fmt.Sprintf("armature check %s prints what a cluster needs for it\n", path)
}
