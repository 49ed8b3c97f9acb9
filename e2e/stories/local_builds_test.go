package stories

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// A developer builds on her own machine what the cluster builds, from the same files: the
// images have the same content.
func TestLocalBuilds(t *testing.T) {
	s := newStory(t, nil)
	s.installed(t)
	s.localBuildKit(t)
	s.secret(t, "login", corev1.SecretTypeDockerConfigJson,
		map[string]string{".dockerconfigjson": "{}"})
	for _, c := range []struct{ name, source, more string }{
		{"dev", "hello", "mode: dev"},
		{"kaniko", "hello", "mode: dev-local\n  builder: kaniko"},
		{"external", "hello", "mode: dev-external"},
		{"preprod", "hello", `mode: preprod
  pipeline: {parameters: [{name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}, {name: TEST_COMMAND, value: "echo tested"}, {name: database-url, value: "${vulnerabilityDatabase}"}, {name: PLAIN_HTTP, value: "true"}]}`},
		{"buildpack", "buildpack", "mode: buildpack-dev"},
	} {
		t.Run(c.name, func(t *testing.T) {
			commit := s.push(t, "testdata/"+c.source, "public/"+s.namespace+"-"+c.name+".git")
			text := `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: ` + c.name + `}
spec:
  ` + c.more + `
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/public/${namespace}-` + c.name + `.git", sourceRevision: main}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: ` + c.name + `, imageTag: v1, imageRepoCredentials: {name: login}}
`
			s.apply(t, text)
			file := filepath.Join(t.TempDir(), "build.yaml")
			local := strings.NewReplacer("${git}", s.info.GitHTTP, "${namespace}", s.namespace,
				"${registry}", s.info.Registry, "${vulnerabilityDatabase}",
				s.info.VulnerabilityDatabase, "imageTag: v1", "imageTag: local").Replace(text)
			must(t, os.WriteFile(file, []byte(local), 0o600))
			cmd := exec.CommandContext(t.Context(), "armature",
				append([]string{"build", "run", file, "--local", "--destination=registry", "--logs",
					"--provenance-file=" + file + ".json"}, s.stepImages(t)...)...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", regexp.MustCompile(`(?m)^.*: built .*$`).Find(out))
			digest := regexp.MustCompile(`built (sha256:[0-9a-f]{64})`).FindSubmatch(out)
			if digest == nil {
				t.Fatalf("no digest:\n%s", out)
			}
			isLocalProvenance(t, file+".json", string(digest[1]), commit)
			ours := s.content(t,
				s.info.HostRegistry+"/"+s.namespace+"/"+c.name+"@"+string(digest[1]))
			theirs := s.content(t, strings.Replace(s.succeeded(t, c.name).Status.BuiltImage,
				s.info.Registry, s.info.HostRegistry, 1))
			// it keeps the mode and group of volumes and the clone, and makes an ID of its own each
			// time
			if c.source == "buildpack" {
				for _, content := range []map[string]string{ours, theirs} {
					maps.DeleteFunc(content, func(name, text string) bool {
						return text[0] == tar.TypeDir || strings.HasSuffix(name, "made/id") ||
							strings.Contains(name, "/.git/")
					})
				}
			}
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("the local image differs from the cluster's (-cluster +local):\n%s", diff)
			}
		})
	}
}

// isLocalProvenance compares what a local build says of itself with its image and its commit.
func isLocalProvenance(t testing.TB, file, digest, commit string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	var made struct {
		Subject   []struct{ Digest map[string]string }
		Predicate sign.Provenance
	}
	must(t, json.Unmarshal(text, &made))
	p := made.Predicate
	if len(made.Subject) != 1 || "sha256:"+made.Subject[0].Digest["sha256"] != digest ||
		p.RunDetails.Builder.ID != keys.LocalBuilder ||
		len(p.BuildDefinition.ResolvedDependencies) != 1 ||
		p.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != commit {
		t.Errorf("provenance:\n%s", text)
	}
}

