package attest

import (
	"context"
	"encoding/base64"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	podtemplate "github.com/tektoncd/pipeline/pkg/apis/pipeline/pod"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/workspace"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
)

// A pod has to be what Tekton makes of its TaskRun, which was compared with the pipeline
// before. Admission may change a pod on its way: what it injects for a label or an annotation
// that a tenant gave to the run is refused, whatever it is. Left out are fields that decide
// where and when a pod runs, and what only takes rights away.

// Containers that Tekton makes of its own images.
const (
	prepareContainer    = "prepare"
	scriptsContainer    = "place-scripts"
	workingDirContainer = "working-dir-initializer"
)

// podSpec is what Tekton makes of a TaskRun.
type podSpec struct {
	steps    []tektonv1.Step
	sidecars []tektonv1.Sidecar
	volumes  map[string]any // as JSON, by name
	// names that the pod has for volumes, and those of volumes above
	names map[string]string
	// internal are the pod's volumes that Tekton adds to each pod.
	internal map[string]bool
	// own values of each step, put in after those of the TaskRun
	values []values
}

// judgePods compares the pods of all tasks that ran, once their TaskRuns are known to be as
// ordered.
func (i *inspection) judgePods() error {
	prepare := ""
	for _, t := range i.tasks {
		if t.run == nil {
			continue
		}
		what, err := t.judgePod(&prepare)
		if err != nil {
			return fmt.Errorf("reading TaskRun %s: %w", t.run.Name, err)
		}
		if what != "" {
			return refuse(api.ReasonNotAsOrdered, injected, "pod %s of TaskRun %s is not what Tekton makes of it: %s", t.pod.Name, t.run.Name, what)
		}
	}
	return nil
}

const injected = "look which admission webhook or policy changes pods of builds, and whether a label or annotation of the run asks it to; let the platform exempt them, then " + rerun

// judgePod says what of a pod is not as Tekton makes it, "" for nothing. prepare is the image
// of Tekton's first container, the same in all pods of a run.
func (t *task) judgePod(prepare *string) (string, error) {
	want, err := t.podSpec()
	if err != nil {
		return "", err
	}
	if what := want.judgeVolumes(t); what != "" {
		return what, nil
	}
	if what := want.judgeSettings(t); what != "" {
		return what, nil
	}
	for _, c := range t.pod.Spec.InitContainers {
		if what := want.judgeInit(t, c, prepare); what != "" {
			return what, nil
		}
	}
	if !slices.ContainsFunc(t.pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == prepareContainer }) {
		return "it has no init container " + prepareContainer, nil
	}
	for _, c := range t.pod.Spec.Containers {
		n := 0
		for n < len(want.steps) && c.Name != stepContainer(want.steps[n], n) {
			n++
		}
		what := ""
		if n < len(want.steps) { // checkPod has found one for each
			what = want.judgeStep(n, c, t.run.Spec.PodTemplate)
		} else {
			what = want.judgeSidecar(c, t.pod.Generation > 1)
		}
		if what != "" {
			return fmt.Sprintf("its container %s has another %s", c.Name, what), nil
		}
	}
	return "", nil
}

func stepContainer(step tektonv1.Step, n int) string {
	if step.Name == "" {
		return fmt.Sprintf("%sunnamed-%d", stepPrefix, n)
	}
	return stepPrefix + step.Name
}

// podSpec of a TaskRun, in which all variables are still to be replaced.
func (t *task) podSpec() (*podSpec, error) {
	bound := t.run.Spec.Workspaces
	volumes := workspace.CreateVolumes(bound)
	spec, err := workspace.Apply(context.Background(), *t.run.Spec.TaskSpec.DeepCopy(), bound, volumes)
	if err != nil {
		return nil, err
	}
	out := &podSpec{sidecars: spec.Sidecars, volumes: map[string]any{}, names: map[string]string{}, internal: map[string]bool{}, values: t.podValues(*spec, volumes)}
	if out.steps, err = tektonv1.MergeStepsWithStepTemplate(spec.StepTemplate, spec.Steps); err != nil {
		return nil, err
	}
	all := spec.Volumes
	if template := t.run.Spec.PodTemplate; template != nil {
		all = slices.Concat(all, []corev1.Volume(template.Volumes))
	}
	for _, v := range all {
		v := replaced(plain(v), out.values).(map[string]any)
		name, _ := v["name"].(string)
		delete(v, "name")
		out.volumes[name] = v
	}
	return out, nil
}

