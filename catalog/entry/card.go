package entry

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/a2aproject/a2a-go/a2a"

	"github.com/armature-dev/armature/catalog/store"
)

// Card is an agent card that A2A's own types can read.
type Card struct {
	a2a.AgentCard
	Document json.RawMessage // as answered, in Go's order and spacing
}

// CardError says what is wrong with a card.
type CardError struct{ problem string }

func (e *CardError) Error() string { return "not a valid agent card: " + e.problem }

// maxSkills of one card.
const maxSkills = 1000

// ReadCard reads and checks a card. 001's "Minimal Example" passes, although A2A
// demands more of a card: an agent can be found without what is missing
// there.
func ReadCard(data []byte) (*Card, error) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		return nil, &CardError{"it is not a JSON object"}
	}
	var any map[string]any
	if err := json.Unmarshal(data, &any); err != nil {
		return nil, &CardError{"it is not a JSON object"}
	}
	c := &Card{}
	if err := json.Unmarshal(data, &c.AgentCard); err != nil {
		return nil, &CardError{"its fields are not those of A2A"}
	}
	switch {
	case c.Name == "":
		return nil, &CardError{"it has no name"}
	case len(c.Skills) > maxSkills:
		return nil, &CardError{fmt.Sprintf("it has more than %d skills", maxSkills)}
	}
	for i, s := range c.Skills {
		if s.Name == "" && s.ID == "" {
			return nil, &CardError{fmt.Sprintf("skill %d has neither name nor id", i+1)}
		}
	}
	var err error
	if c.Document, err = json.Marshal(any); err != nil {
		return nil, &CardError{"it is not a JSON object"}
	}
	return c, nil
}

// Fill an entry with what the card says.
func (c *Card) Fill(e *store.Entry) {
	e.Title, e.Description, e.Version, e.URL = c.Name, c.Description, c.Version, c.URL
	e.Protocol, e.Document, e.Items = "a2a", c.Document, nil
	if c.Provider != nil {
		e.Provider = c.Provider.Org
	}
	for _, s := range c.Skills {
		name := s.Name
		if name == "" {
			name = s.ID
		}
		document, err := json.Marshal(s)
		if err != nil {
			document = nil // it came from JSON
		}
		e.Items = append(e.Items, store.Item{Kind: store.Skill, Name: name, Description: s.Description, Tags: s.Tags, Document: document})
	}
}
