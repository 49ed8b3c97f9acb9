package main

import (
	"testing"

	"github.com/armature-dev/armature/e2e/page"
)

// TestReference compares docs/reference/controller.md with the flags of the program.
func TestReference(t *testing.T) {
	page.Generated(t, "../../docs/reference/controller.md", page.Commands(command(),
		"`armature install` writes the most important of these flags. A test writes this page."))
}
