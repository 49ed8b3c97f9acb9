package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// working is a command whose standard error is a terminal.
type working struct {
	*exec.Cmd
	keyboard io.Writer
	screen   *controlplane.Output
}

// start a command on a terminal that is its own, so that Ctrl-C reaches it.
func startOnTerminal(t *testing.T, a *armature, stdin *os.File, args ...string) *working {
	t.Helper()
	person, terminal := openTerminal(t)
	w := &working{exec.CommandContext(t.Context(), a.file, args...), person, &controlplane.Output{}}
	w.Env, w.Stdin, w.Stdout, w.Stderr = a.env, stdin, io.Discard, terminal
	w.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(w.screen, person) }()
	return w
}

// shows waits for a text on the screen.
func (w *working) shows(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(w.screen.String(),
		text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = w.Process.Kill()
			_ = w.Wait()
			t.Fatalf("%v does not show %q: %q", w.Args[1:], text, w.screen.String())
		}
	}
}

// left is what the screen shows after the command has ended, and wrote that last.
func (w *working) left(t *testing.T, last string) string {
	t.Helper()
	w.shows(t, last)
	return look(w.screen.String())
}

var steering = regexp.MustCompile("^\033\\[([0-9]*)([A-Z])")

// look at what a terminal shows of a text: the cursor goes back at \r and up at ESC[nA,
// and ESC[J clears all that follows it.
func look(text string) string {
	rows, row, column := []string{""}, 0, 0
	for len(text) > 0 {
		if m := steering.FindStringSubmatch(text); m != nil {
			switch m[2] {
			case "A":
				n, _ := strconv.Atoi(m[1])
				row = max(row-n, 0)
			case "J":
				rows = append(rows[:row], rows[row][:min(column, len(rows[row]))])
			}
			text = text[len(m[0]):]
			continue
		}
		switch c := text[0]; c {
		case '\r':
			column = 0
		case '\n':
			row++
			if row == len(rows) {
				rows = append(rows, "")
			}
		default:
			line := rows[row]
			rows[row] = line[:min(column, len(line))] + string(c) + line[min(column+1, len(line)):]
			column++
		}
		text = text[1:]
	}
	return strings.TrimRight(strings.Join(rows, "\n"), "\n")
}

// Whatever takes long says on a terminal what it is at. Ctrl-C ends it, and leaves
// nothing of that line, nor of the ^C that the terminal adds.
func TestActivity(t *testing.T) {
	t.Parallel()
	a := buildArmature(t)
	registry := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	t.Cleanup(func() { registry.CloseClientConnections(); registry.Close() })
	host := strings.TrimPrefix(registry.URL, "http://")
	folder := t.TempDir()
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n"+
		"spec: {containers: [{name: web, image: %s/web:v1}]}\n", host)
	if err := os.WriteFile(filepath.Join(folder, "web.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig,
		[]byte("{apiVersion: v1, kind: Config, current-context: silent, contexts: [{name: "+
			"silent, context: {cluster: silent}}],\n"+
			"clusters: [{name: silent, cluster: {server: \""+registry.URL+"\"}}]}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args        []string
		shows, last string
	}{
		"apply": {[]string{"apply", folder, "--dry-run", "--name", "web", "--kubeconfig",
			kubeconfig},
			"comparing 1 object with the cluster, ", "interrupt signal received"},
		"migrate": {[]string{"migrate", "-"}, "reading -, ", "interrupted: nothing was written"},
		"render":  {[]string{"render", "-"}, "reading -, ", "interrupted: nothing was written"},
		"verify":  {[]string{"verify", "-"}, "reading -, ", "interrupted: nothing was written"},
		"lint":    {[]string{"lint", "-"}, "reading -, ", "interrupted: nothing was written"},
		"pin": {[]string{"pin", folder, "--insecure-registry"}, "resolving: 0 of 1 image, ",
			"interrupt signal received"},
		"push": {[]string{"artifact", "push", folder, "oci://" + host + "/web:v1",
			"--insecure-registry"}, "pushing oci://" + host + "/web:v1, ",
			"interrupt signal received"},
		"pull": {[]string{"artifact", "pull", "oci://" + host + "/web:v1",
			filepath.Join(t.TempDir(), "web"), "--insecure-registry"},
			"pulling oci://" + host + "/web:v1, ", "interrupt signal received"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdin, held, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			defer held.Close()
			w := startOnTerminal(t, a, stdin, c.args...)
			w.shows(t, c.shows)
			if _, err := w.keyboard.Write([]byte{3}); err != nil {
				t.Fatal(err)
			}
			_ = w.Wait()
			left := w.left(t, c.last)
			if w.ProcessState.ExitCode() != 1 || strings.Contains(left, "^C") ||
				regexp.MustCompile(`, [0-9]+s(\n|$)`).MatchString(left) {
				t.Errorf("%s, and the screen shows\n%s", w.ProcessState, left)
			}
		})
	}
}

// Nothing is shown where nobody looks, or where --quiet asks for that.
func TestNoActivity(t *testing.T) {
	t.Parallel()
	a := buildArmature(t)
	stdin, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	quiet := startOnTerminal(t, a, stdin, "render", "-", "--quiet")
	var out controlplane.Output
	piped := exec.CommandContext(t.Context(), a.file, "lint", "-")
	piped.Env, piped.Stdin, piped.Stderr = a.env, stdin, &out
	if err := piped.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(cli.Unshown + 3*time.Second)
	if err := held.Close(); err != nil { // both read that nothing comes
		t.Fatal(err)
	}
	_, _ = quiet.Wait(), piped.Wait()
	const want = "armature: nothing on standard input"
	if got := quiet.left(t, want); got != want {
		t.Errorf("with --quiet the screen shows %q", got)
	}
	if got := out.String(); got != want+"\n" {
		t.Errorf("a pipe gets %q", got)
	}
}
