package main

import "runtime/debug"

// How far the heap may grow between two garbage collections, in percent of what is
// in use; Go's default is 100. Commands that are not named here run with that, or
// with GOGC.
const (
	// whileListing: listing a folder and reading what is remembered of it: all of it is needed to
	// the end, so that there is nothing to collect before files are rendered.
	whileListing = 400
	// whileMigrating: migrate parses every object, which a render does not. Half of its time went
	// into collections.
	whileMigrating = 200
)

// collectAt sets how far the heap may grow. restore sets what was so before, and
// may be called again.
func collectAt(percent int) (restore func()) {
	before := debug.SetGCPercent(percent)
	return func() { debug.SetGCPercent(before) }
}
