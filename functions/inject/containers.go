package inject

import (
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// AppendTraceMount appends the item of volumeMounts that an application
// container gets, if any.
func AppendTraceMount(dst []byte, s *identity.Settings) []byte {
	if !s.Trace.Enabled {
		return dst
	}
	return append(dst,
		"- name: "+sidecars.TraceVolume+"\n  mountPath: "+sidecars.TraceMountPath+"\n  readOnly: true\n"...)
}

// telemetry appends the variable by which an SDK finds its configuration, unless the
// author names another one or an endpoint, and records it.
func (r *record) telemetry(env []byte, c krm.Node, s *identity.Settings) []byte {
	if !s.Trace.Enabled || ownTelemetry(c).Exists() {
		return env
	}
	r.variable(c.Get("name").Text(), sidecars.TraceConfigVariable)
	return append(env, "- name: "+sidecars.TraceConfigVariable+"\n  value: "+sidecars.TraceConfigFile+"\n"...)
}

// ownTelemetry returns a variable of the author that an SDK would not read beside a
// configuration file, or that names one.
func ownTelemetry(c krm.Node) (own krm.Node) {
	for v := range c.Get("env").Items() {
		switch v.Get("name").Text() {
		case sidecars.TraceConfigVariable, "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":
			return v
		}
	}
	return own
}
