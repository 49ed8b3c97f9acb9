// Database writes the vulnerability database that scans in the cluster use: two of GitHub's
// advisories, in the form in which grype's own databases are built and served. The real one has
// hundreds of megabytes, and grype refuses one that is older than five days, so this one is built
// whenever a cluster starts.
//
//	grype-database DIR    leaves latest.json and the archive in it
package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anchore/grype/grype/db"
	"github.com/anchore/grype/grype/db/provider"
	v6 "github.com/anchore/grype/grype/db/v6"
)

//go:embed advisories
var advisories embed.FS

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: grype-database DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "grype-database:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	workspace, err := os.MkdirTemp("", "advisories-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(workspace)
	state, err := provide(workspace)
	if err != nil {
		return fmt.Errorf("laying out the advisories: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := db.Build(db.BuildConfig{
		SchemaVersion: v6.ModelVersion, Directory: dir, States: provider.States{*state},
		Timestamp: time.Now(), Hydrate: true,
	}); err != nil {
		return err
	}
	return db.Package(dir, "", "tar.gz", nil)
}

// provide lays the advisories out as vunnel does, which fetches them for the real database:
// results, a listing with their checksums, and metadata.json.
func provide(workspace string) (*provider.State, error) {
	if err := os.CopyFS(filepath.Join(workspace, "results"), advisories); err != nil {
		return nil, err
	}
	files, err := fs.Glob(advisories, "advisories/*.json")
	if err != nil {
		return nil, err
	}
	var listing strings.Builder
	for _, file := range files {
		// The checksums of files that were just written are not compared.
		fmt.Fprintf(&listing, "0  results/%s\n", file)
	}
	if err := os.WriteFile(filepath.Join(workspace, "listing.xxh64"), []byte(listing.String()),
		0o644); err != nil {
		return nil, err
	}
	metadata, err := json.Marshal(provider.State{
		Provider: "github", Version: 1, Store: "flat-file", Timestamp: time.Now(),
		Listing: &provider.File{Path: "listing.xxh64", Algorithm: "xxh64"},
	})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(workspace, "metadata.json")
	if err := os.WriteFile(path, metadata, 0o644); err != nil {
		return nil, err
	}
	return provider.ReadState(path)
}
