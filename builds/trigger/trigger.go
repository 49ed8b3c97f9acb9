// Package trigger starts the run of a build whose branch has moved. It asks the Git server,
// once for all builds of a repository, by the clock or when a webhook says so, and leaves the
// rest to the controller of builds: it writes the commit into the build's rerun annotation,
// so that a commit is asked for once, whoever asks and however often.
package trigger

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/turns"
	"github.com/armature-dev/armature/builds/report"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/trigger/webhook"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/gitrepo"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/metrics"
)

// Options of the triggers.
type Options struct {
	// Dial opens connections to Git servers; see gitremote.Dial.
	Dial gitremote.Dial
	// PlainHTTP lists hosts that a login is sent to over http as well.
	PlainHTTP []string
	// Group is the API group of AgentBuild.
	Group string
	// Address takes webhooks, such as :9292; empty takes none.
	Address string
	// CertDir has tls.crt and tls.key for the address; empty serves plain HTTP.
	CertDir string
	// Forges are asked for pull requests.
	Forges *forge.Clients
	// Shard of the builds in the cache.
	Shard process.Shard
	// FieldOwner of what is written.
	FieldOwner string
	Log        logr.Logger
	// Observe is told how each poll ended; it may be nil.
	Observe turns.Observe
}

const (
	// tick is how often builds are looked through for questions that are due.
	tick = time.Second
	// Questions at once, of all and of one namespace, and the time of each.
	most, mostOfOne = 6, 2
	askTime         = time.Minute
	// changeTime is for one commit in it.
	changeTime = askTime / 3
	// defaultPoll, and how much slower it is beside a webhook.
	defaultPoll, besideWebhook = 5 * time.Minute, 10
	// soon is the wait after answers that contradict each other.
	soon = 10 * time.Second
	// lastRetry is the longest wait after a server that failed.
	lastRetry = time.Hour
	// maxHistory is how much the folders of two commits may have, in bytes of packs.
	maxHistory = 32 << 20
)

// question is what builds of one namespace ask of one repository with one login.
type question struct{ namespace, repository, secret, user string }

// state of a question.
type state struct {
	next   time.Time
	busy   bool
	hinted bool   // a webhook came, or what is asked has changed
	asked  string // what of the builds decides about pull requests, as it was seen last
	soon   bool   // what was asked is not consistent yet
	failed int    // in a row
}

// Triggers of all builds.
type Triggers struct {
	Options
	client.Client
	live    client.Reader
	events  events.EventRecorder
	leads   <-chan struct{}
	wake    chan struct{}
	mu      sync.Mutex
	states  map[question]*state
	hooks   *hooks
	skipped map[types.NamespacedName]string // the commit that starts no run of a build
	running map[string]int                  // questions, by namespace
	polled  *prometheus.GaugeVec
}

// Setup adds the triggers to a manager whose cache has AgentBuilds. Every replica takes
// webhooks, and the leader polls.
func Setup(mgr ctrl.Manager, o Options) error {
	t := &Triggers{Options: o, Client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(o.FieldOwner), leads: mgr.Elected(), wake: make(chan struct{}, 1),
		states: map[question]*state{}, hooks: &hooks{live: mgr.GetAPIReader()}, skipped: map[types.NamespacedName]string{}, running: map[string]int{}, polled: metrics.Gauge("armature_polled_repositories")}
	if err := process.Register(t.polled); err != nil {
		return err
	}
	if err := mgr.Add(everywhere(func(ctx context.Context) error { return t.run(ctx, mgr) })); err != nil {
		return fmt.Errorf("setting up the triggers: %w", err)
	}
	if o.Address == "" {
		return nil
	}
	counts := webhook.NewCounts()
	if err := process.Register(counts); err != nil {
		return err
	}
	receiver := &webhook.Receiver{Known: t.hooks.known, Secrets: t.hooks.secrets, Wake: t.hint, Counts: counts}
	err := mgr.Add(everywhere(func(ctx context.Context) error { return serve(ctx, receiver.Server(o.Address), o.CertDir) }))
	if err != nil {
		return fmt.Errorf("setting up the receiver of webhooks: %w", err)
	}
	return nil
}

