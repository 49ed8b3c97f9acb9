//go:build linux

package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/armature-dev/armature/e2e/base"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/sidecars"
)

// image is an image that the cluster's registry offers, as armature/NAME.
type image struct {
	name string
	// standsFor is the public image that a shipped step names, and that this one
	// is pushed as below Info.Mirror.
	standsFor string
	// shell adds busybox as the first layer. A Tekton step with a script needs it.
	shell bool
	// static adds the content of a static base image as the first layer: certificates and a user
	// without rights.
	static bool
	// debian names packages that are added with their dependencies.
	debian []string
	// folder is one of folders, for /.
	folder string
	// rootless makes it an image of BuildKit for a user that is not root.
	rootless bool
	// golang adds this machine's Go, for Dockerfiles that compile.
	golang bool
	// programs are files of the image by their paths; the value is the path below .cache/bin.
	programs map[string]string
	config   v1.Config
}

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var images = []image{
	program("pause", "/pause", "pause"),
	program("coredns", "/coredns", "coredns"),
	program("tekton-controller", "/ko-app/controller", "tekton/controller"),
	program("tekton-webhook", "/ko-app/webhook", "tekton/webhook"),
	program("tekton-events", "/ko-app/events", "tekton/events"),
	program("tekton-entrypoint", "/ko-app/entrypoint", "tekton/entrypoint"),
	program("tekton-nop", "/ko-app/nop", "tekton/nop"),
	program("tekton-sidecarlogresults", "/ko-app/sidecarlogresults", "tekton/sidecarlogresults"),
	program("tekton-workingdirinit", "/ko-app/workingdirinit", "tekton/workingdirinit"),

	controllerImage,
	staticImage("source-controller", "flux/source-controller"),
	staticImage("kustomize-controller", "flux/kustomize-controller"),

	step("busybox", "docker.io/library/busybox:1.37.0", nil, nil),
	step("git", "docker.io/alpine/git:v2.49.1",
		[]string{"git", "ca-certificates", "openssh-client"}, nil),
	step("buildah", "quay.io/buildah/stable:v1.41.4", []string{"buildah", "ca-certificates"}, nil),
	step("kaniko", "gcr.io/kaniko-project/executor:v1.24.0-debug", nil,
		map[string]string{"/kaniko/executor": "kaniko/executor"}),
	{
		name: "buildkit", standsFor: "docker.io/moby/buildkit:v0.33.1-rootless",
		shell: true, debian: []string{"runc", "uidmap", "ca-certificates"}, rootless: true,
		programs: map[string]string{
			"/usr/bin/buildkitd":   "buildkit/buildkitd",
			"/usr/bin/buildctl":    "buildkit/buildctl",
			"/usr/bin/rootlesskit": "buildkit/rootlesskit",
		},
		config: v1.Config{User: "1000:1000",
			Env: []string{searchPath, "HOME=/home/user", "USER=user",
				"XDG_RUNTIME_DIR=/run/user/1000"}},
	},
	{
		name: "golang", shell: true, golang: true,
		config: v1.Config{Env: []string{searchPath + ":/usr/local/go/bin", "GOPROXY=off"}},
	},
	step("cosign", "ghcr.io/sigstore/cosign/cosign:v2.6.0", nil,
		map[string]string{"/ko-app/cosign": "cosign/cosign"}),
	step("syft", "docker.io/anchore/syft:v1.42.3", nil, map[string]string{"/syft": "anchore/syft"}),
	step("grype", "docker.io/anchore/grype:v0.110.0", nil,
		map[string]string{"/grype": "anchore/grype"}),
	step("oras", "ghcr.io/oras-project/oras:v1.3.2", nil,
		map[string]string{"/bin/oras": "oras/oras"}),
	{
		name: "builder", standsFor: "docker.io/paketobuildpacks/builder-jammy-base:0.4.461",
		shell: true, folder: "builder",
		programs: map[string]string{
			"/cnb/lifecycle/creator":  "lifecycle/lifecycle",
			"/cnb/lifecycle/launcher": "lifecycle/launcher",
		},
		config: v1.Config{User: "1001:1000",
			Env: []string{searchPath, "HOME=/root", "CNB_USER_ID=1001", "CNB_GROUP_ID=1000"}},
	},
}

// folders are added to images as they are: builder has the parts of a Cloud Native Buildpacks
// builder except the lifecycle.
//
//go:embed builder
var folders embed.FS

// program returns an image with one program and nothing else.
func program(name, path, source string) image {
	return image{name: name, programs: map[string]string{path: source},
		config: v1.Config{Entrypoint: []string{path}}}
}

// controllerImage is the image of armature-controller as e2e/release builds it for a release.
var controllerImage = staticImage("armature-controller", "armature-controller")

