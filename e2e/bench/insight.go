package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// insight is target 9: what people wait for at their desks and in a pull
// request. A finding or a difference is part of the work.
func (o *options) insight(bin *binaries, r *report) error {
	const n = 1000
	c, err := newCorpus(bin, o.work, n)
	if err != nil {
		return err
	}
	defer os.RemoveAll(c.folder)
	in := c.path("in")
	files, err := filepath.Glob(filepath.Join(in, "*", "*.yaml"))
	if err != nil {
		return err
	}
	subjects := []*subject{
		{name: "armature lint", args: []string{bin.armature, "lint", "-q", in}, stdout: c.path("lint.out")},
		{name: "armature explain, one file", args: []string{bin.armature, "explain", "--package", in, files[n/2]}, stdout: c.path("explain.out")},
	}
	const promise = " in a package of 1,000 workloads: under a second of CPU"
	if _, err := exec.LookPath("git"); err != nil {
		r.unknown(9, "armature diff --against"+promise, "no git at hand")
	} else {
		if err := commitThenChange(in, files, n/100); err != nil {
			return err
		}
		subjects = append(subjects, &subject{name: "armature diff --against", args: []string{bin.armature, "diff", in, "--against", "HEAD"}, stdout: c.path("diff.out")})
	}
	costs, err := measure(5, subjects...)
	if err != nil {
		return err
	}
	for i, s := range subjects {
		r.add(9, costs[i].CPU < time.Second, s.name+promise, "%s CPU, %s wall, %s", show(costs[i].CPU), show(costs[i].Wall), mebibytes(costs[i].Peak))
	}
	return nil
}

// commitThenChange makes a repository of a folder, and then gives some of its
// files another image.
func commitThenChange(folder string, files []string, some int) error {
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "-A"},
		{"-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "-qm", "all"},
	} {
		if err := command(append([]string{"git", "-C", folder}, args...)...); err != nil {
			return err
		}
	}
	for _, file := range files[:some] {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, bytes.Replace(data, []byte("image: "), []byte("image: mirror.example/"), 1), 0o644); err != nil {
			return err
		}
	}
	return nil
}