// everywhere runs on each replica.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }
func (everywhere) NeedLeaderElection() bool          { return false }

// run asks what is due until ctx ends.
func (t *Triggers) run(ctx context.Context, mgr ctrl.Manager) error {
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	var questions sync.WaitGroup
	defer questions.Wait()
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for {
		t.look(ctx, &questions)
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
		case <-t.wake:
		}
	}
}

// look through the builds, and ask what is due.
func (t *Triggers) look(ctx context.Context, questions *sync.WaitGroup) {
	var all api.AgentBuildList
	if err := t.List(ctx, &all); err != nil {
		return // of the cache, which fails only at the end
	}
	asking := make(map[question][]*api.AgentBuild)
	hooks := make(map[types.NamespacedName]bool)
	for i := range all.Items {
		b := &all.Items[i]
		if q, ok := questionOf(b); ok {
			asking[q] = append(asking[q], b)
			if h := b.Spec.Trigger.Webhook; h != nil {
				hooks[types.NamespacedName{Namespace: b.Namespace, Name: h.Name}] = true
			}
		}
	}
	t.hooks.note(hooks)
	leads := false
	select {
	case <-t.leads:
		leads = true
		t.prune(ctx, all.Items)
	default:
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for q := range t.states {
		if asking[q] == nil && !t.states[q].busy {
			delete(t.states, q)
		}
	}
	if leads {
		t.countPolled()
	}
	var due []question
	for q, builds := range asking {
		s := t.states[q]
		if s == nil { // asked within an interval, at a moment of its own
			s = &state{next: now.Add(rand.N(t.interval(builds)))}
			t.states[q] = s
		}
		if asked := aboutPulls(builds); asked != s.asked {
			s.asked, s.hinted = asked, s.hinted || leads
		}
		if !s.busy && (s.hinted || leads && !now.Before(s.next)) {
			due = append(due, q)
		}
	}
	slices.SortFunc(due, func(a, b question) int { return t.states[a].next.Compare(t.states[b].next) })
	total := 0
	for _, n := range t.running {
		total += n
	}
	for _, q := range due {
		if total == most {
			return
		}
		if t.running[q.namespace] == mostOfOne {
			continue
		}
		total++
		t.running[q.namespace]++
		s, builds := t.states[q], asking[q]
		s.busy, s.hinted = true, false
		questions.Go(func() { t.ask(ctx, q, s, builds) })
	}
}

// countPolled counts the repositories by the result of their last poll.
func (t *Triggers) countPolled() {
	failed := 0
	for _, s := range t.states {
		failed += min(s.failed, 1)
	}
	t.polled.WithLabelValues("failed").Set(float64(failed))
	t.polled.WithLabelValues("good").Set(float64(len(t.states) - failed))
}

// aboutPulls is what decides about pull requests beside the servers.
func aboutPulls(builds []*api.AgentBuild) string {
	var all []string
	for _, b := range builds {
		if b.Spec.Trigger.PullRequest != nil {
			all = append(all, fmt.Sprintln(b.Name, b.Generation, b.Annotations[keys.AnnotationApproved]))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// questionOf a build; ok is false if it has no trigger, or nothing can be asked yet.
func questionOf(b *api.AgentBuild) (q question, ok bool) {
	if b.Spec.Trigger == nil || b.DeletionTimestamp != nil || !followsBranch(b) && !derives(b) {
		return q, false
	}
	repository, err := gitrepo.Parse(b.Spec.Source.SourceRepository)
	if err != nil {
		return q, false
	}
	q = question{namespace: b.Namespace, repository: repository.String(), user: b.Spec.Source.RepoUser}
	if c := b.Spec.Source.SourceCredentials; c != nil {
		q.secret = c.Name
	}
	return q, true
}

// followsBranch reports whether a build is of a branch, as far as its status says of its spec.
func followsBranch(b *api.AgentBuild) bool {
	return b.Status.Source != nil && b.Status.Source.Git.Ref != "" && b.Status.ObservedGeneration == b.Generation
}

// interval of a question: the shortest of its builds.
func (t *Triggers) interval(builds []*api.AgentBuild) time.Duration {
	shortest := lastRetry
	for _, b := range builds {
		poll := defaultPoll
		if p := b.Spec.Trigger.Poll; p != nil && p.Duration > 0 {
			poll = p.Duration
		}
		if w := b.Spec.Trigger.Webhook; w != nil {
			if t.hooks.delivers(b.Namespace, w.Name) {
				poll *= besideWebhook
			}
		}
		shortest = min(shortest, poll)
	}
	return shortest
}

// ask the server, and start the runs of builds whose branch has moved.
func (t *Triggers) ask(ctx context.Context, q question, s *state, builds []*api.AgentBuild) {
	limited, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	begun := time.Now()
	err := t.answer(limited, q, builds)
	if t.Observe != nil {
		t.Observe(err, time.Since(begun))
	}
	if err != nil && ctx.Err() == nil {
		t.Log.Info("asking a Git server for moved branches", "namespace", q.namespace, "repository", q.repository, "problem", text.Printable(err.Error()))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := t.interval(builds)
	if s.failed++; err == nil {
		s.failed = 0
	}
	for range min(s.failed, 10) {
		wait = min(2*wait, lastRetry)
	}
	if s.soon {
		wait = min(wait, soon)
	}
	s.busy, s.soon, s.next = false, false, time.Now().Add(wait)
	if t.running[q.namespace]--; t.running[q.namespace] == 0 {
		delete(t.running, q.namespace)
	}
	t.nudge()
}

// answer a question: start the runs of what has moved, and derive the builds of what is new.
func (t *Triggers) answer(ctx context.Context, q question, builds []*api.AgentBuild) error {
	repository, err := t.open(ctx, q)
	if err != nil {
		return err
	}
	refs, err := repository.References(ctx)
	if err != nil {
		return err
	}
	r := &remote{Repository: repository, refs: refs, changes: make(map[[2]string]gitremote.Change)}
	errs := []error{t.compare(ctx, r, builds)}
	for _, b := range builds {
		if derives(b) {
			errs = append(errs, t.derive(ctx, r, b))
		}
	}
	return multi.Errors(errs...)
}

// remote is a repository as it answered.
type remote struct {
	gitremote.Repository
	refs    map[string]plumbing.Hash
	changes map[[2]string]gitremote.Change // by the two commits
}

// open the repository with its login.
func (t *Triggers) open(ctx context.Context, q question) (r gitremote.Repository, err error) {
	r = gitremote.Repository{URL: q.repository, Dial: t.Dial, Limit: maxHistory}
	if q.secret == "" {
		return r, nil
	}
	endpoint, err := transport.NewEndpoint(r.URL)
	if err != nil {
		return r, err
	}
	secret, err := login(ctx, t.live, types.NamespacedName{Namespace: q.namespace, Name: q.secret})
	if err != nil {
		return r, err
	}
	data, unfit := gitremote.Take(secret, r.URL, t.PlainHTTP)
	if unfit != nil {
		return r, unfit
	}
	auth, unfit := gitremote.Login(endpoint, q.user, q.secret, data)
	if unfit != nil {
		return r, unfit
	}
	r.Auth = auth
	return r, nil
}

// login of a Git server or forge.
func login(ctx context.Context, live client.Reader, key types.NamespacedName) (*corev1.Secret, error) {
	var secret corev1.Secret
	if err := live.Get(ctx, key, &secret); err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	if !compose.PurposeGit.Fits(secret.Type, secret.Labels) {
		return nil, fmt.Errorf("Secret %s is not marked as a login for git", key)
	}
	return &secret, nil
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
		known := !ok || commit == git.CommitSHA || commit == b.Annotations[api.RerunAnnotation(t.Group)] || commit == t.skipped[key]
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
			t.event(b, "PushSkipped", "%s has moved to %.12s, which starts no run: %s", git.Ref, commit, skip.why)
			if b.Spec.Report != nil { // a status that branch protection requires is shown all the same
				if err := t.annotate(ctx, b, api.SkippedAnnotation(t.Group), report.SkippedValue(commit, skip.why, skip.passes)); err != nil {
					return err
				}
			}
			continue
		}
		// The generation that was seen: a spec that has changed starts a run by itself.
		if err := t.annotate(ctx, b, api.RerunAnnotation(t.Group), commit); err != nil {
			return err
		}
		t.event(b, "Pushed", "%s has moved to %.12s", git.Ref, commit)
	}
	return nil
}

// annotate a build that is there.
func (t *Triggers) annotate(ctx context.Context, b *api.AgentBuild, name, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: value}}})
	if err != nil {
		return err
	}
	err = t.Patch(ctx, &api.AgentBuild{ObjectMeta: b.ObjectMeta}, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(t.FieldOwner))
	return client.IgnoreNotFound(err)
}

