package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/armature-dev/armature/cmd/internal/cli"
)

// environ and searched are the environment and PATH of the test: a command that runs in process
// has those of the process meanwhile.
var environ, searched = slices.Clip(os.Environ()), os.Getenv("PATH")

// process is what a process has of its own and commands look at, of which a test has one.
var process sync.Mutex

// inProcess runs the command as main does, without a start of the program, and returns its
// exit status. The environment is all that it has; "" is the folder of the test.
func inProcess(
	ctx context.Context, folder string, env []string, stdin io.Reader, stdout, stderr io.Writer,
	args ...string,
) (status int, err error) {
	process.Lock()
	defer process.Unlock()
	was := os.Environ()
	defer setEnvironment(was)
	setEnvironment(env)
	if folder != "" {
		here, err := os.Getwd()
		if err != nil {
			return 0, err
		}
		if err := os.Chdir(folder); err != nil {
			return 0, err
		}
		defer func() {
			if back := os.Chdir(here); back != nil {
				panic(back) // all other tests would be somewhere else
			}
		}()
	}
	var files [3][2]*os.File
	for i := range files {
		read, write, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		defer read.Close()
		defer write.Close()
		files[i] = [2]*os.File{read, write}
	}
	defer func(args []string, stdin, stdout, stderr *os.File) {
		os.Args, os.Stdin, os.Stdout, os.Stderr = args, stdin, stdout, stderr
	}(os.Args, os.Stdin, os.Stdout, os.Stderr)
	os.Args = append([]string{"armature"}, args...)
	os.Stdin, os.Stdout, os.Stderr = files[0][0], files[1][1], files[2][1]
	go func() {
		_, _ = io.Copy(files[0][1], stdin) // a command need not read all of it
		files[0][1].Close()
	}()
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(stdout, files[1][0]) })
	read.Go(func() { _, _ = io.Copy(stderr, files[2][0]) })
	cmd := root()
	showAs(cmd, os.Args[0])
	status = cli.Run(ctx, cmd)
	files[1][1].Close()
	files[2][1].Close()
	read.Wait()
	return status, nil
}

func setEnvironment(env []string) {
	os.Clearenv()
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		os.Setenv(name, value)
	}
}

// storyCommand is the command armature of a story, which has status 0, or another where it is
// negated.
func storyCommand(ts *testscript.TestScript, negated bool, args []string) {
	if status := runStory(ts, args); (status != 0) != negated {
		ts.Fatalf("exit status %d", status)
	}
}

// storyExits is the command exits of a story: exits STATUS armature.
func storyExits(ts *testscript.TestScript, _ bool, args []string) {
	if status := runStory(ts, args[2:]); args[1] != "armature" || strconv.Itoa(status) != args[0] {
		ts.Fatalf("exit status %d", status)
	}
}

func runStory(ts *testscript.TestScript, args []string) int {
	var stdin []byte
	if n := len(args) - 1; n >= 0 && strings.HasPrefix(args[n], "<") {
		stdin, args = []byte(ts.ReadFile(args[n][1:])), args[:n]
	}
	var env []string
	of := reflect.ValueOf(ts).Elem().FieldByName("env") // testscript gives single variables only
	for i := range of.Len() {
		env = append(env, of.Index(i).String())
	}
	folder := ts.MkAbs(".")
	status, err := inProcess(context.Background(), folder, append(env, "PWD="+folder),
		bytes.NewReader(stdin), ts.Stdout(), ts.Stderr(), args...)
	ts.Check(err)
	return status
}
