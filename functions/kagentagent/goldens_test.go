package kagentagent

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// published is an input of kagent's own golden tests.
type published struct {
	Objects                   []map[string]any `json:"objects"`
	Operation                 string           `json:"operation"`
	TargetObject              string           `json:"targetObject"`
	Namespace                 string           `json:"namespace"`
	ProxyURL                  string           `json:"proxyURL"`
	DefaultServiceAccountName string           `json:"defaultServiceAccountName"`

	repair bool // faults that the CRD refuses
}

// unlocked is a package without a lock.
type unlocked struct{}

func (unlocked) Built(string, string) (string, bool)        { return "", false }
func (unlocked) Image(image string) string                  { return image }
func (unlocked) SignCard(card []byte) ([]byte, bool, error) { return card, true, nil }

// TestKagentGoldens compares with the golden files of kagent 0.10. Their folder has inputs/*.yaml
// and outputs/*.json.
func TestKagentGoldens(t *testing.T) {
	folder := os.Getenv("ARMATURE_KAGENT_GOLDENS")
	if folder == "" {
		t.Skip("ARMATURE_KAGENT_GOLDENS is not set: what is rendered is NOT compared with " +
			"kagent's own golden files")
	}
	inputs, err := filepath.Glob(filepath.Join(folder, "inputs", "*.yaml"))
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs in %s: %v", folder, err)
	}
	counts := make(map[string]int)
	for _, file := range inputs {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		verdict, reasons := judge(t, file, filepath.Join(folder, "outputs", name+".json"))
		counts[verdict]++
		t.Logf("%-11s %s", verdict, name)
		for _, reason := range reasons {
			t.Logf("%-11s   %s", "", reason)
		}
		if verdict == "unjustified" {
			t.Errorf("%s differs from what kagent makes", name)
		}
	}
	t.Logf("exact %d, justified %d, unjustified %d, unsupported %d", counts["exact"],
		counts["justified"], counts["unjustified"], counts["unsupported"])
}

func judge(t *testing.T, input, output string) (verdict string, reasons []string) {
	in := published{repair: true}
	data, err := os.ReadFile(input)
	if err == nil {
		err = yaml.Unmarshal(data, &in)
	}
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Manifest []map[string]any `json:"manifest"`
	}
	if data, err = os.ReadFile(output); err == nil {
		err = json.Unmarshal(data, &golden)
	}
	if err != nil {
		t.Fatal(err)
	}
	have, findings := translate(t, &in)
	if finding.Failed(findings) {
		for _, f := range findings {
			reasons = append(reasons, f.Field+": "+f.Message)
		}
		return "unsupported", reasons
	}
	c := comparison{reasons: make(map[string]bool)}
	want := make(map[string]any)
	for _, o := range golden.Manifest {
		key, o := c.published(o)
		want[key] = o
	}
	got := make(map[string]any)
	for _, o := range have {
		key, o := c.rendered(o)
		got[key] = o
	}
	c.diff("", got, want)
	reasons = slices.Sorted(maps.Keys(c.reasons))
	switch {
	case len(c.unjustified) > 0:
		return "unjustified", append(reasons, c.unjustified...)
	case c.reasons[otherHash] && len(reasons) == 1:
		return "unjustified", reasons
	case len(reasons) > 0:
		return "justified", reasons
	}
	return "exact", nil
}

// translate expands the agent of an input.
func translate(t *testing.T, in *published) (made []map[string]any, findings []finding.Finding) {
	tag := "dev"
	config := &api.RenderConfigSpec{Kagent: &api.KagentSpec{ImageTag: &tag, ProxyURL: &in.ProxyURL,
		ServiceAccountName: &in.DefaultServiceAccountName}}
	var report krm.Report
	s := settingsOf(&contract.Package{Config: config, Report: &report,
		Index: index.NewBuilder(1).Index()})
	var target *krm.Object
	objects := make(map[finding.Ref]*krm.Object)
	for _, value := range in.Objects {
		if spec, ok := value["spec"].(map[string]any); ok {
			if d, ok := spec["declarative"].(map[string]any); ok && in.repair {
				delete(d, "description")
				if d["runtime"] == nil {
					d["runtime"] = "python" // as without the defaults of the CRD
				}
				tools, _ := d["tools"].([]any)
				for _, tool := range tools {
					tool := tool.(map[string]any)
					if tool["type"] = "McpServer"; tool["agent"] != nil {
						tool["type"] = "Agent"
					}
				}
			}
			if a, ok := spec["anthropic"].(map[string]any); ok {
				delete(a, "baseURL") // is written baseUrl
			}
		}
		o := read(t, value)
		objects[o.Ref] = o
		if o.Kind == "Agent" && o.Name == in.TargetObject {
			target = o
		}
	}
	if target == nil {
		t.Fatalf("no agent %s", in.TargetObject)
	}
	lookup := func(group, kind, namespace, name string) *krm.Object {
		for _, o := range objects {
			if o.Group() == group && o.Kind == kind && o.Namespace == namespace && o.Name == name {
				return o
			}
		}
		return nil
	}
	r := &expand.Resource{Object: target, Function: function, Prefix: "kagenti.io",
		Lookup: lookup, Lock: unlocked{},
		Read: func(kind, namespace, name string) *krm.Object {
			return lookup("", kind, namespace, name)
		}}
	s.agent(r)
	findings = append(report.Findings(), r.Findings...)
	if finding.Failed(findings) {
		return nil, findings
	}
	texts, err := r.Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		o := make(map[string]any)
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		made = append(made, o)
	}
	return made, findings
}