// event of a build; the texts are Git's, which may be of any length.
func (t *Triggers) event(b *api.AgentBuild, reason, format string, args ...any) {
	text := text.Printable(fmt.Sprintf(format, args...))
	t.events.Eventf(b, nil, corev1.EventTypeNormal, reason, "Trigger", "%s", strings.ToValidUTF8(text[:min(len(text), 1000)], ""))
}

// skip is why a commit starts no run. It passes where what it changes is not built: whoever
// writes a message does not decide that.
type skip struct {
	why    string
	passes bool
}

// skips says why a commit starts no run; nil if it does. It is compared with an older one, or
// with none if that is empty. What cannot be read starts one.
func (t *Triggers) skips(ctx context.Context, r *remote, build types.NamespacedName, commit, older string, paths []string) *skip {
	change, known := r.changes[[2]string{commit, older}]
	if !known {
		// A commit that takes too long is unknown, and the rest of the time is for writing that down:
		// otherwise it would be asked for without end.
		limited, cancel := context.WithTimeout(ctx, changeTime)
		defer cancel()
		var err error
		if change, err = r.Change(limited, commit, older); err != nil && ctx.Err() == nil {
			t.Log.Info("reading a commit, which is built because it cannot be checked", "build", build, "problem", text.Printable(err.Error()))
		}
		r.changes[[2]string{commit, older}] = change
	}
	return skipOf(change, older, paths)
}

