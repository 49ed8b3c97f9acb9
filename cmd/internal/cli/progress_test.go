package cli

import (
	"strings"
	"testing"
)

// On a terminal one line moves, and warnings stay above it. It is not longer than the
// terminal is wide, and what a registry wrote does not steer the terminal. Elsewhere
// there are the warnings.
func TestProgress(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		var out strings.Builder
		p := NewProgress(&out)
		p.terminal, p.width = terminal, func() int { return 20 }
		p.Line("waiting: 0 of 2 healthy")
		p.Line("warning: Deployment team1/web: pod web-1: ImagePullBackOff: Back-off\x1b[2J " +
			"pulling image")
		p.End()
		want := "warning: Deployment team1/web: pod web-1: ImagePullBackOff: Back-off [2J " +
			"pulling image\n"
		if terminal {
			want = "\r\033[Jwaiting: 0 of 2 hea\r\033[J" + want + "waiting: 0 of 2 hea\r\033[J"
		}
		if out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	}
}
