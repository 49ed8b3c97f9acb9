package lint

import (
	"encoding/json"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	kjson "sigs.k8s.io/json"

	"github.com/armature-dev/armature/functions/krm"
)

// evaluate reports what a level of Pod Security forbids in a pod and in each container, by
// Kubernetes' own evaluator with the newest version of its checks.
func evaluate(level string, o *krm.Object, template krm.PodTemplate,
	report func(container string, at krm.Node, message string)) {
	value, err := o.Value()
	if err != nil {
		return // the render reports the error
	}
	for field := range strings.SplitSeq(template.Path, ".") {
		if fields, ok := value.(map[string]any); ok && field != "" {
			value = fields[field]
		}
	}
	var pod corev1.Pod
	if text, err := json.Marshal(value); err != nil ||
		kjson.UnmarshalCaseSensitivePreserveInts(text, &pod) != nil {
		return // not a pod by the API's schema, or one with variables
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		panic(err) // the library's own checks are valid
	}
	reported := make(map[string]bool) // reasons that the pod itself has
	check := func(spec *corev1.PodSpec, container string, in krm.Node) {
		for _, r := range evaluator.EvaluatePod(psapi.LevelVersion{Level: psapi.Level(level),
			Version: psapi.LatestVersion()}, &pod.ObjectMeta, spec) {
			if r.Allowed || reported[r.ForbiddenReason] {
				continue
			}
			reported[r.ForbiddenReason] = container == ""
			message := r.ForbiddenReason
			if r.ForbiddenDetail != "" {
				message += " (" + r.ForbiddenDetail + ")"
			}
			report(container, violated(in, r.ForbiddenDetail), message)
		}
	}
	none := pod.Spec
	none.InitContainers, none.Containers, none.EphemeralContainers = nil, nil, nil
	check(&none, "", template.Spec())
	for _, list := range [...]string{"initContainers", "containers", "ephemeralContainers"} {
		i := 0
		for node := range template.Spec().Get(list).Items() {
			one := none
			switch list {
			case "initContainers":
				one.InitContainers = pod.Spec.InitContainers[i : i+1]
			case "containers":
				one.Containers = pod.Spec.Containers[i : i+1]
			default:
				one.EphemeralContainers = pod.Spec.EphemeralContainers[i : i+1]
			}
			check(&one, node.Get("name").Text(), node)
			i++
		}
	}
}

var (
	violatedField  = regexp.MustCompile(`\b(securityContext|lifecycle)(\.\w+)+|\bhost[A-Z]\w+`)
	violatedVolume = regexp.MustCompile(`^volumes? "([^"]+)"`)
)

// violated returns the field of a pod or container that the evaluator's detail names, or the
// nearest existing one around it.
func violated(in krm.Node, detail string) krm.Node {
	if m := violatedVolume.FindStringSubmatch(detail); m != nil {
		return in.Get("volumes").Named("name", m[1])
	}
	at := in
	for field := range strings.SplitSeq(violatedField.FindString(detail), ".") {
		next := at.Get(field)
		if !next.Exists() {
			break
		}
		at = next
	}
	if name := in.Get("name"); at == in && name.Exists() {
		return name
	}
	return at
}
