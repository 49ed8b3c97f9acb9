package migrate

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	rules "github.com/armature-dev/armature/functions/migrate"
	"github.com/armature-dev/armature/render"
)

// try renders what was migrated. A workload whose ports a sidecar would take, or
// which its sidecar would not find, gets the annotations by which it keeps them.
// What still does not render is an error of the migration, so that nothing is
// written that cannot be used.
func (m *migration) try(opt render.Options) error {
	settings, findings, err := m.rendered(opt)
	if err != nil {
		return err
	}
	m.keep = make(map[krm.Ref][]rules.Annotation)
	for _, f := range findings {
		s, injected := settings[f.Object]
		if injected && (f.Rule == "inject/port-clash" || f.Rule == "inject/target-port") {
			m.keep[f.Object] = keepPorts(s, slices.Clone(m.ports[f.Object]))
		}
	}
	if len(m.keep) > 0 {
		if err := m.files(); err != nil || krm.Failed(m.findings) {
			return err
		}
		if _, findings, err = m.rendered(opt); err != nil {
			return err
		}
	}
	for _, f := range findings {
		if i := slices.IndexFunc(m.reports, func(r Report) bool { return concerns(r, f) }); f.Severity == krm.Error && i >= 0 {
			f.File, f.Line = m.reports[i].File, m.reports[i].Line // the finding's are of a text that nobody has
			f.Message = "what it is migrated to does not render: " + f.Message
			m.findings = append(m.findings, f)
		}
	}
	return nil
}

// concerns reports whether a finding is about an object that a report is about, or
// about one that it becomes.
func concerns(r Report, f krm.Finding) bool {
	return f.Object == r.Object || slices.Contains(r.Becomes, f.Object)
}

// rendered renders the package as it is migrated, and gives the identity settings
// of the workloads that declare ports.
func (m *migration) rendered(opt render.Options) (map[krm.Ref]identity.Settings, []krm.Finding, error) {
	settings := make(map[krm.Ref]identity.Settings)
	src := render.Source{Read: m.src.Read}
	for i, f := range m.src.Files {
		data, changed := m.out[i]
		switch {
		case changed && data == nil:
			continue // gone
		case changed:
			f.Data = data
		}
		src.Files = append(src.Files, f)
	}
	findings, _, err := render.Stream(src, render.Options{
		Config: opt.Config, Lock: opt.Lock, Functions: opt.Functions, Version: opt.Version, Workers: 1, Beside: true,
		Observe: func(u *contract.Unit) {
			if _, declares := m.ports[u.Object.Ref]; declares && u.Injected() {
				settings[u.Object.Ref] = *u.Settings()
			}
		},
	}, func(string, []byte) error { return nil })
	if err != nil {
		err = fmt.Errorf("rendering what was migrated: %w", err)
	}
	return settings, findings, err
}

// keepPorts gives the annotations by which a workload keeps the ports that it
// declares: auth-proxy forwards to the first, and what listens on one of them moves
// away. It gives none where something cannot move, which is an error of the render.
func keepPorts(s identity.Settings, declared []int) (kept []rules.Annotation) {
	add := func(key string, port int, reason string) {
		kept = append(kept, rules.Annotation{Key: key, Value: fmt.Sprint(port), Reason: reason})
	}
	fixed := func(l identity.Listener) bool { return l.Annotation() == "" && slices.Contains(declared, l.Port) }
	if len(declared) == 0 || slices.ContainsFunc(s.InjectedPorts(), fixed) {
		return nil
	}
	if s.AuthProxy.Enabled && !slices.Contains(declared, s.Inbound.TargetPort) {
		add(s.TargetPortAnnotation(), declared[0], "auth-proxy forwards to it, since the application declares it")
		s.Inbound.TargetPort = declared[0]
	}
	for _, l := range s.InjectedPorts() {
		if l.Annotation() == "" || !slices.Contains(declared, l.Port) {
			continue
		}
		free := s.FreePort(l.Port, declared)
		declared = append(declared, free)
		add(l.Annotation(), free, fmt.Sprintf("%s listens on it, since %d is the application's", l.Name, l.Port))
	}
	slices.SortFunc(kept, func(a, b rules.Annotation) int { return bytes.Compare([]byte(a.Key), []byte(b.Key)) })
	return kept
}
