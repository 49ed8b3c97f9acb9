package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/armature-dev/armature/cmd/internal/cli"
)

// TestInterrupted: after Ctrl-C no command reads on.
func TestInterrupted(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "pod.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"render", folder}, {"uninject", folder}, {"verify", folder},
		{"lint", folder}, {"check", folder}, {"explain", file}, {"migrate", folder}} {
		cmd := root()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(ctx); !errors.Is(err, cli.ErrInterrupted) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
