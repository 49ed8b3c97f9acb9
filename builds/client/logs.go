package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
)

// LogOptions select the printed lines of logs, and the outputs.
type LogOptions struct {
	Out, Err io.Writer
	// Follow goes on until the run ends.
	Follow bool
	// Task is the name of a task; "" means all tasks.
	Task string
	// Tail is how many lines of each step are printed; -1 means all.
	Tail int64
	// Since is how old the lines may be; 0 means any age.
	Since time.Duration
}

// Logs prints the log of each step of a build's last run once. To follow, it waits for later steps.
func (c *Client) Logs(ctx context.Context, name string, opt LogOptions) error {
	p := &stepLogs{LogOptions: opt, ctx: ctx, printed: map[string]bool{}}
	follow := opt.Follow
	for first := true; ; first = false {
		b, err := c.Get(ctx, name)
		if err != nil {
			return err
		}
		over := b.Over()
		if follow && b.Status.ObservedGeneration < b.Generation {
			over = false // Status is of the previous spec.
		}
		if b.Status.PipelineRunName == "" && (over || !follow) {
			return fmt.Errorf("AgentBuild %s/%s has no run: %s", b.Namespace, b.Name,
				text.Plain(b.Status.Message))
		}
		run, err := c.Run(ctx, b)
		if err != nil {
			return err
		}
		p.read = func(pod, container string, options url.Values) (io.ReadCloser, error) {
			return c.log(ctx, b, pod, container, options)
		}
		for _, task := range run.Tasks {
			p.task(run.Name, task)
		}
		if first {
			p.since = b.Status.LastBuildTime
		}
		// After the end, more events of the tasks may arrive.
		if follow && !(first && over) {
			if err := c.printNew(p, b); err != nil {
				return err
			}
		}
		if over || !follow {
			return p.end(b, len(run.Tasks) == 0)
		}
	}
}

// printNew prints the steps that begin, until no event of a task arrives for the duration poll.
// Unlike a list, a watch also reports tasks that end quickly or are deleted quickly.
func (c *Client) printNew(p *stepLogs, b *api.AgentBuild) error {
	ctx := p.ctx
	if p.watch != nil && p.watched != c.Place(b) { // The build had no run yet.
		p.watch.Stop()
		p.watch = nil
	}
	if p.watch == nil {
		tasks, err := c.Resource(taskRuns).Namespace(c.Place(b)).Watch(ctx,
			metav1.ListOptions{LabelSelector: selector(b, c.Place(b))})
		door, refused := doorTo(c, b, err)
		switch {
		case door != nil, apierrors.IsForbidden(err) && b.Status.PipelineRunName == "":
			// Logs asks the door again, or watches where the run will be.
			tasks = watch.NewFake()
		case refused != nil:
			return fmt.Errorf("watching the tasks of AgentBuild %s/%s: %w", b.Namespace, b.Name, refused)
		}
		p.watch, p.watched = tasks, c.Place(b)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
			return nil
		case event := <-p.watch.ResultChan():
			u, ok := event.Object.(*unstructured.Unstructured)
			if !ok { // An API server ends watches after a while and when it restarts.
				p.watch.Stop()
				p.watch = nil
				time.Sleep(poll)
				return nil
			}
			task, err := read[tektonv1.TaskRun](u, nil)
			if err != nil {
				return fmt.Errorf("reading task %s: %w", u.GetName(), err)
			}
			// TaskRuns of earlier runs are left out.
			if isOf(task, b) && !task.CreationTimestamp.Before(p.since) {
				task.Name = task.Labels[pipeline.PipelineTaskLabelKey]
				p.task(task.Labels[pipeline.PipelineRunLabelKey], begunTask(task))
			}
		}
	}
}

