package render_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	yaml2 "go.yaml.in/yaml/v2"
	yaml3 "go.yaml.in/yaml/v3"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
)

// The reference injects into decoded values, knows nothing of text, and shares
// no code with the engine but the content of what is injected. What the engine
// makes of a text has to decode to what the reference makes of its values.

// checkRender checks that one file keeps the contract: a second render changes nothing, uninject
// restores the author's bytes, documents that did not opt in stay as they are, and the meaning is
// the reference's. It returns the findings of the render.
func checkRender(t *testing.T, src []byte, config *api.RenderConfig) (render.Result, string) {
	t.Helper()
	return checkRenderAs(t, "x.yaml", src, config)
}

// checkRenderAs is checkRender of a file with a name. What is JSON stays JSON.
func checkRenderAs(t *testing.T, file string, src []byte,
	config *api.RenderConfig) (render.Result, string) {
	t.Helper()
	source := func(data []byte) render.Source {
		return render.Source{Files: []render.File{{Path: file, Data: data}}}
	}
	first, err := render.Run(source(src), render.Options{Config: config})
	if err != nil {
		return first, "render: " + err.Error()
	}
	if finding.Failed(first.Findings) {
		if len(first.Files) > 0 {
			return first, "an error finding, and yet there is output"
		}
		return first, ""
	}
	out := rendered(first, file)
	if strings.HasSuffix(file, ".json") && json.Valid(src) && !json.Valid(out) {
		return first, "JSON does not stay JSON:\n" + string(out)
	}
	second, err := render.Run(source(out), render.Options{Config: config})
	if err != nil || finding.Failed(second.Findings) {
		return first, fmt.Sprintf("the second render fails: %v %v\n%s", err, second.Findings, out)
	}
	if again := rendered(second, file); again != nil && !bytes.Equal(again, out) {
		return first, "the second render changes something (-first +second):\n" +
			cmp.Diff(string(out), string(again))
	}
	undone, problem := uninject(file, out, config)
	if problem != "" {
		return first, problem
	}
	if !bytes.Equal(undone, src) {
		return first, "uninject does not give the input back (-input +uninjected):\n" +
			cmp.Diff(string(src), string(undone)) + "\nrendered:\n" + string(out)
	}
	if problem := untouched(src, out); problem != "" {
		return first, problem
	}
	if len(src) > 256<<10 {
		return first, "" // installs of CRDs, which take a general decoder seconds
	}
	return first, sameMeaning(src, out, config)
}

func uninject(file string, data []byte, config *api.RenderConfig) (undone []byte, problem string) {
	findings, _, err := render.Uninject(
		render.Source{Files: []render.File{{Path: file, Data: data}}},
		render.Options{Config: config, Workers: 1},
		func(_ string, data []byte) error { undone = bytes.Clone(data); return nil })
	if err != nil || finding.Failed(findings) {
		return nil, fmt.Sprintf("uninject fails: %v %v\n%s", err, findings, data)
	}
	return undone, ""
}

// untouched looks for every document without our prefix in the output.
func untouched(src, out []byte) string {
	for d := range krm.Documents(src) {
		text := src[d.Start:d.End]
		if d.End == len(src) {
			text = bytes.TrimRight(text, "\r\n")
		}
		if !bytes.Contains(text, []byte("kagenti.io")) &&
			!bytes.Contains(text, []byte("armature.dev")) && !bytes.Contains(text, []byte("\\")) &&
			!bytes.Contains(out, text) {
			return "a document without our labels was changed:\n" + string(text)
		}
	}
	return ""
}

