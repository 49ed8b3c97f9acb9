package identity_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/sidecars"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAnnotationsAreDocumented: the table has each annotation that is read.
func TestAnnotationsAreDocumented(t *testing.T) {
	text := read(t, "configuration.md")
	for _, name := range sidecars.All().AnnotationNames() {
		for _, component := range sidecars.All().Sidecars() {
			if suffix, found := strings.CutPrefix(name, component); found {
				name = "<component>" + suffix
			}
		}
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/configuration.md says nothing of %s", name)
		}
	}
}

// TestConfigurationIsDocumented: the reference has each field of RenderConfig.
func TestConfigurationIsDocumented(t *testing.T) {
	text := read(t, "reference/configuration.md")
	var walk func(r reflect.Type)
	walk = func(r reflect.Type) {
		for r.Kind() == reflect.Pointer || r.Kind() == reflect.Slice || r.Kind() == reflect.Map {
			r = r.Elem()
		}
		if r.Kind() != reflect.Struct {
			return
		}
		for i := range r.NumField() {
			f := r.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && !strings.Contains(text, name) {
				t.Errorf("docs/reference/configuration.md says nothing of %s.%s", r.Name(), name)
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[api.RenderConfigSpec]())
}

// TestExampleIsGood: the example of the reference is accepted unchanged.
func TestExampleIsGood(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "configuration.md"), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	if _, findings := sidecars.All().Base(decode[api.RenderConfig](t, example)); len(findings) > 0 {
		t.Error(findings)
	}
}
