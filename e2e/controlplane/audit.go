package controlplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Request is one request in the API server's audit log.
type Request struct {
	// User is the name that the API server found, such as system:serviceaccount:NAMESPACE:NAME.
	User string
	Verb string
	// Resource is the plural, such as secrets, and Group "" for the core group.
	Group, Resource string
	// Namespace and Name are "" for requests about several objects.
	Namespace, Name string
	// Code is the status of the answer.
	Code int
}

// auditPolicy logs requests about Secrets, and those that change anything, after they are answered,
// without content.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: "", resources: [secrets]}]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
`

// StartAudited starts a control plane as Start does, with an audit log of the requests about
// Secrets, and of those that change anything.
func StartAudited(t testing.TB) *ControlPlane {
	t.Helper()
	return start(t, &ControlPlane{audited: true})
}

func (c *ControlPlane) auditLog() string { return filepath.Join(c.dir, "audit.log") }

func (c *ControlPlane) audit(server *envtest.APIServer) error {
	policy := filepath.Join(c.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	server.Configure().Set("audit-policy-file", policy).Set("audit-log-path", c.auditLog()).Set(
		"audit-log-mode", "blocking")
	return nil
}

// SecretRequests returns the answered requests about Secrets in the audit log.
func (c *ControlPlane) SecretRequests() ([]Request, error) {
	return c.requests(func(r Request) bool { return r.Group == "" && r.Resource == "secrets" })
}

// Writes returns a user's answered requests in the audit log to change something in a namespace,
// whether they were allowed or not.
func (c *ControlPlane) Writes(user, namespace string) ([]Request, error) {
	return c.requests(func(r Request) bool {
		return r.User == user && r.Namespace == namespace &&
			!slices.Contains([]string{"get", "list", "watch"}, r.Verb)
	})
}

func (c *ControlPlane) requests(which func(Request) bool) ([]Request, error) {
	text, err := os.ReadFile(c.auditLog())
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	var out []Request
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be half written
	for line := range bytes.Lines(whole) {
		var event struct {
			User           struct{ Username string }
			Verb           string
			ObjectRef      struct{ APIGroup, Resource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		o := event.ObjectRef
		if r := (Request{event.User.Username, event.Verb, o.APIGroup, o.Resource, o.Namespace,
			o.Name, event.ResponseStatus.Code}); which(r) {
			out = append(out, r)
		}
	}
	return out, nil
}
