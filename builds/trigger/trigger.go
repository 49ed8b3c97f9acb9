// Package trigger starts the run of a build whose branch has moved. It asks the Git server,
// once for all builds of a repository, by the clock or when a webhook says so, and leaves the
// rest to the controller of builds: it writes the commit into the build's rerun annotation,
// so that a commit is asked for once, whoever asks and however often.
package trigger

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/builds/report"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/trigger/webhook"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/gitrepo"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/managers"
	"github.com/armature-dev/armature/render/process/metrics"
)

// Options are those of the triggers. Webhooks are taken for builds of all shards: another shard is
// told of a delivery by an annotation.
type Options struct {
	git.Access
	// Address takes webhooks, such as :9292; empty takes none.
	Address string
	// CertDir has tls.crt and tls.key for the address; empty serves plain HTTP.
	CertDir string
	// Observe is told how each poll ended; it may be nil.
	Observe managers.Observe
}

const (
	// workers ask at once, a quarter of them for one namespace, each for askTime at most.
	workers, askTime = 8, time.Minute
	// changeTime is for one commit in it.
	changeTime = askTime / 3
	// defaultPoll, and how much slower it is beside a webhook.
	defaultPoll, besideWebhook = 5 * time.Minute, 10
	// soon is the wait after answers that contradict each other.
	soon = 10 * time.Second
	// firstRetry and lastRetry are the shortest and longest wait after a server that failed.
	firstRetry, lastRetry = 20 * time.Second, time.Hour
	// maxHistory is how much the folders of two commits may have, in bytes of packs.
	maxHistory = 32 << 20
)

// requestFor builds of one namespace that ask the same repository with the same login.
func requestFor(q git.Login) reconcile.Request {
	name := strings.Join([]string{q.Repository, q.Secret.Name, q.User}, "\n")
	return reconcile.Request{
		NamespacedName: types.NamespacedName{Namespace: q.Secret.Namespace, Name: name}}
}

// state of a question.
type state struct {
	next   time.Time
	hinted bool   // a webhook came, or what is asked has changed
	trace  string // of the webhook
	asked  string // what of the builds decides about pull requests, as it was seen last
	failed bool
}

// Triggers of all builds.
type Triggers struct {
	Options
	client.Client
	events  events.EventRecorder
	leads   <-chan struct{}
	woken   chan event.GenericEvent // builds whose question is due
	mu      sync.Mutex
	states  map[reconcile.Request]*state
	retries workqueue.TypedRateLimiter[reconcile.Request]
	hooks   *hooks
	skipped map[types.NamespacedName]string // the commit that starts no run of a build
	polled  *prometheus.GaugeVec
}

// Setup adds the triggers to a manager whose cache has AgentBuilds. Every replica takes
// webhooks, and the leader polls.
func Setup(mgr ctrl.Manager, o Options) error {
	t := &Triggers{
		Options: o, Client: mgr.GetClient(), leads: mgr.Elected(),
		events: mgr.GetEventRecorder(o.FieldOwner), woken: make(chan event.GenericEvent, 1024),
		states: map[reconcile.Request]*state{}, skipped: map[types.NamespacedName]string{},
		hooks:  newHooks(o.Live, mgr.GetClient()),
		polled: new(metrics.Set).Gauge("armature_polled_repositories"),
	}
	if err := process.Register(t.polled); err != nil {
		return err
	}
	fair, asks :=
		managers.NewFairness(workers, workers/4), handler.EnqueueRequestsFromMapFunc(requestsOf)
	options := fair.Options(time.Second, 5*time.Minute)
	options.NeedLeaderElection, t.retries =
		ptr.To(false), fair.Options(firstRetry, lastRetry).RateLimiter
	err := ctrl.NewControllerManagedBy(mgr).
		Named("trigger").
		Watches(&api.AgentBuild{}, asks).
		WatchesRawSource(source.Channel(t.woken, asks)).
		WithOptions(options).
		Complete(fair.Share(t.Reconcile))
	if err != nil {
		return fmt.Errorf("setting up the triggers: %w", err)
	}
	if o.Address == "" {
		return nil
	}
	counts := webhook.NewCounts()
	if err := process.Register(counts); err != nil {
		return err
	}
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &api.AgentBuild{}, byHook, hookOf)
	if err == nil && o.Shard.Key != "" {
		err = t.hooks.watchOthers(mgr, o.Options)
	}
	if err != nil {
		return fmt.Errorf("setting up the cache of webhooks: %w", err)
	}
	receiver := &webhook.Receiver{
		Known: t.hooks.known, Secrets: t.hooks.secrets, Wake: t.hint, Counts: counts,
		Traces: o.Traces,
	}
	listener, err := net.Listen("tcp", o.Address)
	if err == nil && o.CertDir != "" {
		// The certificate is read again when the Secret behind it changes.
		cert, key := filepath.Join(o.CertDir, "tls.crt"), filepath.Join(o.CertDir, "tls.key")
		watcher, failed := certwatcher.New(cert, key)
		if failed != nil {
			return multi.Errors(failed, listener.Close())
		}
		listener = tls.NewListener(listener, &tls.Config{
			GetCertificate: watcher.GetCertificate, MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"},
		})
		err = mgr.Add(watcher)
	}
	if err != nil {
		return fmt.Errorf("listening for webhooks: %w", err)
	}
	// A delivery that is cut off is made up for by the next poll.
	return mgr.Add(&manager.Server{
		Name: "webhooks", Server: receiver.Server(o.Address),
		Listener: process.Bounded(listener, 256), ShutdownTimeout: ptr.To(5 * time.Second),
	})
}

