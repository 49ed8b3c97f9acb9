package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/render/process"
)

// Reader reads what pages show. Who asks for the same within a moment shares one answer, so
// that a page that many look at costs the API server no more than one that nobody does.
type Reader struct {
	*Client
	recent *cache.LRUExpireCache
	asking singleflight.Group
	slots  chan struct{} // of requests under way
}

// Bounds of a reader: answers that are remembered, requests at once, and the time that one may
// take.
const (
	maxRecent = 256
	maxAsking = 16
	patience  = 5 * time.Second
)

// Bounds of a log: on a page, which is sent again as it grows, and as a file; and how much of it
// is read to find its last lines.
const (
	pageLines, pageBytes = 500, 64 << 10
	fileLines, fileBytes = 5000, 512 << 10
	maxLogRead           = 16 << 20
)

// How long an answer counts: of what changes, and of what does not.
const (
	moment = 2 * time.Second
	while  = 30 * time.Second
)

// NewReader of the builds of a cluster.
func NewReader(config *rest.Config, group string) (*Reader, error) {
	c, err := Connect(config, "", group)
	if err != nil {
		return nil, err
	}
	return &Reader{Client: c, recent: cache.NewLRUExpireCache(maxRecent),
		slots: make(chan struct{}, maxAsking)}, nil
}

// answer that is shared.
type answer[T any] struct {
	value T
	err   error
}

// Share an answer among all who ask for its key within a time. One who asked first may leave before
// it is there.
func Share[T any](ctx context.Context, r *Reader, key string, lasts time.Duration,
	ask func(context.Context) (T, error)) (T, error) {
	if have, ok := r.recent.Get(key); ok {
		return have.(answer[T]).value, have.(answer[T]).err
	}
	done := r.asking.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		var a answer[T]
		leave, err := r.enter(ctx)
		if err != nil {
			return answer[T]{err: err}, nil
		}
		defer leave()
		if a.value, a.err = process.Guard(ctx, ask); a.err != nil {
			lasts = moment
		}
		r.recent.Add(key, a, lasts)
		// what nobody asks for again takes no memory
		time.AfterFunc(lasts, func() { r.recent.Remove(key) })
		return a, nil
	})
	select {
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	case got := <-done:
		return got.Val.(answer[T]).value, got.Val.(answer[T]).err
	}
}

// enter waits until there is a slot for a request.
func (r *Reader) enter(ctx context.Context) (leave func(), err error) {
	select {
	case r.slots <- struct{}{}:
		return func() { <-r.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// View of a build's last run.
func (r *Reader) View(ctx context.Context, b *api.AgentBuild) (View, error) {
	lasts := moment
	if b.Over() {
		lasts = while
	}
	return Share(ctx, r, "view/"+b.Namespace+"/"+b.Name+"/"+b.ResourceVersion, lasts,
		func(ctx context.Context) (View, error) {
			run, tasks, err := r.LastRun(ctx, b)
			return ViewOf(b, run, tasks), err
		})
}

// History of a build: the runs that there still are, newest first.
func (r *Reader) History(ctx context.Context, b *api.AgentBuild) ([]runs.Run, error) {
	return Share(ctx, r, "runs/"+b.Namespace+"/"+b.Name+"/"+b.ResourceVersion, 5*moment,
		func(ctx context.Context) ([]runs.Run, error) { return r.Runs(ctx, b) })
}

// Log is the end of a step's log, for a page.
func (r *Reader) Log(ctx context.Context, namespace, pod string, step Step) (Text, error) {
	lasts := 10 * time.Minute
	if step.State == "Running" {
		lasts = moment
	}
	return Share(ctx, r, "log/"+namespace+"/"+pod+"/"+step.Container+"/"+step.State, lasts,
		func(ctx context.Context) (Text, error) {
			return r.readLog(ctx, namespace, pod, step.Container, pageLines, pageBytes)
		})
}

// WholeLog is the end of a step's log, for a file.
func (r *Reader) WholeLog(ctx context.Context, namespace, pod string, step Step) (Text, error) {
	leave, err := r.enter(ctx)
	if err != nil {
		return Text{}, err
	}
	defer leave()
	return r.readLog(ctx, namespace, pod, step.Container, fileLines, fileBytes)
}

func (r *Reader) readLog(ctx context.Context, namespace, pod, container string,
	lines, size int) (Text, error) {
	log, err := r.StepLog(ctx, namespace, pod, container,
		url.Values{"tailLines": {strconv.Itoa(lines + 1)}})
	if err != nil {
		return Text{}, err
	}
	defer log.Close()
	return ReadText(log, lines, size, maxLogRead)
}
