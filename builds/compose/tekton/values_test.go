package tekton_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose/tekton"
)

// TestValues checks that variables stand for what is given, or else for the default, in each
// notation, and that a value without one stays.
func TestValues(t *testing.T) {
	text := func(s string) tektonv1.ParamValue { return *tektonv1.NewStructuredValues(s) }
	who, greeting := text("nobody"), text("hello $(params.who)")
	pipeline := tekton.NewValues(tektonv1.ParamSpecs{{Name: "who", Default: &who}, {Name: "none"}},
		tektonv1.Params{{Name: "who", Value: text("world")},
			{Name: "list", Value: *tektonv1.NewStructuredValues("a", "b c")}})
	task := pipeline.With(tektonv1.ParamSpecs{{Name: "greeting", Default: &greeting}}, nil)
	task.Set("tasks.clone.results", "of",
		*tektonv1.NewObject(map[string]string{"commit": "abc"}))
	for given, want := range map[string]string{
		"$(params.greeting)":                   "hello world",
		`$(params["who"]) $(params['who'])`:    "world world",
		"$(params.list[1])":                    "b c",
		"$(tasks.clone.results.of.commit)":     "abc",
		"$(params.none) $(tasks.x.results.of)": "$(params.none) $(tasks.x.results.of)",
		"$(NAME) $$(params.who)":               "$(NAME) $world",
	} {
		if got := tekton.Text(task.Put(text(given))); got != want {
			t.Errorf("%s is %q, want %q", given, got, want)
		}
	}
	if got := pipeline.Put(text("$(params.greeting)")); tekton.Text(got) != "$(params.greeting)" {
		t.Errorf("the pipeline knows a parameter of a task: %s", tekton.Text(got))
	}
	all := task.PutAll(tektonv1.Params{{Name: "more",
		Value: *tektonv1.NewStructuredValues("$(params.list[*])", "$(params.who)")}})
	if diff := cmp.Diff(`["a","b c","world"]`, tekton.Text(all[0].Value)); diff != "" {
		t.Error(diff)
	}
	for given, want := range map[string]string{"a $(params.none) b": "$(params.none)",
		`$(results["x"].path)`: `$(results["x"].path)`, "$(NAME)": "", "$(date)": ""} {
		if got := tekton.Variable().FindString(given); got != want {
			t.Errorf("%s has the variable %q, want %q", given, got, want)
		}
	}
}
