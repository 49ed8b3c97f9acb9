package controller_test

import (
	"slices"
	"testing"

	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/entry"
)

// The scheme, which knows all of client-go's kinds, is built once and not for
// each question to a server.
func TestSchemeIsShared(t *testing.T) {
	first, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := controller.Scheme(); err != nil || again != first {
		t.Errorf("another scheme: %v", err)
	}
}

// What can be read from manifests is also looked after in a cluster.
func TestKinds(t *testing.T) {
	var read, asked []string
	for _, k := range entry.Kinds() {
		read = append(read, k.Resource)
	}
	for _, k := range controller.Kinds() {
		asked = append(asked, k.Resource)
	}
	if !slices.Equal(read, asked) {
		t.Errorf("manifests of %v are read, and %v are asked", read, asked)
	}
}