var (
	internalVolume = regexp.MustCompile(`^tekton-(internal|creds)-[a-z0-9-]+$`)
	tokenVolume    = regexp.MustCompile(`^kube-api-access-[a-z0-9]+$`)
)

// judgeVolumes finds out which of the pod's volumes is which.
func (w *podSpec) judgeVolumes(t *task) string {
	template := t.run.Spec.PodTemplate
	token := template == nil || template.AutomountServiceAccountToken == nil || *template.AutomountServiceAccountToken
	for _, volume := range t.pod.Spec.Volumes {
		have := plain(volume).(map[string]any)
		delete(have, "name")
		kind := ""
		for key := range have {
			kind = key
		}
		if want, ok := w.volumes[volume.Name]; ok && defaulted(want, have) {
			w.names[volume.Name] = volume.Name
			continue
		}
		switch {
		case internalVolume.MatchString(volume.Name) && len(have) == 1 && (kind == "emptyDir" || kind == "downwardAPI" || kind == "secret"),
			tokenVolume.MatchString(volume.Name) && token && kind == "projected":
			w.internal[volume.Name] = true
			continue
		}
		for name, want := range w.volumes { // earlier releases of Tekton gave volumes of workspaces random names
			if strings.HasPrefix(name, "ws-") && strings.HasPrefix(volume.Name, "ws-") && defaulted(want, have) {
				w.names[volume.Name] = name
			}
		}
		if w.names[volume.Name] == "" {
			return fmt.Sprintf("it has a volume %s (%s) that nothing orders", volume.Name, kind)
		}
	}
	return ""
}

// where and when a pod runs, and what the rest of a pod is compared by elsewhere.
var unjudged = []string{"containers", "initContainers", "volumes", "securityContext", "serviceAccount", "nodeName", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints",
	"priority", "priorityClassName", "preemptionPolicy", "schedulerName", "schedulingGates", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "overhead", "imagePullSecrets", "resources"}

// judgeSettings of the pod as a whole.
func (w *podSpec) judgeSettings(t *task) string {
	order := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, ServiceAccountName: t.run.Spec.ServiceAccountName}
	if p := t.run.Spec.PodTemplate; p != nil {
		order.SecurityContext, order.RuntimeClassName, order.AutomountServiceAccountToken = p.SecurityContext, p.RuntimeClassName, p.AutomountServiceAccountToken
		order.HostNetwork, order.HostUsers, order.DNSConfig, order.EnableServiceLinks, order.HostAliases = p.HostNetwork, p.HostUsers, p.DNSConfig, p.EnableServiceLinks, p.HostAliases
		if p.DNSPolicy != nil {
			order.DNSPolicy = *p.DNSPolicy
		}
	}
	want, have := replaced(plain(order), w.values).(map[string]any), plain(t.pod.Spec).(map[string]any)
	if !restricted(want["securityContext"], have["securityContext"]) {
		return "it has another securityContext"
	}
	for _, key := range unjudged {
		delete(want, key)
		delete(have, key)
	}
	if key := otherField(want, have, byServer); key != "" {
		return "it has another " + key
	}
	return ""
}

