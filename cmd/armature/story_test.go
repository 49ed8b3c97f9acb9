package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/armature-dev/armature/e2e/page"
)

// pages is the root of the repository.
var pages, _ = filepath.Abs("../..")

// TestStories runs testdata/stories. Beside testscript's own commands they have
//
//	armature ARGS… [<FILE]   runs the command in this process, with a standard input
//	exits STATUS armature…   the same, for another exit status than that of a failure
//	exec armature ARGS…      runs the real program, for what pipes, signals and builds make of it
//	big FILE BYTES        writes a file of comment lines
//	octal FILE TEXT       writes text in which \377 and the like are bytes
//	workloads FOLDER N    writes N files of a workload each
//	interrupt FILE CMD…   runs a command, sends it SIGINT once FILE is there
//	                      (or, for -, once it reads its input), and expects it to fail
//	mode MODE FILE        changes permissions
//	page PAGE COMMAND     runs the block of a page that begins with COMMAND, and
//	                      compares its output with what the page shows
func TestStories(t *testing.T) {
	bin, homes := filepath.Dir(buildArmature(t).file), t.TempDir()
	testscript.Run(t, testscript.Params{
		// absolute, because commands change the folder
		Dir: filepath.Join(pages, "cmd/armature/testdata/stories"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+searched)
			// testscript's is /no-home, which root can make
			env.Setenv("HOME", filepath.Join(homes, filepath.Base(env.WorkDir)))
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %s", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"armature":  storyCommand,
			"exits":     storyExits,
			"big":       big,
			"octal":     octal,
			"workloads": workloads,
			"interrupt": interrupt,
			"mode":      mode,
			"page":      playPage,
		},
	})
}

func big(ts *testscript.TestScript, _ bool, args []string) {
	var size int
	_, err := fmt.Sscan(args[1], &size)
	ts.Check(err)
	f, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	line := []byte("# " + strings.Repeat("x", 1021) + "\n")
	for range size / len(line) {
		_, err := f.Write(line)
		ts.Check(err)
	}
	ts.Check(f.Close())
}

func octal(ts *testscript.TestScript, _ bool, args []string) {
	text := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\377`, "\377", `\376`, "\376", `\211`,
		"\211", `\032`, "\032", `\357\273\277`, "\357\273\277", `\000`, "\x00", `\r`, "\r").Replace(
		args[1])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}

func workloads(ts *testscript.TestScript, _ bool, args []string) {
	var n int
	_, err := fmt.Sscan(args[1], &n)
	ts.Check(err)
	ts.Check(os.MkdirAll(ts.MkAbs(args[0]), 0o755))
	for i := range n {
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: p%d\n  labels:\n"+
			"    kagenti.io/inject: enabled\nspec:\n  containers:\n  - name: app\n", i)
		ts.Check(os.WriteFile(filepath.Join(ts.MkAbs(args[0]), fmt.Sprintf("%d.yaml", i)),
			[]byte(text), 0o644))
	}
}

func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	path, err := exec.LookPath(
		filepath.Join(strings.Split(ts.Getenv("PATH"), string(filepath.ListSeparator))[0], args[1]))
	ts.Check(err)
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.Getenv("WORK")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe() // open until the command ends: it waits for more
	ts.Check(err)
	ts.Check(cmd.Start())
	for deadline := time.Now().Add(time.Minute); args[0] != "-"; time.Sleep(time.Millisecond) {
		if found, _ := filepath.Glob(ts.MkAbs(args[0])); len(found) > 0 {
			break
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s never came", args[0])
		}
	}
	if args[0] == "-" {
		// No pipe holds that much: once it is written, the command reads, and listens to signals.
		_, err := stdin.Write(bytes.Repeat([]byte("# comment\n"), 1<<17))
		ts.Check(err)
	}
	ts.Check(cmd.Process.Signal(syscall.SIGINT))
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err == nil {
			ts.Fatalf("the command succeeded")
		}
	case <-time.After(time.Minute):
		ts.Check(cmd.Process.Kill())
		ts.Fatalf("the command does not end")
	}
	if !strings.Contains(stderr.String(), "interrupted: nothing was written") {
		ts.Fatalf("stderr: %s", stderr.String())
	}
}

func playPage(ts *testscript.TestScript, fails bool, args []string) {
	text, err := os.ReadFile(filepath.Join(pages, args[0]))
	ts.Check(err)
	script, shown, err := page.Block(string(text), args[1])
	ts.Check(err)
	err = ts.Exec("bash", "-euo", "pipefail", "-c", "exec 2>&1\n"+script)
	out := ts.ReadFile("stdout")
	if (err != nil) != fails {
		ts.Fatalf("%s: %s: %v\n%s", args[0], args[1], err, out)
	}
	missing, err := page.Missing(shown, "== line 1\n"+out)
	ts.Check(err)
	if len(missing) > 0 {
		ts.Fatalf("%s: %s: not printed: %q\n%s", args[0], args[1], missing, out)
	}
}

func mode(ts *testscript.TestScript, _ bool, args []string) {
	var m uint32
	_, err := fmt.Sscanf(args[0], "%o", &m)
	ts.Check(err)
	ts.Check(os.Chmod(ts.MkAbs(args[1]), os.FileMode(m)))
}
