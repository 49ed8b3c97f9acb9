// Package version reports which build of Armature runs.
package version

import (
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
)

const module = "github.com/armature-dev/armature"

// described is the output of `git describe` for the source: make sets it with
// -ldflags "-X github.com/armature-dev/armature/render/version.described=…".
var described string

// String returns the version of this build, such as v0.2.0, v0.2.0-14-g1a2b3c4d5e6f or
// v0.2.1-0.20261122100000-1a2b3c4d5e6f: the output of git describe from make, or else the record of
// the go command. It is "devel" without both.
func String() string {
	if described != "" {
		return described
	}
	info, _ := debug.ReadBuildInfo()
	return recordedVersion(info)
}

// IsRelease reports whether this build is that of a tag, such as v0.2.0 or v0.2.0-rc.1, whose
// images are published.
func IsRelease() bool { return isRelease(String()) }

// isRelease reports whether a version is that of a tag, and not of a commit after a tag in the form
// of git describe or the go command.
func isRelease(version string) bool {
	return regexp.MustCompile(
		`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)\.\d+)?$`).MatchString(version)
}

// UserAgent returns the User-Agent of a program for HTTP servers: armature/v0.2.0 (linux/amd64).
func UserAgent(program string) string {
	return program + "/" + String() + " (" + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

// recordedVersion returns the version of Armature in a program's build information: that of the
// program itself, or of the library that another program links.
func recordedVersion(info *debug.BuildInfo) string {
	const unknown = "devel"
	if info == nil {
		return unknown
	}
	main := info.Main
	for _, m := range info.Deps {
		if m.Path == module {
			main = *m
		}
	}
	if main.Version != "" && main.Version != "(devel)" {
		return main.Version
	}
	if main.Path != info.Main.Path {
		return unknown // the commit is the other program's
	}
	version := unknown
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			version += "-" + s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" && strings.Contains(version, "-") {
				version += "-dirty"
			}
		}
	}
	return version
}
