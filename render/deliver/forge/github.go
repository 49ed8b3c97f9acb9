package forge

import (
	"cmp"
	"context"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-github/v88/github"
	"golang.org/x/crypto/ssh"

	"github.com/armature-dev/armature/functions/text"
)

// hub is a repository on GitHub or GitHub Enterprise Server.
type hub struct {
	remote
	key *rsa.PrivateKey // of the App; nil for a token
}

// right is a right that a request needs. An App has a token for each.
type right string

const (
	seePeople right = "metadata"
	seePulls  right = "pulls read"
	seeFiles  right = "contents read"
	setChecks right = "checks write"
	setPulls  right = "pulls write"
	setFiles  right = "contents write"
)

// permissions returns the permissions of an App for the rights.
func permissions() map[right]*github.InstallationPermissions {
	read, write := github.Ptr("read"), github.Ptr("write")
	return map[right]*github.InstallationPermissions{
		seePeople: {Metadata: read}, seePulls: {PullRequests: read}, seeFiles: {Contents: read},
		setChecks: {Checks: write}, setPulls: {PullRequests: write}, setFiles: {Contents: write},
	}
}

func openGitHub(at remote) (server, error) {
	h := &hub{remote: at}
	if at.login.App != nil {
		key, err := ssh.ParseRawPrivateKey(at.login.App.Key)
		var ok bool
		if h.key, ok = key.(*rsa.PrivateKey); err != nil || !ok {
			return nil, errors.New("the key of the GitHub App is not an RSA private key in PEM")
		}
	}
	return h, nil
}

// as returns a client for requests that need a right.
func (h *hub) as(need right) *github.Client {
	return h.client(func(ctx context.Context) (string, error) { return h.installed(ctx, need) })
}

// client returns a client that sends each request with a token.
func (h *hub) client(token func(context.Context) (string, error)) *github.Client {
	base := h.api.String()
	client, err := github.NewClient(github.WithTransport(authorized{h.transport, token}),
		github.WithURLs(&base, &base), github.WithUserAgent("armature"),
		github.WithDisableRateLimitCheck())
	if err != nil {
		panic(err) // it fails only for an invalid address
	}
	return client
}

type authorized struct {
	*transport
	token func(context.Context) (string, error)
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := a.token(r.Context())
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+text)
	return a.transport.RoundTrip(r)
}

// installed returns the token of the credential, or a token of the App with one right for only this
// repository.
func (h *hub) installed(ctx context.Context, need right) (string, error) {
	if h.key == nil {
		return h.login.Token, nil
	}
	name := h.path + " " + string(need)
	h.account.mu.Lock()
	known := h.account.tokens[name]
	h.account.mu.Unlock()
	if time.Until(known.expires) > 5*time.Minute {
		return known.text, nil
	}
	made, err := h.token(ctx, need)
	if err != nil {
		return "", fmt.Errorf("making a token of GitHub App %d for %s: %w", h.login.App.ID, h.path, err)
	}
	h.account.mu.Lock()
	defer h.account.mu.Unlock()
	maps.DeleteFunc(h.account.tokens, func(_ string, t token) bool {
		return time.Now().After(t.expires)
	})
	h.account.tokens[name] = made
	return made.text, nil
}

// GitToken returns a token of a GitHub App for reading a repository with Git's protocol, or for
// writing it. Its user is x-access-token.
func (c *Clients) GitToken(ctx context.Context, repository string, login Credential,
	write bool) (string, error) {
	r, err := c.open(GitHub, repository, login)
	h, ok := r.server.(*hub)
	if err != nil || !ok || h.key == nil {
		return "", cmp.Or(err, errors.New("the credential is not a GitHub App"))
	}
	if write {
		return h.installed(ctx, setFiles)
	}
	return h.installed(ctx, seeFiles)
}

