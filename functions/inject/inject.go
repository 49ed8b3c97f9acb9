// Package inject adds the identity infrastructure of 001, "Injected Identity Infrastructure
// Components", to a workload that opted in, and removes it again.
package inject

import (
	"bytes"
	"fmt"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/skills"
)

// Injector injects workloads sequentially and keeps memory between them.
type Injector struct {
	// Version is recorded with the injected fields.
	Version string
	// NoOriginal says that the original text is not kept, for a host that rewrites it each time.
	NoOriginal bool

	skills  *mounted // of the workload, or nil
	parts   parts
	record  record
	scratch []byte
}

// parts are the additions to an injected pod.
type parts struct {
	// initContainers precede the author's own.
	initContainers, volumes, mount []byte

	containerNames, volumeNames []string
}

// compose returns the additions for the settings. They are valid until the next call.
func (in *Injector) compose(s *identity.Settings) *parts {
	p := &in.parts
	p.initContainers, p.volumes, p.mount = p.initContainers[:0], p.volumes[:0], p.mount[:0]
	p.containerNames, p.volumeNames = p.containerNames[:0], p.volumeNames[:0]
	if k := in.skills; k != nil && k.init != nil { // before proxy-init redirects its traffic
		p.initContainers = append(p.initContainers, k.init...)
		p.containerNames = append(p.containerNames, skills.Container)
	}
	if s != nil {
		var names []string
		p.initContainers, names = s.AppendPart(p.initContainers, identity.PodContainers,
			sidecars.AppendContainers)
		p.containerNames = append(p.containerNames, names...)
		p.volumes, names = s.AppendPart(p.volumes, identity.PodVolumes, sidecars.AppendVolumes)
		p.volumeNames = append(p.volumeNames, names...)
		p.mount = AppendTraceMount(p.mount, s)
	}
	if k := in.skills; k != nil {
		p.volumes, p.volumeNames =
			append(p.volumes, k.volumes...), append(p.volumeNames, k.names...)
	}
	return p
}

// Annotation is an annotation for a pod template.
type Annotation struct{ Key, Value string }

// Inject adds the containers, volumes, mounts and record by edits that wait to be applied, and the
// given annotations to the pod template. The object must not be injected already. Without settings
// it gets only its skills.
func (in *Injector) Inject(o *krm.Object, s *identity.Settings, annotations ...Annotation) error {
	return o.Attempt("a layout in which injected lines have no place", !in.NoOriginal,
		func(kept krm.Kept) error { return in.edit(o, s, kept, annotations) })
}

func (in *Injector) edit(o *krm.Object, s *identity.Settings, kept krm.Kept,
	annotations []Annotation) error {
	pod, ok := o.PodTemplate()
	if !ok {
		return fmt.Errorf("%s has no pod template", o.Ref)
	}
	p := in.compose(s)
	r := &in.record
	*r = record{
		o: o, Version: in.Version, Kept: kept,
		InitContainers: p.containerNames, Volumes: p.volumeNames,
		Mounts: r.Mounts[:0], Created: r.Created[:0], Fields: r.Fields[:0],
		Paths: r.Paths, Env: r.Env, env: r.env, added: r.added,
	}
	clear(r.Paths)
	clear(r.Env)
	spec := pod.Spec()
	err := r.insert(spec, initContainersKey, "initContainers", p.initContainers, true)
	if err != nil {
		return err
	}
	moved := movedAgent(s, pod)
	for c := range spec.Get("containers").Items() {
		if err := r.container(c, moved, s, p.mount, in.skills); err != nil {
			return err
		}
	}
	if err := r.insert(spec, volumesKey, "volumes", p.volumes, false); err != nil {
		return err
	}
	if s != nil && s.Subject.OwnAccount {
		if err := r.setField(spec, spec.Get(accountField),
			field{At: accountField, Value: s.Subject.ServiceAccount}, accountField); err != nil {
			return err
		}
	}
	if in.skills != nil && in.skills.config != "" {
		annotations = append(annotations, Annotation{keys.SkillsInit, in.skills.config})
	}
	in.scratch = in.scratch[:0]
	for _, a := range annotations {
		in.scratch = append(append(append(append(in.scratch, a.Key...), ": "...), a.Value...), '\n')
		r.PodAnnotations = append(r.PodAnnotations, a.Key)
	}
	if len(annotations) > 0 && pod.Path != "" {
		name := "podAnnotations"
		metadata := pod.Template.Get("metadata")
		if !metadata.Exists() {
			name = "podMetadata"
		} else if metadata.Len() == 0 {
			r.note(krm.Insertion{Was: o.Plan(pod.Template, metadataKey).Was}, "podMetadata")
		}
		if err := r.insert(pod.Template, podAnnotationsKey, name, bytes.Clone(in.scratch),
			false); err != nil {
			return err
		}
		in.scratch = in.scratch[:0]
	}
	// The rest of scratch is for a Pod, whose annotations are the workload's own. The record also
	// covers its own insertion, so it comes last.
	r.note(o.Plan(o.Get("metadata"), annotationsKey), "annotations")
	if o.OnlyHostAnnotations() {
		r.Created = append(r.Created, "annotations") // the host removes its own
	}
	in.scratch = append(in.scratch, keys.Injected+": '"...)
	in.scratch = r.appendQuoted(in.scratch)
	in.scratch = append(in.scratch, "'\n"...)
	_, err = o.Insert(o.Get("metadata"), annotationsKey, in.scratch, false)
	return err
}

