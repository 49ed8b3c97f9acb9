package compose_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// buildkitd is the sidecar of buildkit-build-step.
func buildkitd(t *testing.T) tektonv1.Sidecar {
	t.Helper()
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	step, err := templates.ReadStep(library.ConfigMaps["buildkit-build-step"])
	if err != nil {
		t.Fatal(err)
	}
	return step.Task.Sidecars[0]
}

// moved is a script of buildkit-build-step with the pod's folders below dir.
func moved(script, dir string) string {
	return strings.NewReplacer("/home/user/.local/share/buildkit", dir, "/run/buildkit-socket", dir,
		"chgrp 1000", "true").Replace(script)
}

// The registries of the image and of build arguments do without TLS where they are local, as
// they do for kaniko and push-step, and the image's where PLAIN_HTTP says so; no other does.
func TestBuildKitRegistriesWithoutTLS(t *testing.T) {
	for _, c := range []struct{ image, plain, args, want string }{
		{"registry.example.com/team/a:v1", "false", "'BASE=ghcr.io/team/b:v1'", ""},
		{"registry.example.com:5000/team/a:v1", "true",
			"'BASE=ghcr.io/team/b:v1' VERBOSE=1 'TEXT=a/b c'", "registry.example.com:5000"},
		{"registry.cr-system.svc.cluster.local:5000/a:v1", "false",
			"'BASE=registry.cr-system.svc.cluster.local:5000/b:v1'",
			"registry.cr-system.svc.cluster.local:5000"},
		{"ghcr.io/a/b:v1", "false",
			"BASE=10.96.0.7:5000/b:v1 OTHER=10.96.0.7:5000/c:v1 THIRD=172.20.0.1/d:v1",
			"10.96.0.7:5000 172.20.0.1"},
		{"10.example.com/a:v1", "false",
			"A=172.15.0.1/a:v1 B=172.32.0.1/a:v1 C=notlocal/a:v1 'D=a\"]\n" +
				"[b]/c.local/x' E=/x.local/y F=1.10.0.1/a:v1", ""},
		{"localhost:5000/a:v1", "false", "A=192.168.7.7/a:v1 B=127.0.0.1:1/b",
			"localhost:5000 192.168.7.7 127.0.0.1:1"},
		{"library:v1", "true", "", ""},
	} {
		dir := t.TempDir()
		stub(t, dir, "rootlesskit", "exit 0")
		script := "set -- " + c.args + "\n" + moved(buildkitd(t).Script, dir)
		if _, printed, err := runScript(t, script, "PATH="+dir+":"+os.Getenv("PATH"),
			"IMAGE="+c.image, "PLAIN_HTTP="+c.plain); err != nil {
			t.Fatalf("%s: %v\n%s", c.image, err, printed)
		}
		config, err := os.ReadFile(filepath.Join(dir, "store", "buildkitd.toml"))
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		for _, host := range strings.Fields(c.want) {
			want += "[registry.\"" + host + "\"]\n  http = true\n  insecure = true\n"
		}
		if diff := cmp.Diff(want, string(config)); diff != "" {
			t.Errorf("%s with %s (-want +got):\n%s", c.image, c.args, diff)
		}
	}
}

// Where a node lets pods make no user namespaces, the client ends at once, with the reason
// and the remedy.
func TestNodeWithoutUserNamespaces(t *testing.T) {
	dir := t.TempDir()
	stub(t, dir, "rootlesskit",
		"echo 'fork/exec /proc/self/exe: operation not permitted' >&2; exit 1")
	stub(t, dir, "buildctl", "exit 1")
	path := "PATH=" + dir + ":" + os.Getenv("PATH")
	if _, printed, err := runScript(t, moved(buildkitd(t).Script, dir), path,
		"IMAGE=registry.local/a:v1", "PLAIN_HTTP=false"); err == nil {
		t.Errorf("buildkitd starts all the same: %s", printed)
	}
	_, printed, err := runScript(t, moved(stepContainer(t, "buildkit-build-step", "build").Script,
		dir), path, "NETWORK=", "CACHE=", "CACHE_MODE=max", "IMAGE_CACHE=", "CREDENTIALS=")
	if err == nil || !strings.Contains(printed, "operation not permitted") ||
		!strings.HasSuffix(printed,
			"choose another builder, such as builder: kaniko, or allow user namespaces "+
				"on the node\n") {
		t.Errorf("the client ends with %v and prints\n%s", err, printed)
	}
}