func read(t *testing.T, value any) *krm.Object {
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	o := new(krm.Object)
	if isObject, err := o.Read(text, krm.Document{End: len(text)}, false,
		krm.Origin{File: "a.yaml", Line: 1}); err != nil || !isObject {
		t.Fatalf("%v\n%s", err, text)
	}
	return o
}

// comparison finds what differs, and why.
type comparison struct {
	reasons     map[string]bool
	unjustified []string
}

// published converts one of kagent's objects to the common form: its configuration is in a
// ConfigMap, it has no owner, and defaults of the API server are omitted.
func (c *comparison) published(o map[string]any) (key string, form map[string]any) {
	metadata := o["metadata"].(map[string]any)
	name := metadata["name"].(string)
	delete(o, "status")
	delete(metadata, "ownerReferences")
	if o["kind"] == "Secret" {
		o["kind"], o["data"] = "ConfigMap", o["stringData"]
		delete(o, "stringData")
	}
	if strings.HasSuffix(name, skillsSuffix) {
		o["kind"], o["apiVersion"] = "ConfigMap", "v1" // which its test leaves out
		delete(metadata, "labels")
	}
	if o["kind"] == "Service" {
		delete(o["spec"].(map[string]any), "type")
	}
	c.common(o, metadata)
	return fmt.Sprint(o["kind"], "/", name), o
}

// rendered converts a rendered object to the common form.
func (c *comparison) rendered(o map[string]any) (key string, form map[string]any) {
	metadata := o["metadata"].(map[string]any)
	name := metadata["name"].(string)
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		for key := range annotations {
			if strings.Contains(key, "armature.dev/") || key == "kagenti.io/description" {
				delete(annotations, key)
			}
		}
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	if strings.HasSuffix(name, skillsSuffix) {
		delete(metadata, "labels")
	}
	if o["kind"] == "Deployment" {
		c.unfill(o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any), name)
	}
	c.common(o, metadata)
	return fmt.Sprint(o["kind"], "/", name), o
}

const (
	filledIn  = "values of Secrets and ConfigMaps are filled in by an init container"
	otherHash = "the checksum differs with what is rendered"
)

// unfill takes out what fills in values.
func (c *comparison) unfill(pod map[string]any, name string) {
	inits, _ := pod["initContainers"].([]any)
	if len(inits) == 0 || inits[0].(map[string]any)["name"] != "config" {
		return
	}
	c.reasons[filledIn] = true
	if pod["initContainers"] = inits[1:]; len(inits) == 1 {
		delete(pod, "initContainers")
	}
	var volumes []any
	for _, v := range pod["volumes"].([]any) {
		v := v.(map[string]any)
		if v["name"] == "config-template" {
			v["name"] = "config"
		} else if v["name"] == "config" {
			continue
		}
		volumes = append(volumes, v)
	}
	pod["volumes"] = volumes
}

func (c *comparison) common(o, metadata map[string]any) {
	strip := func(metadata map[string]any) {
		if labels, ok := metadata["labels"].(map[string]any); ok {
			delete(labels, "app.kubernetes.io/managed-by")
		}
	}
	strip(metadata)
	if o["kind"] == "Deployment" {
		template := o["spec"].(map[string]any)["template"].(map[string]any)
		strip(template["metadata"].(map[string]any))
		volumes, _ := template["spec"].(map[string]any)["volumes"].([]any)
		for _, v := range volumes {
			if secret, ok := v.(map[string]any)["secret"].(map[string]any); ok &&
				v.(map[string]any)["name"] == "config" {
				delete(v.(map[string]any), "secret")
				v.(map[string]any)["configMap"] = map[string]any{"name": secret["secretName"]}
			}
		}
	}
	if data, ok := o["data"].(map[string]any); ok && o["kind"] == "ConfigMap" {
		for name, text := range data {
			var value any
			if json.Unmarshal([]byte(text.(string)), &value) == nil {
				data[name] = value
			}
		}
	}
}

// diff compares two values.
func (c *comparison) diff(path string, got, want any) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		keys := maps.Clone(w)
		maps.Copy(keys, g)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			c.diff(path+"."+key, g[key], w[key])
		}
		return
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			break
		}
		for i := range w {
			c.diff(fmt.Sprintf("%s[%d]", path, i), g[i], w[i])
		}
		return
	}
	a, err1 := json.Marshal(got)
	b, err2 := json.Marshal(want)
	if err1 != nil || err2 != nil {
		c.unjustified = append(c.unjustified, fmt.Sprintf("%s: %v %v", path, err1, err2))
		return
	}
	// as the API server writes quantities
	if string(a) == string(b) || strings.Replace(string(a), `000m"`, `"`, 1) == string(b) {
		return
	}
	if reason := justify(path, string(a), string(b)); reason != "" {
		c.reasons[reason] = true
		return
	}
	c.unjustified = append(c.unjustified, fmt.Sprintf("%s: have %s, want %s", path, a, b))
}

// justify returns the reason for an intended difference, or "".
func justify(path, got, want string) string {
	last := path[strings.LastIndexByte(path, '.')+1:]
	switch {
	case strings.HasPrefix(got, `"$(ARMATURE_VALUE_`):
		return filledIn
	case strings.HasSuffix(path, configHash):
		return otherHash
	case want == "null" &&
		(last == "terminate_on_close" && got == "true" || last == "timeout" && got == "30" ||
			last == "cache_ttl"):
		return last + " has the default of the CRD, which kagent's test leaves out"
	case last == "tags" && want == "null" && got == "[]":
		return "a skill without tags has an empty list, which the protocol demands"
	case last == "env" && strings.Contains(got, "AWS_BEARER_TOKEN_BEDROCK"):
		return "a render does not read which keys a Secret has: all are optional"
	}
	return ""
}
