package store

import "time"

// Session is the session of a person who signed in. It has no credential.
type Session struct {
	Name    string    `json:"name"`
	Groups  []string  `json:"groups,omitempty"`
	Expires time.Time `json:"expires"`
}

// Bounds of the sessions that are kept, of one person and of all. Those that expire first
// make room.
const (
	MaxOwnSessions = 20
	MaxSessions    = 10000
)
