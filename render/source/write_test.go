package source

import (
	"bufio"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMain is also the process that TestStageOfAnotherProcess kills: it writes to
// the folder of the variable, says so, and waits.
func TestMain(m *testing.M) {
	folder := os.Getenv("ARMATURE_TEST_STAGE")
	if folder == "" {
		os.Exit(m.Run())
	}
	f, err := NewFolder(folder, false)
	if err == nil {
		err = f.Write("a.yaml", []byte("a: 1\n"))
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("written\n")
	bufio.NewReader(os.Stdin).ReadString('\n') // which never comes
}

// stages are the names of stages in and beside a folder.
func stagesOf(t *testing.T, folder string) (names []string) {
	t.Helper()
	for _, pattern := range []string{filepath.Join(folder, ".rendering-*"),
		filepath.Join(filepath.Dir(folder), ".*.rendering-*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// TestStageOfAnotherProcess: the stage of a living process stays, that of one
// that was killed is removed by the next render.
func TestStageOfAnotherProcess(t *testing.T) {
	for _, exists := range []bool{true, false} {
		folder := filepath.Join(t.TempDir(), "out")
		if exists {
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "ARMATURE_TEST_STAGE="+folder)
		stdin, err1 := cmd.StdinPipe()
		stdout, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil || cmd.Start() != nil {
			t.Fatal(err1, err2)
		}
		defer stdin.Close()
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "written\n" {
			t.Fatalf("the other process says %q, %v", line, err)
		}
		theirs := stagesOf(t, folder)
		if len(theirs) != 1 {
			t.Fatalf("the other process has the stages %v", theirs)
		}
		once := func() {
			f, err := NewFolder(folder, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Abort(); err != nil {
				t.Fatal(err)
			}
		}
		once()
		if got := stagesOf(t, folder); !slices.Equal(got, theirs) {
			t.Errorf("beside a living process: %v, want %v", got, theirs)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if got := stagesOf(t, folder); !slices.Equal(got, theirs) {
			t.Errorf("after the kill: %v, want %v", got, theirs)
		}
		once()
		if got := stagesOf(t, folder); len(got) != 0 {
			t.Errorf("after the next render: %v", got)
		}
	}
}

// renderedTo writes files to a folder as a render does.
func renderedTo(t *testing.T, folder string, files map[string]string) (removed int, err error) {
	t.Helper()
	f, err := NewFolder(folder, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := f.Write(file, []byte(files[file])); err != nil {
			t.Fatal(err)
		}
	}
	_, removed, err = f.Commit()
	if left := stagesOf(t, folder); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return removed, err
}

// TestFolderBehindLink: a link that somebody put below the output is an error,
// and nothing changes behind it or before it.
func TestFolderBehindLink(t *testing.T) {
	folder, elsewhere := filepath.Join(t.TempDir(), "out"), t.TempDir()
	if _, err := renderedTo(t, folder,
		map[string]string{"a.yaml": "a: 1\n", "sub/b.yaml": "b: 1\n"}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(folder, "sub")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(folder, "sub")); err != nil {
		t.Fatal(err)
	}
	theirs := filepath.Join(elsewhere, "b.yaml")
	if err := os.WriteFile(theirs, []byte("theirs\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string]map[string]string{
		"a file behind it":        {"a.yaml": "a: 2\n", "sub/b.yaml": "b: 2\n"},
		"a new one further below": {"a.yaml": "a: 2\n", "sub/deeper/c.yaml": "c: 2\n"},
		"a file to remove":        {"a.yaml": "a: 2\n"},
	} {
		_, err := renderedTo(t, folder, files)
		if err == nil || !strings.Contains(err.Error(), "sub is a symbolic link") {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(theirs); err != nil || string(got) != "theirs\n" {
			t.Errorf("%s: behind the link is %q, %v", name, got, err)
		}
		if got := entriesOf(t, elsewhere); len(got) != 1 {
			t.Errorf("%s: behind the link are %v", name, got)
		}
		if got, err := os.ReadFile(filepath.Join(folder, "a.yaml")); err != nil ||
			string(got) != "a: 1\n" {
			t.Errorf("%s: another file has changed: %q, %v", name, got, err)
		}
	}
	// A link in the place of a file is replaced, and not written through.
	if err := os.Remove(filepath.Join(folder, "sub")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(theirs, filepath.Join(folder, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := renderedTo(t, folder, map[string]string{"a.yaml": "a: 3\n"}); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(theirs); err != nil || string(got) != "theirs\n" {
		t.Errorf("behind the link is %q, %v", got, err)
	}
}

// TestInPlaceLinkOut: a render in place does not follow a link out of the folder.
func TestInPlaceLinkOut(t *testing.T) {
	folder, theirs := t.TempDir(), filepath.Join(t.TempDir(), "theirs")
	for _, file := range []string{theirs, filepath.Join(folder, "a.yaml")} {
		if err := os.WriteFile(file, []byte("theirs\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"out.yaml": theirs, "in.yaml": "a.yaml"} {
		if err := os.Symlink(target, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	for file, fails := range map[string]bool{"out.yaml": true, "in.yaml": false} {
		f, err := NewFolder(folder, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Write(file, []byte("ours\n")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Commit(); (err != nil) != fails {
			t.Errorf("%s: %v", file, err)
		}
	}
	if got, err := os.ReadFile(theirs); err != nil || string(got) != "theirs\n" {
		t.Errorf("behind the link is %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(folder, "a.yaml")); err != nil || string(got) != "ours\n" {
		t.Errorf("behind the link to a file of the folder is %q, %v", got, err)
	}
}

// TestFolderFailsMidway: the error says how far it came, and another render
// completes it, with nothing left over.
func TestFolderFailsMidway(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "out")
	if _, err := renderedTo(t, folder,
		map[string]string{"b.yaml": "b: 1\n", "c.yaml": "c: 1\n"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(folder, "b.yaml", "theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := renderedTo(t, folder, map[string]string{"a.yaml": "a: 2\n", "b.yaml": "b: 2\n",
		"c.yaml": "c: 2\n"})
	if err == nil || !strings.Contains(err.Error(),
		"1 of 3 files are replaced, and b.yaml and those after it are as they were") {
		t.Errorf("got %v", err)
	}
	for file, want := range map[string]string{"a.yaml": "a: 2\n", "c.yaml": "c: 1\n"} {
		if got, err := os.ReadFile(filepath.Join(folder, file)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", file, got, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(folder, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	// By now the package has no a.yaml, which only the render that failed wrote.
	if removed, err := renderedTo(t, folder,
		map[string]string{"b.yaml": "b: 2\n", "c.yaml": "c: 2\n"}); err != nil || removed != 1 {
		t.Errorf("%d removed, %v", removed, err)
	}
	if got := entriesOf(t, folder); !slices.Equal(got,
		[]string{".armature-files", "b.yaml", "c.yaml"}) {
		t.Errorf("in the folder: %v", got)
	}
}

// TestFolderStage: what is written to a folder that exists never leaves it on
// its way, so that the folder may be a mounted volume. Nothing of it is left.
func TestFolderStage(t *testing.T) {
	parent := t.TempDir()
	folder := filepath.Join(parent, "volume")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(folder)
	if err != nil {
		t.Fatal(err)
	}
	// A render that was killed left its stage, which the next one removes.
	if err := os.Mkdir(filepath.Join(folder, ".rendering-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"a: 1\n", "a: 2\n"} {
		f, err := NewFolder(folder, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"a.yaml", "sub/deeper/b.yaml"} {
			if err := f.Write(file, []byte(data)); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(folder, file)); err == nil && data == "a: 1\n" {
				t.Errorf("%s is there before Commit", file)
			}
		}
		if names := entriesOf(t, parent); len(names) != 1 {
			t.Errorf("beside the folder: %v", names)
		}
		if written, _, err := f.Commit(); err != nil || written != 2 {
			t.Fatal(written, err)
		}
		if got, err := os.ReadFile(filepath.Join(folder, "sub/deeper/b.yaml")); err != nil ||
			string(got) != data {
			t.Errorf("%q, %v", got, err)
		}
		if names := entriesOf(t, folder); len(names) != 3 { // the files and their list
			t.Errorf("in the folder: %v", names)
		}
	}
	after, err := os.Stat(folder)
	if err != nil || !os.SameFile(before, after) {
		t.Error("the folder is another one", err)
	}
}

func entriesOf(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
