// Package trigger starts the run of a build whose branch has moved. It asks the Git server once for
// all builds of a repository, at an interval or after the delivery of a webhook, and writes the
// commit into the rerun annotation of the build. The controller of builds does the rest, and starts
// one run for a commit, however often the annotation is written.
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
	utilcache "k8s.io/apimachinery/pkg/util/cache"
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

// Options are the options of the triggers. Each shard accepts the webhooks of builds of all shards:
// an annotation tells another shard about a delivery.
type Options struct {
	git.Access
	// Address accepts webhooks, such as :9292. If empty, none are accepted.
	Address string
	// CertDir has tls.crt and tls.key for the address. If empty, the address serves plain HTTP.
	CertDir string
	// Observe is called with the result of each poll. It may be nil.
	Observe managers.Observe
}

const (
	// workers is the number of concurrent questions, a quarter of them for one namespace. askTime
	// bounds one question.
	workers, askTime = 8, time.Minute
	// changeTime bounds the part of a question about one commit.
	changeTime = askTime / 3
	// defaultPoll is the default interval, and besideWebhook its factor for builds with a webhook.
	defaultPoll, besideWebhook = 5 * time.Minute, 10
	// soon is the wait after inconsistent answers.
	soon = 10 * time.Second
	// firstRetry and lastRetry are the shortest and longest wait after a failure of a server.
	firstRetry, lastRetry = 20 * time.Second, time.Hour
	// maxHistory bounds the trees of two commits, in bytes of packs.
	maxHistory = 32 << 20
	// maxSkipped bounds the builds whose skipped commit is cached. A commit that is no longer
	// cached, after skippedKeeps at the latest, is compared again.
	maxSkipped, skippedKeeps = 10_000, 30 * 24 * time.Hour
)

// requestFor returns the request of all builds of a namespace that ask the same repository with the
// same login.
func requestFor(q git.Login) reconcile.Request {
	name := strings.Join([]string{q.Repository, q.Secret.Name, q.User}, "\n")
	return reconcile.Request{
		NamespacedName: types.NamespacedName{Namespace: q.Secret.Namespace, Name: name}}
}

// state is the state of a question.
type state struct {
	next   time.Time
	hinted bool   // a webhook was delivered, or the hints have changed
	trace  string // of the webhook
	asked  string // the last hints
	failed bool
}

// Triggers are the triggers of all builds.
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
	skipped *utilcache.LRUExpireCache // the commits that start no run, by build
	polled  *prometheus.GaugeVec
}

// Setup adds the triggers to a manager whose cache has AgentBuilds. Every replica accepts webhooks.
// Only the leader polls.
func Setup(mgr ctrl.Manager, o Options) error {
	t := &Triggers{
		Options: o, Client: mgr.GetClient(), leads: mgr.Elected(),
		events: mgr.GetEventRecorder(o.FieldOwner), woken: make(chan event.GenericEvent, 1024),
		states: map[reconcile.Request]*state{}, skipped: utilcache.NewLRUExpireCache(maxSkipped),
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
		// The watcher reads the certificate again when its Secret changes.
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
	// The next poll compensates for a delivery that is interrupted.
	return mgr.Add(&manager.Server{
		Name: "webhooks", Server: receiver.Server(o.Address),
		Listener: process.Bounded(listener, 256), ShutdownTimeout: ptr.To(5 * time.Second),
	})
}

// requestsOf returns the request that asks the server of a build. For a build without a question,
// it returns one that deletes the build if its owner no longer derives any.
func requestsOf(_ context.Context, o client.Object) []reconcile.Request {
	if q, ok := questionOf(o.(*api.AgentBuild)); ok {
		return []reconcile.Request{requestFor(q)}
	}
	if metav1.GetControllerOf(o) == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace()}}}
}

