package ci

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// recorded is a copy of what make reads, in which every script of e2e only writes
// its name and arguments to the file that is returned; those in real are real.
func recorded(t *testing.T, real ...string) (dir, record string) {
	t.Helper()
	dir, record = t.TempDir(), filepath.Join(t.TempDir(), "record")
	for _, pattern := range []string{"Makefile", "*/*.mk", "*/*/*.mk", "e2e/*.sh"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v %v", pattern, files, err)
		}
		for _, file := range files {
			name, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, ".sh") && !strings.Contains(strings.Join(real, " "), name) {
				text = []byte("#!/bin/bash\necho " + filepath.Base(name) + " \"$@\" >>" + record + "\n")
			}
			write(t, filepath.Join(dir, name), string(text))
		}
	}
	return dir, record
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestMakeOnlyPrints: make -n of each target prints what it would do, and runs
// nothing.
func TestMakeOnlyPrints(t *testing.T) {
	for _, target := range []string{"check", "test-e2e", "e2e", "bench", "cluster-up", "demo-build"} {
		dir, record := recorded(t)
		out, err := shell(t, dir, nil, "make", "-n", target)
		if err != nil {
			t.Fatalf("%s: %v\n%s", target, err, out)
		}
		if ran, err := os.ReadFile(record); err == nil {
			t.Errorf("make -n %s ran:\n%s", target, ran)
		}
	}
}

// TestStoriesBeginWithWhatIsMissing: what a machine lacks for the stories is named
// before anything is built.
func TestStoriesBeginWithWhatIsMissing(t *testing.T) {
	for missing, script := range map[string]string{
		"Debian packages that are missing: containerd": "packages.sh",
		"it takes root": "can.sh",
	} {
		dir, record := recorded(t, "e2e/run.sh")
		write(t, filepath.Join(dir, "e2e", script), "#!/bin/bash\necho '"+missing+"'\nexit 1\n")
		for _, program := range []string{"make", "go"} {
			write(t, filepath.Join(dir, "stubs", program),
				"#!/bin/bash\necho "+program+" \"$@\" >>"+record+"\n")
		}
		out, err := shell(t, dir,
			map[string]string{"PATH": filepath.Join(dir, "stubs") + ":" + os.Getenv("PATH")},
			"e2e/run.sh")
		ran, _ := os.ReadFile(record)
		if err == nil || !strings.Contains(out, missing) || strings.Contains(string(ran), "make") ||
			strings.Contains(string(ran), "go ") {
			t.Errorf("%s: %v\n%s\nran before:\n%s", missing, err, out, ran)
		}
	}
}

// TestStoriesHaveTheirPrograms: the programs that stories run beside the cluster's
// are built before it starts, and one that is missing is a failure.
func TestStoriesHaveTheirPrograms(t *testing.T) {
	dir, record := recorded(t, "e2e/run.sh")
	for program, does := range map[string]string{"make": "",
		"go": "echo peers are $ARMATURE_TEST_PEERS >>" + record} {
		write(t, filepath.Join(dir, "stubs", program),
			"#!/bin/bash\necho "+program+" \"$@\" >>"+record+"\n"+does+"\n")
	}
	write(t, filepath.Join(dir, ".cache/bin/cluster"),
		"#!/bin/bash\necho cluster \"$@\" >>"+record+"\n")
	out, err := shell(t, dir,
		map[string]string{"PATH": filepath.Join(dir, "stubs") + ":" + os.Getenv("PATH")}, "e2e/run.sh")
	ran, _ := os.ReadFile(record)
	before, after, up := strings.Cut(string(ran), "cluster up")
	if err != nil || !up ||
		!strings.Contains(before, "make --no-print-directory story-programs\n") ||
		!strings.Contains(after, "peers are required") {
		t.Errorf("%v\n%s\nran:\n%s", err, out, ran)
	}
	programs, err := shell(t, dir, nil, "make", "-n", "story-programs")
	if err != nil {
		t.Fatal(err, programs)
	}
	for _, program := range []string{"argocd", "cosign", "cosign3"} {
		if !strings.Contains(programs, "e2e/build.sh "+program) {
			t.Errorf("%s is not built:\n%s", program, programs)
		}
	}
}

