package forge

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exchange is a request that is expected, with every field of its body, and its answer.
type exchange struct {
	request string // method and address
	body    string // JSON; empty for none
	status  int    // 0 is 200
	answer  string
	header  string // of the answer: name and value
}

// scripted is a server that expects requests in their order.
type scripted struct {
	*httptest.Server
	t     *testing.T
	login string // the header that every request has, with its value
	next  []exchange
}

func newScripted(t *testing.T, login string) *scripted {
	s := &scripted{t: t, login: login}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if len(s.next) == 0 {
		s.t.Errorf("%s %s is not expected", r.Method, r.URL.RequestURI())
		w.WriteHeader(http.StatusTeapot)
		return
	}
	e := s.next[0]
	s.next = s.next[1:]
	if got := r.Method + " " + r.URL.RequestURI(); got != e.request {
		s.t.Errorf("request %s\n   want %s", got, e.request)
	}
	if name, value, _ := strings.Cut(s.login, ": "); r.Header.Get(name) != value {
		s.t.Errorf("%s: %q", name, r.Header.Get(name))
	}
	var got, want any
	if e.body != "" || len(body) > 0 && string(body) != "null" {
		if err := errors.Join(json.Unmarshal(body, &got),
			json.Unmarshal([]byte(e.body), &want)); err != nil {
			s.t.Errorf("%s: %v: %s, want %s", e.request, err, body, e.body)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		s.t.Errorf("%s (-want +got):\n%s", e.request, d)
	}
	if name, value, ok := strings.Cut(e.header, ": "); ok {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(max(e.status, http.StatusOK))
	_, _ = io.WriteString(w, e.answer)
}

// expects these requests during a call.
func (s *scripted) expects(call func() error, all ...exchange) error {
	s.t.Helper()
	s.next = all
	err := call()
	if len(s.next) > 0 {
		s.t.Errorf("%d requests were not sent, from %s on: %v", len(s.next), s.next[0].request, err)
	}
	return err
}

func (s *scripted) must(call func() error, all ...exchange) {
	s.t.Helper()
	if err := s.expects(call, all...); err != nil {
		s.t.Error(err)
	}
}

var status = Status{Commit: commitA, Ref: "refs/heads/main", Context: "armature/team1/weather",
	State: Running, Description: "it builds"}

func TestGitLab(t *testing.T) {
	s := newScripted(t, "Private-Token: hunter2-token")
	f := opened(t, GitLab, s.URL+"/team/sub/apps.git", Credential{Token: "hunter2-token"})
	const p = "/api/v4/projects/team%2Fsub%2Fapps"
	const user = "GET /api/v4/users?username=ada"
	may := func(want bool) func() error {
		return func() error {
			got, err := f.MayPush(t.Context(), "ada")
			if got != want {
				t.Errorf("%v, want %v", got, want)
			}
			return err
		}
	}
	for member, want := range map[string]bool{`{"access_level": 30, "state": "active"}`: true,
		`{"access_level": 40, "state": "active"}`:  true,
		`{"access_level": 20, "state": "active"}`:  false,
		`{"access_level": 50, "state": "blocked"}`: false} {
		s.must(may(want), exchange{request: user, answer: `[{"id": 7, "username": "Ada"}]`},
			exchange{request: "GET " + p + "/members/all/7", answer: member})
	}
	s.must(may(false), exchange{request: user, answer: `[]`})
	s.must(may(false), exchange{request: user, answer: `[{"id": 7, "username": "adam"}]`})
	s.must(may(false), exchange{request: user, answer: `[{"id": 7, "username": "ada"}]`},
		exchange{request: "GET " + p + "/members/all/7", status: 404,
			answer: `{"message": "404 Not found"}`})
	if err := s.expects(may(false), exchange{request: user, status: 403,
		answer: `{"error": "insufficient_scope"}`}); !errors.Is(err, ErrUnauthorized) {
		t.Error(err)
	}

	list := "GET " + p + "/repository/commits/" + commitA +
		"/statuses?name=armature%2Fteam1%2Fweather&per_page=100&ref=main&sort=desc"
	set := func() error { return f.SetStatus(t.Context(), status) }
	post := func(body string) exchange {
		return exchange{request: "POST " + p + "/statuses/" + commitA, status: 201, answer: `{}`,
			body: `{"state": "running", "name": "armature/team1/weather", "ref": "main", ` +
				`"description": "it builds"` + body + `}`}
	}
	s.must(set, exchange{request: list, answer: `[]`}, post(""))
	s.must(set,
		exchange{request: list,
			answer: `[{"id": 1, "name": "armature/team1/weather", "status": "pending", "pipeline_id": 9}]`},
		post(`, "pipeline_id": 9`))
	s.must(set,
		exchange{request: list,
			answer: `[{"id": 1, "name": "armature/team1/weather", "status": "running"}]`})
	again := post(`, "pipeline_id": 9`)
	again.status, again.answer =
		400,
		`{"message":"Cannot transition status via :run from :running (Reason(s): Status cannot transition via \"run\")"}`
	s.must(set,
		exchange{request: list,
			answer: `[{"id": 1, "name": "armature/team1/weather", "status": "success", "pipeline_id": 9}]`}, again)

	me := exchange{request: "GET /api/v4/user",
		answer: `{"id": 3, "username": "bot", "email": "bot@example.com"}`}
	notes := "GET " + p +
		"/merge_requests/5/notes?order_by=created_at&page=1&per_page=100&sort=desc"
	const text = "<!-- armature -->\n\n<!-- armature: a -->\n\nbad\n"
	comment := func(body string) func() error {
		return func() error { return f.Comment(t.Context(), 5, "a", body) }
	}
	theirs := `{"id": 10, "body": ` + quoted(text) + `, "author": {"id": 4}}`
	s.must(comment("bad"), me, exchange{request: notes, answer: `[` + theirs + `]`},
		exchange{request: "POST " + p + "/merge_requests/5/notes",
			body: `{"body": ` + quoted(text) + `}`, status: 201, answer: `{}`})
	s.must(comment("bad"), me,
		exchange{request: notes,
			answer: `[` + theirs + `, {"id": 11, "body": ` + quoted(text) + `, "author": {"id": 3}}]`})
	s.must(comment("worse"), me,
		exchange{request: notes,
			answer: `[{"id": 11, "body": ` + quoted(text) + `, "author": {"id": 3}}]`},
		exchange{request: "PUT " + p + "/merge_requests/5/notes/11",
			body: `{"body": ` + quoted(strings.Replace(text, "bad", "worse", 1)) + `}`, answer: `{}`})
	s.must(comment(""), me,
		exchange{request: notes,
			answer: `[{"id": 11, "body": ` + quoted(text) + `, "author": {"id": 3}}]`},
		exchange{request: "DELETE " + p + "/merge_requests/5/notes/11", status: 204})

	const merge = `{"iid": 5, "title": "Pin", "description": "text", "state": "opened", "source_branch": "next", "target_branch": "main", "sha": "` + commitB + `", "web_url": "https://forge/5", "author": {"username": "ada"}, "source_project_id": 1, "target_project_id": 1, "labels": ["x"]}`
	pulls := "GET " + p +
		"/merge_requests?order_by=created_at&per_page=100&sort=desc&source_branch=next&state=all"
	propose := func(isNew bool) func() error {
		return func() error {
			got, made, err := f.Propose(t.Context(),
				Proposal{Head: "next", Base: "main", Title: "Pin", Body: "text", Refresh: true})
			if err == nil &&
				(made != isNew || got.URL != "https://forge/5" || got.Fork || got.Number != 5 ||
					got.Commit != commitB) {
				t.Errorf("%v, %+v", made, got)
			}
			return err
		}
	}
	create := exchange{request: "POST " + p + "/merge_requests",
		body:   `{"title": "Pin", "description": "text", "source_branch": "next", "target_branch": "main"}`,
		status: 201, answer: merge}
	s.must(propose(true),
		exchange{request: pulls, answer: `[` + strings.Replace(merge, "opened", "closed", 1) + `]`},
		create)
	s.must(propose(false), exchange{request: pulls, answer: `[` + merge + `]`})
	s.must(propose(false),
		exchange{request: pulls, answer: `[` + strings.Replace(merge, `"text"`, `"old"`, 1) + `]`},
		exchange{request: "PUT " + p + "/merge_requests/5",
			body: `{"title": "Pin", "description": "text"}`, answer: merge})
	exists := create
	exists.status, exists.answer =
		409, `{"message": ["Another open merge request already exists for this source branch: !5"]}`
	s.must(propose(false), exchange{request: pulls, answer: `[]`}, exists,
		exchange{request: pulls, answer: `[` + merge + `]`})
	s.must(func() error {
		got, err := f.PullRequest(t.Context(), 5)
		if err == nil && (!got.Fork || !got.Merged) {
			t.Errorf("%+v", got)
		}
		return err
	}, exchange{request: "GET " + p + "/merge_requests/5",
		answer: `{"iid": 5, "state": "merged", "source_project_id": 2, "target_project_id": 1}`})

	branch := func(name, commit string) exchange {
		return exchange{request: "GET " + p + "/repository/branches/" + name,
			answer: `{"commit": {"id": "` + commit + `"}}`}
	}
	file := exchange{request: "HEAD " + p + "/repository/files/apps%2Farmature%2Elock?ref=" +
		commitA, header: "X-Gitlab-Last-Commit-Id: " + commitB}
	c := Commit{Branch: "main", Head: commitA, Message: "Pin",
		Files: map[string][]byte{"apps/armature.lock": []byte("lock")}}
	commit := func() error {
		sha, err := f.Commit(t.Context(), c)
		if err == nil && sha != commitC {
			t.Error(sha)
		}
		return err
	}
	made := func(more, action string) exchange {
		return exchange{request: "POST " + p + "/repository/commits", status: 201,
			answer: `{"id": "` + commitC + `"}`,
			body: `{"branch": "` + c.Branch + `", "commit_message": "Pin"` + more +
				`, "actions": [{` + action +
				`, "file_path": "apps/armature.lock", "encoding": "base64", "content": "bG9jaw=="}]}`}
	}
	const update = `"action": "update", "last_commit_id": "` + commitB + `"`
	s.must(commit, branch("main", commitA), file, made("", update))
	none := file
	none.status, none.header = 404, ""
	s.must(commit, branch("main", commitA), none, made("", `"action": "create"`))
	if err := s.expects(commit, branch("main", commitB)); !errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	refused := made("", update)
	refused.status, refused.answer =
		400, `{"message": "The file has changed since you started editing it."}`
	if err := s.expects(commit, branch("main", commitA), file, refused,
		branch("main", commitB)); !errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	refused.answer = `{"message": "You are not allowed to push into this branch"}`
	if err := s.expects(commit, branch("main", commitA), file, refused,
		branch("main", commitA)); !errors.Is(err, ErrRefused) || errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	c.Branch, c.Base = "pin", "main"
	gone := exchange{request: "GET " + p + "/repository/branches/pin", status: 404, answer: `{}`}
	s.must(commit, gone, file, made(`, "start_sha": "`+commitA+`"`, update))
	c.Replaces = commitB
	s.must(commit, branch("pin", commitB), file,
		made(`, "start_sha": "`+commitA+`", "force": true`, update))
	for email, want := range map[string]bool{"bot@example.com": true,
		"3-bot@users.noreply.127.0.0.1": true, "ada@example.com": false, "": false} {
		s.must(func() error {
			got, err := f.Wrote(t.Context(), commitC)
			if got != want {
				t.Errorf("%s: %v", email, got)
			}
			return err
		}, me, exchange{request: "GET " + p + "/repository/commits/" + commitC,
			answer: `{"committer_email": "` + email + `"}`})
	}
}

func quoted(text string) string {
	out, _ := json.Marshal(text)
	return string(out)
}

func TestGitea(t *testing.T) {
	s := newScripted(t, "Authorization: token hunter2-token")
	f := opened(t, Gitea, s.URL+"/team/apps.git", Credential{Token: "hunter2-token"})
	const p = "/api/v1/repos/team/apps"
	for level, want := range map[string]bool{"owner": true, "admin": true, "write": true,
		"read": false, "none": false} {
		s.must(func() error {
			got, err := f.MayPush(t.Context(), "ada")
			if got != want {
				t.Errorf("%s: %v", level, got)
			}
			return err
		}, exchange{request: "GET " + p + "/collaborators/ada/permission",
			answer: `{"permission": "` + level + `"}`})
	}
	list := "GET " + p + "/commits/" + commitA + "/status"
	set := func() error { return f.SetStatus(t.Context(), status) }
	s.must(set, exchange{request: list, answer: `{"statuses": []}`},
		exchange{request: "POST " + p + "/statuses/" + commitA, status: 201, answer: `{}`,
			body: `{"state": "pending", "target_url": "", "description": "it builds", "context": "armature/team1/weather"}`})
	s.must(set,
		exchange{request: list,
			answer: `{"statuses": [{"status": "pending", "description": "it builds", "context": "armature/team1/weather"}]}`})

	me := exchange{request: "GET /api/v1/user", answer: `{"id": 3, "login": "bot"}`}
	const text = "<!-- armature -->\n\n<!-- armature: a -->\n\nbad\n"
	comment := func(body string) func() error {
		return func() error { return f.Comment(t.Context(), 5, "a", body) }
	}
	ours := `[{"id": 11, "body": ` + quoted(text) + `, "user": {"id": 3}}, {"id": 10, "body": ` +
		quoted(text) + `, "user": {"id": 4}}]`
	page := func(n, answer string) exchange {
		return exchange{request: "GET " + p + "/issues/5/comments?limit=50&page=" + n, answer: answer}
	}
	s.must(comment("bad"), me, page("1", `[]`),
		exchange{request: "POST " + p + "/issues/5/comments",
			body: `{"body": ` + quoted(text) + `}`, status: 201, answer: `{}`})
	s.must(comment("bad"), me, page("1", ours), page("2", ours)) // a server without pages
	s.must(comment("worse"), me, page("1", ours), page("2", `[]`),
		exchange{request: "PATCH " + p + "/issues/comments/11",
			body: `{"body": ` + quoted(strings.Replace(text, "bad", "worse", 1)) + `}`, answer: `{}`})
	s.must(comment(""), me, page("1", ours), page("2", `[]`),
		exchange{request: "DELETE " + p + "/issues/comments/11", status: 204})

	const pull = `{"number": 5, "title": "Pin", "body": "text", "state": "open", "html_url": "https://forge/5", "user": {"login": "ada"}, "head": {"ref": "next", "sha": "` + commitB + `", "repo_id": 1}, "base": {"ref": "main", "repo_id": 1}}`
	fork := strings.Replace(pull, `"repo_id": 1`, `"repo_id": 2`, 1)
	all := func(n, answer string) exchange {
		return exchange{request: "GET " + p + "/pulls?limit=50&page=" + n +
			"&sort=recentupdate&state=all", answer: answer}
	}
	propose := func(isNew bool) func() error {
		return func() error {
			got, made, err := f.Propose(t.Context(),
				Proposal{Head: "next", Base: "main", Title: "Pin", Body: "text", Refresh: true})
			if err == nil &&
				(made != isNew || got.Number != 5 || got.Author != "ada" || got.Commit != commitB ||
					got.Fork) {
				t.Errorf("%v, %+v", made, got)
			}
			return err
		}
	}
	create := exchange{request: "POST " + p + "/pulls", status: 201, answer: pull,
		body: `{"head": "next", "base": "main", "title": "Pin", "body": "text", "assignee": "", "assignees": null, "reviewers": null, "team_reviewers": null, "milestone": 0, "labels": null, "due_date": null}`}
	s.must(propose(true), all("1", `[`+fork+`]`), all("2", `[]`), create)
	exists := create
	exists.status, exists.answer =
		409, `{"message": "pull request already exists for these targets"}`
	s.must(propose(false), all("1", `[]`), exists, all("1", `[`+pull+`]`), all("2", `[]`))

	branch := func(name, commit string) exchange {
		return exchange{request: "GET " + p + "/branches/" + name,
			answer: `{"commit": {"id": "` + commit + `"}}`}
	}
	file := exchange{request: "GET " + p + "/contents/apps%2Farmature.lock?ref=" + commitA,
		answer: `{"sha": "b10b"}`}
	file.request = "GET " + p + "/contents/apps/armature.lock?ref=" + commitA
	c := Commit{Branch: "main", Head: commitA, Message: "Pin",
		Files: map[string][]byte{"apps/armature.lock": []byte("lock")}}
	commit := func() error {
		sha, err := f.Commit(t.Context(), c)
		if err == nil && sha != commitC {
			t.Error(sha)
		}
		return err
	}
	made := func(where, file string) exchange {
		return exchange{request: "POST " + p + "/contents", status: 201,
			answer: `{"commit": {"sha": "` + commitC + `"}}`,
			body: `{` + where + `, "message": "Pin", "files": [{` + file +
				`, "path": "apps/armature.lock", "content": "bG9jaw=="}], "author": {"name": "", "email": ""}, "committer": {"name": "", "email": ""}, "dates": {"author": "0001-01-01T00:00:00Z", "committer": "0001-01-01T00:00:00Z"}}`}
	}
	const update = `"operation": "update", "sha": "b10b"`
	s.must(commit, branch("main", commitA), file, made(`"branch": "main"`, update))
	none := file
	none.status = 404
	s.must(commit, branch("main", commitA), none, made(`"branch": "main"`, `"operation": "create"`))
	if err := s.expects(commit, branch("main", commitB)); !errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	refused := made(`"branch": "main"`, update)
	refused.status, refused.answer =
		422, `{"message": "sha does not match [given: b10b, expected: x]"}`
	if err := s.expects(commit, branch("main", commitA), file, refused,
		branch("main", commitB)); !errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	refused.status, refused.answer = 403, `{"message": "branch is protected from changing: main"}`
	if err := s.expects(commit, branch("main", commitA), file, refused,
		branch("main", commitA)); !errors.Is(err, ErrRefused) || errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	c.Branch, c.Base, c.Replaces = "pin", "main", commitB
	s.must(commit, branch("pin", commitB), branch("main", commitA), file,
		made(`"branch": "main", "new_branch": "pin", "force_push": true`, update))
	c.Replaces = ""
	gone := exchange{request: "GET " + p + "/branches/pin", status: 404, answer: `{}`}
	s.must(commit, gone, branch("main", commitA), file,
		made(`"branch": "main", "new_branch": "pin"`, update))
	for author, want := range map[string]bool{`{"login": "bot"}`: true, `{"login": "ada"}`: false,
		`null`: false} {
		s.must(func() error {
			got, err := f.Wrote(t.Context(), commitC)
			if got != want {
				t.Errorf("%s: %v", author, got)
			}
			return err
		}, me, exchange{request: "GET " + p + "/git/commits/" + commitC,
			answer: `{"author": ` + author + `}`})
	}
}

// What strangers bring, of each kind of server: pull requests of the repository and of forks, and
// comments: edited ones are marked, and those of the system and deleted ones are left out.
func TestIncoming(t *testing.T) {
	const made, later = `"2026-07-01T10:00:00Z"`, `"2026-07-01T10:05:00Z"`
	own, fork := PullRequest{Number: 5, Title: "Pin", Head: "next", Base: "main", Author: "ada",
		Commit: commitB, Open: true}, PullRequest{Number: 6, Title: "Fix", Head: "main",
		Base: "main", Author: "eve", Commit: commitC, Open: true, Fork: true}
	comments := []Comment{{Author: "eve", Body: "/ok-to-test x", Edited: true},
		{Author: "ada", Body: "/ok-to-test y"}}
	for _, kind := range []struct {
		name, login, path, pulls, notes string
		answer, notesAnswer             string
	}{
		{GitHub, "Authorization: Bearer hunter2-token", "/team/apps",
			"/api/v3/repos/team/apps/pulls?direction=desc&per_page=100&sort=created&state=open",
			"/api/v3/repos/team/apps/issues/5/comments?page=1&per_page=100",
			`[{"number": 5, "title": "Pin", "state": "open", "user": {"login": "ada"}, "head": {"ref": "next", "sha": "` + commitB + `", "repo": {"id": 1}}, "base": {"ref": "main", "repo": {"id": 1}}},
			  {"number": 6, "title": "Fix", "state": "open", "user": {"login": "eve"}, "head": {"ref": "main", "sha": "` + commitC + `", "repo": null}, "base": {"ref": "main", "repo": {"id": 1}}}]`,
			`[{"user": {"login": "ada"}, "body": "/ok-to-test y", "created_at": ` + made +
				`, "updated_at": ` + made +
				`}, {"user": {"login": "eve"}, "body": "/ok-to-test x", "created_at": ` + made +
				`, "updated_at": ` + later + `}]`},
		{GitLab, "Private-Token: hunter2-token", "/team/apps.git",
			"/api/v4/projects/team%2Fapps/merge_requests?order_by=created_at&per_page=100&" +
				"sort=desc&state=opened",
			"/api/v4/projects/team%2Fapps/merge_requests/5/notes?order_by=created_at&page=1&per_page=100&sort=desc",
			`[{"iid": 5, "title": "Pin", "state": "opened", "source_branch": "next", "target_branch": "main", "sha": "` + commitB + `", "author": {"username": "ada"}, "source_project_id": 1, "target_project_id": 1},
			  {"iid": 6, "title": "Fix", "state": "opened", "source_branch": "main", "target_branch": "main", "sha": "` + commitC + `", "author": {"username": "eve"}, "source_project_id": 2, "target_project_id": 1}]`,
			`[{"author": {"username": "eve"}, "body": "/ok-to-test x", "created_at": ` + made +
				`, "updated_at": ` + later +
				`}, {"author": {"username": "ada"}, "body": "approved this", "system": true, "created_at": ` +
				made + `, "updated_at": ` + made +
				`}, {"author": {"username": "ada"}, "body": "/ok-to-test y", "created_at": ` +
				made + `, "updated_at": ` + made + `}]`},
	} {
		s := newScripted(t, kind.login)
		f := opened(t, kind.name, s.URL+kind.path, Credential{Token: "hunter2-token"})
		s.must(func() error {
			got, err := f.PullRequests(t.Context(), "")
			if d := cmp.Diff([]PullRequest{own, fork}, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", kind.name, d)
			}
			return err
		}, exchange{request: "GET " + kind.pulls, answer: kind.answer})
		s.must(func() error {
			got, err := f.Comments(t.Context(), 5)
			if d := cmp.Diff(comments, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", kind.name, d)
			}
			return err
		}, exchange{request: "GET " + kind.notes, answer: kind.notesAnswer})
	}
}

func TestKinds(t *testing.T) {
	for remote, want := range map[string]string{
		"https://github.com/team/fleet.git": "github", "git@github.com:team/fleet.git": "github",
		"ssh://git@gitlab.com:22/team/sub/fleet": "gitlab", "https://bitbucket.org/team/fleet": "",
		"https://codeberg.org/team/fleet": "gitea", "https://git.example/team/fleet": "",
		"https://github.com.evil.example/team/fleet": "", "../fleet": "", "": "",
	} {
		if got := Of(remote); got != want {
			t.Errorf("%q is on %q, want %q", remote, got, want)
		}
	}
	for remote, want := range map[string]string{
		"http://git.example/team/fleet":    "a token is sent by https only",
		"file:///srv/git/fleet":            "is not a repository of a forge",
		"/srv/git/fleet":                   "is not a repository of a forge",
		"https://git.example/fleet":        "not that of a repository",
		"https://git.example/../x/fleet":   "not that of a repository",
		"https://git.example/team/x/fleet": "is not the path of a repository",
		"https://git.example/team/fl%3Fet": "is not the path of a repository",
	} {
		if _, err := new(Clients).Open(Gitea, remote, Credential{Token: "hunter2"}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", remote, err, want)
		}
	}
	for remote, want := range map[string]string{ // as gitrepo reads it
		"git.example:443/team/fleet":          "https git.example team/fleet",
		"Git.example:443/team/fleet.git":      "https git.example team/fleet",
		"git.example:8443/team/fleet":         "https git.example:8443 team/fleet",
		"git.example/team/fleet":              "https git.example team/fleet",
		"https://git.example:443/team/fleet/": "https git.example team/fleet",
		"ssh://git@git.example:22/team/fleet": "https git.example team/fleet",
		"git@git.example:team/fleet.git":      "https git.example team/fleet",
		"git.example:team/fleet":              "https git.example team/fleet",
		"https://ada:x@git.example/team/f":    "https git.example team/f",
		"git@git.example:443/team/fleet":      "error",
		"ada@git.example:8443/team/fleet":     "error",
	} {
		got := "error"
		if scheme, host, path, err := locate(remote); err == nil {
			got = scheme + " " + host + " " + path
		}
		if got != want {
			t.Errorf("%s is %s, want %s", remote, got, want)
		}
	}
	names, variables := Names()
	if !slices.Equal(names, []string{"github", "gitlab", "gitea"}) ||
		variables[Gitea] != "GITEA_TOKEN" {
		t.Errorf("%v %v", names, variables)
	}
	for _, data := range []map[string]string{{}, {"githubAppID": "x"}, {"username": "ada"}} {
		secret := make(map[string][]byte)
		for k, v := range data {
			secret[k] = []byte(v)
		}
		if c, err := CredentialOf("", secret); err == nil {
			t.Errorf("%v is a credential: %+v", data, c)
		}
	}
	if _, err := new(Clients).Open(GitHub, "https://github.com/team/fleet",
		Credential{App: &App{ID: 1, Key: []byte("x")}}); err == nil ||
		strings.Contains(err.Error(), "x\n") {
		t.Errorf("a key that is none: %v", err)
	}
}
