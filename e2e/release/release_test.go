package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/e2e/base"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/deliver/sign/signtest"
)

const (
	root    = "../.."
	version = "v0.1.0" // that of SECURITY.md
)

var imageField = regexp.MustCompile(`(?m)^[ \t-]*image: *"?([^\s"]+)"?$`)

// What a release installs names images by digest: the manifests and the chart.
func TestReleasedManifestsNameDigests(t *testing.T) {
	t.Parallel()
	controller := published + "/armature-controller@sha256:" + strings.Repeat("a", 64)
	all, err := manifests(controller)
	if err != nil || len(all) != 6 {
		t.Fatalf("%d manifests, %v", len(all), err)
	}
	for name, text := range all {
		images := 0
		for _, object := range strings.Split(string(text), "\n---\n") {
			if !strings.Contains(object, "\nkind: Deployment\n") {
				continue // the controller pins the images of its steps, by the lock that it has
			}
			for _, image := range imageField.FindAllStringSubmatch(object, -1) {
				if images++; image[1] != controller {
					t.Errorf("%s names %s", name, image[1])
				}
			}
		}
		if images == 0 {
			t.Errorf("%s names no image", name)
		}
	}
	r := &release{tree: root, version: version, time: time.Unix(1700000000, 0)}
	packed, metadata, err := r.chart(controller)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(metadata); !strings.Contains(text, "\nversion: 0.1.0\n") ||
		!strings.Contains(text, "\nappVersion: v0.1.0\n") {
		t.Errorf("Chart.yaml is\n%s", text)
	}
	if values := unpacked(t, packed)["armature/values.yaml"]; !strings.Contains(values,
		"\nimage: \""+controller+"\"\n") {
		t.Errorf("the values of the chart are\n%s", values)
	}
}

// unpacked are the files of an archive.
func unpacked(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(data)
	}
}

// made is a release, signed by the identity of the workflow.
type made struct {
	*testing.T
	release
	cosigns map[string]string // folders with a cosign, by its version
	page    string            // the commands of SECURITY.md
}

// A release has the same bytes wherever it is made. The commands of SECURITY.md verify
// everything with cosign 2 and 3, and refuse a changed byte of anything; so does install.sh.
// Only who certifies identities is another one than for a real release, and there is no log.
func TestRelease(t *testing.T) {
	m := &made{T: t, cosigns: map[string]string{}}
	cosign2, cosign3, helm := programs.Peer(t, "cosign"), programs.Peer(t, "cosign3"),
		programs.Peer(t, "helm4")
	authority := signtest.NewAuthority(t)
	trusted, err := authority.TrustedRoot()
	if err != nil {
		t.Fatal(err)
	}
	trust := m.file("trusted_root.json", string(trusted))
	for v, program := range map[string]string{"2": cosign2, "3": cosign3} {
		m.cosigns[v] = filepath.Dir(m.file("cosign",
			"#!/bin/sh\nexec "+program+` "$@" --trusted-root `+trust+
				" --insecure-ignore-sct --insecure-ignore-tlog --use-signed-timestamps\n"))
	}
	const service = `[{"url": %q, "majorApiVersion": 1, "validFor": {"start": "2020-01-01T00:00:00Z"}, "operator": "test"}]`
	config := m.file("signing.json",
		fmt.Sprintf(
			`{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", "caUrls": `+
				service+`, "tsaUrls": `+service+`, "tsaConfig": {"selector": "ANY"}}`,
			authority.URL, authority.Timestamps()))
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	platforms := strings.Fields(cmp.Or(os.Getenv("ARMATURE_RELEASE_PLATFORMS"), host))
	m.release = release{tree: root, dir: t.TempDir(), version: version, platforms: platforms,
		registry: server.Listener.Addr().String() + "/armature-dev", cosign: cosign3,
		signing: []string{"--signing-config", config, "--trusted-root", trust, "--identity-token",
			signtest.WorkflowToken(
				"armature-dev/armature/.github/workflows/release.yml@refs/tags/" + version)}}
	if err := m.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	security, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, m.page, _ = strings.Cut(string(security), "```bash\n")
	m.page, _, _ = strings.Cut(m.page, "```")
	m.page = strings.NewReplacer(published, m.registry, "_linux_amd64", "_linux_"+runtime.GOARCH).
		Replace(m.page)

	t.Run("content", func(t *testing.T) { m.content(t, helm) })
	t.Run("verify", m.verify)
	t.Run("changed", m.changed)
	t.Run("install", m.install)
	t.Run("again", func(t *testing.T) { m.again(t, cosign2, cosign3) })
	t.Run("changed images", m.changedImages) // last: it replaces them
}

