package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/armature-dev/armature/catalog/access"
)

// Bounds of streams: how many pages may be open, how many are printed at once, how often
// one is printed again, and how long a reader may take for an event.
const (
	maxStreams     = 2000
	maxOwnStreams  = 500 // of one account
	maxPrinting    = 4
	streamPause    = 2 * time.Second
	streamPatience = 30 * time.Second
)

// streams are the streams of open pages.
type streams struct {
	open *access.Places

	mu       sync.Mutex
	version  string // of the content of pages
	asked    time.Time
	printing chan struct{}
}

// version returns a text that changes with the content of pages, and each minute, because pages
// show ages. The store is queried once for all streams.
func (c *Console) version(ctx context.Context) (string, error) {
	s := &c.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.asked) < c.Poll {
		return s.version, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at, err := c.Store.Position(ctx)
	if err != nil {
		return "", err
	}
	s.asked = time.Now()
	s.version = fmt.Sprint(at, c.Cluster.version(), s.asked.Truncate(time.Minute).Unix())
	return s.version, nil
}

type captureKey struct{}

// captured is a page that is built for a stream.
type captured struct{ page *Page }

// build builds the page at an address for the caller of a stream.
func (c *Console) build(r *http.Request, at *url.URL) *Page {
	var into captured
	request := r.Clone(context.WithValue(r.Context(), captureKey{}, &into))
	request.URL, request.RequestURI = at, at.RequestURI()
	c.pages.ServeHTTP(discard{}, request)
	return into.page
}

// printPage builds and prints a page in another goroutine, whose stack grows, so that the stack of
// a stream stays small.
func (c *Console) printPage(r *http.Request, at *url.URL) (page *Page, parts []printed, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
			}
		}()
		if page = c.build(r, at); page != nil {
			parts, err = c.print(page)
		}
	}()
	<-done
	return page, parts, err
}

// discard drops the response of a page that a stream builds.
type discard struct{}

func (discard) Header() http.Header            { return http.Header{} }
func (discard) Write(text []byte) (int, error) { return len(text), nil }
func (discard) WriteHeader(int)                {}

// events sends the parts of an open page that changed, as server-sent events. The id of an event
// says what the reader then has. The page is built each time for the caller, whose rights are
// checked again, so that a stream never shows more than the page would.
func (c *Console) events(w http.ResponseWriter, r *http.Request) {
	at, err := url.Parse(access.LocalPath(r.URL.Query().Get("page")))
	if err != nil {
		http.Error(w, "page: use the path of a page", http.StatusBadRequest)
		return
	}
	who, err := c.Access.Caller(r)
	if err != nil {
		p := access.ProblemOf(r.Context(), c.Log, r.URL.Path, err)
		http.Error(w, p.Message, p.Status)
		return
	}
	leave := c.streams.open.Enter(who.GetName())
	if leave == nil {
		w.Header().Set("Retry-After", "30")
		http.Error(w,
			"too many pages are open: this one is brought up to date when it is loaded again",
			http.StatusServiceUnavailable)
		return
	}
	defer leave()
	has := r.URL.Query().Get("seen")
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		has = id
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	s := &stream{console: c, request: r, at: at, has: strings.Split(has, ","), writer: w,
		control: http.NewResponseController(w)}
	if err := s.send("retry: 3000\n\n"); err == nil {
		s.run()
	}
}

// stream is the stream of one open page.
type stream struct {
	console *Console
	request *http.Request
	at      *url.URL
	has     []string // hashes of the parts that the reader has
	writer  http.ResponseWriter
	control *http.ResponseController
	sent    time.Time
	live    bool // the page changes without a watched object
}

func (s *stream) send(text string) error {
	// Not every server has deadlines.
	_ = s.control.SetWriteDeadline(time.Now().Add(streamPatience))
	if _, err := s.writer.Write([]byte(text)); err != nil {
		return err
	}
	s.sent = time.Now()
	return s.control.Flush()
}

// run runs until the reader disconnects or may no longer see the page.
func (s *stream) run() {
	ticker := time.NewTicker(s.console.Poll)
	defer ticker.Stop()
	var before string
	var looked time.Time
	for {
		now, err := s.console.version(s.request.Context())
		due := err == nil && (now != before || s.live) &&
			time.Since(looked) > min(streamPause, s.console.Beat)
		if due || time.Since(looked) > 4*s.console.Beat { // rights may end without a change
			before, looked = now, time.Now()
			if !s.update() {
				return
			}
		}
		if time.Since(s.sent) > s.console.Beat { // a proxy closes a quiet stream
			if s.send("event: beat\ndata: {}\n\n") != nil {
				return
			}
		}
		select {
		case <-s.request.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

// lines formats text as the data lines of an event, which CR would end, too.
var lines = strings.NewReplacer("\n", "\ndata: ", "\r", "&#13;")

// update builds the page again and sends the parts that changed. It reports whether the stream
// continues.
func (s *stream) update() bool {
	c := s.console
	select {
	case c.streams.printing <- struct{}{}:
	case <-s.request.Context().Done():
		return false
	}
	page, parts, err := c.printPage(s.request, s.at)
	<-c.streams.printing
	switch {
	case err != nil:
		c.Log.Error(err, "printing a page for its stream")
		return false
	case page != nil && page.Status == http.StatusServiceUnavailable: // the console recovers
		return true
	case page == nil || page.Status != 0 || len(parts) != len(s.has): // another page, or none
		_ = s.send("event: reload\ndata: {}\n\n")
		return false
	}
	var text strings.Builder
	for i, part := range parts {
		if part.Hash != s.has[i] {
			fmt.Fprintf(&text,
				"<hx-partial hx-target=\"#%s\" hx-swap=\"innerMorph\">%s</hx-partial>", part.ID,
				part.HTML)
		}
	}
	if text.Len() == 0 {
		return true
	}
	has := seen(parts)
	s.has = strings.Split(has, ",")
	return s.send("id: "+has+"\ndata: "+lines.Replace(text.String())+"\n\n") == nil
}
