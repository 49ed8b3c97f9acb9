package version

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// TestRecordedVersion: go install, go build in a checkout, and a program that
// links Armature each say which version it is.
func TestRecordedVersion(t *testing.T) {
	settings := []debug.BuildSetting{{Key: "vcs.revision", Value: "1a2b3c4d5e6f7a8b9c0d"},
		{Key: "vcs.modified", Value: "true"}}
	for _, c := range []struct {
		name string
		info *debug.BuildInfo
		want string
	}{
		{"nothing recorded", nil, "devel"},
		{"no version control",
			&debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "devel"},
		{"go install of a release",
			&debug.BuildInfo{Main: debug.Module{Path: module, Version: "v0.2.0"}}, "v0.2.0"},
		{"go build after a tag",
			&debug.BuildInfo{Main: debug.Module{Path: module,
				Version: "v0.2.1-0.20261122100000-1a2b3c4d5e6f"}},
			"v0.2.1-0.20261122100000-1a2b3c4d5e6f"},
		{"a changed checkout",
			&debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"},
				Settings: settings}, "devel-1a2b3c4d5e6f-dirty"},
		{"linked by another program",
			&debug.BuildInfo{Main: debug.Module{Path: "example.com/tool", Version: "v9.0.0"},
				Deps: []*debug.Module{{Path: "example.com/other", Version: "v1.0.0"},
					{Path: module, Version: "v0.2.0"}}}, "v0.2.0"},
		{"linked from a folder",
			&debug.BuildInfo{Main: debug.Module{Path: "example.com/tool", Version: "(devel)"},
				Deps: []*debug.Module{{Path: module, Version: "(devel)"}}, Settings: settings},
			"devel"},
	} {
		if got := recordedVersion(c.info); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestDescribed: what make found with git describe wins.
func TestDescribed(t *testing.T) {
	program := filepath.Join(t.TempDir(), "armature-fn")
	build := exec.Command("go", "build", "-ldflags",
		"-X "+module+"/render/version.described=v0.2.0-3-gabc", "-o", program, module+"/cmd/armature-fn")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program, "--version").Output()
	if err != nil || string(out) != "armature-fn v0.2.0-3-gabc\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestUserAgent(t *testing.T) {
	want := "armature/" + String() + " (" + runtime.GOOS + "/" + runtime.GOARCH + ")"
	if got := UserAgent("armature"); got != want || strings.Contains(got, "//") {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRelease: what is built after a tag is not a release.
func TestRelease(t *testing.T) {
	for version, want := range map[string]bool{
		"v0.2.0": true, "v1.20.300": true, "v0.2.0-rc.1": true, "v0.2.0-beta.12": true,
		"v0.2.0-dirty": false, "v0.2.0+dirty": false, "v0.2.0-14-g1a2b3c4d5e6f": false,
		"v0.2.0-rc.1-14-g1a2b3c4d5e6f": false, "v0.2.1-0.20261122100000-1a2b3c4d5e6f": false,
		"v0.2.0-rc.1.0.20261122100000-1a2b3c4d5e6f": false, "devel": false,
		"devel-1a2b3c4d5e6f": false, "": false, "0.2.0": false, "v01.0.0": false,
	} {
		if got := isRelease(version); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}