// A Dockerfile above the folder to build is found, as kaniko finds it, and none out of the
// source, by way of links either.
func TestDockerfileAboveTheFolder(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	bin := t.TempDir()
	stub(t, bin, "buildctl", `[ "$1" = build ] || { echo sha256:record; exit 0; }
for arg in "$@"; do
  printf '%s\n' "$arg"
  case "$arg" in --metadata-file=*) printf '"containerimage.digest": "`+digest+`"' > "${arg#*=}" ;; --ref-file=*) echo ref > "${arg#*=}" ;; esac
done`)
	for dockerfile, want := range map[string]string{
		"Dockerfile":                   "/agents/a Dockerfile",
		"build/Dockerfile":             "/agents/a build/Dockerfile",
		"../../docker/Dockerfile.prod": "/docker Dockerfile.prod",
		"../a/Dockerfile":              "/agents/a Dockerfile",
		"../../../out/Dockerfile":      "",
		"../../link/Dockerfile":        "",
	} {
		source, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		root := filepath.Join(source, "source")
		for _, folder := range []string{"source/agents/a/build", "source/docker", "out"} {
			if err := os.MkdirAll(filepath.Join(source, folder), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("../out", filepath.Join(root, "link")); err != nil {
			t.Fatal(err)
		}
		_, printed, err := runScript(t, stepContainer(t, "buildkit-build-step", "build").Script,
			"PATH="+bin+":"+os.Getenv("PATH"), "SOURCE="+root, "FOLDER=agents/a",
			"DOCKERFILE="+dockerfile, "NETWORK=", "CACHE=", "CACHE_MODE=max", "IMAGE_CACHE=",
			"CREDENTIALS=", "PLATFORM=", "RECORD="+t.TempDir())
		if want == "" {
			if err == nil || !strings.Contains(printed, "the Dockerfile is out of the source") {
				t.Errorf("%s: %v, printed\n%s", dockerfile, err, printed)
			}
			continue
		}
		folder, name, _ := strings.Cut(want, " ")
		for _, argument := range []string{"--local=context=" + root + "/agents/a\n",
			"--local=dockerfile=" + root + folder + "\n", "--opt=filename=" + name + "\n"} {
			if err != nil || !strings.Contains(printed, argument) {
				t.Errorf("%s: %v, no argument %q in\n%s", dockerfile, err, argument, printed)
			}
		}
	}
}

// stub makes a program of that name, which is a shell script.
func stub(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
}

// A login for base images may be bound in every mode, in those that are attested too; it
// reaches BuildKit's client alone, and has to be for registries.
func TestPullCredentials(t *testing.T) {
	for _, mode := range []string{"dev", "dev-local", "preprod", "prod"} {
		out, err := plan(t,
			withSpec("  mode: "+mode+
				"\n  pipeline: {workspaces: [{name: pull-credentials, secret: {name: "+
				"pull-only}}]}\n"), nil, compose.Settings{})
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if diff := cmp.Diff([]string{"buildkit-build/build"},
			logins(t, out)["pull-only"]); diff != "" {
			t.Errorf("%s: containers with the login (-want +got):\n%s", mode, diff)
		}
		purpose := compose.Purpose("")
		for _, n := range out.Needs {
			if n.Name == "pull-only" {
				purpose = n.Purpose
			}
		}
		if purpose != compose.PurposeRegistry {
			t.Errorf("%s: the Secret is for %q", mode, purpose)
		}
	}
	_, err := plan(t,
		withSpec("  mode: prod\n  pipeline: {workspaces: [{name: pull-credentials, "+
			"persistentVolumeClaim: {name: mine}}]}\n"), nil, compose.Settings{})
	if err == nil || !strings.Contains(err.Error(), "spec.pipeline.workspaces[0]") {
		t.Errorf("a volume in its place: %v", err)
	}
}
