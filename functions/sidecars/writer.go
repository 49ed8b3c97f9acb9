package sidecars

import (
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

type writer struct {
	dst []byte
	s   *identity.Settings
}

func (w *writer) text(parts ...string) {
	for _, part := range parts {
		w.dst = append(w.dst, part...)
	}
}

func (w *writer) env(name, value string) {
	w.text("  - name: ", name, "\n    value: ")
	w.dst = append(scalar.AppendEnv(w.dst, value), '\n')
}

func (w *writer) envInt(name string, n int) {
	w.text("  - name: ", name, "\n    value: \"")
	w.dst = append(scalar.AppendInt(w.dst, n), '"', '\n')
}

// configured appends a variable whose value is the ConfigMap's, so that a
// change of configuration changes the ConfigMap and not the pod.
func (w *writer) configured(name string) {
	w.text("  - name: ", name, "\n    valueFrom:\n      configMapKeyRef:\n        name: ")
	w.dst = w.s.AppendName(w.dst, identity.TokenExchangeConfigMap)
	w.text("\n        key: ", name, "\n")
}

// optional is configured for a key that may not be there.
func (w *writer) optional(name, key string) {
	w.text("  - name: ", name, "\n    valueFrom:\n      configMapKeyRef:\n        name: ")
	w.dst = w.s.AppendName(w.dst, identity.TokenExchangeConfigMap)
	w.text("\n        key: ", key, "\n        optional: true\n")
}

func (w *writer) secret(name, secret string) {
	w.text("  - name: ", name, "\n    valueFrom:\n      secretKeyRef:\n        name: ")
	w.dst = scalar.AppendYAML(w.dst, secret)
	w.text("\n        key: ", name, "\n")
}

func (w *writer) field(name, field string) {
	w.text("  - name: ", name, "\n    valueFrom:\n      fieldRef:\n        fieldPath: ", field, "\n")
}

func (w *writer) resources(c *identity.Component) {
	if c.CPURequest+c.MemoryRequest+c.CPULimit+c.MemoryLimit == "" {
		return
	}
	w.text("  resources:\n")
	w.list("    requests:\n", c.CPURequest, c.MemoryRequest)
	w.list("    limits:\n", c.CPULimit, c.MemoryLimit)
}

func (w *writer) list(head, cpu, memory string) {
	if cpu == "" && memory == "" {
		return
	}
	w.text(head)
	if cpu != "" {
		w.text("      cpu: ")
		w.dst = append(appendQuantity(w.dst, cpu), '\n')
	}
	if memory != "" {
		w.text("      memory: ")
		w.dst = append(appendQuantity(w.dst, memory), '\n')
	}
}

// appendQuantity quotes what a YAML reader would take for a number.
func appendQuantity(dst []byte, q string) []byte {
	if last := q[len(q)-1]; (last == 'm' || last == 'i') && q[0] >= '0' && q[0] <= '9' && !strings.ContainsAny(q, " :#\"\\\n") {
		return append(dst, q...)
	}
	return scalar.AppendYAML(dst, q)
}

// probe appends the end of a startup probe: two seconds apart, five minutes
// long. The next container starts when it succeeds.
func (w *writer) probe() { w.text("    periodSeconds: 2\n    failureThreshold: 150\n") }

func (w *writer) port(name string, n int) {
	w.text("  - name: ", name, "\n    containerPort: ")
	w.dst = append(scalar.AppendInt(w.dst, n), '\n')
}

// Security contexts: 001, "Security Considerations", and on top of it whatever
// Pod Security "restricted" asks for and the program can live with.
const (
	initSecurity = `  securityContext:
    runAsUser: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    capabilities:
`
	sidecarSecurity = `    runAsNonRoot: true
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    seccompProfile:
      type: RuntimeDefault
`
	helperSecurity = `  securityContext:
    runAsUser: 1000
    runAsGroup: 1000
    readOnlyRootFilesystem: true
` + sidecarSecurity
)

func (w *writer) proxySecurity() {
	w.text("  securityContext:\n    runAsUser: ")
	w.dst = scalar.AppendInt(w.dst, w.s.Outbound.ProxyUID)
	w.text("\n    runAsGroup: ")
	w.dst = scalar.AppendInt(w.dst, w.s.Outbound.ProxyUID)
	w.text("\n" + sidecarSecurity)
}
