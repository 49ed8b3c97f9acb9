package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
)

// watch streams changes as server-sent events: first all entries, unless the caller says after
// which event (Last-Event-ID) to continue, then each change. If the changes since then are not
// known, such as after the store was lost, the event resync tells the caller to forget everything
// sent before, and all entries follow again. A running watch waits for a store that does not
// answer.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	q, after, err := watchQuery(r)
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		_, err = s.Store.Position(ctx)
		cancel()
	}
	if err != nil {
		access.WriteError(w, r, s.Log, err)
		return
	}
	leave, err := s.enter(r)
	if err != nil {
		access.WriteError(w, r, s.Log, err)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	// A caller that disconnects is not an error.
	if err := s.stream(w, r, q, after); err != nil && r.Context().Err() == nil {
		s.Log.Error(err, "streaming changes")
	}
}

// Bounds of watches: of all, and of one account, and how long a reader may take for an event. Each
// watch takes some 90 KiB.
const (
	maxWatches        = 500
	maxAccountWatches = 50
	writeTime         = 30 * time.Second
)

// enter takes a place among the watches for the caller's account.
func (s *Server) enter(r *http.Request) (leave func(), err error) {
	who, err := s.Access.Caller(r)
	if err != nil {
		return nil, err
	}
	if leave := s.watches.Enter(who.GetName()); leave != nil {
		return leave, nil
	}
	return nil, access.Refuse(http.StatusTooManyRequests,
		fmt.Sprintf("too many watches are open: an account may have %d, and all together %d",
			maxAccountWatches, maxWatches), "")
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
		return q, after, access.Bad("revision: use the id of an event")
	}
	return q, after, nil
}

// stream streams changes until the caller disconnects or loses access. While the store or
// Kubernetes does not answer, it waits.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, q store.Query,
	after store.Position) error {
	control := http.NewResponseController(w)
	write := func(text string) error {
		// Not every server has deadlines.
		_ = control.SetWriteDeadline(time.Now().Add(writeTime))
		_, err := io.WriteString(w, text)
		return err
	}
	ticker := time.NewTicker(s.Poll)
	defer ticker.Stop()
	quiet, allowed, down := time.Now(), time.Now(), false
	for {
		var refused access.Unknown
		changes, latest, err := s.news(r, &q, after, &allowed)
		switch {
		case errors.As(err, &refused):
			return nil
		case errors.Is(err, store.ErrExpired):
			if err := write("event: resync\ndata: {}\n\n"); err != nil {
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
		down = err != nil
		for _, c := range changes {
			data, err := json.Marshal(c)
			if err != nil {
				return err
			}
			name := "updated"
			if c.Deleted {
				name = "deleted"
			}
			id := store.Position{Store: latest.Store, Revision: c.Revision}
			err = write(fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", id, name, data))
			if err != nil {
				return err
			}
		}
		if latest != after || time.Since(quiet) > s.Beat { // a proxy closes a quiet stream
			text := ""
			if down {
				text = ": the store does not answer now\n\n"
			}
			if !down || latest != after {
				text += fmt.Sprintf("id: %s\nevent: synced\ndata: {}\n\n", latest)
			}
			if err := write(text); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
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

// news returns the changes after a position. After each beat, it checks the caller's rights again.
func (s *Server) news(r *http.Request, q *store.Query, after store.Position,
	allowed *time.Time) ([]store.Change, store.Position, error) {
	if time.Since(*allowed) > s.Beat {
		scope, err := s.scope(r)
		if err != nil {
			return nil, after, err
		}
		q.Scope, *allowed = scope, time.Now()
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	return s.Store.Changes(ctx, after, *q)
}
