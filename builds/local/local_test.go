package local

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/buildkit/client"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/e2e/programs"
)

// lab is a BuildKit that the tests share, and the image of their steps.
type lab struct {
	daemon *Daemon
	image  string
}

var theLab struct {
	sync.Mutex
	*lab
	stop []func()
}

func TestMain(m *testing.M) {
	if os.Getenv("ARMATURE_TEST_KILLED") != "" { // a process that TestKilled ends
		os.Exit(buildUntilKilled())
	}
	code := m.Run()
	for _, stop := range theLab.stop {
		stop()
	}
	os.Exit(code)
}

func newLab(t *testing.T) *lab {
	t.Helper()
	for _, program := range []string{"buildkitd", "busybox", "runc"} {
		path := programs.Peer(t, program)
		if program == "busybox" {
			continue
		}
		t.Setenv("PATH", filepath.Dir(path)+":"+os.Getenv("PATH"))
	}
	if os.Geteuid() != 0 {
		programs.Need(t, errors.New("it takes root, for containers without rootlesskit"))
	}
	theLab.Lock()
	defer theLab.Unlock()
	if theLab.lab == nil {
		t.Setenv("BUILDKIT_HOST", "")
		state, err := os.MkdirTemp("", "local-builds-")
		must(t, err)
		theLab.stop = append(theLab.stop, func() { _ = os.RemoveAll(state) })
		daemon, err := start(t.Context(), state)
		must(t, err)
		theLab.stop = append([]func(){func() { _ = daemon.Close() }}, theLab.stop...)
		server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		theLab.lab = &lab{daemon, strings.TrimPrefix(server.URL, "http://") + "/step:v1"}
		push(t, theLab.image, programs.Peer(t, "busybox"))
	}
	return theLab.lab
}

// folders of runs in BuildKit whose names begin so.
func (d *Daemon) folders(ctx context.Context, prefix string) ([]*client.UsageInfo, error) {
	all, err := d.client.DiskUsage(ctx)
	return slices.DeleteFunc(all, func(one *client.UsageInfo) bool {
		return !strings.HasPrefix(one.Description, "cached mount "+prefix)
	}), err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// push an image with busybox and the commands that the tests use.
func push(t *testing.T, image, busybox string) {
	t.Helper()
	program, err := os.ReadFile(busybox)
	must(t, err)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		must(t, w.WriteHeader(&h))
		_, err := w.Write(content)
		must(t, err)
	}
	for _, dir := range []string{"bin/", "tmp/", "etc/"} {
		mode := int64(0o755)
		if dir == "tmp/" {
			mode = 0o1777
		}
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: mode}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, program)
	for _, applet := range strings.Fields(
		"sh cat ls echo id printf sleep wget dd head yes ln stat touch find env mkdir ip") {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox",
			Mode: 0o777}, nil)
	}
	must(t, w.Close())
	built, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	must(t, err)
	img, err := mutate.AppendLayers(empty.Image, built)
	must(t, err)
	file, err := img.ConfigFile()
	must(t, err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config =
		"linux", "amd64", v1.Config{Env: []string{"PATH=/bin"}, Entrypoint: []string{"/bin/echo"},
			Cmd: []string{"from", "the", "image"}}
	img, err = mutate.ConfigFile(img, file)
	must(t, err)
	ref, err := name.ParseReference(image)
	must(t, err)
	must(t, remote.Write(ref, img))
}

// play runs the tasks of a pipeline, in YAML, where IMAGE is the image of steps.
func (l *lab) play(t *testing.T, pipeline string, opt Options) (*Result, string, error) {
	t.Helper()
	return l.playUntil(t.Context(), t, pipeline, opt)
}

func (l *lab) playUntil(ctx context.Context, t *testing.T, pipeline string,
	opt Options) (*Result, string, error) {
	t.Helper()
	var log strings.Builder
	if opt.Report == nil {
		opt.Report = func(e Event) {
			switch {
			case e.State == "":
				fmt.Fprintf(&log, "%s/%s| %s\n", e.Task, e.Step, e.Line)
			case e.Step == "":
				fmt.Fprintf(&log, "%s: %s %s\n", e.Task, e.State, e.Because)
			}
		}
	}
	opt.Scratch = t.TempDir()
	result, err := l.daemon.Run(ctx, l.output(t, pipeline), opt)
	left, errLeft := l.daemon.folders(context.Background(), folder)
	must(t, errLeft)
	for _, one := range left {
		t.Errorf("left in BuildKit: %s", one.Description)
	}
	return result, log.String(), err
}