// file writes one into a folder of its own.
func (m *made) file(name, text string) string {
	m.Helper()
	file := filepath.Join(m.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		m.Fatal(err)
	}
	return file
}

// names of the files that are published.
func (m *made) names(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(m.dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (m *made) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(m.dir, "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// run runs a script in the folder of the files, with a cosign.
func (m *made) run(v, script string) (string, error) {
	cmd := exec.CommandContext(m.Context(), "bash", "-e", "-o", "pipefail", "-c", script)
	cmd.Dir = filepath.Join(m.dir, "files")
	cmd.Env = append(os.Environ(), "PATH="+m.cosigns[v]+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// commands returns the commands of SECURITY.md that contain a text, after what defines the
// names that they use.
func (m *made) commands(t *testing.T, text string) string {
	t.Helper()
	lines := strings.SplitAfter(m.page, "\n")
	begin := slices.IndexFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "signed verify")
	})
	script := strings.Join(lines[:begin], "")
	for _, line := range lines[begin:] {
		if strings.Contains(line, text) {
			script += line
		}
	}
	if script == strings.Join(lines[:begin], "") {
		t.Fatalf("no command of SECURITY.md has %q", text)
	}
	return script
}

// content checks that what is published is whole, and that its parts name one another.
func (m *made) content(t *testing.T, helm string) {
	names := m.names(t)
	var statement struct {
		PredicateType string
		Subject       []subject
	}
	var bundle struct{ DSSEEnvelope struct{ Payload string } }
	if err := json.Unmarshal(m.read(t, "provenance.sigstore.json"), &bundle); err != nil {
		t.Fatal(err)
	}
	payload, err := base64.StdEncoding.DecodeString(bundle.DSSEEnvelope.Payload)
	if err == nil {
		err = json.Unmarshal(payload, &statement)
	}
	if err != nil || statement.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Fatalf("the provenance is %s: %v", payload, err)
	}
	digests := map[string]string{}
	for _, s := range statement.Subject {
		digests[s.Name] = s.Digest["sha256"]
	}
	for _, name := range names {
		if strings.HasPrefix(name, "checksums.txt") || name == "provenance.sigstore.json" {
			continue
		}
		if digests[name] != sum(m.read(t, name)) ||
			!strings.Contains(string(m.read(t, "checksums.txt")), digests[name]+"  "+name+"\n") {
			t.Errorf("provenance and checksums do not both name %s", name)
		}
		of, is := strings.CutSuffix(name, ".sbom.json")
		if !is {
			continue
		}
		bill, err := attest.ReadSBOM(m.read(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(of, "-image_") && bill.Of != "sha256:"+digests[of] {
			t.Errorf("%s describes %s", name, bill.Of)
		}
		if text := string(m.read(t,
			name)); !strings.Contains(text,
			"pkg:golang/github.com/armature-dev/armature@v0.1.0\"") ||
			strings.Count(text, "pkg:golang/") < 10 ||
			!strings.Contains(text, "pkg:golang/stdlib@1.") {
			t.Errorf("%s lacks modules", name)
		}
	}
	for _, image := range []string{"armature-controller", "armature-fn", chartName} {
		if len(digests[published+"/"+image]) != 64 {
			t.Errorf("the provenance does not name %s", image)
		}
	}
	controller := published + "/armature-controller@sha256:" +
		digests[published+"/armature-controller"]
	for name, texts := range map[string][]string{
		"install-cluster.yaml": {controller},
		"flux-armature.yaml":   {"version: 0.1.0"}, "krew-armature.yaml": {"version: v0.1.0"},
		"armature.rb": {`version "0.1.0"`, `manpage "man/armature-render.1"`},
	} {
		for _, p := range m.platforms {
			system, cpu, _ := strings.Cut(p, "/")
			kind := map[string]string{"flux-armature.yaml": "kubectl-armature",
				"krew-armature.yaml": "kubectl-armature", "armature.rb": "armature"}[name]
			if archive := fmt.Sprintf("%s_0.1.0_%s_%s.tar.gz", kind, system, cpu); kind != "" {
				texts = append(texts, home+"/releases/download/v0.1.0/"+archive, digests[archive])
			}
		}
		text := string(m.read(t, name))
		for _, want := range texts {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s:\n%s", name, want, text)
			}
		}
		if err := yaml.Unmarshal([]byte(text), new(any)); err != nil &&
			strings.HasSuffix(name, "-armature.yaml") {
			t.Errorf("%s: %v", name, err)
		}
	}
	archive := unpacked(t, m.read(t, "armature_0.1.0_linux_"+runtime.GOARCH+".tar.gz"))
	for _, name := range []string{"armature", "armature-fn", "LICENSE", "README.md",
		"completions/armature.zsh", "man/armature.1"} {
		if len(archive[name]) == 0 {
			t.Errorf("the archive lacks %s", name)
		}
	}
	program := m.file("armature", archive["armature"])
	for command, want := range map[string]string{"version": version,
		"install": "image: " + controller + "\n"} {
		if out, err := exec.CommandContext(t.Context(), program, command).CombinedOutput(); err !=
			nil || !strings.Contains(string(out), want) {
			t.Errorf("armature %s: %v, without %s\n%.500s", command, err, want, out)
		}
	}

	index, err := remote.Index(m.ref(t, "armature-controller:"+version))
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil || config.Config.User != "65532" ||
		!slices.Equal(config.Config.Entrypoint, []string{"/ko-app/armature-controller"}) {
		t.Errorf("%v, the image's config is %+v", err, config)
	}
	var files []string
	for r := tar.NewReader(mutate.Extract(image)); ; {
		header, err := r.Next()
		if err != nil {
			break
		}
		files = append(files, header.Name)
		if data, err := io.ReadAll(r); header.Name == "etc/ssl/certs/ca-certificates.crt" &&
			(err != nil || bytes.Count(data, []byte("BEGIN CERTIFICATE")) < 50) {
			t.Errorf("the image has %d bytes of certificates", len(data))
		}
	}
	for _, file := range []string{"ko-app/armature-controller", "etc/ssl/certs/ca-certificates.crt",
		"etc/passwd", "tmp"} {
		if !slices.ContainsFunc(files, func(name string) bool {
			return strings.TrimSuffix(name, "/") == file
		}) {
			t.Errorf("the image has %v", files)
		}
	}
	out, err := exec.CommandContext(t.Context(), helm, "template", "x",
		"oci://"+m.registry+"/"+chartName, "--version", "0.1.0", "--plain-http").CombinedOutput()
	if err != nil || !strings.Contains(string(out), controller) {
		t.Errorf("Helm: %v\n%.2000s", err, out)
	}
}

func (m *made) ref(t *testing.T, image string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(m.registry + "/" + image)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// verify plays the commands of SECURITY.md as they are, and then those for one artifact
// with each other one.
func (m *made) verify(t *testing.T) {
	names := m.names(t)
	for v := range m.cosigns {
		out, err := m.run(v, m.page)
		if err != nil {
			t.Fatalf("cosign %s: %v\n%s", v, err, out)
		}
		// those that are signed themselves
		if ok := strings.Count(out, ": OK\n"); ok != len(names)-3 {
			t.Errorf("sha256sum compares %d of %d files:\n%s", ok, len(names), out)
		}
		script := strings.ReplaceAll(m.commands(t, "armature-controller"), "armature-controller",
			"armature-fn") +
			strings.ReplaceAll(m.commands(t, "armature-controller"), "armature-controller:$VERSION",
				chartName+":${VERSION#v}")
		one := m.commands(t, "verify-blob-attestation")
		archive := "armature_${VERSION#v}_linux_" + runtime.GOARCH + ".tar.gz"
		if !strings.Contains(one, archive) {
			t.Fatalf("the command for an archive is %s", one)
		}
		for _, name := range names {
			if !strings.HasPrefix(name, "checksums.txt") && name != "provenance.sigstore.json" {
				script += strings.ReplaceAll(one, archive, name)
			}
		}
		if out, err := m.run(v, script); err != nil {
			t.Errorf("cosign %s: %v\n%s", v, err, out)
		}
		for _, program := range []string{"armature-controller", "armature-fn"} {
			index, err := remote.Index(m.ref(t, program+":"+version))
			if err != nil {
				t.Fatal(err)
			}
			list, err := index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			for _, platform := range list.Manifests {
				bill := strings.NewReplacer("armature-controller:$VERSION",
					program+"@"+platform.Digest.String(), "slsaprovenance1", "spdxjson").Replace(
					m.commands(t, "verify-attestation"))
				if out, err := m.run(v, bill); err != nil {
					t.Errorf("the bill of materials of %s, cosign %s: %v\n%s", program, v, err, out)
				}
			}
		}
	}
}

// changed changes a byte of each file, one after the other.
func (m *made) changed(t *testing.T) {
	for _, name := range m.names(t) {
		file := filepath.Join(m.dir, "files", name)
		data := m.read(t, name)
		other, at := slices.Clone(data), len(data)/2
		// of its certificates, not every byte counts
		if i := bytes.Index(data, []byte(`"sig`)); strings.HasSuffix(name, ".sigstore.json") && i > 0 {
			at = i + len(`"signature":"`) + 20
		}
		other[at] ^= 1
		if err := os.WriteFile(file, other, 0o644); err != nil {
			t.Fatal(err)
		}
		script := m.commands(t, "verify-blob ")
		if name == "provenance.sigstore.json" {
			script = m.commands(t, "verify-blob-attestation")
		}
		for v := range m.cosigns {
			if out, err := m.run(v, script); err == nil {
				t.Errorf("cosign %s accepts a changed %s:\n%s", v, name, out)
			}
			if !strings.HasPrefix(name, "checksums.txt") && name != "provenance.sigstore.json" {
				break // which sha256sum compares
			}
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	one := "armature_0.1.0_linux_" + runtime.GOARCH + ".tar.gz"
	script := strings.ReplaceAll(m.commands(t, "verify-blob-attestation"), "${VERSION#v}", "0.1.0")
	for v := range m.cosigns {
		if out, err := m.run(v, strings.Replace(script, one, "/etc/passwd", 1)); err == nil {
			t.Errorf("cosign %s accepts the provenance for a file that it is not about:\n%s", v, out)
		}
	}
}

// changedImages pushes others under the names of the images and the chart.
func (m *made) changedImages(t *testing.T) {
	for of, command := range map[string]string{"armature-controller:" + version: "verify \"" +
		m.registry + "/armature-controller", chartName + ":0.1.0": chartName} {
		ref := m.ref(t, of)
		var other remote.Taggable
		if strings.HasPrefix(of, chartName) {
			image, err := remote.Image(ref)
			if err != nil {
				t.Fatal(err)
			}
			other = mutate.Annotations(image, map[string]string{"changed": "yes"}).(v1.Image)
		} else {
			index, err := remote.Index(ref)
			if err != nil {
				t.Fatal(err)
			}
			other = mutate.Annotations(index, map[string]string{"changed": "yes"}).(v1.ImageIndex)
		}
		if err := remote.Push(ref, other); err != nil {
			t.Fatal(err)
		}
		for v := range m.cosigns {
			if out, err := m.run(v, m.commands(t, command)); err == nil {
				t.Errorf("cosign %s accepts a changed %s:\n%s", v, of, out)
			}
		}
	}
}

// install runs install.sh with and without a cosign, against a server that has the release,
// and changes what it serves.
func (m *made) install(t *testing.T) {
	script, err := filepath.Abs(filepath.Join(root, "templates", "ci", "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() // what install.sh needs, and no cosign of this machine
	for _, tool := range []string{"cat", "curl", "grep", "gzip", "mkdir", "mktemp", "rm",
		"sha256sum", "tar", "tr", "uname", "wget"} {
		if program, err := exec.LookPath(tool); err == nil {
			if err := os.Symlink(program, filepath.Join(path, tool)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const checksums, bundle, missing = "checksums.txt", "checksums.txt.sigstore.json", ""
	archive := "armature_0.1.0_linux_" + runtime.GOARCH + ".tar.gz"
	data := m.read(t, archive)
	// Another program, with a checksum that fits.
	program, err := base.Pack([]base.File{{Name: "armature", Mode: 0o755, Data: []byte("another program")}},
		m.time)
	if err != nil {
		t.Fatal(err)
	}
	fitting := strings.Replace(string(m.read(t, checksums)), sum(data), sum(program), 1)
	for what, c := range map[string]struct {
		served          map[string]string // in place of the release's
		version         string            // another one than the release's
		with, without   string            // what install.sh says
		refused, unsure bool              // with a cosign, and without one
	}{
		"release": {with: "cosign verified the signature of v0.1.0",
			without: "was not verified"},
		"changed archive": {served: map[string]string{archive: string(program)},
			with: "another checksum", without: "another checksum", refused: true, unsure: true},
		"changed checksum": {served: map[string]string{archive: string(program),
			checksums: fitting}, with: "is not what the release workflow signed",
			without: "was not verified", refused: true},
		"no bundle": {served: map[string]string{bundle: missing},
			with: "has no signature to verify", without: "was not verified", refused: true},
		"broken bundle": {served: map[string]string{bundle: "{}"},
			with: "is not what the release workflow signed", without: "was not verified",
			refused: true},
		"another release's": {version: "v0.2.0",
			served: map[string]string{
				"armature_0.2.0_linux_" + runtime.GOARCH + ".tar.gz": string(data),
				checksums: strings.ReplaceAll(string(m.read(t, checksums)), "_0.1.0_", "_0.2.0_")},
			with: "is not what the release workflow signed for v0.2.0", without: "was not verified",
			refused: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					name, ok := strings.CutPrefix(r.URL.Path,
						"/armature-dev/armature/releases/download/"+cmp.Or(c.version, version)+"/")
					if text, is := c.served[name]; is && text != missing {
						_, _ = io.WriteString(w, text)
					} else if ok && !is {
						http.ServeFile(w, r, filepath.Join(m.dir, "files", name))
					} else {
						http.NotFound(w, r)
					}
				}))
			t.Cleanup(server.Close)
			folders := maps.Clone(m.cosigns)
			folders["none"] = "/nonexistent"
			for v, folder := range folders {
				want, refused := c.with, c.refused
				if v == "none" {
					want, refused = c.without, c.unsure
				}
				to := t.TempDir()
				cmd := exec.CommandContext(t.Context(), "/bin/sh", script,
					cmp.Or(c.version, version), to)
				cmd.Env = []string{"PATH=" + folder + ":" + path, "HOME=" + to, "SERVER=" + server.URL}
				out, err := cmd.CombinedOutput()
				if (err != nil) != refused || !strings.Contains(string(out), want) {
					t.Errorf("cosign %s: %v, want %q\n%s", v, err, want, out)
				}
				if _, err := os.Stat(filepath.Join(to, "armature")); (err != nil) != refused {
					t.Errorf("cosign %s: the program: %v", v, err)
				}
			}
		})
	}
}

// again makes the release of a copy of the tree in another folder, as make release-dry-run
// does: the bytes are the same, and its key verifies the signatures.
func (m *made) again(t *testing.T, cosign2, cosign3 string) {
	second := release{tree: filepath.Join(t.TempDir(), "another", "place"), dir: t.TempDir(),
		version: version, platforms: m.platforms, cosign: cosign3}
	copied := exec.CommandContext(t.Context(), "sh", "-ec",
		`git clone -q --shared . "$1"; cd "$0"; git ls-files -m -o --exclude-standard --deduplicate | while read -r f; do
		if [ -e "$f" ]; then mkdir -p "$1/$(dirname "$f")"; cp -P "$f" "$1/$f"; else rm "$1/$f"; fi; done
		! [ -e templates/steps/armature.lock ] || cp templates/steps/armature.lock "$1/templates/steps"`, ".", second.tree)
	copied.Dir = root
	if out, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("copying the tree: %v\n%s", err, out)
	}
	if err := second.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, again := tree(t, m.dir), tree(t, second.dir)
	for file := range first {
		if first[file] != again[file] {
			t.Errorf("%s has other bytes the second time", file)
		}
	}
	if len(first) != len(again) || len(first) < 20 {
		t.Errorf("%d files, and %d the second time", len(first), len(again))
	}
	files := filepath.Join(second.dir, "files")
	for program, flags := range map[string][]string{
		cosign2: {"--trusted-root",
			m.file("empty.json",
				`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)},
		cosign3: nil,
	} {
		flags = append([]string{"verify-blob", "--new-bundle-format", "--insecure-ignore-tlog",
			"--key", filepath.Join(second.dir, "dry-run.pub"), "--bundle",
			filepath.Join(files, "checksums.txt.sigstore.json")}, flags...)
		for file, fine := range map[string]bool{"checksums.txt": true,
			"install-cluster.yaml": false} {
			if out, err := exec.CommandContext(t.Context(), program,
				append(flags, filepath.Join(files, file))...).CombinedOutput(); (err == nil) != fine {
				t.Errorf("%s by the key of the dry run: %v\n%s", file, err, out)
			}
		}
	}
}

// tree has the digests of the files below a folder, but for signatures and the key of the
// dry run.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(file, ".sigstore.json") ||
			strings.HasPrefix(entry.Name(), "dry-run.") {
			return err
		}
		data, err := os.ReadFile(file)
		name, _ := filepath.Rel(dir, file)
		files[name] = sum(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
