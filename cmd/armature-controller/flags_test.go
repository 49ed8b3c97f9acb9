package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A page documents every flag, and a step each of those that are for steps.
func TestFlagsInPages(t *testing.T) {
	var pages []byte
	for _, pattern := range []string{"../../docs/*.md", "../../docs/tutorials/*.md", "../../README.md", "../../templates/steps/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no pages: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, text...)
		}
	}
	flags, missing := make(map[string]bool), make(map[string]bool)
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			flags[f.Name] = true
			if f.Name == "help" || f.Hidden || missing[f.Name] || regexp.MustCompile(`--`+f.Name+`\b[^-\w]`).Match(pages) {
				return
			}
			missing[f.Name] = true
			t.Errorf("%s: no page has --%s: %s", c.CommandPath(), f.Name, f.Usage)
		})
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(command())
	if len(flags) < 20 {
		t.Errorf("%d flags", len(flags))
	}
}
