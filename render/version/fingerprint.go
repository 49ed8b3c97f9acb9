package version

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// Fingerprint starts to compute the identity of the running build, which takes tens of milliseconds
// if the executable has to be read. The returned function waits for the result.
func Fingerprint() func() (string, error) {
	type result struct {
		fingerprint string
		err         error
	}
	done := make(chan result, 1)
	go func() {
		info, _ := debug.ReadBuildInfo()
		s, err := fingerprint(info, func() (string, error) {
			name, err := os.Executable()
			if err != nil {
				return "", err
			}
			return content(name)
		})
		done <- result{s, err}
	}()
	return func() (string, error) {
		r := <-done
		return r.fingerprint, r.err
	}
}

// fingerprint returns the identity of a build. The record of the go command suffices for a released
// module and for a clean checkout. Other builds are identified by the content of their executable.
func fingerprint(info *debug.BuildInfo, executable func() (string, error)) (string, error) {
	if recorded(info) {
		sum := sha256.Sum256([]byte(info.String()))
		return "recorded " + hex.EncodeToString(sum[:]), nil
	}
	content, err := executable()
	if err != nil {
		return "", fmt.Errorf("reading the program itself: %w", err)
	}
	return "executable " + content, nil
}

// content returns the identity of a program's content: the build ID of the go command, which is a
// hash of the content. Without a build ID it hashes the whole file, which takes as long as
// rendering a thousand workloads.
func content(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if program, err := elf.NewFile(file); err == nil {
		if note := program.Section(".note.go.buildid"); note != nil && note.Size < 1<<10 {
			// Three words, and the name Go, precede the ID.
			if id, err := note.Data(); err == nil && len(id) > 16 &&
				bytes.Count(id, []byte("/")) == 3 {
				return hex.EncodeToString(id[16:]), nil
			}
		}
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, 1<<62)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// recorded reports whether the build information covers all of the source.
func recorded(info *debug.BuildInfo) bool {
	if info == nil {
		return false
	}
	for _, module := range info.Deps {
		if module.Replace != nil && module.Replace.Sum == "" {
			return false // replaced by a folder
		}
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return info.Main.Sum != "" ||
		settings["vcs.revision"] != "" && settings["vcs.modified"] == "false"
}
