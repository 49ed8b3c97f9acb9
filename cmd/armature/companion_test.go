package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A companion is told when this process is to end, and its exit status counts
// then, too.
func TestCompanionEnds(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	script := "#!/bin/sh\ntrap 'exit '\"$2\" TERM\n: >" + started + "\nfor i in $(seq 600); do sleep 0.1; done\nexit 9\n"
	if err := os.WriteFile(filepath.Join(dir, "armature-remote"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	for given, want := range map[string]error{"0": nil, "3": exitStatus(3)} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				if os.Remove(started) == nil {
					cancel()
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		cmd := companion("status", "")
		cmd.SetArgs([]string{given})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(ctx); !errors.Is(err, want) {
			t.Errorf("exit status %s: %v, want %v", given, err, want)
		}
		cancel()
	}
}