// Programs of tests are linked once for all tiers, and what is linked anew takes the place of
// what was there.
func TestLinksAreKept(t *testing.T) {
	dir, _ := recorded(t, "e2e/link.sh")
	record := filepath.Join(dir, "record")
	tool := filepath.Join(dir, "link")
	write(t, tool,
		"#!/bin/bash\necho linked >>"+record+"\n[ $# = 1 ] || echo program of \"$4\" >\"$3\"\n")
	for _, c := range []struct {
		of, id string
		links  int
	}{
		{"a.example/x.test", "one", 1}, {"a.example/x.test", "one", 1},
		{"a.example/y.test", "one", 2}, {"a.example/x.test", "two", 3},
		{"a.example/x.test", "one", 4}, {"a.example/x", "one", 5}, {"a.example/x", "one", 6},
	} {
		out := filepath.Join(t.TempDir(), "x.test")
		env := map[string]string{"TOOLEXEC_IMPORTPATH": c.of}
		printed, err := shell(t, dir, env, "e2e/link.sh", tool, "-x", "-o", out,
			"-buildid="+c.id+"/of/"+c.id, "-w")
		if err != nil {
			t.Fatalf("%+v: %v\n%s", c, err, printed)
		}
		program, err := os.ReadFile(out)
		if err != nil || !strings.Contains(string(program), c.id) {
			t.Errorf("%+v: %v: %s", c, err, program)
		}
		if ran, _ := os.ReadFile(record); strings.Count(string(ran), "linked") != c.links {
			t.Errorf("%+v: linked %d times, want %d", c, strings.Count(string(ran), "linked"), c.links)
		}
	}
	if out, err := shell(t, dir, map[string]string{"TOOLEXEC_IMPORTPATH": "a.example/x.test"},
		"e2e/link.sh", tool, "-V=full"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The first of the README's two commands ends well, shows the default profile without a warning,
// and says what is next.
func TestDemo(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-C", root, "demo")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "authbridge-proxy") ||
		strings.Contains(text, "warning") || !strings.Contains(text, "Next: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestOneKubernetes: what the main module and e2e/kube both compile has one version, so
// that compiling one of them compiles much of the other.
func TestOneKubernetes(t *testing.T) {
	versions := func(dir string) map[string]string {
		cmd := exec.Command("go", "mod", "edit", "-json")
		cmd.Dir = filepath.Join(root, dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go mod edit in %s: %v", dir, err)
		}
		type version struct{ Path, Version string }
		var file struct {
			Require []version
			Replace []struct{ Old, New version }
		}
		if err := json.Unmarshal(out, &file); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, m := range file.Require {
			all[m.Path] = m.Version
		}
		for _, r := range file.Replace {
			if _, ok := all[r.Old.Path]; ok {
				all[r.Old.Path] = r.New.Version
			}
		}
		return all
	}
	main, kube := versions("."), versions("e2e/kube")
	shared := 0
	for path, version := range kube {
		if ours, ok := main[path]; ok {
			if shared++; version != ours {
				t.Errorf("%s is %s in e2e/kube/go.mod and %s in go.mod: require the same, then "+
					"run go mod tidy in both", path, version, ours)
			}
		}
	}
	if _, ok := main["k8s.io/client-go"]; !ok || shared < 80 {
		t.Errorf("the two modules share %d modules, and at least 80 were expected", shared)
	}
}

// TestOneCache: go test and an editor find in Go's cache what make compiles with its flags.
func TestOneCache(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	flag := regexp.MustCompile(`'(-toolexec=[^']+)'`).FindSubmatch(makefile)
	if flag == nil && strings.Contains(string(makefile), "toolexec") {
		t.Fatal("the Makefile has a -toolexec that this test does not understand")
	} else if flag == nil {
		return // make compiles without a flag of its own
	}
	built := func(flags ...string) string {
		t.Helper()
		cmd := exec.Command("go",
			append(append([]string{"list", "-export", "-f", "{{.BuildID}}"}, flags...),
				"sigs.k8s.io/yaml")...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "GOFLAGS=-buildvcs=false")
		out, err := cmd.Output()
		if err != nil || len(out) == 0 {
			t.Fatalf("go list %v: %v", flags, err)
		}
		return string(out)
	}
	if plain, made := built(), built(string(flag[1])); plain != made {
		t.Errorf("with %s a package is %s, and without %s: they are compiled twice", flag[1], made, plain)
	}
}