// token creates a token of the App's installation.
func (h *hub) token(ctx context.Context, need right) (made token, err error) {
	app := h.login.App
	key := jose.SigningKey{Algorithm: jose.RS256, Key: h.key}
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return made, err
	}
	now := time.Now()
	text, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer:   fmt.Sprint(app.ID),
		IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)),
		Expiry:   jwt.NewNumericDate(now.Add(8 * time.Minute)),
	}).Serialize()
	if err != nil {
		return made, err
	}
	client := h.client(func(context.Context) (string, error) { return text, nil })
	installation := app.Installation
	if installation == 0 {
		found, _, err := client.Apps.GetRepositoryInstallation(ctx, h.owner, h.name)
		if err != nil {
			return made, err
		}
		installation = found.GetID()
	}
	got, _, err := client.Apps.CreateInstallationToken(context.WithValue(ctx, asking{}, true),
		installation,
		&github.InstallationTokenOptions{Repositories: []string{h.name},
			Permissions: permissions()[need]})
	if err != nil {
		return made, err
	}
	if len(got.Repositories) != 1 || !strings.EqualFold(got.Repositories[0].GetFullName(), h.path) {
		err := fmt.Errorf("%w: the installation %d does not include this repository",
			ErrUnauthorized, installation)
		return made, err
	}
	return token{got.GetToken(), got.GetExpiresAt().Time}, nil
}

// MayPush requests the role of a user, which includes the roles of teams.
func (h *hub) MayPush(ctx context.Context, user string) (bool, error) {
	level, _, err := h.as(seePeople).Repositories.GetPermissionLevel(ctx, h.owner, h.name, user)
	return slices.Contains([]string{"admin", "maintain", "write"}, level.GetPermission()), err
}

// SetStatus sets a check run for an App, and a commit status for a token.
func (h *hub) SetStatus(ctx context.Context, s Status) error {
	if h.key != nil {
		return h.check(ctx, s)
	}
	state := cmp.Or(map[State]string{
		Queued: "pending", Running: "pending", Success: "success", Skipped: "success",
		Failure: "failure",
	}[s.State], "error")
	text := line(s.Description, 140)
	want := github.RepoStatus{State: &state, Context: &s.Context, Description: &text}
	repositories := h.as(setChecks).Repositories
	options := &github.ListOptions{PerPage: 100}
	for range maxPages {
		all, answer, err := repositories.GetCombinedStatus(ctx, h.owner, h.name, s.Commit, options)
		if err != nil {
			return err
		}
		for _, is := range all.Statuses {
			same := is.GetState() == state && is.GetDescription() == text
			if same && strings.EqualFold(is.GetContext(), s.Context) {
				return nil
			}
		}
		if options.Page = answer.NextPage; options.Page == 0 {
			break
		}
	}
	_, _, err := repositories.CreateStatus(ctx, h.owner, h.name, s.Commit, want)
	return err
}

// optional returns a pointer to a text, or nil for an empty text, which GitHub rejects.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// maxOutput bounds the summary of a check run, in bytes, and maxAnnotations the annotations of a
// request.
const maxOutput, maxAnnotations = 65_000, 50

// check creates or updates the check run of an attempt. It cancels older check runs of the context
// that are not completed, because a check that stays in progress blocks a merge.
func (h *hub) check(ctx context.Context, s Status) error {
	status, conclusion := "completed", cmp.Or(map[State]string{
		Success: "success", Skipped: "skipped", Cancelled: "cancelled"}[s.State], "failure")
	if !s.State.Done() {
		status, conclusion = map[State]string{Queued: "queued", Running: "in_progress"}[s.State], ""
	}
	title := line(cmp.Or(s.Description, string(s.State)), 255)
	summary := text.Cut(cmp.Or(s.Summary, title), maxOutput)
	mine, open, err := h.checks(ctx, s)
	if err != nil {
		return err
	}
	var notes []*github.CheckRunAnnotation
	for _, a := range s.Annotations {
		at := max(a.Line, 1)
		notes = append(notes, &github.CheckRunAnnotation{
			Path: github.Ptr(strings.TrimPrefix(a.Path, "./")), StartLine: &at, EndLine: &at,
			AnnotationLevel: github.Ptr("failure"), Message: github.Ptr(text.Cut(a.Message, 60_000)),
		})
	}
	output := func() *github.CheckRunOutput {
		n := min(len(notes), maxAnnotations)
		out := &github.CheckRunOutput{Title: &title, Summary: &summary, Annotations: notes[:n]}
		notes = notes[n:]
		return out
	}
	client := h.as(setChecks).Checks
	equal := mine == nil
	if mine == nil {
		mine, _, err = client.CreateCheckRun(ctx, h.owner, h.name, github.CreateCheckRunOptions{
			Name: s.Context, HeadSHA: s.Commit, ExternalID: &s.ID, Status: &status,
			Conclusion: optional(conclusion), Output: output(),
		})
		if err != nil {
			return err
		}
	} else {
		out := mine.GetOutput()
		notes = notes[min(len(notes), out.GetAnnotationsCount()):] // the requests append them
		equal = mine.GetStatus() == status && mine.GetConclusion() == conclusion &&
			out.GetTitle() == title && out.GetSummary() == summary
		equal = equal || mine.GetStatus() == "completed" && !s.State.Done() // s is outdated
	}
	update := github.UpdateCheckRunOptions{
		Name: s.Context, Status: &status, Conclusion: optional(conclusion),
	}
	for ; !equal || len(notes) > 0; equal = true {
		update.Output = output()
		if _, _, err := client.UpdateCheckRun(ctx, h.owner, h.name, mine.GetID(), update); err != nil {
			return err
		}
	}
	by := "Superseded by " + s.ID
	update = github.UpdateCheckRunOptions{
		Name: s.Context, Status: github.Ptr("completed"), Conclusion: github.Ptr("cancelled"),
		Output: &github.CheckRunOutput{Title: &by, Summary: &by},
	}
	for _, id := range open {
		if id > mine.GetID() {
			continue
		}
		if _, _, err := client.UpdateCheckRun(ctx, h.owner, h.name, id, update); err != nil {
			return err
		}
	}
	return nil
}

