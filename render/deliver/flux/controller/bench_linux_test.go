package controller_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
)

// The benchmark's source: packages in one repository, with workloads that all opt in.
const (
	benchPackages = 200
	benchObjects  = 50
)

// resting is how long a controller is watched that has nothing to do.
const resting = 20 * time.Second

// benchFiles are the files of the source; kustomizations lists each package for kustomize.
func benchFiles(b *testing.B, change string, kustomizations bool) map[string]string {
	b.Helper()
	files := map[string]string{}
	for p := range benchPackages {
		folder, list := fmt.Sprintf("apps/%03d/", p), "resources:\n"
		for i := range benchObjects {
			var text bytes.Buffer
			if err := workload.Write(&text, p*benchObjects+i); err != nil {
				b.Fatal(err)
			}
			name := fmt.Sprintf("agent-%02d.yaml", i)
			files[folder+name] = strings.Replace(text.String(), "gitops", change, 1)
			list += "- " + name + "\n"
		}
		if kustomizations {
			files[folder+"kustomization.yaml"] = list
		}
	}
	return files
}

// BenchmarkRenderedSources prints how long packages of one repository take from a new
// revision of it to their artifacts, what the controller takes meanwhile and at rest, and
// beside that what Flux's kustomize-controller does of it before it applies: it unpacks
// the archive for each package, and builds with kustomize's library.
func BenchmarkRenderedSources(b *testing.B) {
	w := newWorld(b, controlplane.Start(b))
	folders, err := crdFolders()
	w.must(err)
	w.must(w.plane.InstallCRDs(folders...))
	w.repository("fleet", "c1", benchFiles(b, "first", false))
	for p := range benchPackages {
		w.rendered(fmt.Sprintf("app-%03d", p), "fleet", at(fmt.Sprintf("apps/%03d", p)))
	}
	pid, _ := w.process()
	first := w.allPublished("c1")
	time.Sleep(resting / 4) // the last writes are seen
	before := cpuOf(b, pid)
	time.Sleep(resting)
	rest := cpuOf(b, pid) - before
	before = cpuOf(b, pid)
	data := benchFiles(b, "second", false)
	begun := time.Now()
	w.repository("fleet", "c2", data)
	second := w.allPublished("c2")
	took, used := second.Sub(begun), cpuOf(b, pid)-before
	peak := peakOf(b, pid)

	packed := pack(b, benchFiles(b, "second", true))
	digest := archive.Digest(packed)
	var usage, after syscall.Rusage
	w.must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	begun = time.Now()
	for p := range benchPackages {
		files, err := archive.Open(packed, digest, archive.DefaultLimits)
		w.must(err)
		fs := filesys.MakeFsInMemory()
		for name, data := range files {
			if strings.HasPrefix(name, fmt.Sprintf("apps/%03d/", p)) {
				w.must(fs.WriteFile(name, data))
			}
		}
		made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs,
			fmt.Sprintf("apps/%03d", p))
		w.must(err)
		text, err := made.AsYaml()
		w.must(err)
		if n := bytes.Count(text, []byte("\nkind: ")); n != benchObjects {
			b.Fatalf("kustomize built %d objects", n)
		}
	}
	kustomize := time.Since(begun)
	w.must(syscall.Getrusage(syscall.RUSAGE_SELF, &after))
	kustomizeCPU := time.Duration(after.Utime.Nano() + after.Stime.Nano() - usage.Utime.Nano() -
		usage.Stime.Nano())

	fmt.Printf("\n%d packages of %d objects in one repository, archive of %d KiB:\n\n",
		benchPackages, benchObjects, len(packed)>>10)
	fmt.Println("| | time | CPU | peak memory |\n|---|---|---|---|")
	fmt.Printf("| RenderedSources, new revision to the last artifact, in the cluster | %.1f s | "+
		"%.1f s | %d MiB |\n", took.Seconds(), used.Seconds(), peak>>20)
	fmt.Printf("| RenderedSources at rest, %.0f s | | %.2f s | |\n", resting.Seconds(), rest.Seconds())
	fmt.Printf("| unpacking and building by kustomize's library, one after the other | %.1f s | "+
		"%.1f s | |\n\n", kustomize.Seconds(), kustomizeCPU.Seconds())
	if first.After(second) {
		b.Fatal("the second revision was published first")
	}
	b.ReportMetric(0, "ns/op") // the table has what matters
}

// allPublished waits until every package has published a revision, and returns the time.
func (w *world) allPublished(revision string) time.Time {
	w.Helper()
	deadline := time.Now().Add(15 * time.Minute)
	for {
		var all api.RenderedSourceList
		w.must(w.List(w.Context(), &all, client.InNamespace(w.namespace)))
		done := 0
		for _, s := range all.Items {
			if a := s.Status.Artifact; a != nil && a.OriginRevision == "main@sha1:"+revision &&
				a.Objects >= benchObjects {
				done++
			}
		}
		if done == benchPackages {
			return time.Now()
		}
		if time.Now().After(deadline) {
			w.Fatalf("%d of %d packages have published %s", done, benchPackages, revision)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// cpuOf is the user and system time of a process so far.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// proc(5): behind the name, which ends with the last parenthesis, utime and stime
	// are the 12th and 13th fields, in ticks of 10 ms.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// peakOf is the most memory that a process has had, in bytes.
func peakOf(b *testing.B, pid int) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib << 10
}
