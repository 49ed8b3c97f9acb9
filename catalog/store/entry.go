package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Type is what an entry is.
type Type string

// An entry is an agent, or a server of tools.
const (
	Agent  Type = "agent"
	Server Type = "server"
)

// Health is how the last attempt to ask an entry went.
type Health string

const (
	// Healthy: every instance answered.
	Healthy Health = "Healthy"
	// Degraded: some instances answered.
	Degraded Health = "Degraded"
	// Failing: none answered; what is shown is the last good answer, if any.
	Failing Health = "Failing"
	// Unknown: no request could be made yet, such as when no pod is ready.
	Unknown Health = "Unknown"
)

// ToolLock is how the tools of a server compare with the lock of its package.
type ToolLock string

const (
	// ToolsLocked: the server offers the tools of the lock.
	ToolsLocked ToolLock = "ToolsLocked"
	// ToolsDrifted: it offers others.
	ToolsDrifted ToolLock = "ToolsDrifted"
)

// Key names an entry as Kubernetes names the object behind it.
type Key struct {
	// Resource such as agentcards.kagenti.io.
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Cursor returns the key as ParseKey reads it, in the order of lists.
func (k Key) Cursor() string { return k.Namespace + "/" + k.Name + "/" + k.Resource }

// ParseKey parses the result of Cursor. The empty text is no key, and ok.
func ParseKey(text string) (k Key, ok bool) {
	parts := strings.Split(text, "/")
	if text == "" || len(parts) != 3 {
		return k, text == ""
	}
	return Key{Namespace: parts[0], Name: parts[1], Resource: parts[2]}, true
}

// Entry is one agent or tool server.
type Entry struct {
	Key
	UID string `json:"uid"`
	// APIVersion and Kind of the object.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Type       Type   `json:"type"`
	// Generation of the object that was observed.
	Generation int64             `json:"generation"`
	Labels     map[string]string `json:"labels,omitempty"`
	Created    time.Time         `json:"created,omitzero"`

	// Title for people; Name if the agent has none.
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Version     string `json:"version,omitempty"`
	URL         string `json:"url,omitempty"`
	// PublishedURL is where the object's author says that a server is reached from outside.
	PublishedURL string   `json:"publishedURL,omitempty"`
	Protocol     string   `json:"protocol,omitempty"`
	Provider     string   `json:"provider,omitempty"`
	Tags         []string `json:"tags,omitempty"`

	Health  Health `json:"health"`
	Message string `json:"message,omitempty"`
	// ToolLock is "" where no lock has the server.
	ToolLock ToolLock `json:"toolLock,omitempty"`
	// Fetched is when the last good answer came, to the minute; zero is never.
	Fetched time.Time `json:"fetched,omitzero"`
	// Changed is when content or health last changed.
	Changed time.Time `json:"changed,omitzero"`

	// Signature of an agent's card: Unsigned, Valid, Invalid or UnknownKey, the worst of
	// all instances. SignedBy is whose signature is valid.
	Signature string `json:"signature,omitempty"`
	SignedBy  string `json:"signedBy,omitempty"`

	Instances []Instance `json:"instances,omitempty"`
	// Images by digest that the agent's containers run.
	Images []string `json:"images,omitempty"`
	Builds []Build  `json:"builds,omitempty"`
	// Document is the agent's card, or a server's description of itself.
	Document json.RawMessage `json:"document,omitempty"`
	// Items are what it offers. List and Search leave them out.
	Items []Item `json:"items,omitempty"`
	// Counts of the items by kind.
	Counts map[string]int `json:"counts,omitempty"`

	// Revision of the catalog that last changed the entry.
	Revision int64 `json:"revision,omitempty"`
}

// Instance is one pod that was asked.
type Instance struct {
	Pod     string `json:"pod"`
	URL     string `json:"url,omitempty"`
	Version string `json:"version,omitempty"`
	// Status is Success, or what went wrong.
	Status string `json:"status"`
	// Signature and SignedBy are the verdict on its card.
	Signature string `json:"signature,omitempty"`
	SignedBy  string `json:"signedBy,omitempty"`
	// Fetched is when its last good answer came.
	Fetched time.Time `json:"fetched,omitzero"`
}

// Build is the AgentBuild that made an image which the agent runs.
type Build struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Image      string `json:"image"`
	Commit     string `json:"commit,omitempty"`
	Repository string `json:"repository,omitempty"`
	// Builder and Level are those of the image's provenance, and Provenance is where the
	// registry has it, as the status of the build claims; "" and 0 if it claims none.
	Builder    string `json:"builder,omitempty"`
	Level      int64  `json:"level,omitempty"`
	Provenance string `json:"provenance,omitempty"`
}