func (l *lab) output(t testing.TB, pipeline string) *compose.Output {
	t.Helper()
	var given struct {
		Run      tektonv1.PipelineRunSpec `json:"run"`
		Pipeline tektonv1.PipelineSpec    `json:"pipeline"`
	}
	must(t, yaml.UnmarshalStrict([]byte(strings.ReplaceAll(pipeline, "IMAGE", l.image)), &given))
	out := &compose.Output{Run: &tektonv1.PipelineRun{Spec: given.Run},
		Pipeline: &tektonv1.Pipeline{Spec: given.Pipeline}}
	out.Run.Name, out.Run.Namespace = "run", "team1"
	return out
}

const twoTasks = `
run:
  params: [{name: who, value: "the world"}, {name: list, value: [a, "b c"]}]
  taskRunTemplate: {podTemplate: {securityContext: {fsGroup: 65532}}}
  workspaces:
  - {name: shared, volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce]}}}
pipeline:
  params: [{name: who, type: string}, {name: list, type: array}]
  results:
  - {name: greeting, value: $(tasks.second.results.greeting)}
  - {name: nothing, value: $(tasks.skipped.results.greeting)}
  tasks:
  - name: first
    params: [{name: who, value: $(params.who)}, {name: list, value: ["$(params.list[*])"]}]
    workspaces: [{name: source, workspace: shared}]
    taskSpec:
      params: [{name: who, type: string}, {name: list, type: array}]
      workspaces: [{name: source}, {name: other, optional: true}]
      results: [{name: greeting}, {name: parts, type: array}]
      steps:
      - name: write
        image: IMAGE
        command: [/bin/sh, -c, 'umask 0002; echo "hello $1, $2 and $3 [$(id -u):$(id -g)]$OTHER" > $(workspaces.source.path)/file; mkdir $(workspaces.source.path)/sub', sh]
        args: [$(params.who), "$(params.list[*])"]
        env: [{name: OTHER, value: "$(workspaces.other.path)$(workspaces.other.bound)"}]
        securityContext: {runAsUser: 1000}
      - name: read
        image: IMAGE
        script: |
          cat $(workspaces.source.path)/file
          touch $(workspaces.source.path)/sub/by-another-user
          printf 'from %s' "$(cat $(workspaces.source.path)/file)" > $(results.greeting.path)
          printf '["x","y z"]' > $(results.parts.path)
        securityContext: {runAsUser: 65533, runAsNonRoot: true, readOnlyRootFilesystem: true}
      - {name: default, image: IMAGE}
  - name: second
    params: [{name: text, value: "$(tasks.first.results.greeting)!"}, {name: parts, value: ["$(tasks.first.results.parts[*])"]}]
    when: [{input: $(tasks.first.results.greeting), operator: notin, values: [""]}]
    workspaces: [{name: source, workspace: shared}]
    taskSpec:
      params: [{name: text, type: string}, {name: parts, type: array}]
      workspaces: [{name: source, readOnly: true}]
      results: [{name: greeting}]
      steps:
      - name: pass
        image: IMAGE
        command: [/bin/sh, -c, 'printf "%s" "$1 $3" > $(results.greeting.path); touch $(workspaces.source.path)/no 2>/dev/null || echo read-only; ls $(workspaces.source.path)', sh]
        args: [$(params.text), "$(params.parts[*])"]
  - name: skipped
    when: [{input: $(params.who), operator: in, values: [nobody]}]
    taskSpec: {results: [{name: greeting}], steps: [{name: s, image: IMAGE, command: [/bin/sh, -c, exit 1]}]}
  - name: of-the-skipped
    params: [{name: x, value: $(tasks.skipped.results.greeting)}]
    taskSpec: {params: [{name: x}], steps: [{name: s, image: IMAGE, command: [/bin/sh, -c, exit 1]}]}
  - name: after-the-skipped
    runAfter: [skipped]
    taskSpec: {steps: [{name: s, image: IMAGE, command: [echo, "$$(HOME) $(NAME)$(context.taskRun.name)"], env: [{name: NAME, value: "it runs: "}]}]}
  finally:
  - name: at-the-end
    taskSpec: {steps: [{name: s, image: IMAGE, args: ["second $(context.pipelineRun.name)"]}]}
`

