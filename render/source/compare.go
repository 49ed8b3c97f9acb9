package source

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/armature-dev/armature/functions/text"
)

// Comparison compares a folder with what a render would write to it.
type Comparison struct {
	path    string
	inPlace bool
	pkg     string

	mu          sync.Mutex
	files, gone []string
	found       []Difference
}

// Difference is a file that a render would write, change or remove.
type Difference struct {
	File string // with the path of the folder
	Text []byte // a unified diff
}

// NewComparison prepares to compare a folder, in which a render has been before, or,
// inPlace, the one that is read.
func NewComparison(path string, inPlace bool) (*Comparison, error) {
	c := &Comparison{path: filepath.Clean(path), inPlace: inPlace}
	info, err := os.Stat(c.path)
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err
	case err == nil && !info.IsDir():
		return nil, notFolder(path)
	}
	return c, nil
}

// Write is the Sink. It may be called from many goroutines.
func (c *Comparison) Write(file string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if data == nil {
		c.gone = append(c.gone, file)
		return nil
	}
	c.files = append(c.files, file)
	return c.compare(file, data)
}

// For names the package that the folder is compared with.
func (c *Comparison) For(path string) (err error) {
	if !c.inPlace {
		c.pkg, err = packageFor(c.path, path)
	}
	return err
}

// Abort has nothing to take away.
func (c *Comparison) Abort() error { return nil }

// compare a file with what a render makes of it, nil for nothing.
func (c *Comparison) compare(file string, is []byte) error {
	shown := filepath.ToSlash(filepath.Join(c.path, filepath.FromSlash(file)))
	was, err := readFile(below(c.path, file), nil)
	missing := errors.Is(err, os.ErrNotExist)
	switch {
	case err != nil && !missing:
		return err
	case missing && is == nil, !missing && is != nil && bytes.Equal(was, is):
		return nil
	}
	difference := []byte(shown + " differs; it has a Secret, whose values are not shown\n")
	if !secret().Match(was) && !secret().Match(is) {
		before, after := shown, shown
		if missing {
			before = os.DevNull
		}
		if is == nil {
			after = os.DevNull
		}
		difference = diff.Diff(before, was, after, is)
	}
	c.found = append(c.found, Difference{File: shown, Text: difference})
	return nil
}

var secret = text.Pattern(`\bSecret\b`)

// Differences are those of all files, by name.
func (c *Comparison) Differences() ([]Difference, error) {
	slices.Sort(c.files)
	gone := c.gone
	if !c.inPlace {
		before, err := os.ReadFile(filepath.Join(c.path, ListFile))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		_, listed := readList(before)
		gone = dropped(listed, c.files)
		if err := c.compare(ListFile, listOf(c.pkg, c.files)); err != nil {
			return nil, err
		}
	}
	for _, file := range gone {
		if err := c.compare(file, nil); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(c.found, func(a, b Difference) int { return strings.Compare(a.File, b.File) })
	return c.found, nil
}
