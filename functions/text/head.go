package text

// Head keeps the first Most bytes that are written to it, and calls Full, if it is set, when there
// are more.
type Head struct {
	Kept []byte
	Most int
	More bool
	Full func()
}

// Write keeps the part of p that fits and never returns an error.
func (h *Head) Write(p []byte) (int, error) {
	keep := min(len(p), h.Most-len(h.Kept))
	h.Kept = append(h.Kept, p[:keep]...)
	if keep < len(p) && !h.More {
		if h.More = true; h.Full != nil {
			h.Full()
		}
	}
	return len(p), nil
}