// staticImage returns the image of a controller: the program, certificates and a user without
// rights.
func staticImage(name, source string) image {
	program := "/ko-app/" + name
	return image{
		name: name, static: true,
		programs: map[string]string{program: source},
		config: v1.Config{User: base.User, Entrypoint: []string{program},
			Env: []string{searchPath, "SSL_CERT_FILE=/" + base.Certificates}},
	}
}

// step returns an image to run a Tekton step in.
func step(name, standsFor string, debian []string, programs map[string]string) image {
	return image{name: name, standsFor: standsFor, shell: true, debian: debian, programs: programs,
		config: v1.Config{
			Env: []string{searchPath, "HOME=/root"}, Cmd: []string{"/bin/sh"},
		}}
}

// sidecar returns an image that replaces an injected sidecar. client-registration's script needs a
// shell and calls python.
func sidecar(name string) image {
	return image{
		name: "sidecar-" + name, shell: true,
		programs: map[string]string{"/sidecar": "fakesidecars", "/usr/bin/python": "fakesidecars"},
		config:   v1.Config{Env: []string{searchPath}, Entrypoint: []string{"/sidecar", name}},
	}
}

func init() {
	for _, name := range sidecars.All().Sidecars() {
		images = append(images, sidecar(name))
	}
}

// imageDir is an OCI layout below .cache with all images; each has its name and
// a description of what it was made of as annotations.
const (
	imageDir    = "images"
	nameKey     = "org.opencontainers.image.ref.name"
	madeOfKey   = "dev.armature.made-of"
	debianSuite = "bookworm"
)

// Build builds the images that are missing from .cache/images or whose parts have changed, from
// .cache/bin and Debian packages, and copies Tekton's manifests.
func (c Cluster) Build(progress io.Writer) error {
	if err := copyTekton(c.Cache); err != nil {
		return err
	}
	dir := filepath.Join(c.Cache, imageDir)
	store, err := layout.FromPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		store, err = layout.Write(dir, empty.Index)
	}
	if err != nil {
		return fmt.Errorf("opening the images in %s: %w", dir, err)
	}
	shell, err := shellLayer(c.Cache)
	if err != nil {
		return fmt.Errorf("building the layer with a shell: %w", err)
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	self := sha256.Sum256(program)
	for _, image := range images {
		began := time.Now()
		madeOf, err := partsOf(c.Cache, self, image)
		if err != nil {
			return err
		}
		built, err := buildImage(c.Cache, store, image, madeOf, shell)
		if err != nil {
			return fmt.Errorf("building image %s: %w", image.name, err)
		}
		if built {
			fmt.Fprintf(progress, "image %s: built in %.1f s\n", image.name, time.Since(began).Seconds())
		}
	}
	return nil
}

func buildImage(cache string, store layout.Path, image image, madeOf string,
	shell v1.Layer) (built bool, err error) {
	index, err := store.ImageIndex()
	if err != nil {
		return false, err
	}
	named := func(d v1.Descriptor) bool { return d.Annotations[nameKey] == image.name }
	if found, err := partial.FindManifests(index, func(d v1.Descriptor) bool {
		return named(d) && d.Annotations[madeOfKey] == madeOf
	}); err != nil || len(found) > 0 {
		return false, err
	}
	img, err := makeImage(cache, image, shell)
	if err != nil {
		return false, err
	}
	return true, store.ReplaceImage(img, named, layout.WithAnnotations(map[string]string{
		nameKey: image.name, madeOfKey: madeOf,
	}))
}

// makeImage builds an image without a time, so that equal parts have equal digests.
func makeImage(cache string, image image, shell v1.Layer) (v1.Image, error) {
	layers, err := layersOf(cache, image, shell)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", "amd64", image.config
	return mutate.ConfigFile(img, file)
}

// partsOf returns a text that changes with the image's parts: this program, the image's
// description, and time and size of each program in it.
func partsOf(cache string, self [sha256.Size]byte, image image) (string, error) {
	parts := []string{fmt.Sprintf("%x %v", self, image)}
	for _, at := range slices.Sorted(maps.Keys(image.programs)) {
		info, err := os.Stat(filepath.Join(cache, "bin", image.programs[at]))
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprint(info.Size(), info.ModTime()))
	}
	return strings.Join(parts, " "), nil
}

