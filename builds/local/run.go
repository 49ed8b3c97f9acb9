package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/client/llb"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/auth/authprovider"
	"github.com/moby/buildkit/session/secrets"
	"github.com/moby/buildkit/session/secrets/secretsprovider"
	"github.com/moby/buildkit/session/sshforward/sshprovider"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/buildkit/util/entitlements"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tonistiigi/fsutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/multi"
)

// maxResults bounds each result of a task in bytes.
const maxResults = 32 << 10

// Options are the options of a run.
type Options struct {
	// Secrets are by name and key. A missing Secret that the run names is an error.
	Secrets map[string]map[string][]byte
	// Servers are the servers that the steps can reach, or nil.
	Servers *Servers
	// Source is a folder whose files are in the workspaces before the first step, for runs without
	// a step that clones them; empty means none.
	Source string
	// Scratch is a folder for other files of the run, for example sockets.
	Scratch string
	// MaxBytes bounds what the run writes to its folders; zero means the constant MaxBytes.
	MaxBytes int64
	// Report is called for each change, one at a time.
	Report func(Event)
}

// MaxBytes is the default bound of what a run writes.
const MaxBytes = 20 << 30

// Event is a new state of a step, or of a task if Step is empty, or a line of output.
type Event struct {
	Task, Step string
	// State is Running, Succeeded, Failed or Skipped; empty for a line.
	State State
	// Line has no line end. It is as the step wrote it and may have control characters.
	Line string
	// Took is the duration of a step or task that has ended.
	Took time.Duration
	// Because says why a task was skipped or failed.
	Because string
}

// State is the state of a step or task.
type State string

// The states of steps and tasks.
const (
	Running   State = "Running"
	Succeeded State = "Succeeded"
	Failed    State = "Failed"
	Skipped   State = "Skipped"
)

// Result has the results of the pipeline by name, and those of its tasks by task and name. Lists
// and objects are JSON.
type Result struct {
	Pipeline map[string]string
	Tasks    map[string]map[string]string
}

// StepError is the failure of a step, or of a task if Step is empty.
type StepError struct {
	Task, Step string
	// Because is one sentence without the task and the step.
	Because string
	// Last are the last lines of output.
	Last []string
}

func (e *StepError) Error() string {
	return strings.TrimSuffix(e.Task+"/"+e.Step, "/") + " " + e.Because
}

type runner struct {
	*plan
	Options
	daemon  *Daemon
	gateway gateway.Client
	// ctx is the context of the run, not of a task or step.
	ctx context.Context
	// id is the run's name in BuildKit.
	id      string
	network pb.NetMode
	// open is the root of an empty folder, and source of one with the files of Options.Source.
	open, source gateway.Reference
	reporting    sync.Mutex
	shared
}

// shared has the fields that tasks change in parallel, guarded by mu.
type shared struct {
	mu     sync.Mutex
	images map[string]func() (*image, error)
	// given has what steps can request by ID: keys of Secrets, and scripts.
	given map[string][]byte
	// kept are the containers that keep the existing folders.
	kept   []*keeper
	values tekton.Values
	state  map[string]State
	failed *StepError
	result Result
}

// SecretNames returns the names of the Secrets that the steps of a build read. The error lists all
// that requires a cluster.
func SecretNames(out *compose.Output) ([]string, error) {
	p, err := planOf(out.Run, &out.Pipeline.Spec)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(p.secrets)), nil
}

