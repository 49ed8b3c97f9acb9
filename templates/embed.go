// Package templates embeds the YAML that armature ships: pipeline templates and
// steps, custom resource definitions and the installation.
package templates

import "embed"

// StepLockFile is what `armature pin templates/steps --steps` writes. Git ignores it: the
// release workflow makes it of what the registries have on that day.
const StepLockFile = "steps/armature.lock"

// Files holds modes/, steps/, crds/ and install/.
//
//go:embed modes steps crds install
var Files embed.FS

// Wiring holds what `armature init` writes: armature.yaml, and a folder for
// each host.
//
//go:embed wiring
var Wiring embed.FS

// StepLock is the ImageLock of the images that the shipped steps name; nil in a build
// that is not of a release.
func StepLock() []byte {
	lock, err := Files.ReadFile(StepLockFile)
	if err != nil {
		return nil
	}
	return lock
}
