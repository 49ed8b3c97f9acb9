package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/armature-dev/armature/catalog/store"
)

// watch streams changes as server-sent events: first all that is there, unless
// the caller says after which event (Last-Event-ID) to go on, then each change.
// Where what changed since is not known, such as when the store was lost, the
// event resync says to forget everything sent before, and all entries follow
// again. While the store is unavailable its copy is sent.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	q, after, err := watchQuery(r)
	if err == nil {
		var copied *store.Copy
		_, copied, err = read(r.Context(), s, func(ctx context.Context, from *store.Store) (store.Position, error) { return from.Position(ctx) })
		s.warn(w, copied)
	}
	if err != nil {
		s.refuseAPI(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	// A caller that disconnects is not an error.
	if err := s.stream(w, r, q, after); err != nil && r.Context().Err() == nil {
		s.Log.Error(err, "streaming changes")
	}
}

func watchQuery(r *http.Request) (q store.Query, after store.Position, err error) {
	if q, err = query(r, "revision"); err != nil {
		return q, after, err
	}
	text := r.URL.Query().Get("revision")
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		text = id
	}
	if text == "" {
		return q, after, nil
	}
	if after, err = store.ParsePosition(text); err != nil {
		return q, after, &problem{http.StatusBadRequest, "revision: use the id of an event"}
	}
	return q, after, nil
}

// stream until the caller is gone or no longer let in. A store, or a Kubernetes,
// that does not answer is waited for.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, q store.Query, after store.Position) error {
	flush := http.NewResponseController(w)
	poll := s.Poll
	if poll == 0 {
		poll = time.Second
	}
	beat := s.Beat // keeps proxies from closing a quiet stream
	if beat == 0 {
		beat = 15 * time.Second
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	quiet, allowed, down := time.Now(), time.Now(), false
	for {
		var refused *problem
		changes, latest, copied, err := s.news(r, &q, after, beat, &allowed)
		switch {
		case errors.As(err, &refused):
			return nil
		case errors.Is(err, store.ErrExpired):
			if _, err := fmt.Fprint(w, "event: resync\ndata: {}\n\n"); err != nil {
				return err
			}
			after = store.Position{}
			continue
		case err != nil:
			if !down && r.Context().Err() == nil {
				s.Log.Error(err, "streaming changes: waiting for the store")
			}
			latest = after
		}
		down = err != nil || copied != nil
		for _, c := range changes {
			if err := event(w, latest.Store, c); err != nil {
				return err
			}
		}
		if latest != after || time.Since(quiet) > beat {
			text := ""
			if down {
				text = ": the store does not answer now\n\n"
			}
			if !down || latest != after {
				text += fmt.Sprintf("id: %s\nevent: synced\ndata: {}\n\n", latest)
			}
			if _, err := fmt.Fprint(w, text); err != nil {
				return err
			}
			if err := flush.Flush(); err != nil {
				return err
			}
			after, quiet = latest, time.Now()
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// news after a position; each beat checks the caller's rights again.
func (s *Server) news(r *http.Request, q *store.Query, after store.Position, beat time.Duration, allowed *time.Time) ([]store.Change, store.Position, *store.Copy, error) {
	if time.Since(*allowed) > beat {
		scope, err := s.scope(r)
		if err != nil {
			return nil, after, nil, err
		}
		q.Scope, *allowed = scope, time.Now()
	}
	type news struct {
		changes []store.Change
		latest  store.Position
	}
	n, copied, err := read(r.Context(), s, func(ctx context.Context, from *store.Store) (n news, err error) {
		n.changes, n.latest, err = from.Changes(ctx, after, *q)
		return n, err
	})
	if copied != nil && errors.Is(err, store.ErrExpired) && after.Store == n.latest.Store {
		return nil, after, copied, nil // the caller knows more than the copy
	}
	return n.changes, n.latest, copied, err
}

func event(w http.ResponseWriter, in string, c store.Change) error {
	name := "updated"
	if c.Deleted {
		name = "deleted"
	}
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "id: %s\nevent: %s\ndata: %s\n\n", store.Position{Store: in, Revision: c.Revision}, name, data)
	return err
}