// skipOf a change from an older commit.
func skipOf(change gitremote.Change, older string, paths []string) *skip {
	switch {
	case change.Known && ownWrite(change.Paths):
		return &skip{"it changes the lock alone", true}
	case change.Known && len(paths) > 0 && !covers(paths, change.Paths):
		return &skip{fmt.Sprintf("none of the %s that differ from %.12s is in the paths of spec.trigger", text.Count(len(change.Paths), "path"), older), true}
	}
	for _, word := range []string{"[skip ci]", "[ci skip]", "[skip tkn]", "[tkn skip]"} {
		if strings.Contains(change.Message, word) {
			return &skip{why: "its message has " + word}
		}
	}
	// A write-back to a lock of another name would start the next run.
	if change.Known && len(change.Paths) == 1 && strings.Contains(change.Message, "\nArmature-Build: ") {
		return &skip{why: "its message has the trailer Armature-Build"}
	}
	return nil
}

// hint that builds with a webhook's Secret may have moved.
func (t *Triggers) hint(namespace, name string) {
	t.hooks.deliver(namespace, name)
	var all api.AgentBuildList
	if err := t.List(context.Background(), &all, client.InNamespace(namespace)); err != nil {
		return // of the cache, which fails only at the end
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range all.Items {
		b := &all.Items[i]
		q, ok := questionOf(b)
		if !ok || b.Spec.Trigger.Webhook == nil || b.Spec.Trigger.Webhook.Name != name {
			continue
		}
		if t.states[q] == nil {
			t.states[q] = &state{next: time.Now().Add(defaultPoll)}
		}
		t.states[q].hinted = true
	}
	t.nudge()
}

func (t *Triggers) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// serve until ctx ends.
func serve(ctx context.Context, server *http.Server, certDir string) error {
	listener, err := listen(ctx, server.Addr, certDir)
	if err != nil {
		return fmt.Errorf("listening for webhooks: %w", err)
	}
	ended := make(chan error, 1)
	listener = process.Bounded(listener, 256)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving webhooks: %w", err)
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(last) // a delivery that is cut off is made up for by the next poll
		<-ended
		return nil
	}
}
