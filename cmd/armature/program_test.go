package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// The program works by itself: as `go install` leaves it, with an empty PATH.
func TestProgramAlone(t *testing.T) {
	built := buildArmature(t)
	text, err := os.ReadFile(built.file)
	if err != nil {
		t.Fatal(err)
	}
	alone := &armature{file: filepath.Join(t.TempDir(), "armature"),
		env: []string{"PATH=", "HOME=" + t.TempDir()}}
	if err := os.WriteFile(alone.file, text, 0o755); err != nil {
		t.Fatal(err)
	}
	examples := filepath.Join("..", "..", "examples")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"version"}, "armature "},
		{[]string{"render", filepath.Join(examples, "weather-agent")}, "name: authbridge-proxy"},
		{[]string{"build", "plan", filepath.Join(examples, "builds", "weather.yaml")},
			"kind: PipelineRun"},
		{[]string{"install"}, "kind: CustomResourceDefinition"},
		{[]string{"apply", "--help"}, "armature apply apps/weather -n team1"},
		{[]string{"catalog", "--help"}, "armature catalog search"},
		{[]string{"diff", "--help"}, "armature diff apps/ --against main"},
	} {
		if out, _ := alone.run(t, 0, c.args...); !strings.Contains(out, c.want) {
			t.Errorf("armature %s: no %q in\n%s", strings.Join(c.args, " "), c.want, out)
		}
	}
}

// Flux's CLI runs a plugin by the name flux-armature, from its folder, with the arguments
// and the standard input that it got, and asks it for completions.
func TestFluxPlugin(t *testing.T) {
	built := buildArmature(t)
	link := filepath.Join(t.TempDir(), "flux-armature")
	if err := os.Symlink(built.file, link); err != nil {
		t.Fatal(err)
	}
	plugin := &armature{file: link, env: built.env}
	weather := filepath.Join("..", "..", "examples", "weather-agent")
	want, _ := built.run(t, 0, "render", weather)
	if got, _ := plugin.run(t, 0, "render", weather); got != want {
		t.Errorf("rendered as a plugin:\n%s", got)
	}
	for _, c := range []struct {
		status int
		args   []string
		want   string
	}{
		{0, []string{"--help"}, "flux armature [command]"},
		{0, []string{"apply", "--help"}, "flux armature apply PATH|-|oci://"},
		{0, []string{"__complete", "re"}, "render\t"},
		{0, []string{"__complete", "render", "--fin"}, "--findings\t"},
		{2, []string{"rendr"}, `flux armature: unknown command "rendr", did you mean render?`},
		{2, []string{"diff"}, "Run 'flux armature diff --help' for usage."},
		{1, []string{"render", filepath.Join(t.TempDir(), "gone")}, "gone"},
	} {
		if out, errs := plugin.run(t, c.status, c.args...); !strings.Contains(out+errs, c.want) {
			t.Errorf("flux armature %s: no %q in\n%s%s", strings.Join(c.args, " "), c.want, out, errs)
		}
	}
}

// Every command has help with an example, and offers completions; a misspelt one
// gets a suggestion.
func TestCommandTree(t *testing.T) {
	a := offline()
	walk(root(), func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Example == "" && cmd.Name() != "version" {
			t.Errorf("%s: no Short or no Example", cmd.CommandPath())
		}
		if !strings.Contains(cmd.UsageString(), cmd.CommandPath()) {
			t.Errorf("%s: its help does not show how it is called:\n%s", cmd.CommandPath(),
				cmd.UsageString())
		}
		if cmd.HasParent() && cmd.HasSubCommands() && cmd.Name() != "completion" && cmd.RunE == nil {
			t.Errorf("%s: a misspelt subcommand prints its help, as if nothing were wrong",
				cmd.CommandPath())
		}
	})
	for misspelt, want := range map[string]string{"rendr": "render", "aply": "apply",
		"build plam": "plan", "catalog serach": "search", "skill verfy": "verify",
		"inject x": "render", "unrender x": "uninject"} {
		if out, errs := a.run(t, 2, strings.Fields(misspelt)...); out != "" ||
			!strings.Contains(errs, "did you mean "+want+"?") {
			t.Errorf("armature %s: stdout %q, stderr %q", misspelt, out, errs)
		}
	}
	for prefix, want := range map[string]string{"": "apply", "build ": "plan", "catalog ": "search",
		"diff --a": "--against", "apply --all": "--allow"} {
		args := append([]string{"__complete"}, strings.Split(prefix, " ")...)
		if out, _ := a.run(t, 0, args...); !strings.Contains(out, want) {
			t.Errorf("completion of %q: no %s in %q", prefix, want, out)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, _ := a.run(t, 0, "completion", shell); !strings.Contains(out, "armature") {
			t.Errorf("completion %s: %q", shell, out)
		}
	}
}

func walk(cmd *cobra.Command, do func(*cobra.Command)) {
	for _, c := range cmd.Commands() {
		walk(c, do)
	}
	if cmd.HasParent() {
		do(cmd)
	}
}

// A killed armature leaves nothing behind that works on: it does its work itself.
func TestKilledLeavesNoChild(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc on this system")
	}
	// A server that accepts connections and never answers keeps apply waiting.
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "silent",
		"clusters": []any{map[string]any{"name": "silent",
			"cluster": map[string]any{"server": "http://" + server.Addr().String()}}},
		"contexts": []any{map[string]any{"name": "silent",
			"context": map[string]any{"cluster": "silent", "user": "nobody"}}},
		"users": []any{map[string]any{"name": "nobody", "user": map[string]any{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, buildArmature(t).file, "apply",
		filepath.Join("..", "..", "examples", "weather-agent"), "-n", "team1", "--kubeconfig", kubeconfig)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var talks net.Conn
	select {
	case talks = <-accepted:
		defer talks.Close()
	case <-ctx.Done():
		t.Fatal("armature apply never asked the cluster")
	}
	children := childrenOf(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if len(children) > 0 {
		t.Errorf("armature apply works through other processes, which outlive it: %v", children)
	}
	// Its connection ends with it: nobody else holds it.
	if err := talks.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 4096); ; {
		if _, err := talks.Read(buf); err != nil {
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
				t.Error("somebody still holds the connection to the cluster")
			}
			return
		}
	}
}

// childrenOf lists the processes whose parent a process is.
func childrenOf(t *testing.T, parent int) (found []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// PID (NAME) STATE PARENT …; the name may contain anything.
		_, rest, _ := strings.Cut(string(text[strings.LastIndex(string(text), ")"):]), " ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			found = append(found, fmt.Sprintf("%s: %s", file, text))
		}
	}
	return found
}