// Tasks, steps, users, results, conditions and workspaces are as Tekton has them.
func TestRun(t *testing.T) {
	result, log, err := newLab(t).play(t, twoTasks, Options{})
	must(t, err)
	if got, want := result.Pipeline["greeting"],
		"from hello the world, a and b c [1000:65532]false! y z"; got != want {
		t.Errorf("the result is %q, want %q", got, want)
	}
	if _, ok := result.Pipeline["nothing"]; ok {
		t.Error("a result of a skipped task is there")
	}
	for _, want := range []string{
		"first/read| hello the world, a and b c [1000:65532]false",
		"first/default| from the image",
		"second/pass| read-only\nsecond/pass| file\nsecond/pass| sub\n",
		"skipped: Skipped its condition does not hold",
		"of-the-skipped: Skipped the result $(tasks.skipped.results.greeting) is not there",
		"after-the-skipped/s| $(HOME) it runs: run-after-the-skipped",
		"at-the-end/s| second run",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

// Tasks that do not wait for each other run at the same time.
func TestParallel(t *testing.T) {
	const head = `
run:
  workspaces: [{name: shared, volumeClaimTemplate: {spec: {}}}]
pipeline:
  tasks:
`
	const task = `
  - name: NAME
    workspaces: [{name: w, workspace: shared}]
    taskSpec:
      workspaces: [{name: w}]
      steps: [{name: s, image: IMAGE, timeout: 20s, command: [/bin/sh, -c, 'touch /workspace/w/NAME; until [ -f /workspace/w/a ] && [ -f /workspace/w/b ]; do sleep 0.1; done']}]
`
	pipeline := head + strings.ReplaceAll(task, "NAME", "a") + strings.ReplaceAll(task, "NAME", "b")
	if _, log, err := newLab(t).play(t, pipeline, Options{}); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
}

// A sidecar runs beside the steps, shares their volumes and BuildKit's network, and ends with
// them; one that fails ends them.
func TestSidecars(t *testing.T) {
	l := newLab(t)
	const pipeline = `
run: {}
pipeline:
  tasks:
  - name: a
    taskSpec:
      volumes: [{name: v, emptyDir: {}}]
      sidecars: [{name: db, image: IMAGE, volumeMounts: [{name: v, mountPath: /v}], command: [/bin/sh, -c, 'COMMAND']}]
      steps: [{name: s, image: IMAGE, timeout: 20s, volumeMounts: [{name: v, mountPath: /here}], command: [/bin/sh, -c, 'until [ -f /here/ready ]; do sleep 0.05; done; echo found']}]
`
	_, log, err := l.play(t, strings.ReplaceAll(pipeline, "COMMAND", "touch /v/ready; sleep 1000"),
		Options{})
	if err != nil || !strings.Contains(log, "a/s| found") {
		t.Errorf("%v\n%s", err, log)
	}
	if _, log, err := l.play(t, strings.ReplaceAll(pipeline, "COMMAND", "exit 3"),
		Options{}); err == nil ||
		!strings.Contains(err.Error(), "a/sidecar-db ended with exit code 3") {
		t.Errorf("%v\n%s", err, log)
	}
}

// A step that fails ends its run with its exit code and last lines; what is allowed to fail
// does not, and finally comes in any case.
func TestFailures(t *testing.T) {
	l := newLab(t)
	task := func(more, command string) string {
		return "run: {}\npipeline:\n  tasks:\n  - name: a\n    " + more +
			"\n    taskSpec: {steps: [{name: s, image: IMAGE, " + command + "}]}\n" +
			"  - name: later\n    runAfter: [a]\n    taskSpec: {steps: [{name: s, image: IMAGE}]}\n" +
			"  finally:\n  - name: end\n    taskSpec: {steps: [{name: s, image: IMAGE, args: " +
			"[\"a is $(context.task.name)\"]}]}\n"
	}
	for name, c := range map[string]struct{ more, command, want, log string }{
		"exit code": {"displayName: x",
			`command: [/bin/sh, -c, "for i in $(seq 30); do echo line $i; done; echo why >&2; exit 7"]`,
			"a/s ended with exit code 7", "later: Skipped a failed"},
		"onError": {"displayName: x", `onError: continue, command: [/bin/sh, -c, exit 7]`, "",
			"later: Succeeded"},
		"task": {"onError: continue", `command: [/bin/sh, -c, exit 7]`, "",
			"later: Succeeded"},
		"step limit": {"displayName: x",
			`timeout: 500ms, command: [/bin/sh, -c, "while :; do :; done"]`,
			"a/s did not end within 500ms, its timeout", "later: Skipped"},
		"task limit": {"timeout: 500ms", `command: [sleep, "1000"]`,
			"a/s did not end within 500ms, the timeout of its task", "later: Skipped"},
		"retries": {"retries: 2",
			`command: [/bin/sh, -c, "[ $(context.task.retry-count) = 2 ]"]`, "",
			"later: Succeeded"},
		"no program": {"displayName: x", `command: [/bin/nothing]`, "a/s ", "later: Skipped"},
		"root": {"displayName: x", `securityContext: {runAsNonRoot: true}, command: [id]`,
			"a/s has runAsNonRoot, and would run as root", "later: Skipped"},
		"no variable": {"displayName: x", `command: [echo, $(params.nothing)]`,
			"the variable $(params.nothing) has no value", "later: Skipped"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			began := time.Now()
			_, log, err := l.play(t, task(c.more, c.command), Options{})
			if (err == nil) != (c.want == "") ||
				err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q\n%s", err, c.want, log)
			}
			if !strings.Contains(log, c.log) || !strings.Contains(log, "end/s| a is end") {
				t.Errorf("the log lacks %q or the end:\n%s", c.log, log)
			}
			if d := time.Since(began); d > 5*time.Minute {
				t.Errorf("it took %s", d)
			}
			var step *StepError
			if errors.As(err, &step) && name == "exit code" &&
				(!slices.Contains(step.Last, "why") || !slices.Contains(step.Last, "line 30")) {
				t.Errorf("the last lines are %q", step.Last)
			}
		})
	}
}

