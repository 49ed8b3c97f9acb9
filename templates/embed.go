// Package templates embeds the YAML that armature ships: pipeline templates and
// steps, custom resource definitions and the installation.
package templates

import "embed"

// StepLockFile is the file that `armature pin templates/steps --steps` writes. Git ignores it: the
// release workflow creates it with the current digests of the registries.
const StepLockFile = "steps/armature.lock"

// Files holds modes/, steps/, crds/ and install/.
//
//go:embed modes steps crds install
var Files embed.FS

// Wiring holds the files that `armature init` writes: armature.yaml, and a folder for each host.
//
//go:embed wiring
var Wiring embed.FS

// StepLock returns the ImageLock of the images that the shipped steps name, or nil if the build is
// not a release.
func StepLock() []byte {
	lock, err := Files.ReadFile(StepLockFile)
	if err != nil {
		return nil
	}
	return lock
}
