package answers

import (
	"io"
	"net/http"
)

// Bounded reads at most as many bytes of each answer as Limit returns, and then ends with its
// error.
type Bounded struct {
	http.RoundTripper
	Limit func(*http.Request, *http.Response) (most int64, after error)
}

func (b Bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	most, after := b.Limit(request, answer)
	answer.Body = struct {
		io.Reader
		io.Closer
	}{AtMost(answer.Body, most, after), answer.Body}
	return answer, nil
}

// AtMost returns a reader that reads at most left bytes and then ends with after.
func AtMost(from io.Reader, left int64, after error) io.Reader {
	return &atMost{from, left, after}
}

type atMost struct {
	from  io.Reader
	left  int64
	after error
}

func (r *atMost) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, r.after
	}
	n, err := r.from.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, err
}
