package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/builds/api"
)

// Run is the last run of a build. The name is empty if the run does not exist.
type Run struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Tasks are the tasks that have begun, in the order of the run.
	Tasks []Task `json:"tasks"`
}

// Door sends a request to a console, through which users who may get agentbuilds/log in the
// namespace of a build read its isolated runs. The error is NotFound if there is no answer.
type Door func(ctx context.Context, path string, parameters url.Values) (io.ReadCloser, error)

// doorTo returns the door to an isolated run if err says that the user may not read the run
// directly. It returns nil without an error, and any other error as it is.
func doorTo(c *Client, b *api.AgentBuild, err error) (Door, error) {
	namespace := b.Status.PipelineRunNamespace
	if err == nil || !apierrors.IsForbidden(err) || namespace == "" {
		return nil, err
	}
	if c.Door == nil {
		return nil, fmt.Errorf("%w\n  hint: the run is in the platform's namespace %s: "+
			"name the console with --catalog-server or ARMATURE_CATALOG, which shows it to "+
			"whoever may get agentbuilds/log in namespace %s, or ask for the right to read runs "+
			"and logs of pods in %s", err, namespace, b.Namespace, namespace)
	}
	return c.Door()
}

// maxAnswer bounds a console's answer, or each piece of a log, in bytes.
const maxAnswer = 16 << 20

// Run reads the last run of a build, through the door if the user may not read it directly.
func (c *Client) Run(ctx context.Context, b *api.AgentBuild) (out Run, _ error) {
	run, tasks, err := c.LastRun(ctx, b)
	door, err := doorTo(c, b, err)
	switch {
	case err != nil:
		return out, err
	case door != nil:
		return door.run(ctx, b)
	case run != nil:
		out.Namespace, out.Name = run.Namespace, run.Name
	}
	for i := range tasks {
		out.Tasks = append(out.Tasks, begunTask(&tasks[i]))
	}
	return out, nil
}

func (d Door) run(ctx context.Context, b *api.AgentBuild) (out Run, _ error) {
	body, err := d(ctx, DoorPath(b.Namespace, b.Name), url.Values{"uid": {string(b.UID)}})
	if err != nil {
		return out, fmt.Errorf("reading the run of AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&out); err != nil {
		return out, fmt.Errorf("reading the run of AgentBuild %s/%s: the console's answer: %w",
			b.Namespace, b.Name, err)
	}
	return out, nil
}

// DoorPath returns the path of a build's run in a console. Logs are below it, by pod and container.
func DoorPath(namespace, name string) string {
	return "/api/v1/builds/" + namespace + "/" + name + "/run"
}

// log opens a container's log, through the door if the user may not read it directly.
func (c *Client) log(
	ctx context.Context, b *api.AgentBuild, pod, container string, options url.Values,
) (io.ReadCloser, error) {
	log, err := c.StepLog(ctx, c.Place(b), pod, container, options)
	door, err := doorTo(c, b, err)
	if err != nil || door == nil {
		return log, err
	}
	parameters := url.Values{"uid": {string(b.UID)}}
	for name := range options {
		parameters.Set(name, options.Get(name))
	}
	body, err := door(ctx, DoorPath(b.Namespace, b.Name)+"/"+pod+"/"+container, parameters)
	if err != nil {
		return nil, err
	}
	return newPieces(body), nil
}

// pieces reads a log as a door sends it: each piece is a JSON string in base64. An empty piece
// shows that the log is still open, and null ends it; without null, the connection was cut.
type pieces struct {
	io.Closer
	body io.LimitedReader
	json *json.Decoder
	rest []byte
	over bool
}

func newPieces(body io.ReadCloser) *pieces {
	p := &pieces{Closer: body, body: io.LimitedReader{R: body}}
	p.json = json.NewDecoder(&p.body)
	return p
}

func (p *pieces) Read(into []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.over {
			return 0, io.EOF
		}
		p.body.N = maxAnswer
		err := p.json.Decode(&p.rest)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, fmt.Errorf("the console's answer was cut off: %w", err)
		}
		p.over = p.rest == nil
	}
	n := copy(into, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// OpenLog opens the log of a container in a pod of a run of the build. Any other is NotFound.
func (r *Reader) OpenLog(
	ctx context.Context, b *api.AgentBuild, pod, container string, options url.Values,
) (io.ReadCloser, error) {
	leave, err := r.enter(ctx)
	if err != nil {
		return nil, err
	}
	found, err := r.taskRuns(ctx, b, selector(b, r.Place(b)))
	leave()
	if err != nil {
		return nil, err
	}
	step := func(s tektonv1.StepState) bool { return s.Container == container }
	if !slices.ContainsFunc(found, func(t tektonv1.TaskRun) bool {
		return isOf(&t, b) && t.Status.PodName == pod && slices.ContainsFunc(t.Status.Steps, step)
	}) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, pod)
	}
	return r.StepLog(ctx, r.Place(b), pod, container, options)
}
