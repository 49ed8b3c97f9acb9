package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/builds/local/tcpproxy"
)

// maxLine and maxOutput bound the output of a step in bytes. lastLines is how many lines of each
// stream an error has.
const (
	maxLine   = 64 << 10
	maxOutput = 16 << 20
	lastLines = failure.Lines
)

// image is an image that steps run in.
type image struct {
	ref    gateway.Reference
	config ocispec.ImageConfig
}

// imageOf returns the image of a reference. It fetches an image once for a run.
func (r *runner) imageOf(name string) (*image, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, fmt.Errorf("the image %q: %w", name, err)
	}
	named = reference.TagNameOnly(named)
	r.mu.Lock()
	if r.images[named.String()] == nil {
		r.images[named.String()] = sync.OnceValues(func() (*image, error) {
			found, err := r.fetch(named)
			if err != nil {
				err = fmt.Errorf("fetching the image %s: %w", named, err)
			}
			return found, err
		})
	}
	fetched := r.images[named.String()]
	r.mu.Unlock()
	return fetched()
}

func (r *runner) fetch(named reference.Named) (*image, error) {
	pinned, digest, config, err := r.gateway.ResolveImageConfig(r.ctx, named.String(),
		sourceresolver.Opt{LogName: "image " + named.String(),
			ImageOpt: &sourceresolver.ResolveImageOpt{
				ResolveMode: llb.ResolveModeDefault.String()}})
	if err != nil {
		return nil, err
	}
	if _, canonical := named.(reference.Canonical); !canonical {
		pinned = named.String() + "@" + digest.String()
	}
	var file ocispec.Image
	if err := json.Unmarshal(config, &file); err != nil {
		return nil, err
	}
	ref, err := r.solve(r.ctx, llb.Image(pinned))
	return &image{ref, file.Config}, err
}

// step runs a step in a container. All processes that it leaves end with the container.
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
	env, known, secretEnv := environment(image.config.Env, s.Env)
	for _, e := range secretEnv { // A missing one would make BuildKit end all processes of the run.
		if _, err := r.GetSecret(ctx, e.ID); err != nil && !e.Optional {
			return fail(fmt.Sprintf("reads %s for its variable %s, and the folder of --secret "+
				"does not have that key", e.ID, e.Name))
		}
	}
	arguments := command(t, index, s, image.config, known)
	if len(arguments) == 0 {
		return fail("has no command, and neither has its image " + s.Image)
	}
	mounts, err := r.mounts(t, own, index, s, uid, gid)
	if err != nil {
		return fail(err.Error())
	}
	mounts[0].Ref = image.ref
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
	dir := cmp.Or(image.config.WorkingDir, "/")
	if path.IsAbs(s.WorkingDir) {
		dir = s.WorkingDir
	} else if s.WorkingDir != "" {
		dir = path.Join(workspaceDir, s.WorkingDir)
	}
	output := &lines{pass: func(line string) {
		r.report(Event{Task: t.Name, Step: s.Name, Line: line})
	}}
	// Start has the context of the run: after a canceled Start, BuildKit's client receives no more
	// messages of any process of the run. A timeout during Start takes effect after Start.
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

// wait waits for the end of a process, or of a context, after which the caller ends the container.
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

// userOf returns the user of a step, as "UID:GID" or as the image names it; uid is -1 if it is not
// known. Without a group, it is the fsGroup of the pod, so that steps can change each other's
// files. The builders of Cloud Native Buildpacks require their own group, $CNB_GROUP_ID.
func userOf(pod *corev1.PodSecurityContext, s *tektonv1.Step,
	image ocispec.ImageConfig) (user string, uid, gid int, err error) {
	own := securityOf(s)
	uid = int(ptr.Deref(cmp.Or(own.RunAsUser, pod.RunAsUser), -1))
	gid = int(ptr.Deref(cmp.Or(own.RunAsGroup, pod.RunAsGroup), -1))
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
		gid = int(ptr.Deref(pod.FSGroup, -1))
	}
	if uid >= 0 {
		user = fmt.Sprintf("%d:%d", uid, max(gid, 0))
	}
	if uid == 0 && ptr.Deref(cmp.Or(own.RunAsNonRoot, pod.RunAsNonRoot), false) {
		return "", 0, 0, errors.New("has runAsNonRoot, and would run as root: set runAsUser")
	}
	return user, uid, max(gid, 0), nil
}

// environment returns the environment of a step on top of that of its image, the variables that its
// commands and arguments can refer to, and those with values from Secrets.
func environment(ofImage []string, own []corev1.EnvVar) (env []string, known map[string]string,
	secret []*pb.SecretEnv) {
	env, known = slices.Clone(ofImage), map[string]string{}
	for _, e := range own {
		if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil {
			secret = append(secret,
				&pb.SecretEnv{Name: e.Name,
					ID:       secretID(from.SecretKeyRef.Name, from.SecretKeyRef.Key),
					Optional: ptr.Deref(from.SecretKeyRef.Optional, false)})
			continue
		}
		known[e.Name] = expand(e.Value, known)
		env = slices.DeleteFunc(env, func(text string) bool {
			return strings.HasPrefix(text, e.Name+"=")
		})
		env = append(env, e.Name+"="+known[e.Name])
	}
	return env, known, secret
}

var variable = regexp.MustCompile(`\$\$|\$\([A-Za-z_.-][A-Za-z0-9_.-]*\)`)

// expand replaces $(NAME) as Kubernetes does in commands, arguments and variables: $$ becomes $,
// and unknown variables stay.
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

