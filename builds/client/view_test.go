package client

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Each value of a run says where it comes from, also if the build does not set it any longer.
func TestParamsByOrigin(t *testing.T) {
	text := func(s string) tektonv1.ParamValue { return *tektonv1.NewStructuredValues(s) }
	given := func(name, value string) tektonv1.Param {
		return tektonv1.Param{Name: name, Value: text(value)}
	}
	declared := func(name string, defaults ...string) tektonv1.ParamSpec {
		p := tektonv1.ParamSpec{Name: name, Type: tektonv1.ParamTypeString}
		if len(defaults) > 0 {
			value := text(defaults[0])
			p.Default = &value
		}
		return p
	}
	task := tektonv1.PipelineTask{Name: "test",
		Params: tektonv1.Params{given("step", "1"), given("all", "2"), given("was", "old"),
			given("template", "4"), given("handed", "$(tasks.clone.results.x)"),
			given("repo-url", "$(params.repo-url)")},
		TaskSpec: &tektonv1.EmbeddedTask{TaskSpec: tektonv1.TaskSpec{Params: tektonv1.ParamSpecs{
			declared("step", "9"), declared("all"), declared("was"), declared("template"),
			declared("handed"), declared("repo-url"), declared("own", "5"), declared("none")}}}}
	run := &tektonv1.PipelineRun{
		Spec: tektonv1.PipelineRunSpec{
			Params: tektonv1.Params{given("repo-url", "https://git.example/x")}}}
	run.Status.PipelineSpec = &tektonv1.PipelineSpec{Tasks: []tektonv1.PipelineTask{task}}
	b := &api.AgentBuild{Spec: api.AgentBuildSpec{Pipeline: &api.PipelineSpec{
		Steps: []api.Step{{Name: "test",
			Parameters: []api.Parameter{{Name: "step", Value: new("1")}}},
			{Name: "other", Parameters: []api.Parameter{{Name: "template", Value: new("4")}}}},
		Parameters: []api.Parameter{{Name: "step", Value: new("7")}, {Name: "all", Value: new("2")},
			{Name: "was", Value: new("new")}}}}}
	var got []string
	for _, p := range ViewOf(b, run, nil).Params {
		got = append(got, fmt.Sprintf("%s = %s: %s", p.Name, p.Value, p.From))
	}
	if diff := cmp.Diff([]string{"step = 1: this build, for the step", "all = 2: this build",
		"was = old: an earlier spec of this build", "template = 4: the template",
		"handed = $(tasks.clone.results.x): another task",
		"repo-url = https://git.example/x: spec.source.sourceRepository",
		"own = 5: the step's default"}, got); diff != "" {
		t.Error(diff)
	}
}

// The status of a finished build goes before its TaskRuns, unless it is of another run; a run
// that is gone leaves what the status has.
func TestViewOfARun(t *testing.T) {
	run := &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "1"}}
	run.Status.PipelineSpec = &tektonv1.PipelineSpec{Tasks: []tektonv1.PipelineTask{{Name: "clone"},
		{Name: "build", RunAfter: []string{"clone"}}, {Name: "scan"}},
		Finally: []tektonv1.PipelineTask{{Name: "report"}}}
	run.Status.SkippedTasks = []tektonv1.SkippedTask{{Name: "scan"}}
	tasks := []tektonv1.TaskRun{{ObjectMeta: metav1.ObjectMeta{Name: "clone"}}}
	tasks[0].Status.PodName = "pod"
	b := &api.AgentBuild{}
	b.Status.Tasks = []api.TaskStatus{{Name: "clone", State: "Failed", Message: "why"}}
	b.Status.PipelineRunUID = "0"
	states := func(v View) (out []string) {
		for _, t := range v.Tasks {
			out = append(out, t.Name+" "+t.State+t.Message)
		}
		return out
	}
	v := ViewOf(b, run, tasks)
	if diff := cmp.Diff([]string{"clone Pending", "build Pending", "scan Skipped",
		"report Pending"}, states(v)); diff != "" {
		t.Error(diff)
	}
	if v.Tasks[0].Pod != "pod" || v.Tasks[1].After[0] != "clone" || !v.Tasks[3].Finally {
		t.Errorf("%+v", v)
	}
	var columns []string
	for _, tasks := range v.Columns {
		columns = append(columns, strings.Join(states(View{Tasks: tasks}), ", "))
	}
	if diff := cmp.Diff([]string{"clone Pending, scan Skipped", "build Pending", "report Pending"},
		columns); diff != "" {
		t.Error(diff)
	}
	b.Status.PipelineRunUID = "1"
	if got := states(ViewOf(b, run, tasks))[0]; got != "clone Failedwhy" {
		t.Error(got)
	}
	if gone := ViewOf(b, nil, nil); len(gone.Tasks) != 1 || len(gone.Columns) != 1 {
		t.Errorf("%+v", gone)
	}
}

