package stories

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// request is what the audit log reports of one.
type request struct {
	Verb, RequestURI string
	User             struct{ Username string }
	ObjectRef        *struct{ Namespace, Resource, Subresource, Name string }
}

// writes reports whether a request changes what is stored.
func (r request) writes() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"},
		r.Verb) && !r.dryRun()
}

func (r request) dryRun() bool { return strings.Contains(r.RequestURI, "dryRun=All") }

// auditLog has the requests of ServiceAccounts for objects since the log had a size;
// those for the API's own description are left out.
func (s *story) auditLog(t *testing.T, since int64) (requests []request) {
	t.Helper()
	file, err := os.Open(s.info.AuditLog)
	must(t, err)
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, since, 1<<40))
	must(t, err)
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be half written
	for line := range bytes.Lines(text) {
		var asked request
		must(t, json.Unmarshal(line, &asked))
		if asked.ObjectRef != nil {
			requests = append(requests, asked)
		}
	}
	return requests
}

// auditSize is the size of the audit log now: what is asked from now on is behind it.
func (s *story) auditSize(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(s.info.AuditLog)
	must(t, err)
	return info.Size()
}
