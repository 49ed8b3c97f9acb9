package api

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Platforms that spec.platforms may name. The enumeration of the field is the same.
var Platforms = []string{"linux/amd64", "linux/arm64", "linux/arm/v7", "linux/ppc64le",
	"linux/s390x", "linux/riscv64"}

// PlatformNodes says on which nodes the image of a platform is built.
type PlatformNodes string

// The values of spec.platformNodes.
const (
	PlatformNodesNative PlatformNodes = "Native"
	PlatformNodesAny    PlatformNodes = "Any"
)

var (
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)
)

// IsDigest reports whether a text is a digest: "sha256:" and 64 hexadecimal digits.
func IsDigest(text string) bool { return digestForm.MatchString(text) }

// IsCommit reports whether a text is the full SHA of a commit.
func IsCommit(text string) bool { return commitForm.MatchString(text) }

// ReadPlatforms parses the platforms of an image that a step reports: PLATFORM=DIGEST, separated by
// commas. An unknown or repeated platform and a malformed digest are errors.
func ReadPlatforms(text string) ([]PlatformStatus, error) {
	var out []PlatformStatus
	for _, part := range strings.Split(text, ",") {
		platform, digest, _ := strings.Cut(part, "=")
		switch {
		case !slices.Contains(Platforms, platform):
			return nil, fmt.Errorf("%.64q is not a platform", platform)
		case slices.ContainsFunc(out, func(p PlatformStatus) bool {
			return p.Platform == platform
		}):
			return nil, fmt.Errorf("the platform %s occurs twice", platform)
		case !IsDigest(digest):
			return nil, fmt.Errorf("the platform %s has no digest", platform)
		}
		out = append(out, PlatformStatus{Platform: platform, Digest: digest})
	}
	return out, nil
}
