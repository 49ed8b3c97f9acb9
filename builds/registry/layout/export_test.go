package layout

import "time"

// SetTagTimeout changes how long TagCache may take, and returns a function that undoes it.
func SetTagTimeout(d time.Duration) (undo func()) {
	before := tagTimeout
	tagTimeout = d
	return func() { tagTimeout = before }
}