// requestsOf a build: to ask its server, or to delete it where it was derived from a build that
// derives none any more.
func requestsOf(_ context.Context, o client.Object) []reconcile.Request {
	if q, ok := questionOf(o.(*api.AgentBuild)); ok {
		return []reconcile.Request{requestFor(q)}
	}
	if metav1.GetControllerOf(o) == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace()}}}
}

// Reconcile asks a server, on the leader when it is time, and on each replica after a hint.
func (t *Triggers) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	var all api.AgentBuildList // of the cache: what is written is copied
	if err := t.List(ctx, &all, client.InNamespace(request.Namespace),
		client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	var q git.Login
	var builds []*api.AgentBuild
	for i := range all.Items {
		if of, ok := questionOf(&all.Items[i]); ok && requestFor(of) == request {
			q, builds = of, append(builds, all.Items[i].DeepCopy())
		}
	}
	leads := t.leading()
	if leads {
		if err := t.prune(ctx, all.Items); err != nil {
			return reconcile.Result{}, err
		}
	}
	t.mu.Lock()
	if builds == nil {
		delete(t.states, request)
		t.retries.Forget(request)
		countPolled(t)
		t.mu.Unlock()
		return reconcile.Result{}, nil
	}
	s := t.states[request]
	if s == nil { // asked within an interval, at a moment of its own
		s = &state{next: time.Now().Add(rand.N(t.interval(builds)))}
		t.states[request] = s
	}
	if asked := hints(builds); asked != s.asked {
		s.asked, s.hinted = asked, s.hinted || leads
	}
	wait := time.Until(s.next)
	ask := s.hinted || leads && wait <= 0
	traced := traces.Since(ctx, time.Now(), s.trace)
	s.hinted, s.trace = false, ""
	t.mu.Unlock()
	switch {
	case ask:
		wait = t.ask(traced, q, s, builds)
	case !leads:
		wait = max(wait, soon) // it may lead then
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// leading reports whether this replica polls.
func (t *Triggers) leading() bool {
	select {
	case <-t.leads:
		return true
	default:
		return false
	}
}

// countPolled counts the repositories by the result of their last poll.
func countPolled(t *Triggers) {
	if !t.leading() {
		return
	}
	failed := 0
	for _, s := range t.states {
		if s.failed {
			failed++
		}
	}
	t.polled.WithLabelValues("failed").Set(float64(failed))
	t.polled.WithLabelValues("good").Set(float64(len(t.states) - failed))
}

// hints are what decides about pull requests beside the servers, and webhooks that other shards
// took.
func hints(builds []*api.AgentBuild) string {
	var all []string
	for _, b := range builds {
		if at := b.Annotations[keys.AnnotationHook]; at != "" {
			all = append(all, fmt.Sprintln(b.Name, at))
		}
		if b.Spec.Trigger.PullRequest != nil {
			all = append(all,
				fmt.Sprintln(b.Name, b.Generation, b.Annotations[keys.AnnotationApproved]))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// questionOf a build; ok is false if it has no trigger, or nothing can be asked yet.
func questionOf(b *api.AgentBuild) (q git.Login, ok bool) {
	if b.Spec.Trigger == nil || b.DeletionTimestamp != nil || !followsBranch(b) && !derives(b) {
		return q, false
	}
	repository, err := gitrepo.Parse(b.Spec.Source.SourceRepository)
	if err != nil {
		return q, false
	}
	q = git.Login{Repository: repository.String(), User: b.Spec.Source.RepoUser,
		Secret: types.NamespacedName{Namespace: b.Namespace},
		Field:  "spec.source.sourceCredentials", Reason: api.ReasonSecretInvalid}
	if c := b.Spec.Source.SourceCredentials; c != nil {
		q.Secret.Name = c.Name
	}
	return q, true
}

// followsBranch reports whether a build is of a branch, as far as its status says of its spec.
func followsBranch(b *api.AgentBuild) bool {
	return b.Status.Source != nil && b.Status.Source.Git.Ref != "" &&
		b.Status.ObservedGeneration == b.Generation
}

// interval of a question: the shortest of its builds.
func (t *Triggers) interval(builds []*api.AgentBuild) time.Duration {
	shortest := lastRetry
	for _, b := range builds {
		poll := defaultPoll
		if p := b.Spec.Trigger.Poll; p != nil && p.Duration > 0 {
			poll = p.Duration
		}
		if t.hooks.delivers(b) {
			poll *= besideWebhook
		}
		shortest = min(shortest, poll)
	}
	return shortest
}

// ask the server, and start the runs of builds whose branch has moved. It returns when to ask
// again.
func (t *Triggers) ask(ctx context.Context, q git.Login, s *state,
	builds []*api.AgentBuild) (wait time.Duration) {
	limited, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	begun := time.Now()
	again, err := t.answer(limited, q, builds)
	if t.Observe != nil {
		t.Observe(err, time.Since(begun))
	}
	if err != nil && ctx.Err() == nil {
		t.Log.Info("asking a Git server for moved branches", "namespace",
			q.Secret.Namespace, "repository", q.Repository, "problem", text.Printable(err.Error()))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	wait = t.interval(builds)
	if s.failed = err != nil; s.failed {
		wait = max(wait, t.retries.When(requestFor(q)))
	} else {
		t.retries.Forget(requestFor(q))
	}
	if again {
		wait = min(wait, soon)
	}
	s.next = time.Now().Add(wait)
	countPolled(t)
	return wait
}

// answer a question: start the runs of what has moved, and derive the builds of what is new. again
// says that what was asked is not consistent yet.
func (t *Triggers) answer(ctx context.Context, q git.Login,
	builds []*api.AgentBuild) (again bool, _ error) {
	repository, err := t.Open(ctx, q)
	if err != nil {
		return false, err
	}
	repository.Limit = maxHistory
	refs, err := repository.References(ctx)
	if err != nil {
		return false, err
	}
	r := &remote{Repository: repository, refs: refs, changes: make(map[[2]string]gitremote.Change)}
	errs := []error{t.compare(ctx, r, builds)}
	for _, b := range builds {
		if derives(b) {
			errs = append(errs, t.derive(ctx, r, b))
		}
	}
	return r.again, multi.Errors(errs...)
}

// remote is a repository as it answered.
type remote struct {
	gitremote.Repository
	refs    map[string]plumbing.Hash
	changes map[[2]string]gitremote.Change // by the two commits
	again   bool                           // to be asked soon
}

// compare the branches of the server with what builds were made of.
func (t *Triggers) compare(ctx context.Context, r *remote, builds []*api.AgentBuild) error {
	for _, b := range builds {
		if !followsBranch(b) {
			continue
		}
		git := b.Status.Source.Git
		tip, ok := r.refs[git.Ref]
		commit, key := tip.String(), client.ObjectKeyFromObject(b)
		t.mu.Lock()
		known := !ok || commit == git.CommitSHA ||
			commit == b.Annotations[api.RerunAnnotation(t.Group)] || commit == t.skipped[key]
		t.mu.Unlock()
		if known {
			continue
		}
		older, paths := "", []string(nil)
		if b.Status.LastRunPhase == api.PhaseSucceeded {
			older = git.CommitSHA
		}
		if push := b.Spec.Trigger.Push; push != nil {
			paths = push.Paths
		}
		skip := t.skips(ctx, r, key, commit, older, paths)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if skip != nil {
			t.mu.Lock()
			t.skipped[key] = commit
			t.mu.Unlock()
			t.event(b, "PushSkipped", "%s has moved to %.12s, which starts no run: %s", git.Ref,
				commit, skip.why)
			// a status that branch protection requires is shown all the same
			if b.Spec.Report != nil {
				value := report.SkippedValue(commit, skip.why, skip.state == forge.Skipped)
				if err := t.annotate(ctx, b,
					map[string]string{api.SkippedAnnotation(t.Group): value}); err != nil {
					return err
				}
			}
			continue
		}
		// The generation that was seen: a spec that has changed starts a run by itself.
		span := t.startSpan(ctx, b)
		if err := t.annotate(ctx, b,
			span.Annotate(map[string]string{api.RerunAnnotation(t.Group): commit})); err != nil {
			return err
		}
		span.End(time.Now(), false)
		t.event(b, "Pushed", "%s has moved to %.12s", git.Ref, commit)
	}
	return nil
}

// startSpan of what asks for a run of a build, since the server is asked.
func (t *Triggers) startSpan(ctx context.Context, b *api.AgentBuild) traces.Span {
	return t.Traces.Start(ctx, "build.trigger", "build", client.ObjectKeyFromObject(b).String())
}

// annotate a build that is there.
func (t *Triggers) annotate(ctx context.Context, b *api.AgentBuild,
	annotations map[string]string) error {
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	err = t.Patch(ctx, &api.AgentBuild{ObjectMeta: b.ObjectMeta},
		client.RawPatch(types.MergePatchType, patch), client.FieldOwner(t.FieldOwner))
	return client.IgnoreNotFound(err)
}

// event of a build; the texts are Git's, which may be of any length.
func (t *Triggers) event(b *api.AgentBuild, reason, format string, args ...any) {
	text := text.Printable(fmt.Sprintf(format, args...))
	t.events.Eventf(b, nil, corev1.EventTypeNormal, reason, "Trigger", "%s",
		strings.ToValidUTF8(text[:min(len(text), 1000)], ""))
}

// stopped is why a commit is not built, for its status: skipped, which passes, where what it
// changes is not built. Whoever writes a message does not decide that.
type stopped struct {
	state        forge.State
	why, comment string // the comment is for its pull request
}

// skips says why a commit starts no run; nil if it does. It is compared with an older one, or
// with none if that is empty. What cannot be read starts one.
func (t *Triggers) skips(ctx context.Context, r *remote, build types.NamespacedName,
	commit, older string, paths []string) *stopped {
	change, known := r.changes[[2]string{commit, older}]
	if !known {
		// A commit that takes too long is unknown, and the rest of the time is for writing that
		// down: otherwise it would be asked for without end.
		limited, cancel := context.WithTimeout(ctx, changeTime)
		defer cancel()
		var err error
		if change, err = r.Change(limited, commit, older); err != nil && ctx.Err() == nil {
			t.Log.Info("reading a commit, which is built because it cannot be checked", "build",
				build, "problem", text.Printable(err.Error()))
		}
		r.changes[[2]string{commit, older}] = change
	}
	return skipOf(change, older, paths)
}

// skipOf a change from an older commit.
func skipOf(change gitremote.Change, older string, paths []string) *stopped {
	switch {
	case change.Known && ownWrite(change.Paths):
		return &stopped{state: forge.Skipped, why: "it changes the lock alone"}
	case change.Known && len(paths) > 0 && !covers(paths, change.Paths):
		return &stopped{state: forge.Skipped, why: fmt.Sprintf(
			"none of the %s that differ from %.12s is in the paths of spec.trigger",
			text.Count(len(change.Paths), "path"), older)}
	}
	for _, word := range []string{"[skip ci]", "[ci skip]", "[skip tkn]", "[tkn skip]"} {
		if strings.Contains(change.Message, word) {
			return &stopped{state: forge.Queued, why: "its message has " + word}
		}
	}
	// A write-back to a lock of another name would start the next run.
	if change.Known && len(change.Paths) == 1 &&
		strings.Contains(change.Message, "\nArmature-Build: ") {
		return &stopped{state: forge.Queued, why: "its message has the trailer Armature-Build"}
	}
	return nil
}
