package inject

import (
	"github.com/armature-dev/armature/functions/agenttrace"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// AppendContainer appends a sidecar of the workload's profile as an item of the pod's
// init containers, at zero indentation.
func AppendContainer(dst []byte, s *identity.Settings, x *identity.Sidecar) []byte {
	c := s.Component(x.Name)
	dst = append(append(dst, "- name: "...), x.Name...)
	dst = append(dst, "\n  image: "...)
	dst = scalar.AppendYAML(dst, c.Image)
	dst = append(append(dst, "\n  imagePullPolicy: "...), c.ImagePullPolicy...)
	dst = append(dst, '\n')
	if !x.Ends {
		dst = append(dst, "  restartPolicy: Always\n"...)
	}
	dst = x.Container(dst, s)
	if x.Mounts == nil {
		return dst
	}
	dst = append(dst, "  volumeMounts:\n"...)
	for _, m := range x.Mounts(s) {
		dst = append(append(append(dst, "  - name: "...), m.Volume...), "\n    mountPath: "...)
		dst = append(scalar.AppendPath(dst, m.Path), '\n')
		if m.ReadOnly {
			dst = append(dst, "    readOnly: true\n"...)
		}
	}
	return dst
}

// AppendTraceMount appends the item of volumeMounts that an application
// container gets, if any.
func AppendTraceMount(dst []byte, s *identity.Settings) []byte {
	if !s.Trace.Enabled {
		return dst
	}
	return append(dst, "- name: "+sidecars.TraceVolume+"\n  mountPath: "+agenttrace.MountPath+"\n  readOnly: true\n"...)
}

// telemetry appends the variable by which an SDK finds its configuration, unless the
// author names another one or an endpoint, and records it.
func (r *record) telemetry(env []byte, c krm.Node, s *identity.Settings) []byte {
	if !s.Trace.Enabled || ownTelemetry(c).Exists() {
		return env
	}
	r.variable(c.Get("name").Text(), agenttrace.ConfigVariable)
	return append(env, "- name: "+agenttrace.ConfigVariable+"\n  value: "+agenttrace.ConfigFile+"\n"...)
}

// ownTelemetry returns a variable of the author that an SDK would not read beside a
// configuration file, or that names one.
func ownTelemetry(c krm.Node) (own krm.Node) {
	for v := range c.Get("env").Items() {
		switch v.Get("name").Text() {
		case agenttrace.ConfigVariable, "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":
			return v
		}
	}
	return own
}
