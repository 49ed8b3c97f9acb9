package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// corpus is a number of workloads in the forms that the programs take. It
// lives in a folder of its own.
type corpus struct {
	n      int
	folder string
	// sizes of the authored and of the rendered bytes, and of the rendered stream
	input, rendered, stream int64
	used                    int // folders that were written to
}

func (c *corpus) path(name string) string { return filepath.Join(c.folder, name) }

// newCorpus generates the workloads as files, as a stream and as a
// ResourceList, and renders the files once to learn the sizes.
func newCorpus(bin *binaries, work string, n int) (*corpus, error) {
	c := &corpus{n: n, folder: filepath.Join(work, fmt.Sprint(n))}
	if err := os.MkdirAll(c.folder, 0o755); err != nil {
		return nil, err
	}
	count := fmt.Sprint(n)
	for _, args := range [][]string{
		{bin.gen, "-n", count, "-out", c.path("in")},
		{bin.gen, "-n", count, "-out", c.path("all.yaml"), "-stream"},
		{bin.gen, "-n", count, "-out", c.path("list.yaml"), "-resourcelist"},
		{bin.armature, "render", "-q", c.path("in"), "-o", c.path("rendered")},
	} {
		if err := command(args...); err != nil {
			return nil, err
		}
	}
	if err := redirect(c.path("all.yaml"), c.path("all.rendered.yaml"), bin.armature, "render", "-q", "-"); err != nil {
		return nil, err
	}
	if err := redirect(c.path("list.yaml"), c.path("list.rendered.yaml"), bin.armatureFn); err != nil {
		return nil, err
	}
	info, err := os.Stat(c.path("all.rendered.yaml"))
	if err != nil {
		return nil, err
	}
	c.stream = info.Size()
	return c, c.weigh()
}

// weigh writes the list of files with the sizes of their renders.
func (c *corpus) weigh() error {
	f, err := os.Create(c.path("sizes"))
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	err = filepath.WalkDir(c.path("in"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(c.path("in"), path)
		if err != nil {
			return err
		}
		in, err := d.Info()
		if err != nil {
			return err
		}
		out, err := os.Stat(filepath.Join(c.path("rendered"), relative))
		if err != nil {
			return err
		}
		c.input, c.rendered = c.input+in.Size(), c.rendered+out.Size()
		_, err = fmt.Fprintln(w, relative, out.Size())
		return err
	})
	if err != nil {
		return err
	}
	return w.Flush()
}

// sample is a rendered workload.
func (c *corpus) sample() string { return c.path("rendered/team-000/agent-00000.yaml") }

// fresh gives a preparation that moves a folder out of the way. It is deleted
// much later, with the corpus: a file system that has just deleted ten thousand
// files makes new ones slowly.
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

// kustomization writes a package that lists all workloads for kustomize.
func (c *corpus) kustomization(name, rest string, files map[string]string) error {
	folder := c.path(name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(folder, "in"), os.DirFS(c.path("in"))); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	sizes, err := os.Open(c.path("sizes"))
	if err != nil {
		return err
	}
	defer sizes.Close()
	lines := bufio.NewScanner(sizes)
	for lines.Scan() {
		file, _, _ := strings.Cut(lines.Text(), " ")
		b.WriteString("- in/" + file + "\n")
	}
	b.WriteString(rest)
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, firstLines(string(out)))
	}
	return nil
}

func redirect(stdin, stdout string, args ...string) error {
	s := subject{name: args[0], args: args, stdin: stdin, stdout: stdout}
	_, err := s.run()
	return err
}
