package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/armature-dev/armature/render"
)

// unshown is how long a command may take before it says what it does.
const unshown = 2 * time.Second

// activity says on a terminal what a command is at, once that takes long: in one line
// of standard error that moves, and that is gone when the activity ends. Elsewhere, and
// as nil, it says nothing.
type activity struct {
	began time.Time
	line  *progress
	stop  chan struct{}
	done  chan struct{}
	ended sync.Once
	text  atomic.Value // func() string
}

// begin an activity of a command whose standard error is w. It has to be ended before
// the command writes or asks anything.
func begin(w io.Writer, quiet bool, text string) *activity {
	line := newProgress(w)
	if quiet || !line.terminal {
		return nil
	}
	a := &activity{began: time.Now(), line: line, stop: make(chan struct{}), done: make(chan struct{})}
	a.show(func() string { return text })
	go a.run()
	return a
}

// show another text from now on.
func (a *activity) show(text func() string) {
	if a != nil {
		a.text.Store(text)
	}
}

func (a *activity) run() {
	defer close(a.done)
	wait := time.NewTimer(unshown)
	defer wait.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-wait.C:
			text := a.text.Load().(func() string)()
			a.line.line(fmt.Sprintf("%s, %s", text, time.Since(a.began).Truncate(time.Second)))
			wait.Reset(200 * time.Millisecond)
		}
	}
}

// end takes the line away. Only the first call does something.
func (a *activity) end() {
	if a == nil {
		return
	}
	a.ended.Do(func() {
		close(a.stop)
		<-a.done
		if a.line.text != "" {
			a.line.end()
		}
	})
}

// reading shows how many files of a source have been read, of those that will be.
func (a *activity) reading(doing string, src render.Source) render.Source {
	read, total := src.Read, len(src.Files)
	if a == nil || read == nil {
		return src
	}
	var n atomic.Int64
	src.Read = func(file string, buf []byte) ([]byte, error) {
		n.Add(1)
		return read(file, buf)
	}
	a.show(func() string { return fmt.Sprintf("%s: %d of %d files", doing, min(int(n.Load()), total), total) })
	return src
}

// transfer shows how many bytes have gone; it is nil where nothing is shown.
func (a *activity) transfer(doing string) func(done, total int64) {
	if a == nil {
		return nil
	}
	return func(done, total int64) {
		a.show(func() string { return fmt.Sprintf("%s: %d of %d KiB", doing, done>>10, total>>10) })
	}
}
