// Package templates embeds the YAML that armature ships: pipeline templates and
// steps, custom resource definitions and the installation.
package templates

import "embed"

// Files holds modes/, steps/, crds/ and install/.
//
//go:embed modes steps crds install
var Files embed.FS