// stepLogs prints the logs of steps, each once.
type stepLogs struct {
	LogOptions
	ctx  context.Context
	read func(pod, container string, options url.Values) (io.ReadCloser, error)

	since   *metav1.Time    // creation of the first run that is followed
	printed map[string]bool // printed tasks by run, and containers by pod
	watch   watch.Interface // watch of the TaskRuns
	watched string          // namespace of watch
	streams sync.WaitGroup  // steps that are followed

	mu     sync.Mutex // guards failed and the output
	failed error
}

// task prints the steps that have begun and are not printed yet. Running steps are printed in
// parallel, because a later one may end before the first.
func (p *stepLogs) task(run string, task Task) {
	if p.Task != "" && p.Task != task.Name {
		return
	}
	for _, step := range task.Steps {
		key := task.Pod + "/" + step.Container
		if p.printed[key] || step.State == "Pending" {
			continue
		}
		p.printed[key], p.printed[run+"/"+task.Name] = true, true
		options, read := url.Values{}, p.read
		if p.Tail >= 0 {
			options.Set("tailLines", strconv.FormatInt(p.Tail, 10))
		}
		if p.Since > 0 {
			options.Set("sinceSeconds",
				strconv.FormatInt(int64((p.Since+time.Second-1)/time.Second), 10))
		}
		if p.Follow && step.State == "Running" {
			options.Set("follow", "true")
		}
		open := func() (io.ReadCloser, error) { return read(task.Pod, step.Container, options) }
		if title := task.Name + "/" + step.Name; options.Has("follow") {
			p.streams.Go(func() { p.print(title, open) })
		} else {
			p.print(title, open)
		}
	}
}

// maxLogLine bounds a printed line in bytes. A longer line continues on the next one. Lists of an
// image's contents are lines of several megabytes.
const maxLogLine = 16 << 20

// print prints the log of one step, a line at a time.
func (p *stepLogs) print(title string, open func() (io.ReadCloser, error)) {
	stream, err := open()
	if apierrors.IsNotFound(err) {
		p.say(p.Err, title, "the log is gone")
		return
	}
	if err == nil {
		lines := bufio.NewScanner(stream)
		lines.Buffer(nil, maxLogLine+1)
		lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
			if n, line, err := bufio.ScanLines(data, atEOF); n > 0 || len(data) < maxLogLine {
				return n, line, err
			}
			return len(data), data, nil
		})
		for lines.Scan() {
			p.say(p.Out, title, lines.Text())
		}
		err = multi.Errors(lines.Err(), stream.Close())
	}
	if err != nil {
		p.mu.Lock()
		p.failed = multi.Errors(p.failed, fmt.Errorf("reading the log of %s: %w", title, err))
		p.mu.Unlock()
	}
}

// say prints a line as plain text, because its author is not trusted by the reader's terminal.
func (p *stepLogs) say(out io.Writer, title, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(out, "[%s] %s\n", title, text.Plain(line))
}

// end waits for the followed steps, and reports which logs were deleted with their run.
func (p *stepLogs) end(b *api.AgentBuild, deleted bool) error {
	p.streams.Wait()
	if p.watch != nil {
		p.watch.Stop()
	}
	if deleted && b.Over() {
		if len(p.printed) == 0 {
			return errors.New("the run and its logs are gone\n  hint: spec.cleanupAfterBuild: " +
				"false or a retention limit keeps them")
		}
		for _, t := range b.Status.Tasks {
			if !p.printed[b.Status.PipelineRunName+"/"+t.Name] && t.State != "Skipped" &&
				(p.Task == "" || p.Task == t.Name) {
				p.say(p.Err, t.Name,
					"the log is gone with its run: spec.cleanupAfterBuild: false or a retention "+
						"limit keeps it")
			}
		}
	}
	if p.Task != "" && len(p.printed) == 0 && p.failed == nil {
		return fmt.Errorf("no step of a task %q has begun\n  hint: `armature build describe %s "+
			"-n %s` lists the tasks", p.Task, b.Name, b.Namespace)
	}
	return p.failed
}
