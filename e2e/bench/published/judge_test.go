package published_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/finding"
)

type verdict string

const (
	right     verdict = "right"
	untrue    verdict = "false"
	undecided verdict = ""
)

// object is one of a document, as YAML reads it.
type object map[string]any

func (o object) at(fields ...string) any {
	var value any = map[string]any(o)
	for _, field := range fields {
		m, _ := value.(map[string]any)
		value = m[field]
	}
	return value
}

func (o object) text(fields ...string) string {
	text, _ := o.at(fields...).(string)
	return text
}

func (o object) is(kind, namespace, name string) bool {
	return o.text("kind") == kind && o.text("metadata", "name") == name &&
		home(o.text("metadata", "namespace")) == home(namespace)
}

func home(namespace string) string { return strings.TrimSuffix(namespace, "default") }

// pod returns the pod template of an object.
func (o object) pod() (template object, ok bool) {
	for _, fields := range [][]string{{}, {"spec", "template"},
		{"spec", "jobTemplate", "spec", "template"}} {
		if t, is := o.at(fields...).(map[string]any); is &&
			object(t).at("spec", "containers") != nil {
			return t, true
		}
	}
	return nil, false
}

func (o object) containers() (all []object) {
	template, _ := o.pod()
	for _, field := range [...]string{"initContainers", "containers"} {
		list, _ := template.at("spec", field).([]any)
		for _, c := range list {
			if m, ok := c.(map[string]any); ok {
				all = append(all, m)
			}
		}
	}
	return all
}

// containersIn returns the containers of all pods in a value, wherever its kind has them: an
// InferenceService has one for each of its parts.
func containersIn(value any) (all []object) {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			list, _ := field.([]any)
			if name != "containers" && name != "initContainers" {
				list = nil
			}
			for _, c := range list {
				if m, ok := c.(map[string]any); ok {
					all = append(all, m)
				}
			}
			all = append(all, containersIn(field)...)
		}
	case []any:
		for _, item := range value {
			all = append(all, containersIn(item)...)
		}
	}
	return all
}

// judge knows the files of a folder and what kustomize builds of it.
type judge struct {
	program, root string
	files         map[string][]object // that are not kustomizations
	folders       []string            // of kustomizations
	built         map[string]build
}

type build struct {
	objects []object
	err     error
}

