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

// Comparison compares a folder with the output of a render.
type Comparison struct {
	path    string
	inPlace bool
	pkg     string

	mu             sync.Mutex
	files, removed []string
	found          []Difference
}

// Difference is a file that a render would write, change or remove.
type Difference struct {
	File string // with the path of the folder
	Text []byte // a unified diff
}

// NewComparison prepares to compare a folder that an earlier render wrote or, with inPlace, the
// source folder.
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

// Write receives a rendered file, as a Sink. It may be called from many goroutines.
func (c *Comparison) Write(file string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if data == nil {
		c.removed = append(c.removed, file)
		return nil
	}
	c.files = append(c.files, file)
	return c.compare(file, data)
}

// For sets the package with which the folder is compared.
func (c *Comparison) For(path string) (err error) {
	if !c.inPlace {
		c.pkg, err = packageFor(c.path, path)
	}
	return err
}

// Abort does nothing, because a Comparison writes nothing.
func (c *Comparison) Abort() error { return nil }

// compare compares a file with its rendered content, which is nil if the render removes it.
func (c *Comparison) compare(file string, rendered []byte) error {
	name := filepath.ToSlash(filepath.Join(c.path, filepath.FromSlash(file)))
	existing, err := readFile(below(c.path, file), nil)
	missing := errors.Is(err, os.ErrNotExist)
	switch {
	case err != nil && !missing:
		return err
	case missing && rendered == nil, !missing && rendered != nil && bytes.Equal(existing, rendered):
		return nil
	}
	difference := []byte(name + " differs; it has a Secret, whose values are not shown\n")
	if !secret().Match(existing) && !secret().Match(rendered) {
		before, after := name, name
		if missing {
			before = os.DevNull
		}
		if rendered == nil {
			after = os.DevNull
		}
		difference = diff.Diff(before, existing, after, rendered)
	}
	c.found = append(c.found, Difference{File: name, Text: difference})
	return nil
}

var secret = text.Pattern(`\bSecret\b`)

// Differences returns the differences of all files by name.
func (c *Comparison) Differences() ([]Difference, error) {
	slices.Sort(c.files)
	removed := c.removed
	if !c.inPlace {
		before, err := readFile(filepath.Join(c.path, ListFile), nil)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		_, listed := readList(before)
		removed = dropped(listed, c.files)
		if err := c.compare(ListFile, listOf(c.pkg, c.files)); err != nil {
			return nil, err
		}
	}
	for _, file := range removed {
		if err := c.compare(file, nil); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(c.found, func(a, b Difference) int { return strings.Compare(a.File, b.File) })
	return c.found, nil
}
