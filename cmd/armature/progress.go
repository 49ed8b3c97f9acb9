package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/armature-dev/armature/render/apply"
)

// progress shows, on a terminal, one line that moves and below it a table of what is
// not healthy yet. Elsewhere it prints a line now and then, and each reason at once.
type progress struct {
	w        io.Writer
	terminal bool
	size     func() (width, height int)
	lock     sync.Mutex
	last     time.Time
	text     string          // of the line
	below    int             // lines of the table
	reported map[string]bool // reasons
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, last: time.Now(), reported: make(map[string]bool)}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.terminal = true
		p.size = func() (int, int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil || width == 0 { // a terminal that does not know its size
				return 80, 24
			}
			return width, height
		}
	}
	return p
}

func (p *progress) line(text string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	text = oneLine(text)
	switch {
	case strings.HasPrefix(text, "warning: "), strings.HasPrefix(text, "nudged "):
		p.clear()
		fmt.Fprintln(p.w, text)
	case p.terminal:
		p.clear()
		p.text = text
		fmt.Fprint(p.w, p.cut(text))
	case time.Since(p.last) > 10*time.Second:
		fmt.Fprintln(p.w, text)
		p.last = time.Now()
	}
}

// waiting shows what is not healthy yet.
func (p *progress) waiting(all []apply.Waiting) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.terminal {
		p.table(all)
		return
	}
	for _, w := range all {
		for _, pod := range w.Pods {
			key := w.Title() + "\n" + pod.Pod + "\n" + pod.Reason
			if !p.reported[key] {
				p.reported[key] = true
				fmt.Fprintf(p.w, "%s: %s\n", w.Title(), oneLine(pod.String()))
			}
		}
	}
}

// table draws one row for each object and, below it, one for each of its pods that
// is in trouble, as far as the terminal goes.
func (p *progress) table(all []apply.Waiting) {
	var text strings.Builder
	rows := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	fmt.Fprintln(rows, "OBJECT\tSTATUS\tMESSAGE")
	for _, w := range all {
		fmt.Fprintf(rows, "%s\t%s\t%s\n", w.Title(), w.Status, oneLine(w.Message))
		for _, pod := range w.Pods {
			fmt.Fprintf(rows, "  pod %s\t%s\t%s\n", pod.Pod, oneLine(pod.Reason), oneLine(pod.Message))
		}
	}
	_ = rows.Flush() // a strings.Builder takes all
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if _, height := p.size(); len(lines) > height-2 {
		lines = lines[:max(height-2, 0)]
	}
	p.clear()
	fmt.Fprint(p.w, p.cut(p.text))
	for _, l := range lines {
		fmt.Fprint(p.w, "\n"+p.cut(l))
	}
	p.below = len(lines)
}

// cut keeps a line from going over to the next.
func (p *progress) cut(line string) string {
	runes := []rune(line)
	width, _ := p.size()
	return string(runes[:min(len(runes), max(width-1, 0))])
}

// clear takes away the line and the table.
func (p *progress) clear() {
	if !p.terminal {
		return
	}
	if p.below > 0 {
		fmt.Fprintf(p.w, "\033[%dA", p.below)
	}
	fmt.Fprint(p.w, "\r\033[J")
	p.below = 0
}

func (p *progress) end() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.clear()
}
