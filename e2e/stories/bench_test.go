package stories

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/templates"
)

var (
	rounds = flag.Int("rounds", 5, "how often BenchmarkBuilds measures each figure")
	// Instead of compiling, the Dockerfile of testdata/cached hashes zeros: about a minute
	// of busybox's SHA-256.
	work = flag.Int("mib", 16384, "MiB that a Dockerfile of BenchmarkBuilds hashes")
)

// BenchmarkBuilds prints how long builds take on the cluster: the median of all rounds,
// with the least and the most. It fails where a build does, never because of a time.
func BenchmarkBuilds(b *testing.B) {
	fmt.Printf("\nbuilds on the cluster, seconds: median of %d (least to most); load average %s\n",
		*rounds, loadAverage())
	b.Run("trivial", benchmarkTrivial)
	b.Run("cached", benchmarkCached)
	b.Run("preprod", benchmarkParallel)
	b.Run("locally", benchmarkLocally)
}

// A Dockerfile of one short command, from the creation of the AgentBuild to its
// success: in the namespace of the build, and isolated with a copy of the build's login.
func benchmarkTrivial(b *testing.B) {
	s := newStory(b, nil)
	s.installed(b)
	s.push(b, "testdata/hello", "public/"+s.namespace+".git")
	s.secret(b, "login", corev1.SecretTypeDockerConfigJson,
		map[string]string{corev1.DockerConfigJsonKey: s.registryLogin(b)})
	isolated := s.adapted(b, "dev", "isolated", func(template string) string {
		return template + "\nisolate: true\nopen: {parameters: [PLAIN_HTTP]}\n"
	})
	modes, took := []string{"dev", isolated}, map[string]seconds{}
	for round := range *rounds {
		for i, mode := range modes {
			took[mode] = append(took[mode], s.timed(b, fmt.Sprintf("hello-%d-%d", round, i), `
  mode: `+mode+`
  builder: buildkit
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline: {parameters: [{name: PLAIN_HTTP, value: "true"}]}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1, imageRepoCredentials: {name: login}}
`))
		}
	}
	dev, more := took["dev"], took[isolated].median()-took["dev"].median()
	row("a trivial build in mode dev", dev.String(),
		target(dev.median() <= 12, "at most 12 s, half of what it was"))
	row("  the same, isolated", took[isolated].String(), fmt.Sprintf("%.1f s more", more),
		target(more <= 1, "at most 1 s more"))
}

// The same Dockerfile is built by Armature, and by buildctl in a pod of the same image,
// each with a cache in the registry of its own: first without anything in it, then
// unchanged, then with another last layer. A daemon's own state goes with its pod.
func benchmarkCached(b *testing.B) {
	s := newStory(b, nil)
	s.installed(b)
	kinds := []string{"cold", "unchanged", "last layer changed"}
	ours, command, pod := map[string]seconds{}, map[string]seconds{}, map[string]seconds{}
	folder := filepath.Join(b.TempDir(), "cached")
	must(b, os.CopyFS(folder, os.DirFS("testdata/cached")))
	for round := range *rounds {
		for i, kind := range kinds {
			version := "1"
			if kind == "last layer changed" {
				version = fmt.Sprintf("changed in round %d", round)
			}
			must(b, os.WriteFile(filepath.Join(folder, "version"), []byte(version+"\n"), 0o644))
			s.push(b, folder, "public/"+s.namespace+".git")
			ours[kind] = append(ours[kind],
				s.timed(b, fmt.Sprintf("cached-%d-%d", round, i),
					strings.NewReplacer("ROUND_VALUE", strconv.Itoa(round), "WORK_VALUE",
						strconv.Itoa(*work)).Replace(`
  mode: dev-local
  builder: buildkit
  cache: {registry: "${registry}/${namespace}/cache-ROUND_VALUE", mode: max}
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: WORK, value: "WORK_VALUE"}
  - {name: ROUND, value: "ROUND_VALUE"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: cached, imageTag: v1}
`)))
			inCommand, inPod := s.buildctl(b, fmt.Sprintf("plain-%d-%d", round, i), folder, round)
			command[kind], pod[kind] = append(command[kind], inCommand), append(pod[kind], inPod)
		}
	}
	row(fmt.Sprintf("%d MiB hashed in a Dockerfile:", *work), "AgentBuild", "buildctl",
		"buildctl with its pod", "over buildctl", "share")
	for _, kind := range kinds {
		over := ours[kind].median() - command[kind].median()
		row("  "+kind, ours[kind].String(), command[kind].String(), pod[kind].String(),
			fmt.Sprintf("%.1f s", over), fmt.Sprintf("%.0f %%", 100*over/ours[kind].median()))
	}
	faster := func(of map[string]seconds) float64 {
		return of["cold"].median() / of["unchanged"].median()
	}
	times := func(n float64) string { return fmt.Sprintf("%.1fx", n) }
	row("  cold over unchanged", times(faster(ours)), times(faster(command)), times(faster(pod)),
		target(faster(ours) >= 5, "at least 5x"))
}