// sameMeaning compares what was rendered with the reference, as YAML 1.2 like
// kyaml reads it, and as YAML 1.1 like kubectl does.
func sameMeaning(src, out []byte, config *api.RenderConfig) string {
	for _, words := range []string{"TokenExchange", "AgentTrace", "AgentCard", "armature.dev",
		"Namespace"} {
		if bytes.Contains(src, []byte(words)) {
			return "" // what these do is the txtars' matter
		}
	}
	for name, decode := range map[string]func([]byte) ([]any, error){"YAML 1.2": decode3,
		"YAML 1.1": decode2} {
		before, err := decode(src)
		if err != nil {
			continue // not for this reader, before as after
		}
		after, err := decode(out)
		if err != nil {
			return fmt.Sprintf("%s: the output cannot be read: %v\n%s", name, err, out)
		}
		want, err := reference(before, config)
		if err != nil {
			return fmt.Sprintf("the reference: %v", err)
		}
		have := withoutGenerated(after)
		if diff := cmp.Diff(want, have, cmpopts.EquateNaNs()); diff != "" {
			return name + ": the meaning differs (-reference +render):\n" + diff + "\nrendered:\n" +
				string(out)
		}
	}
	return ""
}

func decode3(data []byte) (documents []any, err error) {
	d := yaml3.NewDecoder(bytes.NewReader(data))
	for {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return nil, err
		}
		if v != nil {
			documents = append(documents, plainMaps(v))
		}
	}
}

func decode2(data []byte) (documents []any, err error) {
	d := yaml2.NewDecoder(bytes.NewReader(data))
	for {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return nil, err
		}
		if v != nil {
			documents = append(documents, plainMaps(v))
		}
	}
}

// plainMaps turns YAML's mappings, whose keys may be numbers, into those of JSON.
func plainMaps(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[fmt.Sprint(k)] = plainMaps(e)
		}
		return m
	case map[string]any:
		for k, e := range v {
			v[k] = plainMaps(e)
		}
	case []any:
		for i := range v {
			v[i] = plainMaps(v[i])
		}
	}
	return v
}

// withoutGenerated drops generated objects, which layout does not affect, and
// the records.
func withoutGenerated(documents []any) (kept []any) {
	for _, d := range documents {
		m, ok := d.(map[string]any)
		if !ok {
			kept = append(kept, d)
			continue
		}
		annotations := child(child(m, "metadata"), "annotations")
		if annotations[keys.RenderedFor] != nil {
			continue
		}
		if list, ok := m["items"].([]any); ok && strings.HasSuffix(fmt.Sprint(m["kind"]), "List") {
			m["items"] = withoutGenerated(list)
		}
		if template, ok := referenceTemplate(m); ok {
			delete(annotations, keys.Injected)
			withoutEmpty(m, template)
		}
		kept = append(kept, m)
	}
	return kept
}

// withoutEmpty drops the hash of the configuration, and metadata that says
// nothing: whether that is written as {}, null or not at all is the same.
func withoutEmpty(m, template map[string]any) {
	delete(child(child(template, "metadata"), "annotations"), "armature.dev/config-hash")
	for _, o := range []map[string]any{m, template} {
		metadata := child(o, "metadata")
		if len(child(metadata, "annotations")) == 0 {
			delete(metadata, "annotations")
		}
		if len(metadata) == 0 {
			delete(o, "metadata")
		}
	}
}

func child(m map[string]any, key string) map[string]any {
	c, _ := m[key].(map[string]any)
	return c
}

// reference injects into decoded documents.
func reference(documents []any, config *api.RenderConfig) (done []any, err error) {
	base, _ := sidecars.All().Base(config)
	for _, d := range documents {
		m, ok := d.(map[string]any)
		if !ok {
			done = append(done, d)
			continue
		}
		if list, ok := m["items"].([]any); ok && strings.HasSuffix(fmt.Sprint(m["kind"]), "List") {
			if m["items"], err = reference(list, config); err != nil {
				return nil, err
			}
		} else if err := referenceInject(m, &base); err != nil {
			return nil, err
		}
		done = append(done, m)
	}
	return done, nil
}