// Run runs a composed build and waits for its end. The error is a *StepError if a step fails. Run
// leaves nothing in BuildKit, unless this process is killed.
func (d *Daemon) Run(ctx context.Context, out *compose.Output,
	opt Options) (result *Result, err error) {
	p, err := planOf(out.Run, &out.Pipeline.Spec)
	if err != nil {
		return nil, err
	}
	for name := range p.secrets {
		if opt.Secrets[name] == nil {
			return nil, fmt.Errorf("the build reads the Secret %q, which is not given\n"+
				"  hint: use --secret %s=FOLDER, a folder with a file for each key", name, name)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if t := out.Run.Spec.Timeouts; t != nil && t.Pipeline != nil && t.Pipeline.Duration > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, t.Pipeline.Duration,
			fmt.Errorf("the run did not end within %s, the timeout of the build", t.Pipeline.Duration))
		defer stop()
	}
	r := &runner{plan: p, Options: opt, daemon: d, id: newID(),
		shared: shared{images: map[string]func() (*image, error){}, given: map[string][]byte{},
			values: p.params(), state: map[string]State{},
			result: Result{map[string]string{}, map[string]map[string]string{}}}}
	for name, secret := range opt.Secrets {
		for key, value := range secret {
			r.given[secretID(name, key)] = value
		}
	}
	r.MaxBytes = cmp.Or(r.MaxBytes, MaxBytes)
	if r.Report == nil {
		r.Report = func(Event) {}
	}
	attachables := []session.Attachable{
		secretsprovider.NewSecretProvider(r),
		authprovider.NewDockerAuthProvider(
			authprovider.DockerAuthProviderConfig{
				AuthConfigProvider: authprovider.LoadAuthConfig(
					config.LoadDefaultConfigFile(io.Discard))}),
	}
	var sockets []sshprovider.AgentConfig
	if opt.Servers != nil {
		sockets = append(sockets,
			sshprovider.AgentConfig{ID: serversID, Paths: []string{opt.Servers.socket}, Raw: true})
	}
	if p.daemon {
		socket, end, err := d.serve(ctx, opt.Scratch)
		if err != nil {
			return nil, err
		}
		defer end()
		sockets = append(sockets,
			sshprovider.AgentConfig{ID: daemonSidecar, Paths: []string{socket}, Raw: true})
	}
	if len(sockets) > 0 {
		agent, err := sshprovider.NewSSHAgentProvider(sockets)
		if err != nil {
			return nil, err
		}
		attachables = append(attachables, agent)
	}
	allowed := []string{string(entitlements.EntitlementNetworkHost)}
	if r.network = pb.NetMode_HOST; !d.allows(ctx, allowed) {
		allowed, r.network = nil, pb.NetMode_UNSET
	}
	defer func() { err = multi.Errors(err, d.clear(context.WithoutCancel(ctx), folder+r.id+"/")) }()
	var sources map[string]fsutil.FS
	if opt.Source != "" {
		files, err := fsutil.NewFS(opt.Source)
		if err != nil {
			return nil, fmt.Errorf("reading the source: %w", err)
		}
		sources = map[string]fsutil.FS{"source": files}
	}
	var ran error
	_, err = d.client.Build(ctx, client.SolveOpt{Session: attachables, AllowedEntitlements: allowed,
		LocalMounts: sources}, "armature",
		func(ctx context.Context, g gateway.Client) (*gateway.Result, error) {
			r.gateway, r.ctx = g, ctx
			ran = r.all(ctx, cancel)
			return gateway.NewResult(), nil
		}, nil)
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	} else if err == nil {
		err = ran
	}
	if err != nil {
		return nil, err
	}
	for _, declared := range r.spec.Results {
		// Results that refer to tasks that did not run are left out.
		value := r.values.Put(declared.Value)
		if !tekton.Variable().MatchString(text(value)) {
			r.result.Pipeline[declared.Name] = tekton.Text(value)
		}
	}
	return &r.result, nil
}

// GetSecret returns the value of a key of a Secret, or the text of a script. BuildKit calls it for
// the steps that mount it.
func (r *runner) GetSecret(_ context.Context, id string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if value, ok := r.given[id]; ok {
		return value, nil
	}
	return nil, secrets.ErrNotFound
}

// script stores a script as Tekton runs it, and returns the ID to request it by.
func (r *runner) script(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := fmt.Sprintf("script/%d", len(r.given))
	if !strings.HasPrefix(text, "#!") {
		text = "#!/bin/sh\nset -e\n" + text
	}
	r.given[id] = []byte(text)
	return id
}

// newID returns the name of a run, which cannot be guessed.
func newID() string { return strings.ToLower(rand.Text()) }

// allows reports whether a daemon grants entitlements.
func (d *Daemon) allows(ctx context.Context, entitlements []string) bool {
	_, err := d.client.Build(ctx, client.SolveOpt{AllowedEntitlements: entitlements}, "armature",
		func(context.Context, gateway.Client) (*gateway.Result, error) {
			return gateway.NewResult(), nil
		}, nil)
	return err == nil
}