// checks returns the newest check run of the attempt, and the check runs of the context's other
// attempts on the commit that are not completed.
func (h *hub) checks(ctx context.Context,
	s Status) (mine *github.CheckRun, open []int64, err error) {
	options := &github.ListCheckRunsOptions{CheckName: &s.Context, Filter: github.Ptr("all"),
		AppID: &h.login.App.ID, ListOptions: github.ListOptions{PerPage: 100}}
	for range maxPages {
		all, answer, err := h.as(setChecks).Checks.ListCheckRunsForRef(ctx, h.owner, h.name,
			s.Commit, options)
		if err != nil {
			return nil, nil, err
		}
		for _, run := range all.CheckRuns {
			if run.GetExternalID() != s.ID && run.GetStatus() != "completed" {
				open = append(open, run.GetID())
			} else if run.GetExternalID() == s.ID && (mine == nil || mine.GetID() < run.GetID()) {
				mine = run
			}
		}
		if options.Page = answer.NextPage; options.Page == 0 {
			break
		}
	}
	return mine, open, nil
}

// query sends a GraphQL query and decodes its data.
func (h *hub) query(ctx context.Context, need right, text string, variables map[string]any,
	into any) error {
	path := "graphql"
	if h.api.Path != "/" {
		path = "/api/graphql"
	}
	if !strings.HasPrefix(text, "mutation") {
		ctx = context.WithValue(ctx, asking{}, true)
	}
	client := h.as(need)
	request, err := client.NewRequest(ctx, "POST", path,
		map[string]any{"query": text, "variables": variables})
	if err != nil {
		return err
	}
	answer := struct {
		Data   any
		Errors []struct{ Type, Message string }
	}{Data: into}
	if _, err := client.Do(request, &answer); err != nil || len(answer.Errors) == 0 {
		return err
	}
	first := answer.Errors[0]
	if first.Type == "RATE_LIMITED" {
		return h.account.limited(h.api.Host)
	}
	kind := map[string]error{"STALE_DATA": ErrMoved, "NOT_FOUND": ErrNotFound,
		"FORBIDDEN": ErrUnauthorized}[first.Type]
	return &answerError{h.api.Host, first.Type, shown([]byte(first.Message)), cmp.Or(kind, ErrRefused)}
}

// me returns the login name of the credential, which ends in [bot] for an App.
func (h *hub) me(ctx context.Context) (_ int64, login string, err error) {
	if login, _ = h.account.login.Load().(string); login != "" {
		return 0, login, nil
	}
	var data struct{ Viewer struct{ Login string } }
	if err := h.query(ctx, seePeople, "query { viewer { login } }", nil, &data); err != nil {
		return 0, "", fmt.Errorf("looking up the account of the credential: %w", err)
	}
	if login = data.Viewer.Login; login == "" {
		return 0, "", fmt.Errorf("%w: %s does not show whose it is", ErrUnauthorized, h.api.Host)
	}
	if h.login.App != nil {
		login = strings.TrimSuffix(login, "[bot]") + "[bot]"
	}
	h.account.login.Store(login)
	return 0, login, nil
}