// A limit that passes while a container starts ends that one alone: what comes finally runs.
func TestLimitsWhileStarting(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	for limit := 60 * time.Millisecond; limit <= 480*time.Millisecond; limit += 60 * time.Millisecond {
		_, log, err := l.playUntil(ctx, t, fmt.Sprintf(`
run: {}
pipeline:
  tasks: [{name: a, timeout: %s, taskSpec: {steps: [{name: s, image: IMAGE, command: [sleep, "1000"]}]}}]
  finally: [{name: end, taskSpec: {steps: [{name: s, image: IMAGE, args: [the end]}]}}]
`, limit), Options{})
		if err == nil || !strings.Contains(err.Error(), "the timeout of its task") ||
			!strings.Contains(log, "end/s| the end") {
			t.Fatalf("with a limit of %s: %v\n%s", limit, err, log)
		}
	}
}

// A step reads the Secrets that it mounts and no others, as its user alone.
func TestSecrets(t *testing.T) {
	const pipeline = `
run:
  workspaces: [{name: login, secret: {secretName: login, items: [{key: a.json, path: config.json}]}}]
pipeline:
  tasks:
  - name: a
    workspaces: [{name: login, workspace: login}]
    taskSpec:
      workspaces: [{name: login}]
      volumes: [{name: v, secret: {secretName: other}}]
      steps:
      - name: reads
        image: IMAGE
        workspaces: [{name: login}]
        volumeMounts: [{name: v, mountPath: /v}]
        securityContext: {runAsUser: 1000}
        command: [/bin/sh, -c, 'cat $(workspaces.login.path)/config.json /v/key; stat -c "%a %u" /v/key; echo $FROM; ls $(workspaces.login.path)']
        env: [{name: FROM, valueFrom: {secretKeyRef: {name: other, key: key}}}]
      - name: does-not
        image: IMAGE
        command: [/bin/sh, -c, 'ls /workspace/login /v /run/secrets 2>/dev/null; env | grep one-secret; find / -xdev -type f -name "config.json" 2>/dev/null; echo nothing']
`
	l := newLab(t)
	secrets := map[string]map[string][]byte{"login": {"a.json": []byte("one-secret\n"),
		"b": []byte("hidden")}, "other": {"key": []byte("two-secret\n")}}
	_, log, err := l.play(t, pipeline, Options{Secrets: secrets})
	must(t, err)
	want := "a/reads| one-secret\na/reads| two-secret\na/reads| 400 1000\na/reads| two-secret\n" +
		"a/reads| config.json\n"
	if !strings.Contains(log, want) ||
		!strings.Contains(log, "Running \na/does-not| nothing") &&
			!strings.Contains(log, "config.json\na/does-not| nothing\n") ||
		strings.Contains(log, "hidden") {
		t.Errorf("the log is\n%s", log)
	}
	secrets["other"] = map[string][]byte{"another": nil}
	if _, log, err := l.play(t, pipeline, Options{Secrets: secrets}); err == nil ||
		!strings.Contains(err.Error(), "reads secret/other/key for its variable FROM") {
		t.Errorf("without a key: %v\n%s", err, log)
	}
	delete(secrets, "other")
	if _, log, err := l.play(t, pipeline, Options{Secrets: secrets}); err == nil ||
		!strings.Contains(err.Error(), `reads the Secret "other"`) || log != "" {
		t.Errorf("without a Secret: %v\n%s", err, log)
	}
}