// judgeContainer compares what all kinds of containers have, less what is compared before.
// What a container may use up and how its image is pulled does not matter.
func (w *podSpec) judgeContainer(want, have corev1.Container, but ...string) string {
	ordered, given := replaced(plain(want), w.values).(map[string]any), plain(have).(map[string]any)
	if !w.sameMounts(ordered["volumeMounts"], have.VolumeMounts) {
		return "list of volumeMounts"
	}
	if !restricted(ordered["securityContext"], given["securityContext"]) {
		return "securityContext"
	}
	for _, key := range append(but, "name", "volumeMounts", "securityContext", "resources", "resizePolicy", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy") {
		delete(ordered, key)
		delete(given, key)
	}
	return otherField(ordered, given, func(string, any) bool { return false })
}

// sameMounts reports whether the mounts of a container are those that were ordered, beside
// Tekton's own and the token of the ServiceAccount.
func (w *podSpec) sameMounts(ordered any, have []corev1.VolumeMount) bool {
	want, _ := ordered.([]any)
	want = slices.Clone(want)
	for _, mount := range have {
		if w.internal[mount.Name] {
			at := path.Clean(mount.MountPath)
			if at == "/workspace" || strings.HasPrefix(at, "/tekton/") || at == "/var/run/secrets/kubernetes.io/serviceaccount" {
				continue
			}
			return false
		}
		mount.Name = w.names[mount.Name]
		given := plain(mount)
		at := slices.IndexFunc(want, func(one any) bool { return defaulted(one, given) })
		if at < 0 {
			return false
		}
		want = slices.Delete(want, at, at+1)
	}
	return len(want) == 0
}

// flags of Tekton's entrypoint, before the command of a step; true for those with a value.
var flags = map[string]bool{
	"-wait_file": true, "-wait_file_content": false, "-post_file": true, "-termination_path": true, "-step_metadata_dir": true, "-on_error": true, "-timeout": true,
	"-results": true, "-step_results": true, "--when_expressions": true, "-stdout_path": true, "-stderr_path": true, "-compress_termination_message=true": false,
}

// credentials that Tekton's entrypoint is given for Secrets of the ServiceAccount.
var credentials = regexp.MustCompile(`^-(basic|ssh)-(git|docker)=|^-docker-(config|cfg)=`)

// judgeStep compares the container of a step.
func (w *podSpec) judgeStep(n int, have corev1.Container, template *podtemplate.Template) string {
	step := w.steps[n]
	want := step.ToK8sContainer()
	if template != nil {
		want.Env = slices.Concat(want.Env, template.Env)
	}
	if !slices.Equal(have.Command, []string{"/tekton/bin/entrypoint"}) {
		return "command"
	}
	args := have.Args
	for len(args) > 0 && args[0] != "-entrypoint" && args[0] != "--" {
		value, known := flags[args[0]]
		switch {
		case !known && !credentials.MatchString(args[0]), value && len(args) < 2:
			return "list of args"
		case value:
			file := args[0] == "-wait_file" || args[0] == "-post_file" || args[0] == "-termination_path" || args[0] == "-step_metadata_dir"
			if file && !strings.HasPrefix(path.Clean(args[1]), "/tekton/") || args[0] == "-on_error" && args[1] != string(step.OnError) {
				return "list of args"
			}
			args = args[1:]
		}
		args = args[1:]
	}
	var words []string
	for _, word := range slices.Concat(want.Command, want.Args) {
		words = append(words, elements(word, w.values)...)
	}
	isScript := step.Script != ""
	if !isScript && len(want.Command) == 0 { // the image says what runs; its digest is in the provenance
		if tail := len(args) - len(words); tail < 0 || !slices.Equal(words, args[tail:]) {
			return "list of args"
		}
		return w.judgeContainer(*want, have, "image", "command", "args")
	}
	if len(args) < 3 || args[0] != "-entrypoint" || args[2] != "--" {
		return "list of args"
	}
	if isScript {
		if !strings.HasPrefix(args[1], fmt.Sprintf("/tekton/scripts/script-%d-", n)) || strings.Count(args[1], "/") != 3 {
			return "script"
		}
		words = slices.Insert(words, 0, args[1])
	}
	if !slices.Equal(words, append([]string{args[1]}, args[3:]...)) {
		return "list of args"
	}
	return w.judgeContainer(*want, have, "image", "command", "args")
}