func (h *hub) comments(ctx context.Context,
	number, page int) (found []comment, next, last int, err error) {
	options := &github.IssueListCommentsOptions{ListOptions: github.ListOptions{Page: page,
		PerPage: mostIncoming}}
	all, answer, err := h.as(seePulls).Issues.ListComments(ctx, h.owner, h.name, number, options)
	if err != nil {
		return nil, 0, 0, err
	}
	for _, c := range all {
		edited := isEdited(c.GetCreatedAt().Time, c.GetUpdatedAt().Time)
		found = append(found, comment{Comment: Comment{c.GetUser().GetLogin(), c.GetBody(), edited},
			id: c.GetID(), bot: c.GetUser().GetType() == "Bot"})
	}
	return found, answer.NextPage, answer.LastPage, nil
}

func (h *hub) putComment(ctx context.Context, number int, id int64, body string) (err error) {
	issues, text := h.as(setPulls).Issues, &github.IssueComment{Body: &body}
	switch {
	case id == 0:
		_, _, err = issues.CreateComment(ctx, h.owner, h.name, number, text)
	case body == "":
		_, err = issues.DeleteComment(ctx, h.owner, h.name, id)
	default:
		_, _, err = issues.EditComment(ctx, h.owner, h.name, id, text)
	}
	return err
}

func (h *hub) pull(p *github.PullRequest, err error) (*PullRequest, error) {
	if err != nil {
		return nil, err
	}
	head, base := p.GetHead(), p.GetBase()
	return &PullRequest{
		Number: p.GetNumber(), URL: p.GetHTMLURL(), Title: p.GetTitle(), Body: p.GetBody(),
		Author: p.GetUser().GetLogin(), Head: head.GetRef(), Commit: head.GetSHA(),
		Base: base.GetRef(),
		Fork: head.GetRepo().GetID() == 0 || head.GetRepo().GetID() != base.GetRepo().GetID(),
		Open: p.GetState() == "open", Merged: p.GetMerged() || p.MergedAt != nil,
	}, nil
}

// PullRequest returns a pull request by its number.
func (h *hub) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	p, _, err := h.as(seePulls).PullRequests.Get(ctx, h.owner, h.name, number)
	return h.pull(p, err)
}

// PullRequests returns the pull requests from a branch, or the open ones.
func (h *hub) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	options := github.PullRequestListOptions{
		State: "open", Sort: "created", Direction: "desc",
		ListOptions: github.ListOptions{PerPage: mostIncoming},
	}
	if head != "" {
		options.State, options.Head = "all", h.owner+":"+head
	}
	all, _, err := h.as(seePulls).PullRequests.List(ctx, h.owner, h.name, &options)
	for _, p := range all {
		found, _ := h.pull(p, nil)
		out = append(out, *found)
	}
	return out, err
}

func (h *hub) propose(ctx context.Context, number int, p Proposal) (*PullRequest, error) {
	pulls := h.as(setPulls).PullRequests
	if number != 0 {
		text := &github.PullRequest{Title: &p.Title, Body: &p.Body}
		made, _, err := pulls.Edit(ctx, h.owner, h.name, number, text)
		return h.pull(made, err)
	}
	want := &github.NewPullRequest{Title: &p.Title, Body: &p.Body, Head: &p.Head, Base: &p.Base}
	made, _, err := pulls.Create(ctx, h.owner, h.name, want)
	return h.pull(made, err)
}

const (
	repositoryID = "query($owner: String!, $name: String!) { repository(owner: $owner, " +
		"name: $name) { id } }"
	createCommitOnBranch = "mutation($input: CreateCommitOnBranchInput!) " +
		"{ createCommitOnBranch(input: $input) { commit { oid } } }"
	updateRefs = "mutation($input: UpdateRefsInput!) { updateRefs(input: $input) { " +
		"clientMutationId } }"
)

