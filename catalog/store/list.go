package store

// EntryList is a page of entries, as the catalog's HTTP API answers.
type EntryList struct {
	Items []Entry `json:"items"`
	// Next asks for the page after this one, as the parameter after; empty is the end.
	Next string `json:"next,omitempty"`
}

// HitList is what a search found, best first, as the catalog's HTTP API answers.
type HitList struct {
	Items []Hit `json:"items"`
}