// Mode preprod with tests that compute, as it is shipped and with each task after the
// one before.
func benchmarkParallel(b *testing.B) {
	s := newStory(b, nil)
	s.installed(b)
	s.push(b, "testdata/cached", "public/"+s.namespace+".git")
	shipped, err := templates.Files.ReadFile("modes/pipeline-template-preprod.yaml")
	must(b, err)
	s.apply(b, inSequence(b, string(shipped)))
	modes := []string{"preprod", "sequence"}
	took := map[string]seconds{}
	for round := range *rounds {
		for _, mode := range modes {
			took[mode] = append(took[mode],
				s.timed(b, fmt.Sprintf("%s-%d", mode, round),
					strings.NewReplacer("MODE_VALUE", mode, "WORK_VALUE", strconv.Itoa(*work/4)).Replace(`
  mode: MODE_VALUE
  builder: buildkit
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "dd if=/dev/zero bs=1M count=WORK_VALUE | sha256sum"}
    - {name: database-url, value: "${vulnerabilityDatabase}"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: WORK, value: "WORK_VALUE"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: MODE_VALUE, imageTag: v1}
`)))
		}
	}
	row(fmt.Sprintf("preprod, %d MiB hashed in tests and Dockerfile:", *work/4), "parallel",
		"in sequence", "saved")
	saved := took["sequence"].median() - took["preprod"].median()
	row("", took["preprod"].String(), took["sequence"].String(),
		fmt.Sprintf("%.1f s, %.0f %%", saved, 100*saved/took["sequence"].median()))
}

// inSequence makes mode sequence of the shipped preprod: nothing runs beside anything.
func inSequence(t testing.TB, template string) string {
	t.Helper()
	for _, change := range []struct{ from, to string }{
		{"name: pipeline-template-preprod", "name: pipeline-template-sequence"},
		{"component.kagenti.ai/mode: preprod", "component.kagenti.ai/mode: sequence"},
		{"name: preprod\n", "name: sequence\n"},
		{"        runAfter: [dockerfile-check] # beside the tests\n", ""},
		{"        runAfter: [$(builder)]\n", ""},
	} {
		if strings.Count(template, change.from) != 1 {
			t.Fatalf("the shipped template does not have %q once", change.from)
		}
		template = strings.Replace(template, change.from, change.to, 1)
	}
	return template
}

// What the benchmark changes in the shipped template is there to be changed.
func TestSequenceTemplate(t *testing.T) {
	shipped, err := templates.Files.ReadFile("modes/pipeline-template-preprod.yaml")
	must(t, err)
	if left := strings.Count(inSequence(t, string(shipped)), "runAfter: ["); left != 1 {
		t.Errorf("%d steps name what they wait for, want push alone", left)
	}
}

// timed creates an AgentBuild, waits for its success, and returns the seconds between.
func (s *story) timed(t testing.TB, name, spec string) float64 {
	t.Helper()
	began := time.Now()
	s.apply(t, "apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\nmetadata: {name: "+name+
		"}\nspec:"+spec)
	s.succeeded(t, name)
	return time.Since(began).Seconds()
}

