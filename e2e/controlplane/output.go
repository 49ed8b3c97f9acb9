package controlplane

import (
	"strings"
	"sync"
)

// Output is what a program or a logger has written so far, and may be read while
// it writes on. The zero value is ready to use.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
