package console

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/catalog/store"
)

// maxLogSteps is how many steps of a task are shown.
const maxLogSteps = 20

// logData is the log of one task.
type logData struct {
	Build *api.AgentBuild
	// Task is the task whose log this is; empty if none has begun. Tasks are those with a log.
	Task  string
	Tasks []client.Task
	Steps []stepLog
	// Why says why there is no log, or only a part of it.
	Why string
	// Tail has the last lines of the step that failed, from the build's status, if the log is gone.
	Tail []string
}

// stepLog is the log of a step.
type stepLog struct {
	client.Step
	Blocks []resources.Block
	Cut    string
	Why    string // why there is no text
	File   string // the address of the log as a file
	Folded bool
}

// log returns the log of a task: the requested one, or else the one that failed, runs, or ran last.
func (v *Visit) log(b *api.AgentBuild, run client.View, asked string) (*logData, error) {
	d := &logData{Build: b}
	for _, t := range run.Tasks {
		if t.Pod != "" {
			d.Tasks = append(d.Tasks, t)
		}
	}
	d.Task = run.Choose(b, asked)
	if f := b.Status.FailureDetails; f != nil && f.Task == d.Task {
		d.Tail = f.LogTail
	}
	ok, err := v.mayRead(b, "pods/log")
	at := slices.IndexFunc(d.Tasks, func(t client.Task) bool { return t.Name == d.Task })
	switch {
	case err != nil:
		return nil, err
	case !ok:
		d.Why, d.Tasks = v.noRight(b).Message, nil
		return d, nil
	case at < 0:
		if d.Task != "" && b.Over() {
			d.Why = "The pod is gone, and its log with it. A retention limit, or " +
				"cleanupAfterBuild: false, keeps runs."
		}
		return d, nil
	}
	for _, step := range d.Tasks[at].Steps {
		if len(d.Steps) == maxLogSteps {
			d.Why = fmt.Sprintf("Only the first %d steps are shown.", maxLogSteps)
			break
		}
		s := stepLog{Step: step,
			Folded: step.State == "Succeeded" && !(asked != "" && len(d.Tasks[at].Steps) == 1)}
		if step.State != "Pending" {
			builds := v.Console.Cluster.builds
			text, err := builds.Log(v.Context(), builds.Place(b), d.Tasks[at].Pod, step)
			if err != nil && v.Context().Err() != nil {
				return nil, err
			}
			s.Blocks, s.Cut, s.Why = resources.Blocks(text.Lines), text.Cut, v.Console.noLog(err)
			s.File = buildPath(b.Namespace, b.Name) + resources.Path("log", d.Task, step.Name)
		}
		d.Steps = append(d.Steps, s)
	}
	return d, nil
}

// noRight returns the problem of a caller who may not read the logs of a build.
func (v *Visit) noRight(b *api.AgentBuild) *access.Problem {
	what, place := "pods/log", v.Console.Cluster.builds.Place(b)
	if place == v.Console.Cluster.builds.BuildNamespace {
		what, place = "agentbuilds/log", b.Namespace
	}
	return access.Refuse(http.StatusForbidden, "You may not read the logs in "+place+".",
		"Ask for the right to get "+what+" in "+place+".")
}

// noLog returns why there is no log; "" for nil.
func (c *Console) noLog(err error) string {
	switch {
	case err == nil:
		return ""
	case apierrors.IsNotFound(err), apierrors.IsBadRequest(err):
		return "The log is gone, or has not begun."
	case apierrors.IsForbidden(err):
		return "The console itself may not read logs of pods here."
	}
	c.Log.Error(err, "reading the log of a step")
	return "The log cannot be read now: the node of the pod does not answer."
}

// logFile serves the log of a step as a file.
func (c *Console) logFile(w http.ResponseWriter, r *http.Request) {
	text, who, err := visit(c, r, 2*patience, (*Visit).logText)
	if err != nil {
		c.write(w, r, who, c.refuse(r, err))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", "attachment; filename=build.log")
	_, _ = w.Write([]byte(text)) // the reader may have disconnected
}

func (v *Visit) logText() (string, error) {
	if err := access.CheckParameters(v.Request); err != nil {
		return "", err
	}
	b, err := v.build()
	if err != nil {
		return "", err
	}
	ok, err := v.mayRead(b, "pods/log")
	if err == nil && !ok {
		err = v.noRight(b)
	}
	if err != nil {
		return "", err
	}
	run, _, err := v.view(b)
	if err != nil {
		return "", err
	}
	for _, t := range run.Tasks {
		for _, s := range t.Steps {
			if t.Name != v.PathValue("task") || s.Name != v.PathValue("step") || t.Pod == "" {
				continue
			}
			builds := v.Console.Cluster.builds
			text, err := builds.WholeLog(v.Context(), builds.Place(b), t.Pod, s)
			if why := v.Console.noLog(err); why != "" {
				return "", access.Refuse(http.StatusNotFound, why,
					"The page of the build has the part that its status keeps.")
			}
			out := strings.Join(text.Lines, "\n") + "\n"
			if text.Cut != "" {
				out = "(" + text.Cut + ")\n" + out
			}
			return out, nil
		}
	}
	return "", store.ErrNotFound
}
