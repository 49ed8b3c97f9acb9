package inject

import (
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// writer appends the parts of a container.
type writer struct {
	dst []byte
	s   *identity.Settings
}

func (w *writer) text(parts ...string) {
	for _, part := range parts {
		w.dst = append(w.dst, part...)
	}
}

// env appends a variable with a literal value.
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

// secret appends a variable whose value is a Secret's.
func (w *writer) secret(name, secret string) {
	w.text("  - name: ", name, "\n    valueFrom:\n      secretKeyRef:\n        name: ")
	w.dst = scalar.AppendYAML(w.dst, secret)
	w.text("\n        key: ", name, "\n")
}

// field appends a variable whose value is the pod's own.
func (w *writer) field(name, field string) {
	w.text("  - name: ", name, "\n    valueFrom:\n      fieldRef:\n        fieldPath: ", field, "\n")
}

func (w *writer) mount(volume, at string, readOnly bool) {
	w.text("  - name: ", volume, "\n    mountPath: ")
	w.dst = append(scalar.AppendPath(w.dst, at), '\n')
	if readOnly {
		w.text("    readOnly: true\n")
	}
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
