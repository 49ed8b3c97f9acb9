package text_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Every pattern of the functions compiles, and none does so as a program starts.
func TestPatterns(t *testing.T) {
	pattern := regexp.MustCompile("\\bPattern\\((`[^`]*`|\"(?:[^\"\\\\]|\\\\.)*\")\\)")
	found := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if path != filepath.Join("..", "text", "text.go") &&
			strings.Contains(string(source), "regexp.MustCompile(") {
			t.Errorf("%s compiles a pattern as programs start: use text.Pattern", path)
		}
		for _, m := range pattern.FindAllStringSubmatch(string(source), -1) {
			found++
			expression, err := strconv.Unquote(m[1])
			if err == nil {
				_, err = regexp.Compile(expression)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", path, m[1], err)
			}
		}
		return nil
	})
	if err != nil || found < 15 {
		t.Fatalf("%d patterns were found: %v", found, err)
	}
}
