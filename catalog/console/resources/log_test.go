package resources

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The frames of a stack trace are folded; what names the error shows.
func TestBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		log  string
		want []int // frames of each block
		show string
	}{
		"python": {"collecting\nTraceback (most recent call last):\n" +
			"  File \"/app/main.py\", line 3, in <module>\n    run()\n    ~~~^^\n" +
			"  File \"/app/run.py\", line 9, in run\n    raise ValueError(\"no\")\n" +
			"ValueError: no\ndone", []int{0, 5, 0},
			"collecting\nTraceback (most recent call last):\nValueError: no\ndone"},
		"java": {"Exception in thread \"main\" java.lang.IllegalStateException: no\n" +
			"\tat a.B.c(B.java:1)\n\tat a.B.d(B.java:2)\n\tat a.B.e(B.java:3)\n" +
			"\tat a.B.f(B.java:4)\nCaused by: java.io.IOException: gone\n\tat a.C.c(C.java:1)\n" +
			"\tat a.C.d(C.java:1)\n\tat a.C.e(C.java:1)\n\t... 12 more", []int{0, 4, 0, 4},
			"Exception in thread \"main\" java.lang.IllegalStateException: no\n" +
				"Caused by: java.io.IOException: gone"},
		"node under BuildKit": {"#9 1.201 Error: Cannot find module 'x'\n" +
			"#9 1.201     at Module._resolveFilename (node:internal:1)\n" +
			"#9 1.201     at a (b:1:2)\n#9 1.201     at c (b:1:2)\n#9 1.201     at d (b:1:2)\n" +
			"#9 1.202 exit", []int{0, 4, 0},
			"#9 1.201 Error: Cannot find module 'x'\n#9 1.202 exit"},
		"go": {"panic: no\n\ngoroutine 1 [running]:\nmain.run(0x1, {0x2, 0x3})\n" +
			"\t/app/main.go:9 +0x1d\nmain.(*T).main(...)\n\t/app/main.go:3\n" +
			"created by main.main in goroutine 7\n\t/app/main.go:1 +0x1\nexit status 2",
			[]int{0, 6, 0},
			"panic: no\n\ngoroutine 1 [running]:\nexit status 2"},
		"rust": {"stack backtrace:\n   0: std::panicking\n" +
			"             at /rustc/a.rs:1\n   1: app::main\n             at ./src/main.rs:4\n" +
			"note: run", []int{0, 4, 0}, "stack backtrace:\nnote: run"},
		"a few frames": {"Error\n    at a\n    at b\n    at c\nend", []int{0},
			"Error\n    at a\n    at b\n    at c\nend"},
		"words with at": {"look at this\nat once\n at\n  1. one\nmain.run(1)\nthe end", []int{0},
			"look at this\nat once\n at\n  1. one\nmain.run(1)\nthe end"},
		"an indented log": {"a\n    b\n    c\n    d\n    e\n    f", []int{0},
			"a\n    b\n    c\n    d\n    e\n    f"},
	} {
		var frames []int
		var shown, all []string
		for _, b := range Blocks(strings.Split(c.log, "\n")) {
			frames, all = append(frames, b.Frames), append(all, b.Text)
			if b.Frames == 0 {
				shown = append(shown, b.Text)
			}
		}
		if diff := cmp.Diff(c.want, frames); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.show, strings.Join(shown, "\n")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.log, strings.Join(all, "\n")); diff != "" {
			t.Errorf("%s: a line is lost: %s", name, diff)
		}
	}
	if got := Blocks(nil); got != nil {
		t.Errorf("an empty log has %v", got)
	}
}