// Reconcile asks a server: on the leader at the interval, and on each replica after a hint.
func (t *Triggers) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	var all api.AgentBuildList // shared with the cache, so that a build is copied before it changes
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
	if s == nil { // the first poll is at a random time within the interval
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
		wait = max(wait, soon) // this replica may lead by then
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

// hints returns the fields of builds whose change causes a question: those that decide about pull
// requests, and the deliveries that other shards accepted.
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

// questionOf returns the question of a build. ok is false if the build has no trigger, or cannot be
// asked for yet.
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

// followsBranch reports whether the current status of a build names a branch.
func followsBranch(b *api.AgentBuild) bool {
	return b.Status.Source != nil && b.Status.Source.Git.Ref != "" &&
		b.Status.ObservedGeneration == b.Generation
}

// interval returns the shortest interval of builds.
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

// ask asks the server, starts the runs of builds whose branch has moved, and returns the wait until
// the next question.
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

// answer starts the runs of branches that have moved, and derives the builds of new references.
// again reports that the answers of the servers are not consistent yet.
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

// remote is a repository with the answers of its server.
type remote struct {
	gitremote.Repository
	refs    map[string]plumbing.Hash
	changes map[[2]string]gitremote.Change // by the two commits
	again   bool                           // the server is to be asked soon
}

// compare compares the branches of the server with the commits of builds, and starts the runs of
// those that differ.
func (t *Triggers) compare(ctx context.Context, r *remote, builds []*api.AgentBuild) error {
	for _, b := range builds {
		if !followsBranch(b) {
			continue
		}
		git := b.Status.Source.Git
		tip, ok := r.refs[git.Ref]
		commit, key := tip.String(), client.ObjectKeyFromObject(b)
		if skipped, _ := t.skipped.Get(key); !ok || commit == git.CommitSHA || skipped == commit ||
			commit == b.Annotations[api.RerunAnnotation(t.Group)] {
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
			t.skipped.Add(key, commit, skippedKeeps)
			t.event(b, "PushSkipped", "%s has moved to %.12s, which starts no run: %s", git.Ref,
				commit, skip.why)
			// Branch protection may require the status of this commit.
			if b.Spec.Report != nil {
				value := report.SkippedValue(commit, skip.why, skip.state == forge.Skipped)
				if err := t.annotate(ctx, b,
					map[string]string{api.SkippedAnnotation(t.Group): value}); err != nil {
					return err
				}
			}
			continue
		}
		// A spec that has changed meanwhile starts a run by itself.
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

// startSpan starts the span of a trigger, which begins with the question to the server.
func (t *Triggers) startSpan(ctx context.Context, b *api.AgentBuild) traces.Span {
	return t.Traces.Start(ctx, "build.trigger", "build", client.ObjectKeyFromObject(b).String())
}

// annotate adds annotations to a build, if the build exists.
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

// event records an event of a build. The texts are Git's, so it makes them printable and cuts them.
func (t *Triggers) event(b *api.AgentBuild, reason, format string, args ...any) {
	t.events.Eventf(b, nil, corev1.EventTypeNormal, reason, "Trigger", "%s",
		text.Cut(text.Printable(fmt.Sprintf(format, args...)), 1000))
}

// stopped is the status of a commit that is not built. The state is Skipped, which passes, only if
// the paths that the commit changes are not built. A message cannot lead to it.
type stopped struct {
	state        forge.State
	why, comment string // the comment is for its pull request
}

// skips returns why a commit starts no run, or nil if it does. It compares the commit with an older
// one unless older is empty. A commit that cannot be read starts a run.
func (t *Triggers) skips(ctx context.Context, r *remote, build types.NamespacedName,
	commit, older string, paths []string) *stopped {
	change, known := r.changes[[2]string{commit, older}]
	if !known {
		// A commit that takes too long is treated as unknown, so that time remains to record that.
		// Otherwise it would be requested forever.
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

// skipOf returns why a change from an older commit starts no run, or nil if it does.
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