// all runs all tasks, each as soon as the tasks that it waits for have ended.
func (r *runner) all(ctx context.Context, cancel context.CancelCauseFunc) error {
	open, err := r.solve(ctx, llb.Scratch().File(llb.Mkdir(openDir, 0o777)))
	if err != nil {
		return fmt.Errorf("making the folders of the run: %w", err)
	}
	r.open = open
	if r.source = open; r.Source != "" {
		files := llb.Copy(llb.Local("source"), "/", openDir,
			&llb.CopyInfo{CopyDirContentsOnly: true, Mode: &llb.ChmodOpt{ModeStr: "a+rwX"}})
		if r.source, err = r.solve(ctx,
			llb.Scratch().File(llb.Mkdir(openDir, 0o777)).File(files)); err != nil {
			return fmt.Errorf("reading the source %s: %w", r.Source, err)
		}
	}
	keeper, err := r.keep(ctx, "", r.volumes)
	if err != nil {
		return err
	}
	defer r.release(ctx, keeper)
	if r.Servers != nil {
		defer r.forward(ctx)()
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go r.watch(watching, cancel)
	r.stage(ctx, false)
	r.stage(ctx, true)
	if r.failed != nil {
		return r.failed
	}
	return ctx.Err()
}

// stage runs the tasks of the pipeline, or its finally tasks.
func (r *runner) stage(ctx context.Context, finally bool) {
	ended := map[string]chan struct{}{}
	for _, t := range r.tasks {
		ended[t.Name] = make(chan struct{})
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, t := range r.tasks {
		if t.finally != finally {
			continue
		}
		running.Go(func() {
			defer close(ended[t.Name])
			for _, name := range t.after {
				select {
				case <-ended[name]:
				case <-ctx.Done():
				}
			}
			if because := r.skips(ctx, t); because != "" {
				r.end(t, Skipped, because, 0)
			} else {
				r.task(ctx, t)
			}
		})
	}
}

// skips returns why a task is skipped, or "".
func (r *runner) skips(ctx context.Context, t *task) (because string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return "the run ended"
	}
	if r.failed != nil && !t.finally {
		return r.failed.Task + " failed"
	}
	v := r.values.With(nil, nil)
	for _, other := range r.tasks {
		state := r.state[other.Name]
		if state == Skipped {
			state = "None"
		}
		v.Texts["tasks."+other.Name+".status"] = string(state)
	}
	when := t.When.ReplaceVariables(v.Texts, v.Lists)
	missing := tekton.Variable().FindString(text(when))
	if missing == "" && !when.AllowsExecution(nil) {
		return "its condition does not hold"
	}
	for _, param := range v.PutAll(t.Params) {
		missing = cmp.Or(missing, tekton.Variable().FindString(text(param.Value)))
	}
	if missing != "" {
		return "the result " + missing + " is not there"
	}
	return ""
}

// text returns a value as JSON, in which quotes within strings are not escaped.
func text(v any) string {
	data, _ := json.Marshal(v)
	return strings.ReplaceAll(string(data), `\"`, `"`)
}

func (r *runner) end(t *task, state State, because string, took time.Duration) {
	r.mu.Lock()
	r.state[t.Name] = state
	r.mu.Unlock()
	r.report(Event{Task: t.Name, State: state, Because: because, Took: took})
}

func (r *runner) report(e Event) {
	r.reporting.Lock()
	defer r.reporting.Unlock()
	r.Report(e)
}

// task runs a task, and retries it as often as its spec says.
func (r *runner) task(ctx context.Context, t *task) {
	r.mu.Lock()
	r.state[t.Name] = Running
	given := r.values.PutAll(t.Params)
	r.mu.Unlock()
	began := time.Now()
	r.report(Event{Task: t.Name, State: Running})
	var failed *StepError
	for attempt := range t.Retries + 1 {
		results, err := r.attempt(ctx, t, given, attempt)
		if err == nil {
			r.mu.Lock()
			r.result.Tasks[t.Name] = map[string]string{}
			for name, value := range results {
				r.values.Set("tasks."+t.Name+".results", name, value)
				r.result.Tasks[t.Name][name] = tekton.Text(value)
			}
			r.mu.Unlock()
			r.end(t, Succeeded, "", time.Since(began))
			return
		}
		if !errors.As(err, &failed) {
			failed = &StepError{Task: t.Name, Because: "did not run: " + err.Error()}
		}
		if ctx.Err() != nil {
			break
		}
	}
	if t.OnError != tektonv1.PipelineTaskContinue {
		r.mu.Lock()
		r.failed = cmp.Or(r.failed, failed)
		r.mu.Unlock()
	}
	r.end(t, Failed, failed.Because, time.Since(began))
}

// attempt runs the steps of a task one after the other, in folders of this attempt, and returns the
// results of the task.
func (r *runner) attempt(ctx context.Context, t *task, given tektonv1.Params,
	attempt int) (map[string]tektonv1.ParamValue, error) {
	limit := cmp.Or(ptr.Deref(t.Timeout, metav1.Duration{}).Duration, time.Hour) // Tekton's
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("did not end within %s, the timeout of its task", limit))
	defer cancel()
	steps, sidecars, err := t.steps(r.ofTask(t, given, attempt))
	if err != nil {
		return nil, err
	}
	own := fmt.Sprintf("%s-%d", t.Name, attempt)
	folders := slices.Clone(stepDirs)
	for _, v := range t.TaskSpec.Volumes {
		if v.EmptyDir != nil {
			folders = append(folders, "volume/"+v.Name)
		}
	}
	for _, w := range t.TaskSpec.Workspaces {
		if b := r.bound(t, w.Name); b != nil && b.EmptyDir != nil {
			folders = append(folders, "workspace/"+b.Name)
		}
	}
	keeper, err := r.keep(r.ctx, own, folders)
	if err != nil {
		return nil, err
	}
	defer r.release(ctx, keeper)
	var running sync.WaitGroup // the sidecars
	defer running.Wait()
	beside, end := context.WithCancel(ctx)
	defer end()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for i := range sidecars {
		running.Go(func() {
			if err := r.step(beside, t, own, len(steps)+i, &sidecars[i]); err != nil &&
				beside.Err() == nil {
				stop(fmt.Errorf("was ended by its sidecar: %w", err))
			}
		})
	}
	for i := range steps {
		s := &steps[i]
		if s.Name == "" {
			s.Name = fmt.Sprintf("unnamed-%d", i)
		}
		r.report(Event{Task: t.Name, Step: s.Name, State: Running})
		began := time.Now()
		err := r.step(ctx, t, own, i, s)
		state := Succeeded
		var failed *StepError
		if errors.As(err, &failed) {
			state = Failed
		}
		r.report(Event{Task: t.Name, Step: s.Name, State: state, Took: time.Since(began)})
		if failed != nil && s.OnError == tektonv1.Continue && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return r.read(ctx, t, keeper)
}

// read returns the results of a task, which its steps wrote to files.
func (r *runner) read(ctx context.Context, t *task,
	keeper *keeper) (map[string]tektonv1.ParamValue, error) {
	results := map[string]tektonv1.ParamValue{}
	for _, declared := range t.TaskSpec.Results {
		request := gateway.ReadRequest{Filename: openDir + "/" + declared.Name,
			Range: &gateway.FileRange{Length: maxResults + 1}}
		data, err := keeper.ReadFile(ctx, // The first mount after the root is resultsDir.
			gateway.ReadContainerRequest{ReadRequest: request, MountIndex: 1})
		if err != nil {
			if strings.Contains(err.Error(), "no such file") ||
				strings.Contains(err.Error(), "file does not exist") {
				continue // As in Tekton, this is an error only where the result is used.
			}
			return nil, fmt.Errorf("reading the result %s: %w", declared.Name, err)
		}
		if len(data) > maxResults {
			return nil, &StepError{Task: t.Name,
				Because: fmt.Sprintf("has a result %s of more than %d bytes", declared.Name, maxResults)}
		}
		value := tektonv1.ParamValue{Type: tektonv1.ParamType(declared.Type)}
		switch declared.Type {
		case tektonv1.ResultsTypeArray:
			err = json.Unmarshal(data, &value.ArrayVal)
		case tektonv1.ResultsTypeObject:
			err = json.Unmarshal(data, &value.ObjectVal)
		default:
			value = *tektonv1.NewStructuredValues(string(data))
		}
		if err != nil {
			return nil, &StepError{Task: t.Name,
				Because: fmt.Sprintf("has a result %s that is no %s: %v", declared.Name,
					declared.Type, err)}
		}
		results[declared.Name] = value
	}
	return results, nil
}

// folder begins the name of each folder of a run in BuildKit.
const folder = "/armature/"

// openDir is the path of a folder in its cache mount, whose root only the user root may write.
const openDir = "/open"

// keep creates empty folders in BuildKit, which exist until release.
func (r *runner) keep(ctx context.Context, owner string, names []string) (*keeper, error) {
	mounts := []gateway.Mount{{Dest: "/", Ref: r.open, MountType: pb.MountType_BIND}}
	for _, name := range names {
		mounts = append(mounts, r.folder(path.Join(folder, r.id, owner, name), owner, name))
	}
	container, err := r.gateway.NewContainer(ctx,
		gateway.NewContainerRequest{Mounts: mounts, NetMode: pb.NetMode_NONE})
	if err != nil {
		return nil, fmt.Errorf("making the folders of the run: %w", err)
	}
	k := &keeper{container, len(names)}
	r.mu.Lock()
	r.kept = append(r.kept, k)
	r.mu.Unlock()
	return k, nil
}

// release allows BuildKit to delete the folders.
func (r *runner) release(ctx context.Context, k *keeper) {
	r.mu.Lock()
	r.kept = slices.DeleteFunc(r.kept, func(other *keeper) bool { return other == k })
	r.mu.Unlock()
	_ = k.Release(context.WithoutCancel(ctx))
}

// keeper is a container that never starts. Its mounts after the root keep the folders in use.
type keeper struct {
	gateway.Container
	folders int
}

// folder returns the mount of a folder at dest. owner is an attempt of a task, or "" for the run.
func (r *runner) folder(dest, owner, name string) gateway.Mount {
	first := r.open
	if owner == "" {
		first = r.source
	}
	return gateway.Mount{Dest: dest, MountType: pb.MountType_CACHE, Ref: first, Selector: openDir,
		CacheOpt: &pb.CacheOpt{ID: path.Join(folder, r.id, owner, name),
			Sharing: pb.CacheSharingOpt_SHARED}}
}

func (r *runner) solve(ctx context.Context, state llb.State) (gateway.Reference, error) {
	definition, err := state.Marshal(ctx)
	if err != nil {
		return nil, err
	}
	solved, err := r.gateway.Solve(ctx,
		gateway.SolveRequest{Definition: definition.ToPB(), Evaluate: true})
	if err != nil {
		return nil, err
	}
	return solved.SingleRef()
}

// watch cancels a run that fills the disk. It measures the folders of the steps in every BuildKit,
// and the whole disk for a BuildKit that this process started.
func (r *runner) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	before := free(r.daemon.state)
	for wait := time.Second; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if used := before - free(r.daemon.state); used > r.MaxBytes {
			cancel(fmt.Errorf("the run took more than %d MiB of the disk", r.MaxBytes>>20))
			return
		}
		r.mu.Lock()
		kept := slices.Clone(r.kept)
		r.mu.Unlock()
		began, bytes := time.Now(), int64(0)
		for _, k := range kept {
			for i := 1; i <= k.folders && bytes <= r.MaxBytes; i++ {
				bytes += size(ctx, k, i, openDir, r.MaxBytes-bytes)
			}
		}
		if bytes > r.MaxBytes {
			cancel(fmt.Errorf("the steps wrote more than %d MiB to their folders", r.MaxBytes>>20))
			return
		}
		wait = max(time.Second, 10*time.Since(began))
	}
}

