package forge

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	commitA = "1111111111111111111111111111111111111111"
	commitB = "2222222222222222222222222222222222222222"
	commitC = "3333333333333333333333333333333333333333"
)

// hubServer answers as GitHub does. Each request has to satisfy GitHub's OpenAPI description,
// and has no field that the description lacks.
type hubServer struct {
	*httptest.Server
	t      *testing.T
	router routers.Router
	key    *rsa.PrivateKey // of the App

	mu       sync.Mutex
	requests []string
	next     int // the next ID
	login    string
	level    string            // permission of a user
	tokens   map[string]string // right by token of the installation
	statuses []map[string]any
	checks   []map[string]any
	comments []map[string]any
	pulls    []map[string]any
	refs     map[string]string
	made     map[string]string // file texts by commit
	messages map[string]string
	// before answers first; handled ends the request.
	before func(w http.ResponseWriter, r *http.Request) (handled bool)
	// lose the answer of the next request that changes something.
	lose bool
}

func newHub(t *testing.T) *hubServer {
	t.Helper()
	file, err := os.Open("testdata/github.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	doc.Servers = openapi3.Servers{{URL: "/api/v3"}}
	for _, path := range doc.Paths.Map() {
		for _, operation := range path.Operations() {
			if operation.RequestBody != nil {
				for _, content := range operation.RequestBody.Value.Content {
					closeSchema(content.Schema)
				}
			}
		}
	}
	h := &hubServer{t: t, login: "armature-bot", tokens: map[string]string{},
		refs: map[string]string{"main": commitA}, made: map[string]string{},
		messages: map[string]string{}, next: 100}
	if h.router, err = gorillamux.NewRouter(doc); err != nil {
		t.Fatal(err)
	}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

// closeSchema refuses fields that the schema does not list.
func closeSchema(s *openapi3.SchemaRef) {
	if s == nil || s.Value == nil {
		return
	}
	if len(s.Value.Properties) > 0 && len(s.Value.OneOf)+len(s.Value.AnyOf) == 0 {
		no := false
		s.Value.AdditionalProperties.Has = &no
	}
	for _, p := range s.Value.Properties {
		closeSchema(p)
	}
	closeSchema(s.Value.Items)
}

func (h *hubServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.requests = append(h.requests, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api/v3"))
	if h.before != nil && h.before(w, r) {
		return
	}
	var answer any
	status := http.StatusOK
	if r.URL.Path == "/api/graphql" {
		answer = h.graphQL(r, body)
	} else {
		asked := r
		// {ref} has slashes, which the router does not know
		if at, _, ok := strings.Cut(r.URL.Path, "/git/ref/heads/"); ok {
			asked = r.Clone(r.Context())
			asked.URL.Path = at + "/git/ref/heads"
		}
		route, params, err := h.router.FindRoute(asked)
		if err == nil {
			err = openapi3filter.ValidateRequest(r.Context(),
				&openapi3filter.RequestValidationInput{Request: r, Route: route, PathParams: params,
					Options: &openapi3filter.Options{
						AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}})
		}
		if err != nil {
			h.t.Errorf("GitHub's description refuses %s %s: %v\n%s", r.Method, r.URL, err, body)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var in map[string]any
		if len(body) > 0 {
			if err := json.Unmarshal(body, &in); err != nil {
				h.t.Error(err)
			}
		}
		status, answer = h.answer(w, r, route.Operation.OperationID, params, in)
	}
	if h.lose && r.Method != http.MethodGet {
		h.lose = false
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	if answer != nil {
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			h.t.Error(err)
		}
	}
}

// may reports whether the request has a token with a right.
func (h *hubServer) may(r *http.Request, need string) bool {
	word := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	return word == "hunter2-token" || h.tokens[word] == need
}

func (h *hubServer) id() int { h.next++; return h.next }

func find(all []map[string]any, key string, value any) map[string]any {
	i := slices.IndexFunc(all, func(m map[string]any) bool {
		return fmt.Sprint(m[key]) == fmt.Sprint(value)
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

func (h *hubServer) answer(w http.ResponseWriter, r *http.Request, operation string,
	params map[string]string, in map[string]any) (int, any) {
	needs := map[string]string{"repos/get-collaborator-permission-level": "metadata read",
		"checks/list-for-ref": "checks write", "checks/create": "checks write",
		"checks/update": "checks write", "issues/list-comments": "pull_requests read",
		"issues/create-comment": "pull_requests write",
		"issues/update-comment": "pull_requests write",
		"issues/delete-comment": "pull_requests write", "pulls/get": "pull_requests read",
		"pulls/list": "pull_requests read", "pulls/create": "pull_requests write",
		"pulls/update": "pull_requests write", "git/create-ref": "contents write",
		"git/get-ref": "contents write", "git/get-commit": "contents write",
		"git/create-tree": "contents write", "git/create-commit": "contents write",
		"repos/get-commit": "contents read"}
	if need := needs[operation]; need != "" && !h.may(r, need) {
		return http.StatusForbidden, map[string]any{
			"message": "Resource not accessible by integration"}
	}
	user := map[string]any{"login": h.login, "type": "User"}
	switch operation {
	case "apps/get-repo-installation":
		h.signedByApp(r)
		return 200, map[string]any{"id": 77}
	case "apps/create-installation-access-token":
		h.signedByApp(r)
		rights := in["permissions"].(map[string]any)
		if params["installation_id"] != "77" || len(rights) != 1 ||
			fmt.Sprint(in["repositories"]) != "[apps]" {
			h.t.Errorf("a token of installation %s with %v", params["installation_id"], in)
		}
		token := fmt.Sprintf("ghs_%d", h.id())
		for name, level := range rights {
			h.tokens[token] = fmt.Sprint(name, " ", level)
		}
		return 201, map[string]any{"token": token,
			"expires_at":   time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
			"repositories": []any{map[string]any{"full_name": "team/apps"}}}
	case "repos/get-collaborator-permission-level":
		if params["username"] == "nobody" {
			return 404, map[string]any{"message": "Not Found"}
		}
		return 200, map[string]any{"permission": h.level}
	case "repos/get-combined-status-for-ref":
		return 200, map[string]any{"statuses": h.statuses}
	case "repos/create-commit-status":
		h.statuses = append([]map[string]any{in}, slices.DeleteFunc(h.statuses,
			func(m map[string]any) bool { return m["context"] == in["context"] })...)
		return 201, in
	case "checks/list-for-ref":
		var all []map[string]any
		for _, c := range h.checks {
			if c["head_sha"] == params["ref"] && c["name"] == r.URL.Query().Get("check_name") &&
				r.URL.Query().Get("app_id") == "12" && r.URL.Query().Get("filter") == "all" {
				all = append(all, c)
			}
		}
		return 200, map[string]any{"total_count": len(all), "check_runs": all}
	case "checks/create":
		in["id"] = h.id()
		h.annotate(nil, in)
		h.checks = append(h.checks, in)
		return 201, in
	case "checks/update":
		check := find(h.checks, "id", params["check_run_id"])
		if check["status"] == "completed" && in["status"] != "completed" {
			h.t.Error("a completed check run is opened again")
		}
		h.annotate(check, in)
		maps.Copy(check, in)
		return 200, check
	case "issues/list-comments":
		page, _ := strconv.Atoi(r.URL.Query().Get("page"))
		if max(page, 1)*100 < len(h.comments) {
			w.Header().Set("Link", fmt.Sprintf(`<%s?page=%d>; rel="next"`, h.URL, max(page, 1)+1))
		}
		return 200, h.comments[min(len(h.comments), (max(page, 1)-1)*100):min(len(h.comments),
			max(page, 1)*100)]
	case "issues/create-comment":
		in["id"], in["user"] = h.id(), user
		h.comments = append(h.comments, in)
		return 201, in
	case "issues/update-comment":
		maps.Copy(find(h.comments, "id", params["comment_id"]), in)
		return 200, in
	case "issues/delete-comment":
		h.comments = slices.DeleteFunc(h.comments,
			func(m map[string]any) bool { return fmt.Sprint(m["id"]) == params["comment_id"] })
		return 204, nil
	case "pulls/list":
		if head := r.URL.Query().Get("head"); !strings.HasPrefix(head, "team:") {
			h.t.Errorf("pull requests of %q", head)
		}
		return 200, h.pulls
	case "pulls/get":
		return 200, find(h.pulls, "number", params["pull_number"])
	case "pulls/create":
		for _, p := range h.pulls {
			if p["state"] == "open" {
				return 422, map[string]any{"message": "Validation Failed",
					"errors": []any{
						map[string]any{"message": "A pull request already exists for team:next."}}}
			}
		}
		p := pullOf(len(h.pulls)+1, "open", in["title"].(string), in["body"].(string))
		h.pulls = append(h.pulls, p)
		return 201, p
	case "pulls/update":
		maps.Copy(find(h.pulls, "number", params["pull_number"]), in)
		return 200, in
	case "git/create-ref":
		name := strings.TrimPrefix(in["ref"].(string), "refs/heads/")
		if h.refs[name] != "" {
			return 422, map[string]any{"message": "Reference already exists"}
		}
		h.refs[name] = in["sha"].(string)
		return 201, in
	case "git/get-ref":
		name := strings.TrimPrefix(r.URL.Path, "/api/v3/repos/team/apps/git/ref/heads/")
		if h.refs[name] == "" {
			return 404, map[string]any{"message": "Not Found"}
		}
		return 200, map[string]any{"ref": "refs/heads/" + name,
			"object": map[string]any{"sha": h.refs[name]}}
	case "git/get-commit":
		return 200, map[string]any{"sha": params["commit_sha"],
			"tree": map[string]any{"sha": "tree-" + params["commit_sha"]}}
	case "git/create-tree":
		if in["base_tree"] != "tree-"+commitA {
			h.t.Errorf("a tree on %v", in["base_tree"])
		}
		return 201, map[string]any{"sha": "new-tree", "tree": in["tree"]}
	case "git/create-commit":
		if in["author"] != nil || in["committer"] != nil ||
			fmt.Sprint(in["parents"]) != "["+commitA+"]" || in["tree"] != "new-tree" {
			h.t.Errorf("the commit %v", in)
		}
		return 201, map[string]any{"sha": commitC}
	case "repos/get-commit":
		verified := params["ref"] != commitB
		return 200, map[string]any{"sha": params["ref"], "author": user,
			"commit": map[string]any{"verification": map[string]any{"verified": verified}}}
	}
	h.t.Errorf("%s %s is not answered", r.Method, r.URL)
	return 500, nil
}

func (h *hubServer) annotate(check, in map[string]any) {
	count := 0
	if check != nil {
		count = check["output"].(map[string]any)["annotations_count"].(int)
	}
	out := in["output"].(map[string]any)
	notes, _ := out["annotations"].([]any)
	if len(notes) > 50 {
		h.t.Errorf("%d annotations at once", len(notes))
	}
	out["annotations_count"] = count + len(notes)
}

// signedByApp checks the App's JWT.
func (h *hubServer) signedByApp(r *http.Request) {
	token, err := jwt.ParseSigned(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "),
		[]jose.SignatureAlgorithm{jose.RS256})
	var claims jwt.Claims
	if err == nil {
		err = token.Claims(h.key.Public(), &claims)
	}
	if err != nil || claims.Issuer != "12" ||
		claims.Expiry.Time().Sub(claims.IssuedAt.Time()) > 10*time.Minute ||
		time.Until(claims.Expiry.Time()) <= 0 {
		h.t.Errorf("the App's token: %v, %+v", err, claims)
	}
}

func pullOf(number int, state, title, body string) map[string]any {
	return map[string]any{"number": number, "state": state, "title": title, "body": body,
		"html_url": fmt.Sprintf("https://forge/%d", number), "user": map[string]any{"login": "ada"},
		"head": map[string]any{"ref": "next", "sha": commitB, "repo": map[string]any{"id": 1}},
		"base": map[string]any{"ref": "main", "repo": map[string]any{"id": 1}}}
}

// graphQL of the four operations, with their inputs field by field.
func (h *hubServer) graphQL(r *http.Request, body []byte) any {
	var in struct {
		Query     string
		Variables struct {
			Owner, Name string
			Input       struct {
				Branch          *struct{ RepositoryNameWithOwner, BranchName string }
				ExpectedHeadOid string
				Message         *struct{ Headline, Body string }
				FileChanges     *struct {
					Additions []struct{ Path, Contents string }
				}
				RepositoryID string
				RefUpdates   []struct {
					Name, BeforeOid, AfterOid string
					Force                     bool
				}
			}
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		h.t.Errorf("%v: %s", err, body)
	}
	input := in.Variables.Input
	fail := func(kind, text string) any {
		return map[string]any{"data": nil,
			"errors": []any{map[string]any{"type": kind, "message": text, "path": []any{"x"}}}}
	}
	switch {
	case in.Query == "query { viewer { login } }":
		return map[string]any{"data": map[string]any{"viewer": map[string]any{"login": h.login}}}
	case strings.Contains(in.Query, "repository(owner: $owner"):
		return map[string]any{"data": map[string]any{"repository": map[string]any{"id": "R_1"}}}
	case !h.may(r, "contents write"):
		return fail("FORBIDDEN", "Resource not accessible by integration")
	case strings.Contains(in.Query, "createCommitOnBranch(input: $input)"):
		name := input.Branch.BranchName
		if input.Branch.RepositoryNameWithOwner != "team/apps" || h.refs[name] == "" {
			return fail("NOT_FOUND", "No such branch")
		}
		if h.refs[name] != input.ExpectedHeadOid {
			return fail("STALE_DATA",
				`Expected branch to point to "x" but it did not.  Pull and try again.`)
		}
		if name == "protected" {
			return fail("UNPROCESSABLE", "Changes must be made through a pull request.")
		}
		h.refs[name] = commitC
		for _, a := range input.FileChanges.Additions {
			text, _ := base64.StdEncoding.DecodeString(a.Contents)
			h.made[a.Path] = string(text)
		}
		h.messages[commitC] = input.Message.Headline + "|" + input.Message.Body
		return map[string]any{
			"data": map[string]any{
				"createCommitOnBranch": map[string]any{"commit": map[string]any{"oid": commitC}}}}
	case strings.Contains(in.Query, "updateRefs(input: $input)"):
		u := input.RefUpdates[0]
		name := strings.TrimPrefix(u.Name, "refs/heads/")
		if input.RepositoryID != "R_1" || h.refs[name] != u.BeforeOid || !u.Force {
			return fail("UNPROCESSABLE", "Could not update refs")
		}
		h.refs[name] = u.AfterOid
		return map[string]any{
			"data": map[string]any{"updateRefs": map[string]any{"clientMutationId": nil}}}
	}
	h.t.Errorf("the query %s", in.Query)
	return nil
}

// open the repository with a token, or as an App.
func (h *hubServer) open(app bool) Forge {
	h.t.Helper()
	login := Credential{Token: "hunter2-token"}
	if app {
		if h.key == nil {
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			if err != nil {
				h.t.Fatal(err)
			}
			h.key = key
		}
		login = Credential{
			App: &App{ID: 12,
				Key: pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
					Bytes: x509.MarshalPKCS1PrivateKey(h.key)})}}
		h.login = "armature-app[bot]"
	}
	return opened(h.t, GitHub, h.URL+"/team/apps.git", login)
}

func opened(t *testing.T, kind, address string, login Credential) Forge {
	t.Helper()
	f, err := new(Clients).Open(kind, address, login)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// sent since the last call, without the questions.
func (h *hubServer) sent() (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if !strings.HasPrefix(r, "GET ") && !strings.HasPrefix(r, "POST /app/") &&
			r != "POST /api/graphql" {
			all = append(all, strings.Replace(r, "/repos/team/apps", "", 1))
		}
	}
	h.requests = nil
	return all
}

func expect(t *testing.T, err error, got, want any) {
	t.Helper()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v, want %v", err, got, want)
	}
}

func TestGitHubChecks(t *testing.T) {
	h := newHub(t)
	f := h.open(true)
	s := Status{Commit: commitA, Context: "armature/team1/weather", State: Running, ID: "weather-1",
		Description: "the run weather-1 builds"}
	for range 2 { // the second is equal
		expect(t, f.SetStatus(t.Context(), s), nil, nil)
	}
	expect(t, nil, h.sent(), []string{"POST /check-runs"})

	s.State, s.Summary = Failure, "why"
	for i := range 120 {
		s.Annotations = append(s.Annotations,
			Annotation{Path: "./Dockerfile", Line: i + 1, Message: "wrong"})
	}
	expect(t, f.SetStatus(t.Context(), s), nil, nil)
	expect(t, f.SetStatus(t.Context(), s), nil, nil)
	id := h.checks[0]["id"]
	expect(t, nil, h.sent(), []string{fmt.Sprintf("PATCH /check-runs/%v", id),
		fmt.Sprintf("PATCH /check-runs/%v", id), fmt.Sprintf("PATCH /check-runs/%v", id)})
	out := h.checks[0]["output"].(map[string]any)
	note := out["annotations"].([]any)[0].(map[string]any)
	if h.checks[0]["status"] != "completed" || h.checks[0]["conclusion"] != "failure" ||
		out["summary"] != "why" || out["annotations_count"] != 120 || note["path"] != "Dockerfile" {
		t.Errorf("%v", h.checks[0])
	}
	// What comes late opens nothing again.
	late := s
	late.State = Queued
	expect(t, f.SetStatus(t.Context(), late), nil, nil)
	expect(t, nil, h.sent(), []string(nil))

	// A second attempt is another run, and completes what an earlier one left open.
	h.checks = append(h.checks, map[string]any{"id": 90, "name": s.Context, "head_sha": commitA,
		"external_id": "weather-0", "status": "in_progress",
		"output": map[string]any{"annotations_count": 0}})
	second := Status{Commit: commitA, Context: s.Context, State: Success, ID: "weather-2"}
	expect(t, f.SetStatus(t.Context(), second), nil, nil)
	expect(t, nil, h.sent(), []string{"POST /check-runs", "PATCH /check-runs/90"})
	if left := find(h.checks, "id", 90); left["conclusion"] != "cancelled" {
		t.Errorf("%v", left)
	}
	for state, want := range map[State]string{Skipped: "skipped", Cancelled: "cancelled",
		Error: "failure", Success: "success"} {
		s := Status{Commit: commitB, Context: "c", State: state, ID: string(state)}
		expect(t, f.SetStatus(t.Context(), s), find(h.checks, "external_id", s.ID)["conclusion"], want)
	}
	h.mu.Lock()
	h.requests = nil
	h.lose = true
	h.mu.Unlock()
	// A lost answer is an error, and the next attempt finds the run.
	lost := Status{Commit: commitC, Context: "c", State: Running, ID: "lost-1"}
	if err := f.SetStatus(t.Context(), lost); err == nil {
		t.Error("a lost answer gives no error")
	}
	expect(t, f.SetStatus(t.Context(), lost), nil, nil)
	expect(t, nil, h.sent(), []string{"POST /check-runs"})
	if f.SetStatus(t.Context(), Status{Commit: "../../x", Context: "c"}) == nil {
		t.Error("a path is taken for a commit")
	}
	for name := range h.tokens {
		if h.tokens[name] != "checks write" {
			t.Errorf("a token with %s", h.tokens[name])
		}
	}
	if len(h.tokens) != 1 {
		t.Errorf("%d tokens were made", len(h.tokens))
	}
}

func TestGitHubStatuses(t *testing.T) {
	h := newHub(t)
	f := h.open(false)
	s := Status{Commit: commitA, Context: "armature/team1/weather", State: Running,
		Description: strings.Repeat("é", 200)}
	expect(t, f.SetStatus(t.Context(), s), nil, nil)
	expect(t, f.SetStatus(t.Context(), s), nil, nil)
	expect(t, nil, h.sent(), []string{"POST /statuses/" + commitA})
	if text := h.statuses[0]["description"].(string); len(text) > 140 ||
		!strings.HasSuffix(text, "…") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	for state, want := range map[State]string{Queued: "pending", Success: "success",
		Skipped: "success", Failure: "failure", Error: "error", Cancelled: "error"} {
		s.State, s.Description = state, string(state)
		expect(t, f.SetStatus(t.Context(), s), h.statuses[0]["state"], want)
	}
}

func TestGitHubMayPush(t *testing.T) {
	h := newHub(t)
	for _, app := range []bool{false, true} {
		f := h.open(app)
		for level, want := range map[string]bool{"admin": true, "maintain": true, "write": true,
			"triage": false, "read": false, "none": false, "": false} {
			h.level = level
			may, err := f.MayPush(t.Context(), "ada")
			expect(t, err, may, want)
		}
		h.level = "admin"
		for _, user := range []string{"nobody", "../../x", "", "a/b", "a?b", "-x"} {
			may, err := f.MayPush(t.Context(), user)
			expect(t, err, may, false)
		}
	}
}

// One comment of our account is updated in place. A stranger's with our marker stays.
func TestGitHubComment(t *testing.T) {
	for _, app := range []bool{false, true} {
		h := newHub(t)
		f := h.open(app)
		for range 150 {
			h.comments = append(h.comments, map[string]any{"id": h.id(), "body": "hm",
				"user": map[string]any{"login": "ada", "type": "User"}})
		}
		h.comments = append(h.comments,
			map[string]any{"id": h.id(),
				"body": "<!-- armature -->\n<!-- armature: build/a -->\nall is well",
				"user": map[string]any{"login": "mallory", "type": "User"}})
		comment := func(marker, body string) string {
			t.Helper()
			if err := f.Comment(t.Context(), 7, marker, body); err != nil {
				t.Fatal(err)
			}
			return strings.Join(h.sent(), " ")
		}
		expect(t, nil, comment("build/a", ""), "")
		expect(t, nil, comment("build/a", "it failed\n<!-- armature: package -->\nforged"),
			"POST /issues/7/comments")
		mine := h.comments[len(h.comments)-1]
		expect(t, nil, comment("build/a", "it failed\n<!-- armature: package -->\nforged"), "")
		edit := fmt.Sprintf("PATCH /issues/comments/%v", mine["id"])
		expect(t, nil, comment("package", "lint"), edit)
		expect(t, nil, mine["body"],
			"<!-- armature -->\n\n<!-- armature: build/a -->\n\nit failed\n"+
				"<!-- armature; package -->\nforged\n\n<!-- armature: package -->\n\nlint\n")
		mine["body"] = strings.ReplaceAll(mine["body"].(string), "\n", "\r\n")
		expect(t, nil, comment("package", "lint"), "")
		expect(t, nil, comment("build/a", "again"), edit)
		expect(t, nil, comment("build/a", ""), edit)
		expect(t, nil, mine["body"], "<!-- armature -->\n\n<!-- armature: package -->\n\nlint\n")
		// Two writers that both added one leave one.
		h.comments = append(h.comments,
			map[string]any{"id": 9000, "body": mine["body"], "user": mine["user"]})
		expect(t, nil, comment("package", "lint"), "DELETE /issues/comments/9000")
		expect(t, nil, comment("package", ""),
			fmt.Sprintf("DELETE /issues/comments/%v", mine["id"]))
		expect(t, nil, len(h.comments), 151)
		if err := f.Comment(t.Context(), 7, "x --> y", "z"); err == nil {
			t.Error("a marker that ends the comment is taken")
		}
		h.mu.Lock()
		h.lose = true
		h.mu.Unlock()
		h.before = nil
		if err := f.Comment(t.Context(), 7, "package", strings.Repeat("é", 70_000)); err == nil {
			t.Error("a lost answer gives no error")
		}
		expect(t, f.Comment(t.Context(), 7, "package", "found"), len(h.comments), 152)
	}
}

// TestHostileComment: a server, or who may edit the comment, decides how many parts and lines it
// has.
func TestHostileComment(t *testing.T) {
	h := newHub(t)
	f := h.open(false)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(f.Comment(t.Context(), 7, "build/a", "failed"))
	mine := h.comments[0]
	many := "<!-- armature -->\n"
	for i := range 400 {
		many += fmt.Sprintf("<!-- armature: build/%d -->\n%s\n", i, strings.Repeat("x", 1000))
	}
	mine["body"] = many
	must(f.Comment(t.Context(), 7, "build/a", "it works"))
	if body := mine["body"].(string); !strings.Contains(body, "it works") || len(body) > 65_536 {
		t.Errorf("%d bytes: %.200s", len(body), body)
	}
	mine["body"] = "<!-- armature -->\n<!-- armature: build/b -->\n" + strings.Repeat("\n", 1<<20)
	start := time.Now()
	must(f.Comment(t.Context(), 7, "build/a", "it works"))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("lines of a comment took %s", took)
	}
}

func TestGitHubPullRequests(t *testing.T) {
	h := newHub(t)
	for _, app := range []bool{false, true} {
		h.pulls = nil
		f := h.open(app)
		p := Proposal{Head: "next", Base: "main", Title: "Pin", Body: "text"}
		made, isNew, err := f.Propose(t.Context(), p)
		expect(t, err, fmt.Sprint(isNew, *made),
			fmt.Sprint(true, PullRequest{Number: 1, URL: "https://forge/1", Title: "Pin",
				Body: "text", Author: "ada", Head: "next", Commit: commitB, Base: "main", Open: true}))
		p.Body = "more"
		_, isNew, err = f.Propose(t.Context(), p)
		expect(t, err, fmt.Sprint(isNew, h.pulls[0]["body"]), "falsetext")
		p.Refresh = true
		_, isNew, err = f.Propose(t.Context(), p)
		expect(t, err, fmt.Sprint(isNew, h.pulls[0]["body"]), "falsemore")
		// One of a fork, to another base, or closed is not ours: another writer's counts.
		h.sent()
		h.pulls[0]["state"] = "closed"
		h.lose = true
		_, isNew, err = f.Propose(t.Context(), p)
		expect(t, err, fmt.Sprint(isNew, len(h.pulls), h.sent()), "false 2 [POST /pulls]")
		h.pulls[1]["head"].(map[string]any)["repo"] = nil
		all, err := f.PullRequests(t.Context(), "next")
		expect(t, err, len(all), 2)
		if all[0].Open || all[0].Merged || !all[1].Fork {
			t.Errorf("%+v", all)
		}
		h.pulls[0]["merged_at"] = "2026-01-01T00:00:00Z"
		one, err := f.PullRequest(t.Context(), 1)
		expect(t, err, one.Merged, true)
	}
}

func TestGitHubCommit(t *testing.T) {
	h := newHub(t)
	for _, app := range []bool{false, true} {
		f := h.open(app)
		h.refs = map[string]string{"main": commitA, "protected": commitA}
		c := Commit{Branch: "main", Head: commitA,
			Message: "Pin weather\n\nArmature-Set: sha256:1\n",
			Files:   map[string][]byte{"apps/armature.lock": []byte("lock\n")}}
		sha, err := f.Commit(t.Context(), c)
		expect(t, err, fmt.Sprint(sha, h.refs["main"], h.made["apps/armature.lock"],
			h.messages[commitC]),
			fmt.Sprint(commitC, commitC, "lock\n", "Pin weather|Armature-Set: sha256:1"))
		if _, err := f.Commit(t.Context(), c); !errors.Is(err, ErrMoved) {
			t.Errorf("a moved branch: %v", err)
		}
		c.Branch = "protected"
		if _, err := f.Commit(t.Context(), c); !errors.Is(err, ErrRefused) ||
			errors.Is(err, ErrMoved) ||
			!strings.Contains(err.Error(), "Changes must be made through a pull request.") {
			t.Errorf("a protected branch: %v", err)
		}
		// A branch of its own is made, and one that was made before a crash is used.
		c.Branch, c.Base = "armature/pin/x", "main"
		for range 2 {
			sha, err = f.Commit(t.Context(), c)
			expect(t, err, fmt.Sprint(sha, h.refs[c.Branch]), fmt.Sprint(commitC, commitC))
			h.refs[c.Branch] = commitA
		}
		// An older commit of ours is replaced, but not one that somebody else wrote meanwhile.
		c.Replaces = commitB
		if _, err := f.Commit(t.Context(), c); !errors.Is(err, ErrMoved) {
			t.Errorf("a branch that moved: %v", err)
		}
		h.refs[c.Branch] = commitB
		sha, err = f.Commit(t.Context(), c)
		expect(t, err, fmt.Sprint(sha, h.refs[c.Branch]), fmt.Sprint(commitC, commitC))
		for commit, want := range map[string]bool{commitA: true, commitB: false} {
			wrote, err := f.Wrote(t.Context(), commit)
			expect(t, err, wrote, want)
		}
	}
}