func layersOf(cache string, image image, shell v1.Layer) ([]v1.Layer, error) {
	var layers []v1.Layer
	if image.shell {
		layers = append(layers, shell)
	}
	if image.static {
		layer, err := base.Layer(base.Base(), time.Time{})
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	var root string // the packages' files
	if len(image.debian) > 0 {
		var err error
		if root, err = debianFiles(cache, image.debian...); err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromFile(root, tarball.WithCompressionLevel(gzip.BestSpeed))
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	var files archive
	if err := files.folder(image.folder); err != nil {
		return nil, err
	}
	if image.golang {
		if err := files.golang(); err != nil {
			return nil, err
		}
	}
	for _, at := range slices.Sorted(maps.Keys(image.programs)) {
		content, err := os.ReadFile(filepath.Join(cache, "bin", image.programs[at]))
		if err != nil {
			return nil, err
		}
		files.file(at, 0o755, content)
	}
	if image.rootless {
		if err := files.rootless(root); err != nil {
			return nil, err
		}
	}
	if files.tar == nil {
		return layers, nil
	}
	layer, err := files.layer()
	return append(layers, layer), err
}

func debianFiles(cache string, packages ...string) (string, error) {
	dir := filepath.Join(cache, "debian")
	file := filepath.Join(dir, strings.Join(packages, "+")+".tar")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unfinished := filepath.Join(dir, "unfinished.tar")
	out, err := exec.Command("mmdebstrap", "--variant=extract",
		"--include="+strings.Join(packages, ","), debianSuite, unfinished).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("fetching Debian packages %s: %w\n%s", strings.Join(packages, ", "),
			err, out)
	}
	return file, os.Rename(unfinished, file)
}

// shellLayer returns a layer with busybox, with a name for each of its commands, and the few files
// and folders that programs expect.
func shellLayer(cache string) (v1.Layer, error) {
	root, err := debianFiles(cache, "busybox-static")
	if err != nil {
		return nil, err
	}
	const program = "bin/busybox"
	found, err := fromTar(root, func(name string) bool { return name == program })
	if err != nil {
		return nil, err
	}
	busybox := found[program]
	names, err := commandsOf(busybox)
	if err != nil {
		return nil, err
	}
	var files archive
	for _, dir := range []string{"/root", "/run", "/var/run", "/proc", "/sys", "/dev", "/etc",
		"/usr/bin"} {
		files.dir(dir, 0o755)
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		files.dir(dir, 0o1777)
	}
	files.file("/etc/passwd", 0o644,
		[]byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	files.file("/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	files.file("/bin/busybox", 0o755, busybox)
	// kaniko's image has its shell there, outside of the image that it builds.
	files.file("/busybox/busybox", 0o755, busybox)
	for _, name := range names {
		files.link("/bin/"+name, "busybox")
		files.link("/busybox/"+name, "busybox")
	}
	return files.layer()
}

func commandsOf(busybox []byte) ([]string, error) {
	dir, err := os.MkdirTemp("", "busybox-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "busybox")
	if err := os.WriteFile(program, busybox, 0o755); err != nil {
		return nil, err
	}
	out, err := exec.Command(program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing busybox's commands: %w", err)
	}
	names := strings.Fields(string(out))
	return slices.DeleteFunc(names, func(name string) bool { return name == "busybox" }), nil
}

// fromTar returns the content of the requested files, by their names. It is an error if a tar file
// has none of them.
func fromTar(file string, wanted func(name string) bool) (map[string][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string][]byte{}
	for entries := tar.NewReader(f); ; {
		entry, err := entries.Next()
		if err == io.EOF && len(found) > 0 {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("looking for files in %s: %w", file, err)
		}
		if name := path.Clean(entry.Name); wanted(name) {
			if found[name], err = io.ReadAll(entries); err != nil {
				return nil, fmt.Errorf("reading %s of %s: %w", name, file, err)
			}
		}
	}
}

// archive builds a layer. Its entries have no time and the owner root, so that equal content has
// the same digest.
type archive struct {
	buf  bytes.Buffer
	tar  *tar.Writer
	dirs map[string]bool
	err  error
}

func (a *archive) add(header tar.Header, content []byte) {
	if a.tar == nil {
		a.tar, a.dirs = tar.NewWriter(&a.buf), map[string]bool{"/": true}
	}
	if parent := path.Dir(header.Name); !a.dirs[parent] {
		a.dir(parent, 0o755)
	}
	header.Name, header.Size = strings.TrimPrefix(header.Name, "/"), int64(len(content))
	if a.err == nil {
		a.err = a.tar.WriteHeader(&header)
	}
	if a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

func (a *archive) dir(at string, mode int64) {
	a.add(tar.Header{Typeflag: tar.TypeDir, Name: at, Mode: mode}, nil)
	a.dirs[at] = true
}

func (a *archive) file(at string, mode int64, content []byte) {
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: at, Mode: mode}, content)
}

// folder adds one of folders; the empty name adds nothing.
func (a *archive) folder(name string) error {
	if name == "" {
		return nil
	}
	return fs.WalkDir(folders, name, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := folders.ReadFile(at)
		a.file(strings.TrimPrefix(at, name), 0o755, content)
		return err
	})
}

func (a *archive) link(at, to string) {
	a.add(tar.Header{Typeflag: tar.TypeSymlink, Name: at, Mode: 0o777, Linkname: to}, nil)
}

func (a *archive) layer() (v1.Layer, error) {
	if err := multi.Errors(a.err, a.tar.Close()); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(a.buf.Bytes())), nil
	}
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed))
}
