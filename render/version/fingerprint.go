package version

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// Fingerprint begins to compute what identifies the running build, which
// takes tens of milliseconds where the executable has to be read.
func Fingerprint() func() (string, error) {
	type result struct {
		fingerprint string
		err         error
	}
	done := make(chan result, 1)
	go func() {
		info, _ := debug.ReadBuildInfo()
		s, err := fingerprint(info, func() (io.ReadCloser, error) {
			name, err := os.Executable()
			if err != nil {
				return nil, err
			}
			return os.Open(name)
		})
		done <- result{s, err}
	}()
	return func() (string, error) {
		r := <-done
		return r.fingerprint, r.err
	}
}

// fingerprint identifies a build of the program. What the go
// command recorded suffices for a released module and for a clean checkout; every
// other build is known by the content of its executable.
func fingerprint(info *debug.BuildInfo, executable func() (io.ReadCloser, error)) (string, error) {
	sum := sha256.New()
	if recorded(info) {
		io.WriteString(sum, info.String())
		return "recorded " + hex.EncodeToString(sum.Sum(nil)), nil
	}
	file, err := executable()
	if err != nil {
		return "", fmt.Errorf("reading the program itself: %w", err)
	}
	defer file.Close()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("reading the program itself: %w", err)
	}
	return "executable " + hex.EncodeToString(sum.Sum(nil)), nil
}

// recorded reports whether the build information covers all of the source.
func recorded(info *debug.BuildInfo) bool {
	if info == nil {
		return false
	}
	for _, module := range info.Deps {
		if module.Replace != nil && module.Replace.Sum == "" {
			return false // by a folder
		}
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return info.Main.Sum != "" || settings["vcs.revision"] != "" && settings["vcs.modified"] == "false"
}
