package controlplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// SecretRequest is one request about Secrets, as the API server's audit log has it.
type SecretRequest struct {
	// User is the name that the API server found, such as
	// system:serviceaccount:NAMESPACE:NAME.
	User string
	Verb string
	// Namespace and Name are "" where the request is about several.
	Namespace, Name string
	// Code is the status of the answer.
	Code int
}

// auditPolicy logs requests about Secrets before they are answered, with no content.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: "", resources: [secrets]}]
- level: None
`

// StartAudited is Start with an audit log of the requests about Secrets.
func StartAudited(t testing.TB) *ControlPlane {
	t.Helper()
	return start(t, &ControlPlane{audited: true})
}

func (c *ControlPlane) auditLog() string { return filepath.Join(c.dir, "audit.log") }

// audit configures the API server.
func (c *ControlPlane) audit(server *envtest.APIServer) error {
	policy := filepath.Join(c.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	server.Configure().Set("audit-policy-file", policy).Set("audit-log-path", c.auditLog()).Set("audit-log-mode", "blocking")
	return nil
}

// SecretRequests gives the audit log: every request that was answered so far.
func (c *ControlPlane) SecretRequests() ([]SecretRequest, error) {
	text, err := os.ReadFile(c.auditLog())
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	var out []SecretRequest
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be half written
	for line := range bytes.Lines(whole) {
		var event struct {
			User           struct{ Username string }
			Verb           string
			ObjectRef      struct{ Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		out = append(out, SecretRequest{event.User.Username, event.Verb, event.ObjectRef.Namespace, event.ObjectRef.Name, event.ResponseStatus.Code})
	}
	return out, nil
}
