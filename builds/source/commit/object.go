package commit

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// links reads the hashes that a commit or a tag object refers to: the parents of a
// commit, the object of a tag.
func links(kind plumbing.ObjectType, object []byte) (out []plumbing.Hash, err error) {
	next := func(key string) (hash plumbing.Hash, ok bool) {
		line, rest, _ := bytes.Cut(object, []byte("\n"))
		value, ok := bytes.CutPrefix(line, []byte(key+" "))
		if !ok || !plumbing.IsHash(string(value)) {
			return hash, false
		}
		object = rest
		return plumbing.NewHash(string(value)), true
	}
	if kind == plumbing.TagObject {
		hash, ok := next("object")
		if !ok {
			return nil, errors.New("a tag names no object")
		}
		return []plumbing.Hash{hash}, nil
	}
	if _, ok := next("tree"); !ok {
		return nil, errors.New("a commit names no tree")
	}
	for {
		hash, ok := next("parent")
		if !ok {
			return out, nil
		}
		out = append(out, hash)
	}
}

// split a commit into its signature, "" for an unsigned one, and the signed payload: all
// bytes except the header with the signature. More than one signature is an error, since
// programs differ about which one counts.
func split(object []byte) (signature string, payload []byte, err error) {
	var text strings.Builder
	inside, found := false, 0
	for rest := object; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		line := rest[:end]
		if len(line) == 1 && line[0] == '\n' { // the message begins
			payload = append(payload, rest...)
			break
		}
		rest = rest[end:]
		if line[0] == ' ' { // goes on with the header before
			if inside {
				text.Write(line[1:])
				continue
			}
			payload = append(payload, line...)
			continue
		}
		key, value, _ := strings.Cut(string(line), " ")
		if inside = key == "gpgsig" || key == "gpgsig-sha256"; inside {
			found++
			text.WriteString(value)
			continue
		}
		payload = append(payload, line...)
	}
	if found > 1 {
		return "", nil, fmt.Errorf("it has %d headers with a signature, and only one is allowed", found)
	}
	return text.String(), payload, nil
}
