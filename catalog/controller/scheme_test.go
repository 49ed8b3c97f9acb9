package controller_test

import (
	"testing"

	"github.com/armature-dev/armature/catalog/controller"
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
