package inject

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/workload"
)

//go:embed README.md
var page string

const function = "inject"

// Function injects workloads.
func Function() contract.Function {
	return contract.Function{
		Name:    function,
		Summary: "put the identity sidecars, volumes and mounts into workloads that opted in",
		Page:    page,
		Reasons: contract.Settings,
		Record:  keys.Injected,
		Undo:    Uninject,
		New:     begin,
	}
}

type state struct {
	pkg       *contract.Package
	skills    *skillMounts
	injectors sync.Pool         // of *Injector: one for each worker
	namesakes map[index.ID]bool // workloads that share a name, by whether they are injected

	mu   sync.Mutex
	once []finding.Finding // reported once for the package, by rule
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, skills: skillMountsOf(p), namesakes: make(map[index.ID]bool)}
	s.injectors.New = func() any { return &Injector{Version: p.Version} }
	return contract.Steps{Unsure: s.unsure, Look: s.look, Run: s.run, Finish: s.finish}
}

func (s *state) run(u *contract.Unit) {
	mounted, findings := s.skills.of(u.Object, s.pkg.Pinned)
	u.Findings = append(u.Findings, findings...)
	if finding.Failed(findings) || !u.Injected() && mounted == nil {
		return
	}
	var settings *identity.Settings // nil for skills alone
	var annotations []Annotation
	if u.Injected() {
		s.reportNamesakes(u)
		settings = u.Settings()
		findings := Check(u.Object, settings)
		u.Findings = append(u.Findings, findings...)
		if finding.Failed(findings) {
			return
		}
	}
	if settings != nil && s.pkg.RollsByHash() {
		annotations = append(annotations, Annotation{Key: keys.ConfigHash, Value: hash(settings)})
	}
	injector := s.injectors.Get().(*Injector)
	defer s.injectors.Put(injector)
	injector.NoOriginal = u.NoOriginal
	injector.skills = mounted
	if err := injector.Inject(u.Object, settings, annotations...); err != nil {
		u.Findings = append(u.Findings, u.Object.LayoutFinding("inject/layout", err))
		return
	}
	if why, rewritten := u.Object.Rewritten(); rewritten {
		u.ReportRewritten("inject/rewritten", why)
	}
	if settings == nil {
		return
	}
	report := func(severity finding.Severity, rule, message, hint string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.once = append(s.once, u.Object.Finding(severity, function+"/"+rule, krm.Node{}, message, hint))
	}
	if settings.Subject.OwnAccount && u.GenerateAccount(&account) {
		if pod, _ := u.Object.PodTemplate(); pod.Spec().Get("imagePullSecrets").Len() == 0 {
			report(finding.Info, "new-account",
				fmt.Sprintf("the new ServiceAccount %s has neither the pull "+
					"secrets nor the RoleBindings of default", settings.Subject.ServiceAccount),
				"set imagePullSecrets in the pod template for private images, or "+
					"serviceAccountName to an account that has what the agent needs")
		}
	}
	if settings.On(sidecars.AuthProxy) &&
		sidecars.Unpublished(settings.Component(sidecars.AuthProxy).Image) {
		report(finding.Warning, "unpublished-image",
			fmt.Sprintf("%q was never published", settings.Component(sidecars.AuthProxy).Image),
			sidecars.UnpublishedRemedy)
	}
}

// finish returns the first finding of each rule, with the number of further ones.
func (s *state) finish() (found []finding.Finding) {
	slices.SortFunc(s.once, func(a, b finding.Finding) int {
		return cmp.Or(strings.Compare(a.Rule, b.Rule), strings.Compare(a.File, b.File), a.Line-b.Line)
	})
	for i := 0; i < len(s.once); {
		first, n := s.once[i], 0
		for i++; i < len(s.once) && s.once[i].Rule == first.Rule; i++ {
			n++
		}
		if n > 0 {
			first.Message += ": of this and " + text.Count(n, "more workload")
		}
		found = append(found, first)
	}
	return found
}

// account describes the ServiceAccount of a workload whose author names none.
var account = contract.ConfigMap{Of: function,
	Append: func(dst []byte, s *identity.Settings) []byte {
		return s.AppendMetadata(append(dst, "apiVersion: v1\nkind: ServiceAccount\n"...),
			identity.OwnServiceAccount)
	}}

// hash returns the hash of a workload's ConfigMaps.
func hash(settings *identity.Settings) string {
	var text []byte
	if !settings.TraceOnly {
		text = sidecars.AppendConfigMap(text, settings)
	}
	if settings.Trace.Enabled {
		text = sidecars.AppendTraceConfigMap(text, settings)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// unsure returns the workloads whose ConfigMaps would have the names of another workload's: of
// another kind, or of the same kind in the same folder. Sibling folders may hold one workload for
// several clusters.
func (s *state) unsure() (unsure []index.ID) {
	x := s.pkg.Index
	for id, e := range x.All() {
		if workload.Is(e.Kind) && x.Shares(id) {
			for range s.others(id) {
				unsure = append(unsure, id)
				break
			}
		}
	}
	return unsure
}

// others returns the workloads that share the names of a workload's ConfigMaps.
func (s *state) others(id index.ID) func(yield func(index.ID, *index.Entry) bool) {
	x := s.pkg.Index
	e := x.Entry(id)
	return func(yield func(index.ID, *index.Entry) bool) {
		for _, kind := range slices.Sorted(x.WorkloadKinds()) {
			for other, o := range x.Named(index.Key{Kind: kind, Namespace: e.Namespace, Name: e.Name}) {
				if other == id || o.Generated && !o.Made ||
					kind == e.Kind && path.Dir(o.File) != path.Dir(e.File) {
					continue
				}
				if !yield(other, o) {
					return
				}
			}
		}
	}
}

func (s *state) look(id index.ID, o *krm.Object) {
	s.namesakes[id] = s.pkg.Identity.OptsIn(o) || s.pkg.Identity.Traced(id)
}

// reportNamesakes reports another injected workload whose ConfigMaps have the same names. To report
// all of them takes the square of their number.
func (s *state) reportNamesakes(u *contract.Unit) {
	id := u.ID()
	if _, shares := s.namesakes[id]; !shares {
		return
	}
	for other, e := range s.others(id) {
		if !s.namesakes[other] {
			continue
		}
		message, hint := fmt.Sprintf("its ConfigMaps have the names of those of the %s %s (%s)",
			e.Kind, e.Name, e.Place()), "rename one of the two"
		if e.Kind == u.Object.Kind {
			message, hint = fmt.Sprintf("%s is also in %s", u.Object.Ref, e.Place()),
				"remove one of the two"
		}
		u.Report(finding.Error, "inject/two-of-a-name", u.Object.Get("metadata", "name"), message, hint)
		return
	}
}