// command returns the command line of a step: its script, or its command and arguments with the
// defaults of its image.
func command(t *task, index int, s *tektonv1.Step, image ocispec.ImageConfig,
	known map[string]string) []string {
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
	if slices.ContainsFunc(s.VolumeMounts,
		func(m corev1.VolumeMount) bool { return m.Name == t.socket }) {
		// BuildKit asks clients in containers for traces, and buildctl waits for their export.
		const quiet = `unset OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_EXPORTER_OTLP_TRACES_PROTOCOL; export OTEL_TRACES_EXPORTER=none; exec "$@"`
		command = append([]string{"/bin/sh", "-c", quiet, s.Name}, command...)
	}
	return command
}

func scriptPath(t *task, index int) string {
	return fmt.Sprintf("%s/%s-%d", scriptsDir, t.Name, index)
}

// mounts returns the mounts of a step: the root of its image, its volumes and workspaces, and the
// folders that each container of Tekton has.
func (r *runner) mounts(t *task, own string, index int, s *tektonv1.Step,
	uid, gid int) ([]gateway.Mount, error) {
	mounts := []gateway.Mount{{Dest: "/", MountType: pb.MountType_BIND,
		Readonly: ptr.Deref(securityOf(s).ReadOnlyRootFilesystem, false)}}
	for _, dir := range stepDirs {
		mounts = append(mounts, r.folder(dir, own, dir))
	}
	secret := func(at, name string, items []corev1.KeyToPath) {
		mounts = append(mounts, r.secret(at, name, items, uid, gid)...)
	}
	for _, w := range t.TaskSpec.Workspaces {
		at := w.GetMountPath()
		used := !tekton.Isolates(&t.TaskSpec.TaskSpec, w.Name)
		for _, usage := range s.Workspaces {
			if usage.Name == w.Name {
				used, at = true, cmp.Or(usage.MountPath, at)
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
		case m.Name == t.socket:
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

func (t *task) volume(name string) *corev1.Volume {
	for i := range t.TaskSpec.Volumes {
		if t.TaskSpec.Volumes[i].Name == name {
			return &t.TaskSpec.Volumes[i]
		}
	}
	return nil
}

func securityOf(s *tektonv1.Step) *corev1.SecurityContext {
	return cmp.Or(s.SecurityContext, &corev1.SecurityContext{})
}

func secretID(name, key string) string { return "secret/" + name + "/" + key }

// secret returns mounts of the keys of a Secret as files that only the step's user may read.
func (r *runner) secret(at, name string, items []corev1.KeyToPath, uid, gid int) []gateway.Mount {
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(r.Secrets[name])) {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	mode := uint32(0o400)
	if uid < 0 {
		mode = 0o444 // The image names its user, so the UID is not known.
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

// serve opens a socket that forwards each connection of a step to a new connection to the daemon.
func (d *Daemon) serve(ctx context.Context, scratch string) (socket string, end func(), err error) {
	socket = filepath.Join(scratch, "daemon.sock")
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return "", nil, fmt.Errorf("making a socket for steps that use BuildKit: %w", err)
	}
	go func() { _ = tcpproxy.Serve(listener, func() (net.Conn, error) { return d.dial(ctx) }) }()
	return socket, func() { _ = listener.Close() }, nil
}

// forwardSocket is the path of the servers' socket in the container of forward.
const forwardSocket = "/run/armature/servers.sock"

// forward makes the servers reachable where BuildKit runs. It ignores errors: a step that needs the
// servers reports which one it cannot reach.
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
	ready, isReady := context.WithCancel(ctx)
	defer isReady()
	output := &lines{pass: func(string) { isReady() }}
	process, err := box.Start(ctx,
		gateway.StartRequest{Args: []string{"/ko-app/armature-controller", "forward",
			r.Servers.address, forwardSocket}, Cwd: "/", User: "0:0",
			Stdout: output.stream(), Stderr: output.stream()})
	if err == nil {
		go func() {
			_ = process.Wait()
			isReady()
		}()
		<-ready.Done()
	}
	return func() { _ = box.Release(context.WithoutCancel(ctx)) }
}

// lines collects the lines of both streams of a step, in the order of their ends.
type lines struct {
	pass func(line string)

	mu      sync.Mutex
	streams []*stream
	total   int
	last    []lastLine
}

// lastLine is one of the last lines of a stream.
type lastLine struct {
	of   *stream
	text string
}

func (l *lines) stream() *stream {
	s := &stream{lines: l}
	l.streams = append(l.streams, s)
	return s
}

// end adds lines without a line end, and returns the last lines of each stream.
func (l *lines) end() (texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.streams {
		if len(s.part) > 0 {
			s.add(string(s.part))
			s.part = nil
		}
	}
	for _, line := range l.last {
		texts = append(texts, line.text)
	}
	return texts
}

// stream is standard output or standard error. BuildKit does not keep their order, so each has last
// lines of its own.
type stream struct {
	*lines
	part  []byte
	count int
}

// add adds a line, and passes it on until maxOutput is reached.
func (s *stream) add(line string) {
	before := s.total
	s.total += len(line) + 1
	s.last = append(s.last, lastLine{s, line})
	if s.count++; s.count > lastLines {
		first := slices.IndexFunc(s.last, func(l lastLine) bool { return l.of == s })
		s.last = slices.Delete(s.last, first, first+1)
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
	for part := range bytes.Lines(data) {
		line, ended := bytes.CutSuffix(part, []byte("\n"))
		s.part = append(s.part, line[:min(len(line), maxLine-len(s.part))]...)
		if ended {
			s.add(string(bytes.TrimSuffix(s.part, []byte("\r"))))
			s.part = s.part[:0]
		}
	}
	return len(data), nil
}

// Close does nothing: end adds the last line of a stream without a line end.
func (s *stream) Close() error { return nil }
