package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
)

// corpus has a number of workloads in the forms that the programs read. It has its own folder.
type corpus struct {
	n      int
	folder string
	used   int // folders that were written to
}

func (c *corpus) path(name string) string { return filepath.Join(c.folder, name) }

// newCorpus writes the workloads as files below in, as a stream and as a ResourceList, renders the
// files, and lists them with the sizes of their renders.
func (b *bench) newCorpus(n int) (*corpus, error) {
	c := &corpus{n: n, folder: filepath.Join(b.work, fmt.Sprint(n))}
	if err := c.write(); err != nil {
		return nil, err
	}
	if err := command(b.armature, "render", "-q", c.path("in"), "-d",
		c.path("rendered")); err != nil {
		return nil, err
	}
	var sizes bytes.Buffer
	for i := range n {
		info, err := os.Stat(c.path(filepath.Join("rendered", workload.File(i))))
		if err != nil {
			return nil, err
		}
		fmt.Fprintln(&sizes, workload.File(i), info.Size())
	}
	return c, os.WriteFile(c.path("sizes"), sizes.Bytes(), 0o644)
}

// write writes the workloads. It keeps one in memory at a time: a child starts with its parent's
// peak, so the parent stays small.
func (c *corpus) write() error {
	for i := 0; i < c.n; i += 100 {
		if err := os.MkdirAll(c.path(filepath.Join("in", filepath.Dir(workload.File(i)))),
			0o755); err != nil {
			return err
		}
	}
	list, err := os.Create(c.path("list.yaml"))
	if err != nil {
		return err
	}
	defer list.Close()
	items := bufio.NewWriter(list)
	fmt.Fprint(items, "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n")
	all, err := os.Create(c.path("all.yaml"))
	if err != nil {
		return err
	}
	defer all.Close()
	stream := bufio.NewWriter(all)
	var text bytes.Buffer
	for i := range c.n {
		text.Reset()
		if err := workload.Write(&text, i); err != nil {
			return err
		}
		writeItem(items, text.Bytes(), i)
		fmt.Fprintf(stream, "---\n%s", text.Bytes())
		if err := os.WriteFile(c.path(filepath.Join("in", workload.File(i))), text.Bytes(),
			0o644); err != nil {
			return err
		}
	}
	return multi.Errors(items.Flush(), stream.Flush())
}

// writeItem writes a workload as a host passes it to a function.
func writeItem(w *bufio.Writer, text []byte, i int) {
	lead := "- "
	_, text, _ = bytes.Cut(text, []byte("\n")) // hosts drop the comment above an object
	for line := range bytes.Lines(text) {
		if len(line) > 1 {
			w.WriteString(lead)
		}
		w.Write(line)
		if lead = "  "; bytes.HasPrefix(line, []byte("  annotations:")) {
			fmt.Fprintf(w,
				"      config.kubernetes.io/path: '%s'\n      config.kubernetes.io/index: '0'\n",
				workload.File(i))
		}
	}
}

// fresh returns a preparation that renames a folder. The folder is deleted much later, with the
// corpus: a file system that has just deleted ten thousand files creates new ones slowly.
func (c *corpus) fresh(name string) func() error {
	return func() error {
		c.used++
		err := os.Rename(c.path(name), c.path(fmt.Sprintf("used-%d", c.used)))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
}

// kustomization writes a package that lists all workloads for kustomize, with a
// program as an exec function.
func (c *corpus) kustomization(name, program string) error {
	folder := c.path(name)
	if err := os.CopyFS(filepath.Join(folder, "in"), os.DirFS(c.path("in"))); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	for i := range c.n {
		b.WriteString("- in/" + workload.File(i) + "\n")
	}
	fmt.Fprintf(&b, `transformers:
- |-
  apiVersion: %s
  kind: RenderConfig
  metadata:
    name: bench
    annotations:
      config.kubernetes.io/function: |
        exec: {path: %q}
`, keys.V1alpha1, program)
	return os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(b.String()), 0o644)
}

// edit replaces text in the files below in of some workloads.
func (c *corpus) edit(some int, old, new string) error {
	for i := range some {
		file := c.path(filepath.Join("in", workload.File(i)))
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, bytes.ReplaceAll(data, []byte(old), []byte(new)),
			0o644); err != nil {
			return err
		}
	}
	return nil
}