// Kinds of items.
const (
	Skill    = "skill"
	Tool     = "tool"
	Resource = "resource"
	Prompt   = "prompt"
)

// Item is one thing that an entry offers.
type Item struct {
	Kind        string   `json:"kind"`
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	// Document is the item as it was answered, such as a tool with its schemas.
	Document json.RawMessage `json:"document,omitempty"`
}

// Self returns the item by which an entry itself is found.
func Self(e Entry) Item {
	tags := append([]string{e.Provider, e.Kind}, e.Tags...)
	for key, value := range e.Labels {
		tags = append(tags, value)
		if strings.HasPrefix(key, "protocol.") {
			tags = append(tags, key)
		}
	}
	return Item{Kind: string(e.Type), Name: e.Name, Title: e.Title, Description: e.Description,
		Tags: tags}
}

// Names returns the texts by which an item is found first.
func (i Item) Names() string {
	return strings.Join([]string{i.Name, splitName(i.Name), i.Title}, " ")
}

// countItems counts items by kind; nil for none.
func countItems(items []Item) (counts map[string]int) {
	for _, i := range items {
		if counts == nil {
			counts = map[string]int{}
		}
		counts[i.Kind]++
	}
	return counts
}

// Offers describes the items of an entry, such as "2 skills, 1 tool"; "" for none.
func Offers(e Entry) string {
	counts := e.Counts
	if len(e.Items) > 0 {
		counts = countItems(e.Items)
	}
	var parts []string
	for _, kind := range []string{Skill, Tool, Resource, Prompt} {
		switch n := counts[kind]; {
		case n == 1:
			parts = append(parts, "1 "+kind)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", n, kind))
		}
	}
	return strings.Join(parts, ", ")
}

// Row is an entry as a store keeps it.
type Row struct {
	Entry Entry
	Body  []byte
	// Hash and ItemsHash change with everything except the times.
	Hash, ItemsHash string
	// Fetched in milliseconds; zero is never.
	Fetched int64
}

// NewRow returns the row of an entry, with its items or without.
func NewRow(e Entry, items bool) (Row, error) {
	r := Row{Entry: e}
	if !e.Fetched.IsZero() {
		r.Fetched = e.Fetched.UnixMilli()
	}
	if items {
		text, err := json.Marshal(e.Items)
		if err != nil {
			return r, fmt.Errorf("items of %s/%s: %w", e.Namespace, e.Name, err)
		}
		r.ItemsHash = hash(text)
		e.Counts = countItems(e.Items)
	}
	e.Items, e.Revision = nil, 0
	var err error
	if r.Body, err = json.Marshal(e); err != nil {
		return r, fmt.Errorf("entry %s/%s: %w", e.Namespace, e.Name, err)
	}
	e.Fetched, e.Changed = time.Time{}, time.Time{}
	e.Instances = append([]Instance(nil), e.Instances...)
	for i := range e.Instances {
		if e.Instances[i].Status == "Success" {
			e.Instances[i].Fetched = time.Time{}
		}
	}
	text, err := json.Marshal(e)
	if err != nil {
		return r, fmt.Errorf("entry %s/%s: %w", e.Namespace, e.Name, err)
	}
	r.Hash = hash(text)
	return r, nil
}

// Decode reads the body of a row.
func Decode(body []byte, fetched, revision int64) (e Entry, err error) {
	err = json.Unmarshal(body, &e)
	e.Revision = revision
	if fetched > 0 {
		e.Fetched = time.UnixMilli(fetched).UTC()
	}
	return e, err
}

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}

// splitName separates the words of getForecast, get_forecast and get-forecast, so that each is
// found.
func splitName(name string) string {
	var out strings.Builder
	lower := false
	for _, r := range name {
		if unicode.IsUpper(r) && lower {
			out.WriteByte(' ')
		}
		lower = unicode.IsLower(r) || unicode.IsDigit(r)
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			out.WriteRune(r)
		} else {
			out.WriteByte(' ')
		}
	}
	return out.String()
}