// plainBuild waits for a daemon of its own, and reports by the uptime of the machine how
// long buildctl took to build and push.
const plainBuild = `set -eu
mkdir -p "$HOME/context" "$HOME/store"
cp -L /files/Dockerfile /files/version "$HOME/context/"
printf '[registry."%s"]\n  http = true\n' "$REGISTRY" > "$HOME/buildkitd.toml"
export BUILDKIT_HOST=unix://$HOME/buildkitd.sock
rootlesskit buildkitd --root="$HOME/store" --config="$HOME/buildkitd.toml" --oci-worker-no-process-sandbox --addr="$BUILDKIT_HOST" 2>"$HOME/log" &
until buildctl debug workers >/dev/null 2>&1; do sleep 0.1; done
read -r began rest < /proc/uptime
buildctl build --progress=plain --frontend=dockerfile.v0 --local=context="$HOME/context" --local=dockerfile="$HOME/context" \
  --opt=build-arg:BASE="$REGISTRY/armature/busybox:latest" --opt=build-arg:WORK="$WORK" --opt=build-arg:ROUND="$ROUND" \
  --import-cache="type=registry,ref=$CACHE" --export-cache="type=registry,ref=$CACHE,mode=max,image-manifest=true,oci-mediatypes=true" \
  --output="type=image,name=$IMAGE,push=true"
read -r ended rest < /proc/uptime
echo "took $began $ended"
`

// buildctl builds a folder in a pod of its own and pushes the image. It returns the seconds that
// the command took against a daemon that answers, and those from the creation of the pod to its
// end.
func (s *story) buildctl(t testing.TB, name, folder string, round int) (command, pod float64) {
	t.Helper()
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Data: map[string]string{}}
	for _, file := range []string{"Dockerfile", "version"} {
		text, err := os.ReadFile(filepath.Join(folder, file))
		must(t, err)
		files.Data[file] = string(text)
	}
	must(t, s.Create(t.Context(), files))
	nonRoot, user := true, int64(1000)
	worker := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "buildctl", Image: s.info.Images["buildkit"],
				Command: []string{"/bin/sh", "-c", plainBuild},
				Env: []corev1.EnvVar{
					{Name: "HOME", Value: "/home/user"}, {Name: "USER", Value: "user"},
					{Name: "XDG_RUNTIME_DIR", Value: "/run/user/1000"},
					{Name: "REGISTRY", Value: s.info.Registry},
					{Name: "WORK", Value: strconv.Itoa(*work)},
					{Name: "ROUND", Value: strconv.Itoa(round)},
					{Name: "CACHE",
						Value: fmt.Sprintf("%s/%s/plain-cache-%d", s.info.Registry, s.namespace,
							round)},
					{Name: "IMAGE", Value: s.info.Registry + "/" + s.namespace + "/plain:v1"},
				},
				SecurityContext: &corev1.SecurityContext{
					RunAsNonRoot: &nonRoot, RunAsUser: &user, RunAsGroup: &user,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"},
						Add: []corev1.Capability{"SETUID", "SETGID"}},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "files", MountPath: "/files"},
					{Name: "home", MountPath: "/home/user"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "files",
					VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
				// the overlay snapshotter needs one
				{Name: "home",
					VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
	created := time.Now()
	must(t, s.Create(t.Context(), worker))
	eventually(t, 10*time.Minute, "buildctl ends in pod "+name, func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(worker), worker); err != nil {
			return err
		}
		if phase := worker.Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return fmt.Errorf("the pod is %s", phase)
		}
		if pod == 0 {
			pod = time.Since(created).Seconds()
		}
		text, err := s.log(ctx, name, "buildctl")
		if err != nil {
			return err
		}
		if worker.Status.Phase == corev1.PodFailed {
			t.Fatalf("buildctl failed:\n%s", text)
		}
		var began, ended float64
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if _, err := fmt.Sscanf(lines[len(lines)-1], "took %f %f", &began, &ended); err != nil {
			return err
		}
		command = ended - began
		return nil
	})
	must(t, s.Delete(t.Context(), worker))
	return command, pod
}

// seconds that each round took.
type seconds []float64

func (s seconds) median() float64 { return slices.Sorted(slices.Values(s))[len(s)/2] }

func (s seconds) String() string {
	return fmt.Sprintf("%.1f (%.1f to %.1f)", s.median(), slices.Min(s), slices.Max(s))
}

func row(name string, figures ...string) {
	fmt.Printf("%-56s", name)
	for _, f := range figures {
		fmt.Printf(" %22s", f)
	}
	fmt.Println()
}

func target(met bool, text string) string {
	if met {
		return text + ": met"
	}
	return text + ": NOT met"
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return string(bytes.Join(bytes.Fields(text)[:3], []byte(" ")))
}
