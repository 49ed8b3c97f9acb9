package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
)

// try renders the migrated package. A workload whose ports conflict with a sidecar, or whose ports
// the sidecar would not find, gets annotations that keep its ports. A workload that the webhook
// injected and that still does not render stays unchanged. All other errors of the render are
// errors of the migration, so that it writes no unusable manifests.
func (m *migration) try(opt render.Options) error {
	settings, findings, err := m.rendered(opt)
	if err != nil {
		return err
	}
	m.keep = make(map[finding.Ref][]foreign.Annotation)
	for _, f := range findings {
		s, injected := settings[f.Object]
		if injected && (f.Rule == "inject/port-clash" || f.Rule == "inject/target-port") {
			m.keep[f.Object] = keepPorts(s, slices.Clone(m.ports[f.Object]))
		}
	}
	if len(m.keep) > 0 {
		if findings, err = m.again(opt); err != nil || finding.Failed(m.findings) {
			return err
		}
	}
	m.stay = make(map[finding.Ref]finding.Finding)
	for _, f := range findings {
		if _, first := m.stay[f.Object]; f.Severity == finding.Error &&
			m.removed[f.Object] != nil && !first {
			m.stay[f.Object] = f
		}
	}
	if len(m.stay) > 0 {
		m.removed = make(map[finding.Ref][]foreign.Container)
		if findings, err = m.again(opt); err != nil || finding.Failed(m.findings) {
			return err
		}
	}
	for _, f := range findings {
		if i := slices.IndexFunc(m.reports,
			func(r Report) bool { return concerns(r, f) }); f.Severity == finding.Error && i >= 0 {
			// The finding names a line of a text that was never written.
			f.File, f.Line = m.reports[i].File, m.reports[i].Line
			f.Message = "its migrated form does not render: " + f.Message
			m.findings = append(m.findings, f)
		}
	}
	return nil
}

// again migrates all files with the updated decisions and renders them.
func (m *migration) again(opt render.Options) (findings []finding.Finding, err error) {
	if err := m.files(); err != nil || finding.Failed(m.findings) {
		return nil, err
	}
	_, findings, err = m.rendered(opt)
	return findings, err
}

// concerns reports whether a finding is about the object of a report, or about an object that
// replaces it.
func concerns(r Report, f finding.Finding) bool {
	return f.Object == r.Object || slices.Contains(r.Becomes, f.Object)
}

// rendered renders the migrated package, and returns the identity settings of the workloads that
// declare ports.
func (m *migration) rendered(opt render.Options) (map[finding.Ref]identity.Settings,
	[]finding.Finding, error) {
	settings := make(map[finding.Ref]identity.Settings)
	src := render.Source{Read: m.src.Read}
	for i, f := range m.src.Files {
		data, changed := m.out[i]
		if changed {
			f.Data = data
		}
		if !changed || data != nil { // else the file became empty
			src.Files = append(src.Files, f)
		}
	}
	after := containersAfter{containers: make(map[finding.Ref]map[string]foreign.Container),
		config: make(map[string]string)}
	findings, _, err := render.Stream(src, render.Options{
		Config: opt.Config, Lock: opt.Lock, Functions: opt.Functions, Version: opt.Version,
		Workers: 1, Beside: true,
		Observe: func(u *contract.Unit) {
			if _, declares := m.ports[u.Object.Ref]; declares && u.Injected() {
				settings[u.Object.Ref] = *u.Settings()
			}
		},
	}, func(file string, data []byte) error {
		after.add(render.File{Path: file, Data: data}, m.removed)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("rendering what was migrated: %w", err)
	}
	for i := range m.reports {
		m.reports[i].Lost = after.lost(m.reports[i].Object, m.removed)
	}
	return settings, findings, err
}

// containersAfter are the containers that a render adds to workloads that the webhook had injected.
type containersAfter struct {
	containers map[finding.Ref]map[string]foreign.Container
	config     map[string]string // by namespace, ConfigMap and key
}

// configured is the prefix of the value of a variable that a ConfigMap sets; the key in config
// follows.
const configured = "\x00"

func configKey(namespace, name, key string) string { return namespace + " " + name + " " + key }

// add adds the objects of a rendered file.
func (s *containersAfter) add(f render.File, removed map[finding.Ref][]foreign.Container) {
	render.Objects(f, func(o *krm.Object) {
		if o.Kind == "ConfigMap" {
			for key, value := range o.Get("data").Fields() {
				s.config[configKey(o.Namespace, o.Name, key)] = value.Text()
			}
		}
		pod, ok := o.PodTemplate()
		if !ok || removed[o.Ref] == nil {
			return
		}
		s.containers[o.Ref] = make(map[string]foreign.Container)
		for _, n := range pod.Containers() {
			c := foreign.ContainerOf(n)
			for v := range n.Get("env").Items() {
				if from := v.Get("valueFrom", "configMapKeyRef"); from.Exists() {
					c.Settings["variable "+v.Get("name").Text()] = configured +
						configKey(o.Namespace, from.Get("name").Text(), from.Get("key").Text())
				}
			}
			s.containers[o.Ref][c.Name] = c
		}
	})
}

// lost compares the containers that were removed from a workload with those that a render adds.
func (s *containersAfter) lost(workload finding.Ref,
	removed map[finding.Ref][]foreign.Container) (all []Lost) {
	for _, was := range removed[workload] {
		is, there := s.containers[workload][was.Name]
		if !there {
			all = append(all, Lost{was.Name, []string{"the container"}})
			continue
		}
		var names []string
		for name, value := range was.Settings {
			now, set := is.Settings[name]
			if key, ok := strings.CutPrefix(now, configured); ok {
				now = s.config[key]
			}
			if !set || now != value {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			slices.Sort(names)
			all = append(all, Lost{was.Name, names})
		}
	}
	return all
}

// keepPorts returns the annotations with which a workload keeps the ports that it declares:
// auth-proxy forwards to the first one, and a sidecar that listens on one of them moves to another
// port. It returns none if a sidecar cannot move, which is an error of the render.
func keepPorts(s identity.Settings, declared []int) (annotations []foreign.Annotation) {
	add := func(key string, port int, reason string) {
		annotations = append(annotations,
			foreign.Annotation{Key: key, Value: fmt.Sprint(port), Reason: reason})
	}
	fixed := func(p identity.Port) bool {
		return p.Annotation() == "" && slices.Contains(declared, p.Number)
	}
	if len(declared) == 0 || slices.ContainsFunc(s.InjectedPorts(), fixed) {
		return nil
	}
	if s.On(sidecars.AuthProxy) && !slices.Contains(declared, s.Inbound.TargetPort) {
		add(s.TargetPortAnnotation(), declared[0],
			"auth-proxy forwards to it, since the application declares it")
		s.Inbound.TargetPort = declared[0]
	}
	for _, p := range s.InjectedPorts() {
		if p.Annotation() == "" || !slices.Contains(declared, p.Number) {
			continue
		}
		free := s.FreePort(p.Number, declared)
		declared = append(declared, free)
		add(p.Annotation(), free, fmt.Sprintf("%s listens on it, since %d is the application's",
			p.Name, p.Number))
	}
	slices.SortFunc(annotations, func(a, b foreign.Annotation) int {
		return strings.Compare(a.Key, b.Key)
	})
	return annotations
}
