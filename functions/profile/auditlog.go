package profile

import "github.com/armature-dev/armature/functions/identity"

// AuditLog writes down who called the agent.
const AuditLog = "audit-log"

func auditLog() identity.Sidecar {
	return identity.Sidecar{
		Name: AuditLog, Container: appendAuditLog,
		Default: identity.Component{Image: repository + "audit-log" + imageTag, ImagePullPolicy: "IfNotPresent", CPURequest: "10m", MemoryRequest: "16Mi", CPULimit: "50m", MemoryLimit: "64Mi"},
	}
}

func appendAuditLog(dst []byte, s *identity.Settings) []byte {
	w := writer{dst, s}
	w.text("  env:\n")
	w.env("TRUST_DOMAIN", s.SPIFFE.TrustDomain)
	w.resources(s.Component(AuditLog))
	w.text(helperSecurity)
	return w.dst
}
