// Command release builds everything that a tag of Armature publishes: archives, images, the chart,
// manifests, bills of materials, checksums, provenance, and signatures by cosign 3. The same commit
// yields the same bytes in any folder, except for signatures.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/templates"
)

const home = "https://github.com/armature-dev/armature"

// release is a release of a tree.
type release struct {
	tree, dir string // the repository; the folder that gets files and images
	version   string // the tag, such as v0.1.0
	platforms []string
	registry  string   // registry and path that images and chart are pushed to
	cosign    string   // the program
	signing   []string // flags of its commands that sign

	commit     string
	time       time.Time // of the commit
	toolchain  string
	programs   string // a folder with those of each platform
	controller string // the digest of its image, once it is made
	subjects   []subject
}

// subject is a published file or image, as in-toto names it.
type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

func main() {
	r := release{tree: "."}
	flag.StringVar(&r.dir, "d", "dist",
		"folder to write to; what is in its folders files and images is removed")
	flag.StringVar(&r.version, "version", "", "tag of the release, such as v0.1.0")
	flag.StringVar(&r.registry, "registry", "",
		"registry and path to push images and chart to, such as ghcr.io/armature-dev; without "+
			"one nothing is published: a registry in memory and a key made for it stand in")
	flag.StringVar(&r.cosign, "cosign", "cosign",
		"cosign 3; the arguments are flags of its commands that sign")
	platforms := flag.String("platforms", "linux/amd64 linux/arm64 darwin/amd64 darwin/arm64",
		"platforms to build for")
	flag.Parse()
	r.platforms, r.signing = strings.Fields(*platforms), flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := r.make(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// make builds a release, signs it, and pushes its images to a registry.
func (r *release) make(ctx context.Context) error {
	if !strings.HasPrefix(r.version, "v") {
		return fmt.Errorf("the version %q is no tag\n  hint: name one, such as v0.1.0", r.version)
	}
	if err := r.source(ctx); err != nil {
		return err
	}
	for _, folder := range []string{"files", "images"} {
		if err := os.RemoveAll(filepath.Join(r.dir, folder)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(r.dir, "files"), 0o755); err != nil {
		return err
	}
	programs, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	r.programs = programs
	for _, platform := range r.platforms {
		all := []string{"./cmd/armature-fn"}
		if strings.HasPrefix(platform, "linux/") {
			all = append(all, "./cmd/armature-controller")
		}
		if err := r.build(ctx, platform, r.program(platform, ""), all...); err != nil {
			return err
		}
	}
	images, err := r.images()
	if err != nil {
		return err
	}
	r.controller = images[0].digest.String()
	for _, platform := range r.platforms {
		if err := r.build(ctx, platform, r.program(platform, ""), "./cmd/armature"); err != nil {
			return err
		}
	}
	if err := r.archives(ctx); err != nil {
		return err
	}
	switch lock, err := os.ReadFile(filepath.Join(r.tree, "templates", templates.StepLockFile)); {
	case err == nil:
		if err := r.write(render.LockFile, lock); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if err := r.provenance(); err != nil {
		return err
	}
	return r.publish(ctx, images)
}

// source finds out what is released.
func (r *release) source(ctx context.Context) error {
	commit, err := r.output(ctx, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	date, err := r.output(ctx, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(date, 10, 64)
	if err != nil {
		return fmt.Errorf("the time of commit %s: %w", commit, err)
	}
	r.commit, r.time = commit, time.Unix(seconds, 0).UTC()
	if r.toolchain, err = r.output(ctx, "go", "env", "GOVERSION"); err != nil {
		return err
	}
	changed, err := r.output(ctx, "git", "status", "--porcelain")
	if err == nil && changed != "" {
		fmt.Fprintf(os.Stderr,
			"warning: what is made is not that of commit %s alone: files have changed\n%s\n",
			commit, changed)
	}
	return err
}

// output returns the output of a program in the tree, without white space around it.
func (r *release) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = r.tree, os.Stderr
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.time.Unix(), 10))
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// build builds programs for a platform, with the same result wherever the tree is. All settings
// that affect the compiler's output are fixed, not taken from the machine.
func (r *release) build(ctx context.Context, platform, into string, args ...string) error {
	system, cpu, _ := strings.Cut(platform, "/")
	const module = "github.com/armature-dev/armature/"
	flags := "-s -w -X " + module + "render/version.described=" + r.version + " -X " + module +
		"builds/install.digest=" + r.controller
	cmd := exec.CommandContext(ctx, "go",
		append([]string{"build", "-buildvcs=false", "-ldflags", flags, "-o", into + "/"}, args...)...)
	cmd.Dir, cmd.Stderr = r.tree, os.Stderr
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0", "GOWORK=off",
		"GOOS="+system, "GOARCH="+cpu, "GOAMD64=v1", "GOARM64=v8.0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s for %s: %w", strings.Join(args, " "), platform, err)
	}
	return nil
}

// program returns the file of a built program; without a name, the folder of a platform.
func (r *release) program(platform, name string) string {
	return filepath.Join(r.programs, filepath.FromSlash(platform), name)
}

// write writes a file that is published.
func (r *release) write(name string, data []byte) error {
	r.subjects = append(r.subjects, subject{name, map[string]string{"sha256": sum(data)}})
	return os.WriteFile(filepath.Join(r.dir, "files", name), data, 0o644)
}

func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// number returns the version without v.
func (r *release) number() string { return strings.TrimPrefix(r.version, "v") }

// host is the platform that this runs on.
const host = runtime.GOOS + "/" + runtime.GOARCH

// provenance writes checksums.txt, and the in-toto statement of how everything that is published
// was built.
func (r *release) provenance() error {
	var checksums strings.Builder
	files := slices.Clone(r.subjects)
	slices.SortFunc(files, func(a, b subject) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range files {
		if !strings.Contains(s.Name, "/") { // no image
			fmt.Fprintf(&checksums, "%s  %s\n", s.Digest["sha256"], s.Name)
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "files", "checksums.txt"),
		[]byte(checksums.String()), 0o644); err != nil {
		return err
	}
	builder := home + "/tree/main/e2e/release"
	if workflow := os.Getenv("GITHUB_WORKFLOW_REF"); workflow != "" {
		builder = "https://github.com/" + workflow
	}
	materials := []map[string]any{
		{"uri": "git+" + home + "@refs/tags/" + r.version,
			"digest": map[string]string{"gitCommit": r.commit}},
		{"uri": "pkg:golang/toolchain@" + strings.TrimPrefix(r.toolchain, "go")},
	}
	if i := slices.IndexFunc(files, func(s subject) bool { return s.Name == render.LockFile }); i >= 0 {
		materials = append(materials,
			map[string]any{"name": path.Join("templates", templates.StepLockFile),
				"digest": files[i].Digest})
	}
	predicate := map[string]any{
		"buildDefinition": map[string]any{
			"buildType":            home + "/tree/main/e2e/release",
			"externalParameters":   map[string]any{"version": r.version, "platforms": r.platforms},
			"resolvedDependencies": materials,
		},
		"runDetails": map[string]any{"builder": map[string]any{"id": builder}},
	}
	for name, document := range map[string]any{"predicate.json": predicate,
		"provenance.json": map[string]any{
			"_type":         "https://in-toto.io/Statement/v1",
			"predicateType": "https://slsa.dev/provenance/v1", "subject": files,
			"predicate": predicate,
		}} {
		text, err := json.MarshalIndent(document, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.dir, name), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// publish pushes images, and signs everything.
func (r *release) publish(ctx context.Context, images []image) error {
	if r.registry == "" {
		address, err := inMemory()
		if err != nil {
			return err
		}
		r.registry = address + "/armature-dev"
		key := filepath.Join(r.dir, "dry-run")
		if err := os.RemoveAll(key + ".key"); err != nil {
			return err
		}
		if err := r.sign(ctx, "generate-key-pair", "--output-key-prefix", key); err != nil {
			return err
		}
		r.signing = []string{"--key", key + ".key", "--use-signing-config=false", "--tlog-upload=false"}
	}
	files := filepath.Join(r.dir, "files")
	checksums := filepath.Join(files, "checksums.txt")
	if err := r.sign(ctx, "sign-blob", "--bundle", checksums+".sigstore.json", checksums); err != nil {
		return err
	}
	if err := r.sign(ctx, "attest-blob", "--bundle",
		filepath.Join(files, "provenance.sigstore.json"), "--statement",
		filepath.Join(r.dir, "provenance.json")); err != nil {
		return err
	}
	for _, i := range images {
		to, err := name.NewRepository(r.registry + "/" + i.name)
		if err != nil {
			return err
		}
		tags := []string{i.tag}
		// A prerelease is not the latest.
		if i.name != chartName && !strings.Contains(r.version, "-") {
			tags = append(tags, "latest")
		}
		for _, tag := range tags {
			if err := remote.Push(to.Tag(tag), i.content, remote.WithContext(ctx),
				remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
				return fmt.Errorf("pushing %s: %w", to.Tag(tag), err)
			}
		}
		whole := to.Digest(i.digest.String()).String()
		if err := r.sign(ctx, "sign", whole); err != nil {
			return err
		}
		if err := r.sign(ctx, "attest", "--type", "slsaprovenance1", "--predicate",
			filepath.Join(r.dir, "predicate.json"), whole); err != nil {
			return err
		}
		for sbom, digest := range i.sboms {
			if err := r.sign(ctx, "attest", "--type", "spdxjson", "--predicate",
				filepath.Join(files, sbom), to.Digest(digest.String()).String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// sign runs a command of cosign.
func (r *release) sign(ctx context.Context, command string, args ...string) error {
	flags := r.signing
	if command != "generate-key-pair" {
		flags = append([]string{"--yes"}, flags...)
	}
	cmd := exec.CommandContext(ctx, r.cosign, slices.Concat([]string{command}, flags, args)...)
	cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cosign %s %s: %w\n%s", command, strings.Join(args, " "), err, out)
	}
	return nil
}

// inMemory returns the address of a registry that ends with the program.
func inMemory() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() {
		handler := registry.New(registry.WithReferrersSupport(true),
			registry.Logger(log.New(io.Discard, "", 0)))
		_ = http.Serve(listener, handler) // until the program ends
	}()
	return listener.Addr().String(), nil
}

// image is the content of a repository in a registry: an image for several platforms, or the chart.
type image struct {
	name, tag string
	content   remote.Taggable
	digest    v1.Hash
	sboms     map[string]v1.Hash // the image of a platform that each describes, by the name of the file
}

// published is the registry and path that releases name.
var published = strings.TrimSuffix(compose.ControllerRepository, "/armature-controller")