func (h *hub) tip(ctx context.Context, branch string) (string, error) {
	ref, _, err := h.as(setFiles).Git.GetRef(ctx, h.owner, h.name, "heads/"+branch)
	return ref.GetObject().GetSHA(), err
}

// commit calls createCommitOnBranch, whose commits GitHub signs.
func (h *hub) commit(ctx context.Context, c Commit) (sha string, err error) {
	if c.Base != "" && c.Replaces != "" && c.Replaces != c.Head {
		return h.replace(ctx, c)
	}
	if c.Base != "" && c.Replaces == "" {
		ref := github.CreateRef{Ref: "refs/heads/" + c.Branch, SHA: c.Head}
		_, _, err := h.as(setFiles).Git.CreateRef(ctx, h.owner, h.name, ref)
		if err != nil && !errors.Is(err, ErrRefused) { // an existing branch has to be at Head
			return "", fmt.Errorf("making the branch %s: %w", c.Branch, err)
		}
	}
	return h.add(ctx, c)
}

// add adds a commit to a branch.
func (h *hub) add(ctx context.Context, c Commit) (string, error) {
	var files []map[string]string
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		text := base64.StdEncoding.EncodeToString(c.Files[name])
		files = append(files, map[string]string{"path": name, "contents": text})
	}
	headline, body, _ := strings.Cut(c.Message, "\n")
	var data struct {
		CreateCommitOnBranch struct{ Commit struct{ Oid string } }
	}
	err := h.query(ctx, setFiles, createCommitOnBranch, map[string]any{"input": map[string]any{
		"branch": map[string]any{"repositoryNameWithOwner": h.path,
			"branchName": c.Branch},
		"expectedHeadOid": c.Head, "fileChanges": map[string]any{"additions": files},
		"message": map[string]any{"headline": headline, "body": strings.TrimSpace(body)},
	}}, &data)
	return data.CreateCommitOnBranch.Commit.Oid, err
}

// replace replaces the head of a branch by a commit on top of c.Head, in one step. A pull request
// of the branch therefore never lacks a difference, which would close it.
func (h *hub) replace(ctx context.Context, c Commit) (string, error) {
	git := h.as(setFiles).Git
	head, _, err := git.GetCommit(ctx, h.owner, h.name, c.Head)
	if err != nil {
		return "", err
	}
	var entries []*github.TreeEntry
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		entries = append(entries, &github.TreeEntry{
			Path: &name, Content: github.Ptr(string(c.Files[name])),
			Mode: github.Ptr("100644"), Type: github.Ptr("blob"),
		})
	}
	tree, _, err := git.CreateTree(ctx, h.owner, h.name, head.GetTree().GetSHA(), entries)
	if err != nil {
		return "", err
	}
	want := github.Commit{Message: &c.Message, Tree: tree,
		Parents: []*github.Commit{{SHA: &c.Head}}}
	made, _, err := git.CreateCommit(ctx, h.owner, h.name, want, nil)
	if err != nil {
		return "", err
	}
	var data struct{ Repository struct{ ID string } }
	err = h.query(ctx, setFiles, repositoryID, map[string]any{"owner": h.owner, "name": h.name}, &data)
	if err != nil {
		return "", err
	}
	return made.GetSHA(), h.query(ctx, setFiles, updateRefs, map[string]any{"input": map[string]any{
		"repositoryId": data.Repository.ID,
		"refUpdates": []map[string]any{{
			"name": "refs/heads/" + c.Branch, "beforeOid": c.Replaces, "afterOid": made.GetSHA(),
			"force": true,
		}},
	}}, &struct{}{})
}

// Wrote reports whether the account wrote a commit that GitHub signed.
func (h *hub) Wrote(ctx context.Context, sha string) (bool, error) {
	_, login, err := h.me(ctx)
	if err != nil {
		return false, err
	}
	options := &github.ListOptions{PerPage: 1}
	c, _, err := h.as(seeFiles).Repositories.GetCommit(ctx, h.owner, h.name, sha, options)
	if err != nil {
		return false, err
	}
	by := isMe(c.GetAuthor().GetLogin(), c.GetAuthor().GetType() == "Bot", login)
	return by && c.GetCommit().GetVerification().GetVerified(), nil
}
