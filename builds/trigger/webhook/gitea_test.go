package webhook

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/armature-dev/armature/e2e/gitea"
)

// What Gitea itself delivers: signed with the token it is taken, whatever it is about, and with
// another token or none it is refused.
func TestGiteasDeliveries(t *testing.T) {
	s := gitea.Start(t, gitea.Options{})
	owner := s.User("owner")
	path := s.Repository(owner, "weather")
	r := serve(t)
	hook := func(secret string) (id int) {
		t.Helper()
		var made struct{ ID int }
		s.Must(owner, http.MethodPost, "/repos/"+path+"/hooks",
			map[string]any{"type": "gitea", "active": true,
				"events": []string{"push", "create", "delete", "pull_request", "issue_comment",
					"pull_request_comment"},
				"config": map[string]string{"url": r.URL + "/hook/team/hook",
					"content_type": "json", "secret": secret}}, &made)
		return made.ID
	}
	woken := func(what string, want bool) {
		t.Helper()
		limit := 30 * time.Second
		if !want {
			limit = 2 * time.Second
		}
		var got []string
		for began := time.Now(); time.Since(began) < limit &&
			(len(got) == 0 || !want); time.Sleep(20 * time.Millisecond) {
			got = append(got, r.woke()...)
		}
		if (len(got) > 0) != want ||
			slices.ContainsFunc(got, func(name string) bool { return name != "team/hook" }) {
			t.Fatalf("%s wakes %q", what, got)
		}
	}
	quiet := func() { // what came of the same action
		for last := time.Now(); time.Since(last) < 500*time.Millisecond; time.Sleep(
			20 * time.Millisecond) {
			if len(r.woke()) > 0 {
				last = time.Now()
			}
		}
	}
	id := hook(token)
	s.Write(owner, path, "main", "main", "a.txt", "one\n")
	woken("a push", true)
	quiet()
	s.Write(owner, path, "main", "change", "a.txt", "two\n")
	woken("a new branch", true)
	quiet()
	var pull struct{ Number int }
	s.Must(owner, http.MethodPost, "/repos/"+path+"/pulls",
		map[string]any{"title": "Two", "head": "change", "base": "main"}, &pull)
	woken("a pull request", true)
	quiet()
	s.Must(owner, http.MethodPost, "/repos/"+path+"/issues/1/comments",
		map[string]any{"body": "/ok-to-test"}, nil)
	woken("a comment", true)
	quiet()
	for what, secret := range map[string]string{"another token": "another secret of some length",
		"no token": ""} {
		s.Must(owner, http.MethodDelete, "/repos/"+path+"/hooks/"+strconv.Itoa(id), nil, nil)
		id = hook(secret)
		s.Write(owner, path, "main", "main", "a.txt", what+"\n")
		woken(what, false)
	}
}