func newJudge(t *testing.T, program, root string) *judge {
	t.Helper()
	j := &judge{program: program, root: root, files: make(map[string][]object),
		built: make(map[string]build)}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, _ := filepath.Rel(root, name)
		switch path.Base(file) {
		case "kustomization.yaml", "kustomization.yml", "Kustomization":
			j.folders = append(j.folders, path.Dir(file))
			return nil
		}
		if ext := path.Ext(file); ext == ".yaml" || ext == ".yml" || ext == ".json" {
			data, err := os.ReadFile(name)
			j.files[file] = objects(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

var separator = regexp.MustCompile(`(?m)^---.*$`)

func objects(data []byte) (all []object) {
	for _, text := range separator.Split(string(data), -1) {
		var o object
		if yaml.Unmarshal([]byte(text), &o) != nil {
			continue
		}
		if items, ok := o.at("items").([]any); ok && strings.HasSuffix(o.text("kind"), "List") {
			for _, item := range items {
				if m, ok := item.(map[string]any); ok {
					all = append(all, m)
				}
			}
		} else if o.text("kind") != "" {
			all = append(all, o)
		}
	}
	return all
}

// build runs kustomize, which reaches no network.
func (j *judge) build(folder string) build {
	b, known := j.built[folder]
	if !known {
		cmd := exec.Command(j.program, "build", filepath.Join(j.root, folder))
		cmd.Env = append(os.Environ(), "HTTPS_PROXY=http://127.0.0.1:9",
			"HTTP_PROXY=http://127.0.0.1:9", "GIT_ALLOW_PROTOCOL=none", "GIT_TERMINAL_PROMPT=0")
		out, err := cmd.Output()
		if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		b = build{objects(out), err}
		j.built[folder] = b
	}
	return b
}

var (
	builtBy = regexp.MustCompile(`; (\S+) builds it$`)
	quoted  = regexp.MustCompile(`^"([^"]+)"`)
	lacks   = regexp.MustCompile(
		`^the package has no (\S+) (\S+?)(?: in namespace (\S*))?(?: \(and .*)?$`)
	noPort   = regexp.MustCompile(`^(\S+) (\S+) has no container port named (\S+)$`)
	noVolume = regexp.MustCompile(`^the pod has no volume (\S+)$`)
	noKey    = regexp.MustCompile(`^the (\S+) (\S+) has no key "(.*)"$`)
	enforces = regexp.MustCompile(`^the Namespace (\S+) enforces (\S+): (.*)$`)
	leftOut  = regexp.MustCompile(`^(\S+) is not (?:fetched|inflated)`)
)

// verdict judges a finding. What it says of an object has to hold in what kustomize
// builds, or in the author's file where no kustomization builds it.
func (j *judge) verdict(f finding.Finding) (verdict, string) {
	if f.Rule == "lint/kustomize-build" {
		return j.unbuilt(f)
	}
	own := j.files[f.File]
	whole := own // what the object is applied with
	if m := builtBy.FindStringSubmatch(f.Hint); m != nil {
		b := j.build(path.Dir(m[1]))
		if b.err != nil {
			return undecided, "kustomize does not build it: " + b.err.Error()
		}
		own, whole = b.objects, b.objects
	} else if slices.ContainsFunc(j.folders,
		func(folder string) bool { return j.names(folder, f.File) }) {
		return undecided, "a kustomization names the file, but the finding names none"
	}
	found, reason := untrue, "no such object is built"
	for _, o := range own { // a file may have one name twice
		if o.is(f.Object.Kind, f.Object.Namespace, f.Object.Name) && found != right {
			found, reason = j.judgeObject(o, whole, f)
		}
	}
	return found, reason
}

func (j *judge) judgeObject(o object, whole []object, f finding.Finding) (verdict, string) {
	switch strings.TrimPrefix(f.Rule, "lint/") {
	case "latest-image", "unpinned-image":
		return judgeImage(o, f)
	case "unknown-image":
		return judgeUnknown(o, f)
	case "pod-security":
		return judgePod(o, whole, f)
	case "missing-configmap", "missing-secret", "missing-key", "missing-port", "dangling-reference":
		return j.judgeReference(o, whole, f)
	}
	return undecided, "no rule of the judge"
}

// names reports whether a kustomization names a file among its resources.
func (j *judge) names(folder, file string) bool {
	for _, name := range [...]string{"kustomization.yaml", "kustomization.yml", "Kustomization"} {
		data, err := os.ReadFile(filepath.Join(j.root, folder, name))
		var k struct{ Resources []string }
		if err == nil && yaml.Unmarshal(data, &k) == nil && slices.ContainsFunc(k.Resources,
			func(r string) bool { return path.Join(folder, r) == file }) {
			return true
		}
	}
	return false
}

// unbuilt judges a finding that kustomize does not build something.
func (j *judge) unbuilt(f finding.Finding) (verdict, string) {
	text, err := os.ReadFile(filepath.Join(j.root, f.File))
	switch m := leftOut.FindStringSubmatch(f.Message); {
	case err != nil:
		return untrue, err.Error()
	case m != nil && strings.Contains(string(text), m[1]):
		return right, ""
	case strings.Contains(f.Message, "is not fetched"):
		return right, ""
	case strings.HasPrefix(f.Message, "no kustomization"):
		for _, folder := range j.folders {
			other, _ := os.ReadFile(filepath.Join(j.root, folder, "kustomization.yaml"))
			if folder != path.Dir(f.File) &&
				strings.Contains(string(other), path.Base(path.Dir(f.File))) {
				return undecided, "another kustomization may name the component"
			}
		}
		return right, ""
	case j.build(path.Dir(f.File)).err == nil:
		return untrue, "kustomize builds it"
	}
	return right, ""
}

func judgeImage(o object, f finding.Finding) (verdict, string) {
	m := quoted.FindStringSubmatch(f.Message)
	if m == nil {
		return undecided, "no image"
	}
	for _, c := range containersIn(map[string]any(o)) {
		if c.text("image") != m[1] {
			continue
		}
		last := m[1][strings.LastIndex(m[1], "/")+1:]
		_, tag, tagged := strings.Cut(last, ":")
		switch {
		case strings.Contains(m[1], "@sha256:"):
			return untrue, "it has a digest"
		case f.Rule == "lint/latest-image" && tagged && tag != "latest":
			return untrue, "it has a tag"
		}
		return right, ""
	}
	if group, _, _ := strings.Cut(o.text("apiVersion"), "/"); strings.Contains(group, ".") &&
		mentions(map[string]any(o), m[1]) && !strings.Contains(m[1], "@sha256:") {
		return right, "" // a field of an operator's kind
	}
	return untrue, "no container has the image"
}

// judgeUnknown holds where the object has the text in a field whose name ends in image, and the
// text has a registry, a tag or a digest.
func judgeUnknown(o object, f finding.Finding) (verdict, string) {
	m := quoted.FindStringSubmatch(f.Message)
	name := f.Field[strings.LastIndexByte(f.Field, '.')+1:]
	switch {
	case m == nil || !mentions(map[string]any(o), m[1]):
		return untrue, "the object does not have it"
	case !strings.Contains(strings.ToLower(name), "image"):
		return untrue, "its field has another name"
	case !strings.ContainsAny(m[1], "/:@"):
		return untrue, "it is a word"
	}
	return right, ""
}

func judgePod(o object, whole []object, f finding.Finding) (verdict, string) {
	m := enforces.FindStringSubmatch(f.Message)
	template, ok := o.pod()
	if m == nil || !ok {
		return undecided, "no level, or no pod"
	}
	if !slices.ContainsFunc(whole, func(n object) bool {
		labels, _ := n.at("metadata", "labels").(map[string]any)
		return n.is("Namespace", "", m[1]) && labels["pod-security.kubernetes.io/enforce"] == m[2]
	}) {
		return untrue, "the Namespace does not enforce it"
	}
	var pod corev1.Pod
	if text, err := json.Marshal(template); err != nil || json.Unmarshal(text, &pod) != nil {
		return undecided, "not a pod"
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return undecided, err.Error()
	}
	for _, r := range evaluator.EvaluatePod(psapi.LevelVersion{Level: psapi.Level(m[2]),
		Version: psapi.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
		if !r.Allowed && strings.HasPrefix(m[3], r.ForbiddenReason) {
			return right, ""
		}
	}
	return untrue, "the evaluator allows it"
}

// mentions reports whether an object has a text among its values.
func mentions(value any, text string) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, x := range v {
			if mentions(x, text) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(x any) bool { return mentions(x, text) })
	case string:
		return v == text
	}
	return false
}

func (j *judge) judgeReference(o object, whole []object, f finding.Finding) (verdict, string) {
	if m := lacks.FindStringSubmatch(f.Message); m != nil {
		kind, name, namespace := m[1], m[2], m[3]
		if !mentions(map[string]any(o), name) {
			return untrue, "the object does not refer to it"
		}
		if namespace == "" {
			namespace = f.Object.Namespace
		}
		there := func(o object) bool {
			return o.text("kind") == kind && o.text("metadata", "name") == name &&
				(kind == "ClusterRole" || home(o.text("metadata", "namespace")) == home(namespace))
		}
		return j.absent(whole, there, kind+" "+name)
	}
	if m := noKey.FindStringSubmatch(f.Message); m != nil {
		for _, x := range whole {
			if x.is(m[1], f.Object.Namespace, m[2]) {
				for _, field := range [...]string{"data", "binaryData", "stringData"} {
					if keys, _ := x.at(field).(map[string]any); keys[m[3]] != nil {
						return untrue, "it has the key"
					}
				}
				return right, ""
			}
		}
		return untrue, "no such object is built"
	}
	if m := noVolume.FindStringSubmatch(f.Message); m != nil {
		template, _ := o.pod()
		volumes, _ := template.at("spec", "volumes").([]any)
		if slices.ContainsFunc(volumes, func(v any) bool { return mentions(v, m[1]) }) {
			return untrue, "the pod has the volume"
		}
		return right, ""
	}
	if m := noPort.FindStringSubmatch(f.Message); m != nil {
		for _, x := range whole {
			if x.text("kind") != m[1] || !strings.HasSuffix(m[2], x.text("metadata", "name")) ||
				!selects(o, x) {
				continue
			}
			for _, c := range x.containers() {
				ports, _ := c.at("ports").([]any)
				if slices.ContainsFunc(ports,
					func(p any) bool { m2, _ := p.(map[string]any); return m2["name"] == m[3] }) {
					return untrue, "a container has the port"
				}
			}
			return right, ""
		}
		return untrue, "the Service does not select the pod"
	}
	if f.Message == "selects no pod of the package" {
		return j.absent(whole, func(x object) bool { return selects(o, x) }, "a pod that it selects")
	}
	return undecided, "no rule of the judge"
}

// absent holds where neither what is applied with an object nor anything else of the
// folder is there. What another kustomization builds, a person has to judge.
func (j *judge) absent(whole []object, there func(object) bool, what string) (verdict, string) {
	if slices.ContainsFunc(whole, there) {
		return untrue, what + " is built"
	}
	for file, objects := range j.files {
		if slices.ContainsFunc(objects, there) {
			return undecided, fmt.Sprintf("%s is in %s", what, file)
		}
	}
	for _, folder := range j.folders {
		if slices.ContainsFunc(j.build(folder).objects, there) {
			return undecided, fmt.Sprintf("%s is built by %s", what, folder)
		}
	}
	return right, ""
}

// selects reports whether the selector of a Service or PodDisruptionBudget selects the
// pods of a workload.
func selects(o, workload object) bool {
	selector, _ := o.at("spec", "selector").(map[string]any)
	if labels, ok := selector["matchLabels"].(map[string]any); ok {
		selector = labels
	}
	template, ok := workload.pod()
	if !ok || len(selector) == 0 ||
		home(o.text("metadata", "namespace")) != home(workload.text("metadata", "namespace")) {
		return false
	}
	labels, _ := template.at("metadata", "labels").(map[string]any)
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}
