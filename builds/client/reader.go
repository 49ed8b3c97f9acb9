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

// Reader reads what pages show. Callers that ask for the same within a moment share one answer, so
// that the number of readers of a page does not increase the load of the API server.
type Reader struct {
	*Client
	recent *cache.LRUExpireCache
	asking singleflight.Group
	slots  chan struct{} // one element for each request under way
}

// maxRecent bounds the cached answers, maxAsking the requests at the same time, and patience the
// duration of a request.
const (
	maxRecent = 256
	maxAsking = 16
	patience  = 5 * time.Second
)

// These constants bound a log on a page, which is sent again as it grows, and in a file. maxLogRead
// bounds the bytes that are read to find the last lines.
const (
	pageLines, pageBytes = 500, 64 << 10
	fileLines, fileBytes = 5000, 512 << 10
	maxLogRead           = 16 << 20
)

// moment is how long an answer that may change is cached, and while how long another is.
const (
	moment = 2 * time.Second
	while  = 30 * time.Second
)

// NewReader returns a Reader of the builds of a cluster.
func NewReader(config *rest.Config, group string) (*Reader, error) {
	c, err := Connect(config, "", group)
	if err != nil {
		return nil, err
	}
	return &Reader{Client: c, recent: cache.NewLRUExpireCache(maxRecent),
		slots: make(chan struct{}, maxAsking)}, nil
}

// answer is a shared answer.
type answer[T any] struct {
	value T
	err   error
}

// Share calls ask once for all callers with the same key, and caches the answer for a time. The
// request continues if the first caller leaves.
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
		// An expired answer would stay in memory until its key is asked for again.
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

// enter waits for a slot of a request. The caller has to call leave.
func (r *Reader) enter(ctx context.Context) (leave func(), err error) {
	select {
	case r.slots <- struct{}{}:
		return func() { <-r.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// View returns the view of a build's last run.
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

// History returns the existing runs of a build, newest first.
func (r *Reader) History(ctx context.Context, b *api.AgentBuild) ([]runs.Run, error) {
	return Share(ctx, r, "runs/"+b.Namespace+"/"+b.Name+"/"+b.ResourceVersion, 5*moment,
		func(ctx context.Context) ([]runs.Run, error) { return r.Runs(ctx, b) })
}

// Log returns the end of a step's log for a page.
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

// WholeLog returns the end of a step's log for a file.
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
