package templates

import "embed"

// Wiring holds what `armature init` writes: armature.yaml, and a folder for
// each host.
//
//go:embed wiring
var Wiring embed.FS
