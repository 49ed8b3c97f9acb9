package kinds

import (
	"bytes"
	"cmp"
	"encoding/json"

	strict "sigs.k8s.io/json"

	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/store"
)

// Card has the fields of an agent card of A2A 0.3 or 1.0 that the catalog reads.
type Card struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Version     string `json:"version"`
	Provider    struct {
		Organization string `json:"organization"`
	} `json:"provider"`
	Skills []json.RawMessage `json:"skills"`
	// URL is of 0.3, and Interfaces of 1.0: the first is the one that the agent prefers.
	URL        string `json:"url"`
	Interfaces []struct {
		URL string `json:"url"`
	} `json:"supportedInterfaces"`

	Document json.RawMessage `json:"-"` // as answered, in Go's order and spacing
	skills   []skill
}

type skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
}

// item returns the skill as an entry offers it.
func (s skill) item(document json.RawMessage) store.Item {
	return store.Item{Kind: store.Skill, Name: cmp.Or(s.Name, s.ID), Description: s.Description,
		Tags: s.Tags, Document: document}
}

// invalid returns the failure of a card that is not valid.
func invalid(format string, args ...any) error {
	return ask.Failed("not a valid agent card: "+format, args...)
}

// maxSkills is how many skills one card may have.
const maxSkills = 1000

// ReadCard reads and checks a card. 001's "Minimal Example" passes, although A2A demands more of a
// card: an agent can be found without the missing fields. A card with two fields of one name does
// not pass: readers differ on which of them counts.
func ReadCard(data []byte) (*Card, error) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		return nil, invalid("it is not a JSON object")
	}
	var any map[string]any
	twice, err := strict.UnmarshalStrict(data, &any, strict.DisallowDuplicateFields)
	switch {
	case err != nil:
		return nil, invalid("it is not a JSON object")
	case len(twice) > 0:
		return nil, invalid("it has two fields of one name")
	}
	c := &Card{}
	if err := strict.UnmarshalCaseSensitivePreserveInts(data, c); err != nil {
		return nil, invalid("its fields are not those of A2A")
	}
	switch {
	case c.Name == "":
		return nil, invalid("it has no name")
	case len(c.Skills) > maxSkills:
		return nil, invalid("it has more than %d skills", maxSkills)
	}
	c.skills = make([]skill, len(c.Skills))
	for i, text := range c.Skills {
		s := &c.skills[i]
		if err := strict.UnmarshalCaseSensitivePreserveInts(text, s); err != nil {
			return nil, invalid("its fields are not those of A2A")
		}
		if s.Name == "" && s.ID == "" {
			return nil, invalid("skill %d has neither name nor id", i+1)
		}
	}
	if c.Document, err = json.Marshal(any); err != nil {
		return nil, invalid("it is not a JSON object")
	}
	return c, nil
}

// Fill writes the card into an entry.
func (c *Card) Fill(e *store.Entry) {
	e.Title, e.Description, e.Version, e.URL, e.Provider =
		c.Name, c.Description, c.Version, c.URL, c.Provider.Organization
	if c.URL == "" && len(c.Interfaces) > 0 {
		e.URL = c.Interfaces[0].URL
	}
	e.Protocol, e.Document, e.Items = "a2a", c.Document, nil
	for i, s := range c.skills {
		e.Items = append(e.Items, s.item(c.Skills[i]))
	}
}
