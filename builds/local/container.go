package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	gatewaypb "github.com/moby/buildkit/frontend/gateway/pb"
	"github.com/moby/buildkit/solver/pb"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/builds/local/relay"
)

// Bounds of the output of a step, in bytes, and how many last lines of each stream an error has.
const (
	maxLine   = 64 << 10
	maxOutput = 16 << 20
	lastLines = failure.Lines
)

// image that steps run in.
type image struct {
	once   sync.Once
	ref    gateway.Reference
	config ocispec.ImageConfig
	err    error
}

// imageOf a reference, which is fetched once for a run.
func (r *runner) imageOf(name string) (*image, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, fmt.Errorf("the image %q: %w", name, err)
	}
	full := reference.TagNameOnly(named).String()
	r.mu.Lock()
	if r.images[full] == nil {
		r.images[full] = &image{}
	}
	found := r.images[full]
	r.mu.Unlock()
	found.once.Do(func() {
		pinned, digest, config, err := r.gateway.ResolveImageConfig(r.ctx, full,
			sourceresolver.Opt{LogName: "image " + full,
				ImageOpt: &sourceresolver.ResolveImageOpt{
					ResolveMode: llb.ResolveModeDefault.String()}})
		if err != nil {
			found.err = fmt.Errorf("fetching the image %s: %w", full, err)
			return
		}
		if _, canonical := named.(reference.Canonical); !canonical {
			pinned = full + "@" + digest.String()
		}
		var file ocispec.Image
		if found.err = json.Unmarshal(config, &file); found.err != nil {
			return
		}
		found.config = file.Config
		if found.ref, err = r.solve(r.ctx, llb.Image(pinned)); err != nil {
			found.err = fmt.Errorf("fetching the image %s: %w", full, err)
		}
	})
	return found, found.err
}

// step runs one in a container. It ends with the container, whatever the step left running.
func (r *runner) step(ctx context.Context, t *task, own string, index int, s *tektonv1.Step) error {
	fail := func(because string, last ...string) error {
		if cause := context.Cause(ctx); cause != nil {
			because = cause.Error()
		}
		return &StepError{Task: t.Name, Step: s.Name, Because: because, Last: last}
	}
	if s.Timeout != nil && s.Timeout.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.Timeout.Duration,
			fmt.Errorf("did not end within %s, its timeout", s.Timeout.Duration))
		defer cancel()
	}
	image, err := r.imageOf(s.Image)
	if err != nil {
		return fail("did not start: " + err.Error())
	}
	user, uid, gid, err := userOf(t.podOf, s, image.config)
	if err != nil {
		return fail(err.Error())
	}
	env, secretEnv := environment(image.config.Env, s.Env)
	for _, e := range secretEnv { // without which BuildKit would end all processes of the run
		if _, err := r.GetSecret(ctx, e.ID); err != nil && !e.Optional {
			return fail(
				fmt.Sprintf("reads %s for its variable %s, and the folder of --secret does not "+
					"have that key", e.ID, e.Name))
		}
	}
	arguments, mounts := r.command(t, index, s, image.config, env),
		[]gateway.Mount{{Dest: "/", Ref: image.ref, MountType: pb.MountType_BIND,
			Readonly: s.SecurityContext != nil && s.SecurityContext.ReadOnlyRootFilesystem != nil &&
				*s.SecurityContext.ReadOnlyRootFilesystem}}
	if len(arguments) == 0 {
		return fail("has no command, and neither has its image " + s.Image)
	}
	more, err := r.mounts(t, own, index, s, uid, gid)
	if err != nil {
		return fail(err.Error())
	}
	mounts = append(mounts, more...)
	network := r.network
	if t.TaskSpec.Metadata.Annotations["experimental.tekton.dev/execution-mode"] == "hermetic" ||
		r.run.Annotations["experimental.tekton.dev/execution-mode"] == "hermetic" {
		network = pb.NetMode_NONE
	}
	box, err := r.gateway.NewContainer(r.ctx,
		gateway.NewContainerRequest{Mounts: mounts, NetMode: network, Hostname: t.Name})
	if err != nil {
		return fail("did not start: " + err.Error())
	}
	defer box.Release(context.WithoutCancel(ctx))
	dir := image.config.WorkingDir
	if s.WorkingDir != "" {
		if dir = s.WorkingDir; !path.IsAbs(dir) {
			dir = path.Join(workspaceDir, dir)
		}
	}
	if dir == "" {
		dir = "/"
	}
	output := &lines{pass: func(line string) {
		r.report(Event{Task: t.Name, Step: s.Name, Line: line})
	}}
	// A limit that passes while the process starts ends it once it has started: BuildKit's client
	// receives no message of any process of the run any more after a Start that is given up.
	process, err := box.Start(r.ctx,
		gateway.StartRequest{Args: arguments, Env: env, SecretEnv: secretEnv, User: user, Cwd: dir,
			Stdout: output.stream(), Stderr: output.stream()})
	if err == nil {
		err = wait(ctx, process)
	}
	last := output.end()
	if ctx.Err() != nil {
		return fail("", last...)
	}
	var exit *gatewaypb.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode != gatewaypb.UnknownExitStatus:
		return fail("ended with exit code "+strconv.Itoa(int(exit.ExitCode)), last...)
	case err != nil:
		return fail("did not run: "+err.Error(), last...)
	}
	return nil
}