func referenceInject(m map[string]any, base *identity.Settings) error {
	template, ok := referenceTemplate(m)
	if !ok {
		return nil
	}
	defer withoutEmpty(m, template)
	if text(m["kind"]) == "" || text(m["apiVersion"]) == "" {
		return nil
	}
	metadata, podMetadata := child(m, "metadata"), child(template, "metadata")
	label := func(names ...string) string {
		for _, labels := range []map[string]any{child(metadata, "labels"),
			child(podMetadata, "labels")} {
			for _, name := range names {
				if v := text(labels[base.Prefix+"/"+name]); v != "" {
					return v
				}
			}
		}
		return ""
	}
	if label("inject") != "enabled" {
		return nil
	}
	var annotations []identity.Annotation
	for _, at := range []map[string]any{child(metadata, "annotations"),
		child(podMetadata, "annotations")} {
		for k, v := range at {
			if strings.HasPrefix(k, base.Prefix+"/") {
				annotations = append(annotations, identity.Annotation{Key: k, Value: text(v)})
			}
		}
	}
	spec := child(template, "spec")
	var volumes identity.Volumes
	declared, _ := spec["volumes"].([]any)
	for _, v := range declared {
		v, _ := v.(map[string]any)
		_, emptyDir := v["emptyDir"]
		volumes.Shared = volumes.Shared || v["name"] == "shared-data" && (emptyDir || len(v) == 1)
		volumes.SVID = volumes.SVID || v["name"] == "svid-output" && (emptyDir || len(v) == 1)
	}
	s, _ := identity.Resolve(base, identity.Workload{
		Volumes:    volumes,
		APIVersion: text(m["apiVersion"]), Kind: text(m["kind"]),
		Namespace: text(metadata["namespace"]), Name: text(metadata["name"]),
		ServiceAccount: text(spec["serviceAccountName"]),
		SPIFFE:         label("spiffe", "spire") != "disabled",
	}, nil, nil, annotations)
	own, _ := spec["containers"].([]any)
	for _, c := range own {
		c, ok := c.(map[string]any)
		if !ok {
			return errors.New("a container that is not a mapping")
		}
		mounts, env := inject.AppendTraceMount(nil, &s), []byte(nil)
		if variable, file := sidecars.CloudFile(&s); variable != "" {
			mounts = append(mounts,
				"- {name: armature-identity, mountPath: "+sidecars.MountPath+", readOnly: true}\n"+
					"- {name: armature-shared, mountPath: "+sidecars.TokenPath+", readOnly: true}\n"...)
			env = append(env, "- {name: "+variable+", value: "+file+"}\n"...)
		}
		if s.Trace.Enabled {
			env = append(env,
				"- {name: OTEL_CONFIG_FILE, value: /etc/kagenti/trace/otel-config.yaml}\n"...)
		}
		if err := join(c, "env", env, false); err != nil {
			return err
		}
		if err := join(c, "volumeMounts", mounts, false); err != nil {
			return err
		}
	}
	for i, x := range slices.Backward(s.Profile.Sidecars) {
		if !s.Components[i].Enabled {
			continue
		}
		if err := join(spec, "initContainers", sidecars.AppendContainer(nil, &s, &x), true); err != nil {
			return err
		}
	}
	if text(spec["serviceAccountName"]) == "" && s.SPIFFE.Enabled && s.Subject.Kind != "Pod" {
		spec["serviceAccountName"] = s.Subject.Name
	}
	items, _ := sidecars.AppendVolumes(nil, &s)
	return join(spec, "volumes", items, false)
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

func referenceTemplate(m map[string]any) (map[string]any, bool) {
	if text(m["kind"]) == "Pod" && text(m["apiVersion"]) == "v1" {
		_, ok := child(m, "spec")["containers"].([]any)
		return m, ok
	}
	spec := child(m, "spec")
	for _, t := range []map[string]any{child(spec, "template"),
		child(child(child(spec, "jobTemplate"), "spec"), "template"), child(spec, "podTemplate")} {
		if _, ok := child(t, "spec")["containers"].([]any); ok {
			return t, true
		}
	}
	return nil, false
}

// join puts items before or behind those of a list.
func join(m map[string]any, key string, items []byte, before bool) error {
	var added []any
	if err := yaml3.Unmarshal(items, &added); err != nil {
		return err
	}
	have, ok := m[key].([]any)
	if !ok && m[key] != nil {
		if empty, isMap := m[key].(map[string]any); !isMap || len(empty) > 0 {
			return fmt.Errorf("%s is not a list", key)
		}
	}
	if len(added) == 0 {
		return nil
	}
	if before {
		m[key] = append(added, have...)
	} else {
		m[key] = append(slices.Clone(have), added...)
	}
	return nil
}