// container adds mounts and variables to one of the author's containers.
func (r *record) container(c, moved krm.Node, s *identity.Settings, mount []byte,
	k *mounted) error {
	name := c.Get("name").Text()
	var mounts []byte
	env := r.env[:0]
	r.added = r.added[:0]
	if s != nil {
		mounts, env = r.cloud(env, c, s)
		env = r.telemetry(r.authBridge(env, c, moved, s), c, s)
	}
	r.env = env
	note(&r.Env, name, r.added...)
	if k != nil {
		mounts = append(mounts, k.mounts...)
		for _, path := range k.paths {
			r.path(name, path)
		}
	}
	if len(mounts) > 0 {
		mount = mounts
		if s != nil {
			mount = append(AppendTraceMount(nil, s), mounts...)
		}
	}
	if err := r.insert(c, volumeMountsKey, containerPath+name, mount, false); err != nil {
		return err
	}
	if err := r.insert(c, envKey, envPath+name, env, false); err != nil {
		return err
	}
	r.Mounts = append(r.Mounts, name)
	if port := identity.PortVariable(c); port.Exists() && c == moved {
		return r.overwritePort(port, name, s)
	}
	return nil
}

var (
	initContainersKey = []string{"initContainers"}
	volumeMountsKey   = []string{"volumeMounts"}
	envKey            = []string{"env"}
	volumesKey        = []string{"volumes"}
	annotationsKey    = []string{"annotations"}
	metadataKey       = []string{"metadata"}
	podAnnotationsKey = []string{"metadata", "annotations"}
)

// accountField is the field of a pod that names its ServiceAccount.
const accountField = "serviceAccountName"

// AppendTraceMount appends the volumeMounts item of an application container, if tracing is
// enabled.
func AppendTraceMount(dst []byte, s *identity.Settings) []byte {
	if !s.Trace.Enabled {
		return dst
	}
	return append(dst,
		"- name: "+sidecars.TraceVolume+"\n  mountPath: "+sidecars.TraceMountPath+
			"\n  readOnly: true\n"...)
}

// telemetry appends the variable with the configuration file of an SDK, unless the author names
// another file or an endpoint, and records it.
func (r *record) telemetry(env []byte, c krm.Node, s *identity.Settings) []byte {
	if !s.Trace.Enabled || ownTelemetry(c).Exists() {
		return env
	}
	return r.variable(env, sidecars.TraceConfigVariable, sidecars.TraceConfigFile)
}

// ownTelemetry returns an author's variable that names a configuration file, or that an SDK would
// ignore because of one.
func ownTelemetry(c krm.Node) (own krm.Node) {
	for v := range c.Get("env").Items() {
		switch v.Get("name").Text() {
		case sidecars.TraceConfigVariable, "OTEL_EXPORTER_OTLP_ENDPOINT",
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":
			return v
		}
	}
	return own
}