// wait for a process, or for the end of a context, which ends the container.
func wait(ctx context.Context, process gateway.ContainerProcess) error {
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// userOf a step, as "UID:GID" or as the image names it; uid is -1 where that is not known.
// The group is that of the pod's volumes where nobody sets one, so that steps can change
// each other's files, as fsGroup lets them; a builder of Cloud Native Buildpacks insists on
// its own, $CNB_GROUP_ID.
func userOf(pod *corev1.PodSecurityContext, s *tektonv1.Step,
	image ocispec.ImageConfig) (user string, uid, gid int, err error) {
	first := func(values ...*int64) int {
		for _, v := range values {
			if v != nil {
				return int(*v)
			}
		}
		return -1
	}
	own := s.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	uid, gid = first(own.RunAsUser, pod.RunAsUser), first(own.RunAsGroup, pod.RunAsGroup)
	user = image.User
	if name, group, _ := strings.Cut(user, ":"); uid < 0 {
		if n, err := strconv.Atoi(name); err == nil {
			uid = n
		} else if name == "" {
			uid = 0
		}
		if n, err := strconv.Atoi(group); err == nil && gid < 0 {
			gid = n
		}
	}
	for _, text := range image.Env {
		if value, ok := strings.CutPrefix(text, "CNB_GROUP_ID="); ok && gid < 0 {
			if n, err := strconv.Atoi(value); err == nil {
				gid = n
			}
		}
	}
	if gid < 0 && uid > 0 {
		gid = first(pod.FSGroup)
	}
	if uid >= 0 {
		user = fmt.Sprintf("%d:%d", uid, max(gid, 0))
	}
	nonRoot := pod.RunAsNonRoot != nil && *pod.RunAsNonRoot
	if own.RunAsNonRoot != nil {
		nonRoot = *own.RunAsNonRoot
	}
	if nonRoot && uid == 0 {
		return "", 0, 0, errors.New("has runAsNonRoot, and would run as root: set runAsUser")
	}
	return user, uid, max(gid, 0), nil
}

// environment of a step over that of its image.
func environment(ofImage []string, own []corev1.EnvVar) (env []string, secret []*pb.SecretEnv) {
	env = slices.Clone(ofImage)
	known := map[string]string{}
	for _, e := range own {
		if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil {
			secret = append(secret,
				&pb.SecretEnv{Name: e.Name,
					ID:       secretID(from.SecretKeyRef.Name, from.SecretKeyRef.Key),
					Optional: from.SecretKeyRef.Optional != nil && *from.SecretKeyRef.Optional})
			continue
		}
		known[e.Name] = expand(e.Value, known)
		env = slices.DeleteFunc(env, func(text string) bool {
			return strings.HasPrefix(text, e.Name+"=")
		})
		env = append(env, e.Name+"="+known[e.Name])
	}
	return env, secret
}

var variable = regexp.MustCompile(`\$\$|\$\([A-Za-z_.-][A-Za-z0-9_.-]*\)`)

// expand replaces $(NAME) as Kubernetes does in commands, arguments and variables: $$ is $,
// and what is not known stays.
func expand(text string, known map[string]string) string {
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := known[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}

func (r *runner) command(t *task, index int, s *tektonv1.Step, image ocispec.ImageConfig,
	env []string) []string {
	known := map[string]string{}
	for _, e := range s.Env {
		for _, text := range env {
			if value, ok := strings.CutPrefix(text, e.Name+"="); ok {
				known[e.Name] = value
			}
		}
	}
	command, arguments := slices.Clone(s.Command), slices.Clone(s.Args)
	for _, list := range [][]string{command, arguments} {
		for i := range list {
			list[i] = expand(list[i], known)
		}
	}
	switch {
	case s.Script != "":
		command = []string{scriptPath(t, index)}
	case len(command) == 0:
		command = image.Entrypoint
		if len(arguments) == 0 {
			arguments = image.Cmd
		}
	}
	command = slices.Concat(command, arguments)
	if t.mountsDaemon(s) {
		// BuildKit asks its clients in containers for traces, for which buildctl waits at its end.
		const quiet = `unset OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_EXPORTER_OTLP_TRACES_PROTOCOL; export OTEL_TRACES_EXPORTER=none; exec "$@"`
		command = append([]string{"/bin/sh", "-c", quiet, s.Name}, command...)
	}
	return command
}

func scriptPath(t *task, index int) string {
	return fmt.Sprintf("%s/%s-%d", scriptsDir, t.Name, index)
}

// mounts of a step: its volumes and workspaces, and what each container of Tekton has.
func (r *runner) mounts(t *task, own string, index int, s *tektonv1.Step,
	uid, gid int) ([]gateway.Mount, error) {
	mounts := []gateway.Mount{r.folder(resultsDir, own, resultsDir),
		r.folder(homeDir, own, homeDir), r.folder(workspaceDir, own, workspaceDir)}
	secret := func(at, name string, items []corev1.KeyToPath) {
		mounts = append(mounts, r.secret(at, name, items, uid, gid)...)
	}
	for _, w := range t.TaskSpec.Workspaces {
		at := workspacePath(w)
		used := !t.isolates(w.Name)
		for _, usage := range s.Workspaces {
			if usage.Name == w.Name {
				used = true
				if usage.MountPath != "" {
					at = usage.MountPath
				}
			}
		}
		b := r.bound(t, w.Name)
		if b == nil || !used {
			continue
		}
		switch {
		case b.Secret != nil:
			secret(at, b.Secret.SecretName, b.Secret.Items)
			continue
		case b.EmptyDir != nil:
			mounts = append(mounts, r.folder(at, own, "workspace/"+b.Name))
		default:
			mounts = append(mounts, r.folder(at, "", b.Name))
		}
		mounts[len(mounts)-1].Readonly = w.ReadOnly
	}
	for _, m := range s.VolumeMounts {
		v := t.volume(m.Name)
		switch {
		case v == nil || m.SubPath != "" || m.SubPathExpr != "":
			return nil, fmt.Errorf("mounts %s in a way that requires a cluster", m.Name)
		case v.Secret != nil:
			secret(m.MountPath, v.Secret.SecretName, v.Secret.Items)
		case t.ofDaemon(m.Name):
			mounts = append(mounts, gateway.Mount{Dest: path.Join(m.MountPath, "buildkitd.sock"),
				MountType: pb.MountType_SSH,
				SSHOpt: &pb.SSHOpt{ID: daemonSidecar, Uid: uint32(max(uid, 0)), Gid: uint32(gid),
					Mode: 0o600}})
		default:
			f := r.folder(m.MountPath, own, "volume/"+m.Name)
			f.Readonly = m.ReadOnly
			mounts = append(mounts, f)
		}
	}
	if s.Script != "" {
		mounts = append(mounts,
			gateway.Mount{Dest: scriptPath(t, index), MountType: pb.MountType_SECRET,
				SecretOpt: &pb.SecretOpt{ID: r.script(s.Script), Mode: 0o755}})
	}
	return mounts, nil
}

// isolates reports whether a workspace is only for the steps that name it.
func (t *task) isolates(workspace string) bool {
	lists := func(all []tektonv1.WorkspaceUsage) bool {
		return slices.ContainsFunc(all,
			func(u tektonv1.WorkspaceUsage) bool { return u.Name == workspace })
	}
	return slices.ContainsFunc(t.TaskSpec.Steps,
		func(s tektonv1.Step) bool { return lists(s.Workspaces) }) ||
		slices.ContainsFunc(t.TaskSpec.Sidecars,
			func(s tektonv1.Sidecar) bool { return lists(s.Workspaces) })
}

func (t *task) volume(name string) *corev1.Volume {
	for i := range t.TaskSpec.Volumes {
		if t.TaskSpec.Volumes[i].Name == name {
			return &t.TaskSpec.Volumes[i]
		}
	}
	return nil
}

// ofDaemon reports whether a volume is where the sidecar buildkitd has its socket.
func (t *task) ofDaemon(volume string) bool {
	return slices.ContainsFunc(t.TaskSpec.Sidecars, func(s tektonv1.Sidecar) bool {
		return s.Name == daemonSidecar &&
			slices.ContainsFunc(s.VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.Name == volume && m.MountPath == socketDir
			})
	})
}

func (t *task) mountsDaemon(s *tektonv1.Step) bool {
	return slices.ContainsFunc(s.VolumeMounts,
		func(m corev1.VolumeMount) bool { return t.ofDaemon(m.Name) })
}

func (p *plan) usesDaemon() bool {
	return slices.ContainsFunc(p.tasks, func(t *task) bool {
		return slices.ContainsFunc(t.TaskSpec.Sidecars,
			func(s tektonv1.Sidecar) bool { return s.Name == daemonSidecar })
	})
}

func secretID(name, key string) string { return "secret/" + name + "/" + key }

// secret mounts the keys of a Secret as files that only the step's user reads.
func (r *runner) secret(at, name string, items []corev1.KeyToPath, uid, gid int) []gateway.Mount {
	if len(items) == 0 {
		for key := range r.Secrets[name] {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
		slices.SortFunc(items, func(a, b corev1.KeyToPath) int {
			return strings.Compare(a.Key, b.Key)
		})
	}
	mode := uint32(0o400)
	if uid < 0 {
		mode = 0o444 // the image knows its user by a name
	}
	var mounts []gateway.Mount
	for _, item := range items {
		if _, ok := r.Secrets[name][item.Key]; ok {
			mounts = append(mounts,
				gateway.Mount{Dest: path.Join(at, item.Path), MountType: pb.MountType_SECRET,
					SecretOpt: &pb.SecretOpt{ID: secretID(name, item.Key), Uid: uint32(max(uid, 0)),
						Gid: uint32(gid), Mode: mode}})
		}
	}
	return mounts
}

// scriptText is a script as Tekton runs it.
func scriptText(script string) string {
	if strings.HasPrefix(script, "#!") {
		return script
	}
	return "#!/bin/sh\nset -e\n" + script
}

// serve opens a socket that passes the steps' connections to the daemon, each on a connection of
// its own.
func (d *Daemon) serve(ctx context.Context, scratch string) (socket string, end func(), err error) {
	socket = filepath.Join(scratch, "daemon.sock")
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return "", nil, fmt.Errorf("making a socket for steps that use BuildKit: %w", err)
	}
	go func() { _ = relay.Serve(listener, func() (net.Conn, error) { return d.dial(ctx) }) }()
	return socket, func() { _ = listener.Close() }, nil
}

// forwardSocket is where the container that forwards finds the socket of the servers.
const forwardSocket = "/run/armature/servers.sock"

// forward makes the servers reachable where BuildKit runs. It is an attempt: a step that needs
// them says what was not reached.
func (r *runner) forward(ctx context.Context) (end func()) {
	end = func() {}
	image, err := r.imageOf(r.Servers.image)
	if err != nil {
		return end
	}
	box, err := r.gateway.NewContainer(ctx,
		gateway.NewContainerRequest{NetMode: r.network, Mounts: []gateway.Mount{
			{Dest: "/", Ref: image.ref, MountType: pb.MountType_BIND},
			{Dest: forwardSocket, MountType: pb.MountType_SSH,
				SSHOpt: &pb.SSHOpt{ID: serversID, Mode: 0o600}},
		}})
	if err != nil {
		return end
	}
	ready := make(chan struct{})
	var once sync.Once
	output := &lines{pass: func(string) { once.Do(func() { close(ready) }) }}
	process, err := box.Start(ctx,
		gateway.StartRequest{Args: []string{"/ko-app/armature-controller", "forward",
			r.Servers.address, forwardSocket}, Cwd: "/", User: "0:0",
			Stdout: output.stream(), Stderr: output.stream()})
	if err == nil {
		go func() {
			_ = process.Wait()
			once.Do(func() { close(ready) })
		}()
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	return func() { _ = box.Release(context.WithoutCancel(ctx)) }
}

// lines of what a step writes, of both its streams in the order of their ends.
type lines struct {
	pass func(line string)

	mu      sync.Mutex
	streams []*stream
	total   int
	count   int
}

func (l *lines) stream() *stream {
	s := &stream{lines: l}
	l.streams = append(l.streams, s)
	return s
}

// end adds what has no end of line, and returns the last lines of each stream.
func (l *lines) end() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last []numbered
	for _, s := range l.streams {
		if len(s.part) > 0 {
			s.add(string(s.part))
			s.part = nil
		}
		last = append(last, s.last...)
	}
	slices.SortFunc(last, func(a, b numbered) int { return a.number - b.number })
	var texts []string
	for _, line := range last {
		texts = append(texts, line.text)
	}
	return texts
}

// stream is standard output or standard error. BuildKit does not keep their order, so that
// each has last lines of its own.
type stream struct {
	*lines
	part []byte
	last []numbered
}

type numbered struct {
	number int
	text   string
}

// add a line, and pass it on as long as there is room.
func (s *stream) add(line string) {
	before := s.total
	s.total += len(line) + 1
	s.count++
	if s.last = append(s.last, numbered{s.count, line}); len(s.last) > lastLines {
		s.last = s.last[1:]
	}
	if s.total <= maxOutput {
		s.pass(line)
	} else if before <= maxOutput {
		s.pass(fmt.Sprintf("… output after %d MiB is not shown", maxOutput>>20))
	}
}

func (s *stream) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := data; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		s.part = append(s.part, line[:min(len(line), maxLine-len(s.part))]...)
		if ended {
			s.add(string(bytes.TrimSuffix(s.part, []byte("\r"))))
			s.part = s.part[:0]
		}
		rest = after
	}
	return len(data), nil
}

// Close does nothing: a stream that has no last end of line is complete when its step is.
func (s *stream) Close() error { return nil }