// A platform engineer tests a step and a mode in CI, without a cluster: what is not as expected
// is named.
func TestLocalTests(t *testing.T) {
	s := newStory(t, nil)
	s.localBuildKit(t)
	source, err := filepath.Abs("testdata/hello")
	must(t, err)
	dir := t.TempDir()
	must(t, os.CopyFS(filepath.Join(dir, "hello"), os.DirFS(source)))
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	file := filepath.Join(dir, "tests.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `
apiVersion: armature.dev/v1alpha1
kind: BuildTest
metadata: {name: found}
spec:
  step: check-dockerfile-step
  source: hello
  expect: {results: {has-dockerfile: "true", dockerfile-name: Dockerfile}, logs: [found Dockerfile]}
---
apiVersion: armature.dev/v1alpha1
kind: BuildTest
metadata: {name: refused}
spec:
  step: check-dockerfile-step
  parameters: {dockerfile: Other}
  source: hello
  expect: {result: Failed, logs: [has no Other]}
---
apiVersion: armature.dev/v1alpha1
kind: BuildTest
metadata: {name: wrong}
spec:
  step: check-dockerfile-step
  source: empty
  expect: {results: {has-dockerfile: "true"}}
---
apiVersion: armature.dev/v1alpha1
kind: BuildTest
metadata: {name: custom}
spec:
  build:
    mode: custom
    pipeline: {steps: [{name: github-clone}, {name: folder-verification}, {name: looks, configMap: check-dockerfile-step}]}
  source: hello
  expect: {results: {looks.has-dockerfile: "true"}}
---
apiVersion: armature.dev/v1alpha1
kind: BuildTest
metadata: {name: mode}
spec:
  build: {mode: dev, buildArgs: [{name: BASE, value: %q}]}
  source: hello
  expect: {logs: ["pushed 127.0.0.1:"]}
`, s.info.Registry+"/armature/busybox:latest"), 0o600))
	cmd := exec.CommandContext(t.Context(), "armature",
		append([]string{"build", "test", file}, s.stepImages(t)...)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"ok   found", "ok   refused", "FAIL wrong",
		`the result has-dockerfile is "false", but "true" is expected`, "ok   custom", "ok   mode",
		"1 of 5 tests failed"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it prints no %q:\n%s", want, out)
		}
	}
}

// stepImages are the flags by which local builds get the images of steps, and hosts that may
// receive a login over http.
func (s *story) stepImages(t testing.TB, plainHTTP ...string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	values := fmt.Sprintf("{imageMirror: %q, image: %q, plainHTTPHosts: [%s]}\n", s.info.Mirror,
		s.info.Images["armature-controller"], strings.Join(plainHTTP, ", "))
	must(t, os.WriteFile(file, []byte(values), 0o600))
	return []string{"--values=" + file, "--image-pins="}
}

// helloBuild takes a registry and a namespace, and --source.
const helloBuild = `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello, namespace: %[2]s}
spec:
  mode: dev
  source: {sourceRepository: "http://replaced.invalid/hello.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "%[1]s/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "%[1]s/%[2]s", image: hello, imageTag: v1}
`

// What mode dev costs on this machine beside buildctl with the same Dockerfile, where nothing
// has changed since the last build: from the command to the pushed image.
func benchmarkLocally(b *testing.B) {
	s := newStory(b, nil)
	s.localBuildKit(b)
	file := filepath.Join(b.TempDir(), "build.yaml")
	must(b, os.WriteFile(file, fmt.Appendf(nil, helloBuild, s.info.Registry, s.namespace), 0o600))
	took := map[string]seconds{}
	for round := range *rounds + 1 {
		for name, args := range map[string][]string{
			"armature": append([]string{"build", "run", file, "--local", "--destination=registry",
				"--source=testdata/hello"}, s.stepImages(b)...),
			"../../.cache/bin/buildkit/buildctl": {"--addr", os.Getenv("BUILDKIT_HOST"), "build",
				"--frontend=dockerfile.v0", "--local=context=testdata/hello",
				"--local=dockerfile=testdata/hello",
				"--opt=build-arg:BASE=" + s.info.Registry + "/armature/busybox:latest",
				"--output=type=image,push=true,name=" + s.info.Registry + "/" + s.namespace +
					"/plain:v1"},
		} {
			began := time.Now()
			run(b, nil, name, args...)
			if round > 0 { // the first fetches images
				took[filepath.Base(name)] = append(took[filepath.Base(name)], time.Since(began).Seconds())
			}
		}
	}
	over := took["armature"].median() - took["buildctl"].median()
	row("mode dev on this machine, nothing changed:", "armature", "buildctl", "over buildctl")
	row("", took["armature"].String(), took["buildctl"].String(), fmt.Sprintf("%.1f s", over),
		target(over < 2, "under 2 s"))
}

// localBuildKit starts one that reaches what the cluster's pods reach, and names it in
// BUILDKIT_HOST.
func (s *story) localBuildKit(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a BuildKit without rootlesskit takes root")
	}
	dir := t.TempDir()
	config, socket := filepath.Join(dir, "buildkitd.toml"), filepath.Join(dir, "buildkitd.sock")
	must(t,
		os.WriteFile(config, fmt.Appendf(nil, "[registry.%q]\n  http = true\n", s.info.Registry), 0o600))
	cmd := exec.Command("nsenter", "--net", "--target", strconv.Itoa(s.info.Process),
		"../../.cache/bin/buildkit/buildkitd", "--root="+filepath.Join(dir, "state"),
		"--addr=unix://"+socket, "--config="+config, "--oci-worker-net=host",
		"--allow-insecure-entitlement=network.host")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s", &log)
		}
	})
	t.Setenv("BUILDKIT_HOST", "unix://"+socket)
	eventually(t, time.Minute, "buildkitd answers", func(context.Context) error {
		_, err := os.Stat(socket)
		return err
	})
}

// A build that was published reads a private repository with a Secret, which the developer has
// as files; and a Dockerfile that fails is named with its line.
func TestLocalLogins(t *testing.T) {
	s := newStory(t, nil)
	s.localBuildKit(t)
	s.push(t, "testdata/hello", "private/"+s.namespace+".git")
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "username"), []byte("robot"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "password"), []byte(s.info.GitToken), 0o600))
	published := s.publishedBuild(t)
	text, err := yaml.Marshal(published.Object)
	must(t, err)
	file := filepath.Join(t.TempDir(), "build.yaml")
	must(t, os.WriteFile(file, text, 0o600))
	build := func(file string, flags []string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "armature",
			slices.Concat([]string{"build", "run", file, "--local"}, args, flags)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	flags, plain := s.stepImages(t), s.stepImages(t,
		strconv.Quote(strings.TrimPrefix(s.info.GitHTTP, "http://")))
	out, err := build(file, plain, "--destination=registry", "--logs", "--secret",
		"github-token-secret="+dir)
	if err != nil || !strings.Contains(out, "kaniko-build/build-and-push: Succeeded") ||
		strings.Contains(out, s.info.GitToken) {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := build(file, plain, "--destination=registry"); err == nil ||
		!strings.Contains(out, "github-clone/clone ended with exit code 128") {
		t.Errorf("without a login: %v\n%s", err, out)
	}
	if out, err := build(file, flags, "--destination=registry"); err == nil ||
		!strings.Contains(out, "a login is not sent to") ||
		!strings.Contains(out, "plain-http-hosts") {
		t.Errorf("a host that is not named: %v\n%s", err, out)
	}

	source := t.TempDir()
	must(t, os.WriteFile(filepath.Join(source, "Dockerfile"),
		[]byte("ARG BASE\nFROM ${BASE}\nRUN echo the problem; exit 3\n"), 0o600))
	must(t, os.WriteFile(file, fmt.Appendf(nil, helloBuild, s.info.Registry, s.namespace), 0o600))
	out, err = build(file, flags, "--source", source)
	if err == nil || !strings.Contains(out, "DockerfileFailed: Dockerfile:3") {
		t.Errorf("a Dockerfile that fails: %v\n%s", err, out)
	}
}

// content of an image: its files with modes, owners and digests, and its configuration, without
// times and the names of registries.
func (s *story) content(t *testing.T, image string) map[string]string {
	t.Helper()
	img, err := remote.Image(reference(t, image))
	must(t, err)
	files := mutate.Extract(img)
	defer files.Close()
	content := map[string]string{}
	for entries := tar.NewReader(files); ; {
		h, err := entries.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		sum := sha256.New()
		_, err = io.Copy(sum, entries)
		must(t, err)
		content[h.Name] = fmt.Sprintf("%c %o %d:%d %s %x", h.Typeflag, h.Mode, h.Uid, h.Gid,
			h.Linkname, sum.Sum(nil))
	}
	config, err := img.ConfigFile()
	must(t, err)
	config.Config.Labels = nil // of buildpacks: with the digests of layers, whose files have times
	text, err := json.Marshal(struct {
		v1.Config
		OS, Architecture string
	}{config.Config, config.OS, config.Architecture})
	must(t, err)
	content["configuration"] = string(text)
	return content
}
