package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/armature-dev/armature/catalog/store"
)

// patience is how long a store that has a copy may take for an answer.
const patience = 5 * time.Second

// errIncomplete is why the copy does not say that an entry does not exist.
var errIncomplete = errors.New("the store does not answer, and the copy of it is not complete")

// read asks the store, and its copy while the store does not answer: copied is
// then what was asked, and nil otherwise.
func read[T any](ctx context.Context, s *Server, ask func(context.Context, *store.Store) (T, error)) (out T, copied *store.Copy, err error) {
	copied, away := s.Store.Copy()
	if copied == nil {
		out, err = ask(ctx, s.Store)
		return out, nil, err
	}
	if !away {
		asking, cancel := context.WithTimeout(ctx, patience)
		out, err = ask(asking, s.Store)
		cancel()
		if err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExpired) || ctx.Err() != nil {
			return out, nil, err
		}
		s.Log.Error(err, "the store does not answer: its copy does")
	}
	out, err = ask(ctx, copied.Store)
	if errors.Is(err, store.ErrNotFound) && copied.Missing > 0 {
		err = errIncomplete
	}
	return out, copied, err
}

// warn that an answer is the copy's, as the Kubernetes API warns, and say how old
// it is.
func (s *Server) warn(w http.ResponseWriter, copied *store.Copy) {
	if copied == nil {
		return
	}
	age := max(0, s.now().Sub(copied.AsOf))
	w.Header().Set("Warning", fmt.Sprintf("299 - %q", copied.String()))
	w.Header().Set("Age", strconv.Itoa(int(age/time.Second)))
}

// stale is what an answer by MCP says of the copy, if it is the copy's.
func stale(copied *store.Copy) string {
	if copied == nil {
		return ""
	}
	return copied.String()
}