func TestReadText(t *testing.T) {
	for what, c := range map[string]struct {
		log  string
		want []string
		cut  string
	}{
		"colours":             {"\x1b[1;31mred\x1b[0m\x1b[K plain\n", []string{"red plain"}, ""},
		"a title and a link":  {"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\n", []string{"ab"}, ""},
		"an endless sequence": {"a\x1b]0;" + strings.Repeat("x", 100) + "\n", []string{"a"}, ""},
		"progress":            {"1%\r2%\r3%\r\n", []string{"3%"}, ""},
		"characters that steer": {"a\u202eb\x08\x9b2J\u009b\n",
			[]string{"a\\u202eb\\b\ufffd2J\\u009b"}, ""},
		"no end of line": {"a\nb", []string{"a", "b"}, ""},
		"empty lines":    {"\n\na\n", []string{"", "", "a"}, ""},
		"nothing":        {"", nil, ""},
		"more lines": {"1\n2\n3\n4\n5\n6\n", []string{"2", "3", "4", "5", "6"},
			"the last 5 lines"},
		"too many bytes": {strings.Repeat("x", 90) + "\n" + strings.Repeat("y", 20) +
			"\nz\n", []string{strings.Repeat("y", 20), "z"}, "the last 2 lines"},
	} {
		got, err := ReadText(strings.NewReader(c.log), 5, 100, 1<<20)
		if err != nil || cmp.Diff(c.want, got.Lines) != "" || got.Cut != c.cut {
			t.Errorf("%s: %v %q %s", what, err, got.Cut, cmp.Diff(c.want, got.Lines))
		}
	}
	// A line of 8 KiB ends at a character.
	long := "x" + strings.Repeat("\u20ac", 5000)
	got, err := ReadText(strings.NewReader(long+"\nlast\n"), 5, 1<<20, 1<<20)
	if err != nil || len(got.Lines) != 2 || len(got.Lines[0]) > maxLine+100 ||
		!utf8.ValidString(got.Lines[0]) || strings.Contains(got.Lines[0], "fffd") ||
		got.Lines[1] != "last" {
		t.Errorf("%v %d lines", err, len(got.Lines))
	}
	// Of a log without end, what was read is shown.
	got, err = ReadText(endless{}, 5, 100, 1<<20)
	if err != nil || len(got.Lines) > 5 || got.Cut != "the last lines of the first 1 MiB" {
		t.Errorf("%v %q", err, got.Cut)
	}
}

type endless struct{}

func (endless) Read(into []byte) (int, error) {
	for i := range into {
		into[i] = "0123456789abcde\n"[i%16]
	}
	return len(into), nil
}

func FuzzClean(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b]0;x\x07\r\n"))
	f.Add([]byte("\x1b\x1b[[\x9b\u202e"))
	f.Fuzz(func(t *testing.T, line []byte) {
		text := Clean(line)
		if strings.ContainsAny(text, "\x1b\r\x07\u202e") || !utf8.ValidString(text) {
			t.Errorf("%q", text)
		}
	})
}
