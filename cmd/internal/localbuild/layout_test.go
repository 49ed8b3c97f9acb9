package localbuild

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A layout replaces a layout and an empty folder. What has other files stays, even if one of them
// has the name of a layout's file.
func TestLayoutReplaces(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	tag, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/agent:v1")
	if err == nil {
		err = remote.Write(tag, empty.Image)
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := remote.Get(tag)
	if err != nil {
		t.Fatal(err)
	}
	for title, test := range map[string]struct {
		files    []string // of the folder
		replaces bool
	}{
		"new":      {replaces: true},
		"layout":   {[]string{"index.json", "oci-layout", "blobs/sha256/old"}, true},
		"sources":  {files: []string{"main.go"}},
		"web site": {files: []string{"index.json", "src/main.js"}},
		"data":     {files: []string{"index.json"}},
		"file":     {files: []string{""}},
	} {
		folder := filepath.Join(t.TempDir(), "to")
		for _, file := range test.files {
			file = filepath.Join(folder, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := writeLayout(folder, found); (err == nil) != test.replaces {
			t.Errorf("%s: error %v", title, err)
		}
		for _, file := range test.files {
			text, _ := os.ReadFile(filepath.Join(folder, file))
			if (string(text) == "mine") == test.replaces {
				t.Errorf("%s: the file %q has %q", title, file, text)
			}
		}
	}
}
