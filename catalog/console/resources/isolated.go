package resources

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
)

// Bounds of logs that are open: of all accounts, and of one; how much of one is sent at once, and
// how long a reader may take for that.
const (
	maxLogs    = 200
	maxOwnLogs = 20
	piece      = 8 << 10
	patience   = 30 * time.Second
)

// Door serves isolated runs, which are in a namespace where no tenant has rights, to programs. It
// serves those of a build to callers who may get agentbuilds/log of it. Runs are found by the
// namespace, the name and the UID of the build that they are annotated with, and by nothing that a
// tenant may write.
type Door struct {
	Access access.Access
	Runs   *client.Reader
	// Build returns a copy of a build that is watched, or store.ErrNotFound.
	Build func(ctx context.Context, namespace, name string) (*api.AgentBuild, error)
	// Beat is how often a quiet log shows that it is open, and how often the rights of its reader
	// are checked again.
	Beat time.Duration
	Log  logr.Logger

	logs *access.Places
}

// Mount adds the door's addresses to mux.
func (d *Door) Mount(mux *http.ServeMux) {
	d.logs = access.NewPlaces(maxLogs, maxOwnLogs)
	at := "GET " + client.DoorPath("{namespace}", "{name}")
	mux.HandleFunc(at, d.answer(d.run))
	mux.HandleFunc(at+"/{pod}/{container}", d.answer(d.log))
}

// MayLog reports whether a user may read the isolated runs of a build and their logs.
func MayLog(ctx context.Context, a access.Access, who user.Info,
	group, namespace, name string) (bool, error) {
	return a.May(ctx, who, "get", "agentbuilds/log."+group, namespace, name)
}

// answer returns a handler that answers a program, or tells it why not, as the catalog's API does.
func (d *Door) answer(to func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := to(w, r)
		if apierrors.IsForbidden(err) {
			d.Log.Error(err, "showing an isolated run", "path", r.URL.Path)
			err = access.Refuse(http.StatusServiceUnavailable,
				"the console itself may not read runs in "+d.Runs.BuildNamespace+
					": its page of rights says what is missing", "")
		}
		if err != nil {
			access.WriteError(w, r, d.Log, err)
		}
	}
}

// enter returns the build at an address, as one whose run is isolated, if the caller may read its
// logs.
func (d *Door) enter(r *http.Request, parameters ...string) (*api.AgentBuild, user.Info, error) {
	who, err := d.Access.Caller(r)
	if err != nil {
		return nil, nil, err
	}
	if err := access.CheckParameters(r, append(parameters, "uid")...); err != nil {
		return nil, nil, err
	}
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	if ok, err := MayLog(r.Context(), d.Access, who, d.Runs.Group, namespace, name); err != nil {
		return nil, nil, err
	} else if !ok {
		return nil, nil, access.Refuse(http.StatusForbidden,
			"you may not read the logs of this build: ask for the right to get agentbuilds/log "+
				"in namespace "+namespace, "")
	}
	b, err := d.Build(r.Context(), namespace, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, nil, err
	}
	if err != nil || b.UID != types.UID(r.URL.Query().Get("uid")) {
		return nil, nil, access.Refuse(http.StatusNotFound,
			"there is no build of this name and UID: it was deleted, or created again", "")
	}
	b.Status.PipelineRunNamespace = d.Runs.BuildNamespace
	return b, who, nil
}

// run answers with the last run of a build.
func (d *Door) run(w http.ResponseWriter, r *http.Request) error {
	b, _, err := d.enter(r)
	if err != nil {
		return err
	}
	read := func(ctx context.Context) (client.Run, error) { return d.Runs.Run(ctx, b) }
	run, err := client.Share(r.Context(), d.Runs, "run/"+string(b.UID), time.Second, read)
	if err != nil {
		return err
	}
	access.Write(w, d.Log, http.StatusOK, run)
	return nil
}

// log sends the log of a container, in pieces as builds/client reads them.
func (d *Door) log(w http.ResponseWriter, r *http.Request) error {
	options := []string{"follow", "tailLines", "sinceSeconds"}
	b, who, err := d.enter(r, options...)
	if err != nil {
		return err
	}
	leave := d.logs.Enter(who.GetName())
	if leave == nil {
		return access.Refuse(http.StatusTooManyRequests,
			"too many logs are open: close one of yours, or wait until others do", "")
	}
	defer leave()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	given := r.URL.Query()
	given.Del("uid")
	log, err := d.Runs.OpenLog(ctx, b, r.PathValue("pod"), r.PathValue("container"), given)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsBadRequest(err):
		return store.ErrNotFound
	case err != nil:
		return err
	}
	defer log.Close()
	w.Header().Set("Content-Type", "application/x-ndjson")
	still := func() error { _, _, err := d.enter(r, options...); return err }
	if err := d.copyLog(ctx, w, log, still); err != nil && r.Context().Err() == nil &&
		!errors.As(err, new(*access.Problem)) {
		d.Log.Error(err, "sending the log of a build", "namespace", b.Namespace, "name", b.Name)
	}
	return nil
}

// copyLog copies a log until it ends. At each beat it checks that the caller may still read it, and
// shows that it is open.
func (d *Door) copyLog(ctx context.Context, w http.ResponseWriter, log io.Reader,
	still func() error) error {
	pieces, end := make(chan []byte), make(chan error, 1)
	go func() {
		defer close(pieces)
		for {
			text := make([]byte, piece)
			n, err := log.Read(text)
			if n > 0 {
				select {
				case pieces <- text[:n]:
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			if err != nil {
				end <- err
				return
			}
		}
	}()
	control, out := http.NewResponseController(w), json.NewEncoder(w)
	send := func(text []byte) error {
		// Not every server has deadlines.
		_ = control.SetWriteDeadline(time.Now().Add(patience))
		if err := out.Encode(text); err != nil {
			return err
		}
		return control.Flush()
	}
	beat := time.NewTicker(d.Beat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-beat.C:
			if err = still(); err == nil {
				err = send([]byte{})
			}
		case text, more := <-pieces:
			if more {
				err = send(text)
			} else if err = <-end; errors.Is(err, io.EOF) {
				return send(nil)
			}
		}
		if err != nil {
			return err
		}
	}
}