// size returns the size of the files below a folder. It stops when the size exceeds most.
func size(ctx context.Context, k *keeper, mount int, dir string, most int64) (bytes int64) {
	entries, err := k.ReadDir(ctx,
		gateway.ReadDirContainerRequest{ReadDirRequest: gateway.ReadDirRequest{Path: dir},
			MountIndex: mount})
	if err != nil {
		return 0 // The folder was deleted meanwhile.
	}
	for _, e := range entries {
		switch mode := fs.FileMode(e.Mode); {
		case bytes > most:
			return bytes
		case mode.IsDir():
			bytes += size(ctx, k, mount, path.Join(dir, e.Path), most-bytes)
		default:
			bytes += e.Size
		}
	}
	return bytes
}

// Prune removes the folders that killed runs left in BuildKit, and returns their size in bytes. The
// folders of active runs are in use and stay.
func (d *Daemon) Prune(ctx context.Context) (int64, error) {
	if err := removeScratch(); err != nil {
		return 0, err
	}
	bytes, _, err := d.prune(ctx, folder)
	return bytes, err
}

// clear removes the folders of a run that has ended. It retries, because a container that was
// canceled during its start uses them for a moment.
func (d *Daemon) clear(ctx context.Context, prefix string) error {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		_, used, err := d.prune(ctx, prefix)
		if err != nil || used == 0 {
			return err
		}
		if time.Since(began) > answers {
			return fmt.Errorf("%d folders of the run stay in BuildKit, because containers use "+
				"them\n  hint: armature build prune --local", used)
		}
	}
}

// prune removes the folders of runs whose names begin with a prefix. It returns their size in
// bytes, and the number of folders that stay because a container uses them.
func (d *Daemon) prune(ctx context.Context, prefix string) (bytes int64, used int, err error) {
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	all, err := d.client.DiskUsage(ctx,
		client.WithFilter([]string{"type==" + string(client.UsageRecordTypeCacheMount)}))
	var free []string
	for _, one := range all {
		switch {
		case !strings.HasPrefix(one.Description, "cached mount "+prefix):
		case one.InUse:
			used++
		default:
			bytes += max(one.Size, 0)
			free = append(free, "id=="+one.ID)
		}
	}
	if err != nil || len(free) == 0 {
		return bytes, used, err
	}
	pruned := make(chan client.UsageInfo)
	defer close(pruned)
	go func() {
		for range pruned {
		}
	}()
	return bytes, used, d.client.Prune(ctx, pruned, client.PruneAll, client.WithFilter(free))
}
