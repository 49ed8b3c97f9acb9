package store

import (
	"strings"
	"unicode"
)

// Hit is one thing that a search found: an entry, or an item of it.
type Hit struct {
	Entry Entry   `json:"entry"`
	Item  *Item   `json:"item,omitempty"`
	Score float64 `json:"score"`
}

// HitList is what a search found, best first, as the catalog's HTTP API answers.
type HitList struct {
	Items []Hit `json:"items"`
}

// Words returns the words of a text, as all stores split them. Marks that mean something to a
// database are not among them.
func Words(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text),
		func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return words[:min(len(words), 16)]
}
