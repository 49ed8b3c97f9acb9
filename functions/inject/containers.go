package inject

import (
	"github.com/armature-dev/armature/functions/agenttrace"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/profile"
)

// AppendContainer appends a sidecar of the workload's profile as an item of the pod's
// containers or init containers, at zero indentation. With native, one that does not
// end is an init container that keeps running.
func AppendContainer(dst []byte, s *identity.Settings, x *identity.Sidecar, native bool) []byte {
	c := s.Component(x.Name)
	dst = append(append(dst, "- name: "...), x.Name...)
	dst = append(dst, "\n  image: "...)
	dst = scalar.AppendYAML(dst, c.Image)
	dst = append(append(dst, "\n  imagePullPolicy: "...), c.ImagePullPolicy...)
	dst = append(dst, '\n')
	if native && !x.Ends {
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
// container gets.
func AppendTraceMount(dst []byte) []byte {
	return append(dst, "- name: "+profile.TraceVolume+"\n  mountPath: "+agenttrace.MountPath+"\n  readOnly: true\n"...)
}