// A hermetic task has no network; another one has that of BuildKit.
func TestNetwork(t *testing.T) {
	l := newLab(t)
	host, _, _ := strings.Cut(l.image, "/")
	pipeline := `
run: {}
pipeline:
  tasks:
  - name: with
    taskSpec: {steps: [{name: s, image: IMAGE, command: [wget, -q, -O, /dev/stdout, "http://HOST/v2/"]}]}
  - name: without
    onError: continue
    taskSpec:
      metadata: {annotations: {experimental.tekton.dev/execution-mode: hermetic}}
      steps: [{name: s, image: IMAGE, command: [wget, -q, -T, "3", -O, /dev/stdout, "http://HOST/v2/"]}]
`
	_, log, err := l.play(t, strings.ReplaceAll(pipeline, "HOST", host), Options{})
	must(t, err)
	if !strings.Contains(log, "with: Succeeded") || !strings.Contains(log, "without: Failed") {
		t.Error(log)
	}
}

// What runs on a cluster alone is refused by name, before anything starts.
func TestRefused(t *testing.T) {
	l := &lab{image: "image.example/step:v1"}
	for text, want := range map[string]string{
		"volumes: [{name: v, hostPath: {path: /}}], steps: [{name: s, " +
			"image: IMAGE}]": "tasks.a.volumes.v: a volume that is neither an emptyDir nor a Secret",
		"steps: [{name: s, image: IMAGE, securityContext: " +
			"{privileged: true}}]": "tasks.a.steps.s: a privileged step",
		"steps: [{name: s, image: IMAGE, securityContext: {capabilities: {add: " +
			"[SYS_ADMIN]}}}]": "the capability SYS_ADMIN",
		"steps: [{name: s, image: IMAGE}], sidecars: [{name: db, image: IMAGE, readinessProbe: " +
			"{exec: {command: [id]}}}]": "tasks.a.sidecars.db: a sidecar with a readinessProbe",
		"steps: [{name: s, image: IMAGE}], sidecars: [{name: db, image: IMAGE, securityContext: " +
			"{privileged: true}}]": "tasks.a.steps.sidecar-db: a privileged step",
		"steps: [{name: s, ref: " +
			"{name: action}}]": "a step of a StepAction",
		"steps: [{name: s, image: IMAGE, env: [{name: X, valueFrom: {fieldRef: {fieldPath: " +
			"metadata.name}}}]}]": "a variable from a pod's field",
	} {
		_, err := SecretNames(l.output(t,
			"run: {}\npipeline: {tasks: [{name: a, taskSpec: {"+text+"}}]}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// What a hostile step does is bounded, and named.
func TestHostile(t *testing.T) {
	l := newLab(t)
	step := func(command, more string) string {
		return `
run:
  timeouts: {pipeline: 60s}
  workspaces: [{name: shared, volumeClaimTemplate: {spec: {}}}]
pipeline:
  results: [{name: r, value: $(tasks.a.results.r)}]
  tasks:
  - name: a
    workspaces: [{name: w, workspace: shared}]
    taskSpec:
      workspaces: [{name: w}]
      results: [{name: r}]
      steps:
      - {name: s, image: IMAGE, command: [/bin/sh, -c, '` + command + `'], securityContext: {runAsUser: 1000}` + more + `}
`
	}
	for name, c := range map[string]struct {
		command, more, want string
		max                 int64
	}{
		"never ends": {`trap "" TERM INT HUP; while :; do sleep 1; done`, ", timeout: 2s",
			"did not end within 2s", 0},
		"forks": {`while :; do sleep 1000 & done`, ", timeout: 2s",
			"did not end within 2s", 0},
		"fills the disk": {`dd if=/dev/zero of=/workspace/w/big bs=1M count=1000000`, "",
			"more than 64 MiB", 64 << 20},
		"fills its root": {`dd if=/dev/zero of=/tmp/big bs=1M count=1000000`, "",
			"more than 64 MiB of the disk", 64 << 20},
		"large result": {`head -c 100000 /dev/zero > /tekton/results/r`, "",
			"a result r of more than 32768 bytes", 0},
		"linked result": {`ln -s /etc/shadow /tekton/results/r`, "", "", 0},
		"linked folder": {`ln -s / /workspace/w/out; ls /workspace/w/out/root 2>/dev/null; exit 3`,
			"", "exit code 3", 0},
		"prints": {`yes 0123456789012345678901234567890123456789 | head -c 200000000`, "",
			"", 0},
		"one line": {`head -c 100000000 /dev/zero`, "", "", 0},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			began, bytes := time.Now(), 0
			result, _, err := l.play(t, step(c.command, c.more),
				Options{MaxBytes: c.max, Report: func(e Event) { bytes += len(e.Line) }})
			if (err == nil) != (c.want == "") ||
				err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if result != nil && result.Pipeline["r"] != "" {
				t.Errorf("the result is %q", result.Pipeline["r"])
			}
			if bytes > maxOutput+maxLine {
				t.Errorf("%d bytes of output were passed on", bytes)
			}
			if d := time.Since(began); d > 5*time.Minute { // the machine may be busy
				t.Errorf("it took %s", d)
			}
		})
	}
}

// A run that is cancelled leaves nothing, and one whose process was killed what Prune removes.
func TestKilled(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	const sleeps = "run:\n  workspaces: [{name: w, volumeClaimTemplate: {spec: {}}}]\npipeline:\n" +
		"  tasks:\n  - name: a\n    workspaces: [{name: w, workspace: w}]\n" +
		"    taskSpec: {workspaces: [{name: w}], steps: [{name: s, image: IMAGE, command: " +
		"[/bin/sh, -c, 'echo here; touch /workspace/w/x; sleep 1000']}]}\n"
	_, err := l.daemon.Run(ctx, l.output(t, sleeps),
		Options{Scratch: t.TempDir(), Report: func(e Event) {
			if e.Line == "here" {
				cancel()
			}
		}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run ends with %v", err)
	}
	if left, err := l.daemon.folders(t.Context(), folder); err != nil || len(left) > 0 {
		t.Errorf("a cancelled run left %v (%v)", left, err)
	}

	conn, err := l.daemon.dial(t.Context())
	must(t, err)
	address := conn.RemoteAddr().String()
	must(t, conn.Close())
	file := filepath.Join(t.TempDir(), "run.yaml")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(sleeps, "IMAGE", l.image)), 0o600))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ARMATURE_TEST_KILLED="+file, "BUILDKIT_HOST=unix://"+address)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line := make([]byte, 4)
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "here" {
		t.Fatalf("the other process wrote %q: %v", line, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	deadline := time.Now().Add(30 * time.Second)
	for {
		if _, err := l.daemon.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := l.daemon.folders(t.Context(), folder)
		must(t, err)
		scratch, err := filepath.Glob(filepath.Join(os.TempDir(),
			scratchPrefix+strconv.Itoa(cmd.Process.Pid)+"-*"))
		must(t, err)
		if len(scratch) > 0 {
			t.Fatalf("%v is left", scratch)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a kill %d folders stay: %s, in use %v", len(left), left[0].Description,
				left[0].InUse)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func buildUntilKilled() int {
	daemon, err := Connect(context.Background(), "")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	text, err := os.ReadFile(os.Getenv("ARMATURE_TEST_KILLED"))
	if err != nil {
		return 1
	}
	scratch, err := Scratch()
	if err != nil {
		return 1
	}
	_, _ = daemon.Run(context.Background(), (&lab{}).output(&testing.T{}, string(text)),
		Options{Scratch: scratch, Report: func(e Event) {
			if e.Line != "" {
				fmt.Println(e.Line)
			}
		}})
	return 0
}

// The registry and the sources of a run are not there for who does not know their names, and
// the same files are the same commit.
func TestServers(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	s, err := Serve(t.Context(), t.TempDir(), "")
	must(t, err)
	defer s.Close()
	folder := t.TempDir()
	for file, text := range map[string]string{"a": "1", ".gitignore": "ignored\n", "ignored": "secret"} {
		must(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600))
	}
	url, commit, err := s.Source(t.Context(), folder)
	must(t, err)
	clone := filepath.Join(t.TempDir(), "clone")
	out, err := exec.Command("git", "clone", "--quiet", url, clone).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(clone, "ignored")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what .gitignore names was served: %v", err)
	}
	again, err := Serve(t.Context(), t.TempDir(), "")
	must(t, err)
	defer again.Close()
	if _, other, err := again.Source(t.Context(), folder); err != nil || other != commit {
		t.Errorf("the same files are the commits %s and %s (%v)", commit, other, err)
	}
	must(t, exec.Command("git", "clone", "--quiet", url, filepath.Join(folder, "nested")).Run())
	third, err := Serve(t.Context(), t.TempDir(), "")
	must(t, err)
	defer third.Close()
	t.Setenv("GIT_INDEX_FILE", filepath.Join(t.TempDir(), "index")) // as in a hook
	if _, _, err := third.Source(t.Context(), folder); err == nil ||
		!strings.Contains(err.Error(), "the folder nested is a Git repository of its own") {
		t.Errorf("a repository in the source: %v", err)
	}
	if _, err := os.Stat(os.Getenv("GIT_INDEX_FILE")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the caller's index was written: %v", err)
	}
	address, token, _ := strings.Cut(s.Registry(), "/")
	for path, want := range map[string]int{"/v2/": 200, "/v2/" + token + "/hello/tags/list": 404,
		"/v2/_catalog": 404, "/v2/other/hello/tags/list": 404, "/source.git/info/refs": 404,
		"/" + token + "/source.git/info/refs?service=git-upload-pack":  200,
		"/other/source.git/info/refs?service=git-upload-pack":          404,
		"/" + token + "/source.git/info/refs?service=git-receive-pack": 403} {
		answer, err := http.Get("http://" + address + path)
		must(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, answer.StatusCode, want)
		}
	}
}

// The examples and the builds that were published run here, whatever their mode.
func TestPublishedBuilds(t *testing.T) {
	files := map[string][]byte{}
	for _, pattern := range []string{"../../examples/builds/*.yaml",
		"../compose/testdata/published-*.txtar"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		for _, file := range found {
			data, err := os.ReadFile(file)
			must(t, err)
			files[file] = data
		}
	}
	if len(files) < 4 {
		t.Fatalf("there are only %d files", len(files))
	}
	for file, data := range files {
		library, err := manifest.Shipped()
		must(t, err)
		if filepath.Ext(file) == ".txtar" {
			own := fstest.MapFS{}
			for _, part := range txtar.Parse(data).Files {
				if part.Name == "build.yaml" {
					data = part.Data
				} else if filepath.Ext(part.Name) == ".yaml" {
					own[part.Name] = &fstest.MapFile{Data: part.Data}
				}
			}
			must(t, library.AddDir(own, file))
		}
		builds, err := manifest.Builds(file, data, api.DefaultGroup)
		must(t, err)
		for _, b := range builds {
			modes := []string{b.Spec.Mode}
			if strings.Contains(file, "examples") {
				modes = manifest.ShippedModes()
			}
			for _, mode := range modes {
				b.Spec.Mode = mode
				out, err := library.Compose(b, compose.Settings{})
				if err != nil { // what does not compose runs nowhere
					t.Logf("%s, mode %s: %v", file, mode, err)
					continue
				}
				if _, err := SecretNames(out); err != nil {
					t.Errorf("%s, mode %s: %v", file, mode, err)
				}
			}
		}
	}
}
