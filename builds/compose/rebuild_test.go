package compose_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// TestShape: which fields of an AgentBuild start a run when they change. A new field fails this
// test until it is in one of the two lists.
func TestShape(t *testing.T) {
	rebuilds := []string{"annotations", "buildArgs", "buildOutput", "builder", "cache", "labels", "mode",
		"network", "pipeline", "platformNodes", "platforms", "pod", "secrets", "serviceAccountName",
		"source", "timeout", "workspace"}
	stays := []string{"cancel", "cleanupAfterBuild", "onChange", "onTemplateChange", "priority",
		"report", "retention", "retries", "trigger"}
	var got [2][]string
	spec := reflect.TypeFor[api.AgentBuildSpec]()
	for i := range spec.NumField() {
		b := &api.AgentBuild{}
		before := compose.Shape(b)
		set(t, reflect.ValueOf(&b.Spec).Elem().Field(i))
		name, _, _ := strings.Cut(spec.Field(i).Tag.Get("json"), ",")
		at := 0
		if cmp.Equal(before, compose.Shape(b)) {
			at = 1
		}
		got[at] = append(got[at], name)
	}
	for i, want := range [][]string{rebuilds, stays} {
		slices.Sort(want)
		slices.Sort(got[i])
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Errorf("fields whose change starts a run: %v (-want +got):\n%s\nA field that no run "+
				"depends on is cleared in Shape", i == 0, diff)
		}
	}
}

// set gives a field a value that is not its zero value.
func set(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Struct:
		set(t, v.Field(0))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}