// judgeSidecar compares a sidecar. The image of one that is a plain container is Tekton's own
// once it has ended it.
func (w *podSpec) judgeSidecar(have corev1.Container, ended bool) string {
	at := slices.IndexFunc(w.sidecars, func(s tektonv1.Sidecar) bool { return sidecarPrefix+s.Name == have.Name })
	if at < 0 {
		return "name than any sidecar that is ordered"
	}
	want := w.sidecars[at].ToK8sContainer()
	image, _ := replaced(want.Image, w.values).(string)
	if !ended && !sameImage(have.Image, image) {
		return "image"
	}
	but := []string{"image", "restartPolicy"}
	if w.sidecars[at].Script != "" {
		if len(have.Command) != 1 || !strings.HasPrefix(have.Command[0], fmt.Sprintf("/tekton/scripts/sidecar-script-%d-", at)) {
			return "script"
		}
		but = append(but, "command")
	}
	return w.judgeContainer(*want, have, but...)
}

// judgeInit compares an init container: one of Tekton's own, or a sidecar.
func (w *podSpec) judgeInit(t *task, have corev1.Container, prepare *string) string {
	other := func(what string) string {
		return fmt.Sprintf("its init container %s has another %s", have.Name, what)
	}
	want := corev1.Container{}
	switch {
	case have.Name == prepareContainer:
		want.Command = []string{"/ko-app/entrypoint", "init", "/ko-app/entrypoint", "/tekton/bin/entrypoint"}
		for n, step := range w.steps {
			want.Command = append(want.Command, stepContainer(step, n))
		}
		if *prepare == "" {
			*prepare = have.Image
		}
		if have.Image != *prepare {
			return other("image than in the other pods of the run")
		}
	case have.Name == scriptsContainer && w.scripts() != nil:
		if want.Command = []string{"sh"}; len(have.Args) != 2 || have.Args[0] != "-c" || !w.scripts().MatchString(have.Args[1]) {
			return other("script")
		}
		want.Args = have.Args
	case have.Name == workingDirContainer:
		want.Command, want.Args = []string{"/ko-app/workingdirinit"}, have.Args // it makes folders of these names
	case strings.HasPrefix(have.Name, sidecarPrefix):
		if have.RestartPolicy == nil || *have.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			return other("restartPolicy")
		}
		if what := w.judgeSidecar(have, false); what != "" {
			return other(what)
		}
		return ""
	default:
		return fmt.Sprintf("it has an init container %s that nothing orders", have.Name)
	}
	if what := w.judgeContainer(want, have, "image", "workingDir"); what != "" {
		return other(what)
	}
	return ""
}

// scripts matches what writes the scripts of the pod to files, whose names end at random; nil
// where there are none.
func (w *podSpec) scripts() *regexp.Regexp {
	text := ""
	add := func(script, kind string, n int) {
		if script == "" {
			return
		}
		if filled, _ := replaced(script, w.values).(string); strings.HasPrefix(strings.TrimSpace(filled), "#!") {
			script = filled
		} else {
			script = "#!/bin/sh\nset -e\n" + filled
		}
		text += fmt.Sprintf(`scriptfile="/tekton/scripts/%s-%d-[a-z0-9]+"\ntouch \$\{scriptfile\} && chmod \+x \$\{scriptfile\}\ncat > \$\{scriptfile\} << '_EOF_'\n%s\n_EOF_\n/tekton/bin/entrypoint decode-script "\$\{scriptfile\}"\n`,
			kind, n, regexp.QuoteMeta(base64.StdEncoding.EncodeToString([]byte(script))))
	}
	for n, step := range w.steps {
		add(step.Script, "script", n)
	}
	for n, sidecar := range w.sidecars {
		add(sidecar.Script, "sidecar-script", n)
	}
	if text == "" {
		return nil
	}
	return regexp.MustCompile("^" + text + "$")
}
