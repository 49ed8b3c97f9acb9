package main

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/render/apply"
)

func sick(name, reason string) apply.Waiting {
	return apply.Waiting{
		ID: apply.ID{Namespace: "team1", Name: name, GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}}, Health: apply.Health{Status: "InProgress", Message: "Available: 0/1"},
		Pods: []apply.PodTrouble{{Pod: name + "-1", Reason: reason, Message: "Back-off\x1b[2J pulling image"}},
	}
}

// On a terminal a table takes the place of the one before. No line is longer than
// the terminal is wide, and what a registry wrote does not steer it.
func TestProgressTable(t *testing.T) {
	var out strings.Builder
	p := &progress{w: &out, terminal: true, size: func() (int, int) { return 50, 5 }, reported: make(map[string]bool)}
	p.line("waiting: 0 of 2 healthy")
	p.waiting([]apply.Waiting{sick("web", "ImagePullBackOff"), sick("worker", "ErrImagePull")})
	first := out.String()
	out.Reset()
	p.waiting([]apply.Waiting{sick("web", "ImagePullBackOff")})
	second := out.String()
	out.Reset()
	p.end()
	if lines := strings.Split(first[strings.LastIndex(first, "\033[J")+3:], "\n"); len(lines) != 4 || lines[0] != "waiting: 0 of 2 healthy" || !strings.HasPrefix(lines[3], "  pod web-1") {
		t.Errorf("first %q", first)
	}
	for _, l := range strings.Split(first+second, "\n") {
		if shown := l[strings.LastIndex(l, "\033[J")+1:]; len(shown) > 52 {
			t.Errorf("%d wide: %q", len(shown), shown)
		}
	}
	if !strings.HasPrefix(second, "\033[3A\r\033[J") || !strings.Contains(second, "ImagePullBackOff") || strings.Contains(first+second, "\033[2J") {
		t.Errorf("second %q", second)
	}
	if got := out.String(); got != "\033[3A\r\033[J" {
		t.Errorf("end %q", got)
	}
}

// Elsewhere each reason is a line, once.
func TestProgressLines(t *testing.T) {
	var out strings.Builder
	p := newProgress(&out)
	for range 3 {
		p.waiting([]apply.Waiting{sick("web", "ErrImagePull")})
		p.waiting([]apply.Waiting{sick("web", "ImagePullBackOff")})
	}
	want := "Deployment team1/web: pod web-1: ErrImagePull: Back-off [2J pulling image\nDeployment team1/web: pod web-1: ImagePullBackOff: Back-off [2J pulling image\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
