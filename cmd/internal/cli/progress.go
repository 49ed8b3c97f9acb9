package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// Progress shows one line that changes on a terminal, and prints a line from time to time
// elsewhere. Warnings, such as why a pod does not run, are lines that stay.
type Progress struct {
	w        io.Writer
	terminal bool
	width    func() int
	lock     sync.Mutex
	last     time.Time
	text     string // of the line that changes
}

// NewProgress returns a Progress for a writer, which may be a terminal.
func NewProgress(w io.Writer) *Progress {
	p := &Progress{w: w, last: time.Now(), terminal: IsTerminal(w)}
	if p.terminal {
		p.width = func() int {
			width, _, err := term.GetSize(int(w.(*os.File).Fd()))
			if err != nil || width == 0 { // a terminal that does not know its size
				return 80
			}
			return width
		}
	}
	return p
}

// Line shows a text.
func (p *Progress) Line(text string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	text = OneLine(text)
	switch {
	case strings.HasPrefix(text, "warning: "), strings.HasPrefix(text, "nudged "):
		p.clear()
		fmt.Fprintln(p.w, text)
		fmt.Fprint(p.w, p.text)
	case p.terminal:
		runes := []rune(text)
		p.clear()
		// The line must not wrap.
		p.text = string(runes[:min(len(runes), max(p.width()-1, 0))])
		fmt.Fprint(p.w, p.text)
	case time.Since(p.last) > 10*time.Second:
		fmt.Fprintln(p.w, text)
		p.last = time.Now()
	}
}

func (p *Progress) clear() {
	if p.terminal {
		fmt.Fprint(p.w, "\r\033[J")
	}
}

// End removes the line that changes.
func (p *Progress) End() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.clear()
	p.text = ""
}

// Unshown is how long a command runs before it shows its activity.
const Unshown = 2 * time.Second

// Activity shows on a terminal what a command does, if that takes long: in a line of standard error
// that changes, and that End removes. Elsewhere, and as nil, it shows nothing.
type Activity struct {
	began time.Time
	line  *Progress
	text  atomic.Value // func() string
	lock  sync.Mutex
	timer *time.Timer // nil once it has ended
}

// Begin starts an activity of a command whose standard error is w. It has to be ended before the
// command writes or asks anything.
func Begin(w io.Writer, quiet bool, text string) *Activity {
	line := NewProgress(w)
	if quiet || !line.terminal {
		return nil
	}
	a := &Activity{began: time.Now(), line: line}
	a.Show(func() string { return text })
	a.lock.Lock()
	defer a.lock.Unlock()
	a.timer = time.AfterFunc(Unshown, a.tick)
	return a
}

// Show replaces the text.
func (a *Activity) Show(text func() string) {
	if a != nil {
		a.text.Store(text)
	}
}

func (a *Activity) tick() {
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.timer != nil {
		text := a.text.Load().(func() string)()
		a.line.Line(fmt.Sprintf("%s, %s", text, time.Since(a.began).Truncate(time.Second)))
		a.timer.Reset(200 * time.Millisecond)
	}
}

// End removes the line. Only the first call has an effect.
func (a *Activity) End() {
	if a == nil {
		return
	}
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.timer == nil {
		return
	}
	a.timer.Stop()
	if a.timer = nil; a.line.text != "" {
		a.line.End()
	}
}

// Reading shows how many files of a source have been read.
func (a *Activity) Reading(doing string, src render.Source) render.Source {
	read, total := src.Read, len(src.Files)
	if a == nil || read == nil {
		return src
	}
	var n atomic.Int64
	src.Read = func(file string, buf []byte) ([]byte, error) {
		n.Add(1)
		return read(file, buf)
	}
	a.Show(func() string {
		return fmt.Sprintf("%s: %d of %s", doing, min(int(n.Load()), total), text.Count(total, "file"))
	})
	return src
}

// Transfer returns a function that shows how many bytes were transferred, or nil if nothing is
// shown.
func (a *Activity) Transfer(doing string) func(done, total int64) {
	if a == nil {
		return nil
	}
	return func(done, total int64) {
		a.Show(func() string { return fmt.Sprintf("%s: %d of %d KiB", doing, done>>10, total>>10) })
	}
}
