package controller

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/a2aproject/a2a-go/a2a"

	"github.com/armature-dev/armature/catalog/store"
)

// card is an agent card that A2A's own types can read.
type card struct {
	a2a.AgentCard
	document json.RawMessage // as answered, in Go's order and spacing
}

// cardError says what is wrong with a card.
type cardError struct{ problem string }

func (e *cardError) Error() string { return "not a valid agent card: " + e.problem }

// maxSkills of one card.
const maxSkills = 1000

// readCard reads and checks a card. 001's "Minimal Example" passes, although A2A
// demands more of a card: what is missing there does not keep anybody from
// finding the agent.
func readCard(data []byte) (*card, error) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		return nil, &cardError{"it is not a JSON object"}
	}
	var any map[string]any
	if err := json.Unmarshal(data, &any); err != nil {
		return nil, &cardError{"it is not a JSON object"}
	}
	c := &card{}
	if err := json.Unmarshal(data, &c.AgentCard); err != nil {
		return nil, &cardError{"its fields are not those of A2A"}
	}
	switch {
	case c.Name == "":
		return nil, &cardError{"it has no name"}
	case len(c.Skills) > maxSkills:
		return nil, &cardError{fmt.Sprintf("it has more than %d skills", maxSkills)}
	}
	for i, s := range c.Skills {
		if s.Name == "" && s.ID == "" {
			return nil, &cardError{fmt.Sprintf("skill %d has neither name nor id", i+1)}
		}
	}
	var err error
	if c.document, err = json.Marshal(any); err != nil {
		return nil, &cardError{"it is not a JSON object"}
	}
	return c, nil
}

// fill an entry with what the card says.
func (c *card) fill(e *store.Entry) {
	e.Title, e.Description, e.Version, e.URL = c.Name, c.Description, c.Version, c.URL
	e.Protocol, e.Document, e.Items = "a2a", c.document, nil
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
