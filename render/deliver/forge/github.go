package forge

import (
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-github/v88/github"
)

// hub is a repository on GitHub or GitHub Enterprise Server.
type hub struct {
	remote
	key *rsa.PrivateKey // of the App; nil for a token
}

func openGitHub(at remote) (Forge, error) {
	h := &hub{remote: at}
	if at.login.App == nil {
		return h, nil
	}
	block, _ := pem.Decode(at.login.App.Key)
	if block == nil {
		return nil, errors.New("the key of the GitHub App is not in PEM")
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		other, failed := x509.ParsePKCS8PrivateKey(block.Bytes)
		ok := false
		if key, ok = other.(*rsa.PrivateKey); failed != nil || !ok {
			return nil, errors.New("the key of the GitHub App is not an RSA private key")
		}
	}
	h.key = key
	return h, nil
}

// right that a request needs, with the permission of an App for it.
type right string

const (
	seePeople right = "metadata"
	seePulls  right = "pulls read"
	seeFiles  right = "contents read"
	setChecks right = "checks write"
	setPulls  right = "pulls write"
	setFiles  right = "contents write"
)

func (r right) permissions() *github.InstallationPermissions {
	read, write := github.Ptr("read"), github.Ptr("write")
	return map[right]*github.InstallationPermissions{
		seePeople: {Metadata: read}, seePulls: {PullRequests: read}, seeFiles: {Contents: read},
		setChecks: {Checks: write}, setPulls: {PullRequests: write}, setFiles: {Contents: write},
	}[r]
}

// client with a token.
func (h *hub) client(text string) (*github.Client, error) {
	base := h.api.String()
	return github.NewClient(github.WithTransport(h.transport), github.WithURLs(&base, &base), github.WithAuthToken(text), github.WithUserAgent("armature"), github.WithDisableRateLimitCheck())
}

// with a right, which an App gets for this repository alone.
func (h *hub) with(ctx context.Context, need right) (*github.Client, error) {
	text := h.login.Token
	if h.key != nil {
		var err error
		if text, err = h.installed(ctx, need); err != nil {
			return nil, fmt.Errorf("making a token of GitHub App %d for %s: %w", h.login.App.ID, h.path, err)
		}
	}
	return h.client(text)
}

// installed is a token with a right, the one of before as long as it lives.
func (h *hub) installed(ctx context.Context, need right) (string, error) {
	name := h.path + " " + string(need)
	h.account.mu.Lock()
	known := h.account.tokens[name]
	h.account.mu.Unlock()
	if time.Until(known.expires) > 5*time.Minute {
		return known.text, nil
	}
	made, err := h.token(ctx, need)
	if err != nil {
		return "", err
	}
	h.account.mu.Lock()
	defer h.account.mu.Unlock()
	maps.DeleteFunc(h.account.tokens, func(_ string, t token) bool { return time.Now().After(t.expires) })
	h.account.tokens[name] = made
	return made.text, nil
}

// GitToken is a token of a GitHub App that reads a repository by Git's protocol, or writes it.
// Its user is x-access-token.
func (c *Clients) GitToken(ctx context.Context, repository string, login Credential, write bool) (string, error) {
	f, err := c.Open(GitHub, repository, login)
	h, ok := f.(*hub)
	if err != nil || !ok || h.key == nil {
		return "", cmp.Or(err, errors.New("the credential is not a GitHub App"))
	}
	if write {
		return h.installed(ctx, setFiles)
	}
	return h.installed(ctx, seeFiles)
}

// token of the App's installation.
func (h *hub) token(ctx context.Context, need right) (made token, err error) {
	app := h.login.App
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: h.key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return made, err
	}
	now := time.Now()
	text, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: fmt.Sprint(app.ID), IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), Expiry: jwt.NewNumericDate(now.Add(8 * time.Minute))}).Serialize()
	if err != nil {
		return made, err
	}
	client, err := h.client(text)
	if err != nil {
		return made, err
	}
	installation := app.Installation
	if installation == 0 {
		found, _, err := client.Apps.GetRepositoryInstallation(ctx, h.owner, h.name)
		if err != nil {
			return made, err
		}
		installation = found.GetID()
	}
	got, _, err := client.Apps.CreateInstallationToken(context.WithValue(ctx, asking{}, true), installation, &github.InstallationTokenOptions{Repositories: []string{h.name}, Permissions: need.permissions()})
	if err != nil {
		return made, err
	}
	if len(got.Repositories) != 1 || !strings.EqualFold(got.Repositories[0].GetFullName(), h.path) {
		return made, fmt.Errorf("%w: the installation %d does not include this repository", ErrUnauthorized, installation)
	}
	return token{got.GetToken(), got.GetExpiresAt().Time}, nil
}

// MayPush asks for the role of a user, where a team's counts too.
func (h *hub) MayPush(ctx context.Context, user string) (bool, error) {
	if !userName().MatchString(user) {
		return false, nil
	}
	client, err := h.with(ctx, seePeople)
	if err != nil {
		return false, err
	}
	level, _, err := client.Repositories.GetPermissionLevel(ctx, h.owner, h.name, user)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return slices.Contains([]string{"admin", "maintain", "write"}, level.GetPermission()), err
}

// SetStatus as a check run for an App, and as a commit status for a token.
func (h *hub) SetStatus(ctx context.Context, s Status) error {
	if !fullCommit.MatchString(s.Commit) {
		return fmt.Errorf("%q is not a commit in full", s.Commit)
	}
	client, err := h.with(ctx, setChecks)
	if err != nil {
		return err
	}
	if h.key != nil {
		return h.check(ctx, client, s)
	}
	state := map[State]string{Queued: "pending", Running: "pending", Success: "success", Skipped: "success", Failure: "failure", Error: "error", Cancelled: "error"}[s.State]
	want := github.RepoStatus{State: &state, Context: &s.Context, Description: github.Ptr(line(s.Description, 140))}
	if s.URL != "" {
		want.TargetURL = &s.URL
	}
	options := &github.ListOptions{PerPage: 100}
	for range maxPages {
		all, answer, err := client.Repositories.GetCombinedStatus(ctx, h.owner, h.name, s.Commit, options)
		if err != nil {
			return err
		}
		for _, is := range all.Statuses {
			if strings.EqualFold(is.GetContext(), s.Context) && is.GetState() == state && is.GetDescription() == want.GetDescription() && is.GetTargetURL() == s.URL {
				return nil
			}
		}
		if options.Page = answer.NextPage; options.Page == 0 {
			break
		}
	}
	_, _, err = client.Repositories.CreateStatus(ctx, h.owner, h.name, s.Commit, want)
	return err
}

// maxOutput of a check run's summary, in bytes, and maxAnnotations of a request.
const maxOutput, maxAnnotations = 65_000, 50

// check brings the check run of an attempt up to date. The older ones of the context that are
// not completed are cancelled, because a check that stays in progress blocks a merge.
func (h *hub) check(ctx context.Context, client *github.Client, s Status) error {
	status, conclusion := "completed", cmp.Or(map[State]string{Success: "success", Skipped: "skipped", Cancelled: "cancelled"}[s.State], "failure")
	if !s.State.Done() {
		status, conclusion = map[State]string{Queued: "queued", Running: "in_progress"}[s.State], ""
	}
	title := line(cmp.Or(s.Description, string(s.State)), 255)
	summary := cut(cmp.Or(s.Summary, title), maxOutput)
	mine, open, err := h.checks(ctx, client, s)
	if err != nil {
		return err
	}
	var notes []*github.CheckRunAnnotation
	for _, a := range s.Annotations {
		at := max(a.Line, 1)
		notes = append(notes, &github.CheckRunAnnotation{Path: github.Ptr(strings.TrimPrefix(a.Path, "./")), StartLine: &at, EndLine: &at,
			AnnotationLevel: github.Ptr("failure"), Message: github.Ptr(cut(a.Message, 60_000))})
	}
	output := func() *github.CheckRunOutput {
		n := min(len(notes), maxAnnotations)
		out := &github.CheckRunOutput{Title: &title, Summary: &summary, Annotations: notes[:n]}
		notes = notes[n:]
		return out
	}
	optional := func(text string) *string {
		if text == "" {
			return nil // an empty one is refused
		}
		return &text
	}
	equal := false
	if mine == nil {
		mine, _, err = client.Checks.CreateCheckRun(ctx, h.owner, h.name, github.CreateCheckRunOptions{Name: s.Context, HeadSHA: s.Commit, ExternalID: &s.ID,
			DetailsURL: optional(s.URL), Status: &status, Conclusion: optional(conclusion), Output: output()})
		if err != nil {
			return err
		}
		equal = true
	} else {
		out := mine.GetOutput()
		notes = notes[min(len(notes), out.GetAnnotationsCount()):] // the requests append them
		equal = mine.GetStatus() == status && mine.GetConclusion() == conclusion && out.GetTitle() == title && out.GetSummary() == summary && (s.URL == "" || mine.GetDetailsURL() == s.URL)
		equal = equal || mine.GetStatus() == "completed" && !s.State.Done() // it comes late
	}
	for !equal || len(notes) > 0 {
		_, _, err := client.Checks.UpdateCheckRun(ctx, h.owner, h.name, mine.GetID(), github.UpdateCheckRunOptions{Name: s.Context,
			DetailsURL: optional(s.URL), Status: &status, Conclusion: optional(conclusion), Output: output()})
		if err != nil {
			return err
		}
		equal = true
	}
	for _, id := range open {
		if id > mine.GetID() {
			continue
		}
		by := "Superseded by " + s.ID
		_, _, err := client.Checks.UpdateCheckRun(ctx, h.owner, h.name, id, github.UpdateCheckRunOptions{Name: s.Context, Status: github.Ptr("completed"), Conclusion: github.Ptr("cancelled"),
			Output: &github.CheckRunOutput{Title: &by, Summary: &by}})
		if err != nil {
			return err
		}
	}
	return nil
}

// checks of the context on the commit: the newest of the attempt, and those of other attempts
// that are not completed.
func (h *hub) checks(ctx context.Context, client *github.Client, s Status) (mine *github.CheckRun, open []int64, err error) {
	options := &github.ListCheckRunsOptions{CheckName: &s.Context, Filter: github.Ptr("all"), AppID: &h.login.App.ID, ListOptions: github.ListOptions{PerPage: 100}}
	for range maxPages {
		all, answer, err := client.Checks.ListCheckRunsForRef(ctx, h.owner, h.name, s.Commit, options)
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

// query in GraphQL; into gets the data.
func (h *hub) query(ctx context.Context, client *github.Client, text string, variables map[string]any, into any) error {
	path := "graphql"
	if h.api.Path != "/" {
		path = "/api/graphql"
	}
	request, err := client.NewRequest(ctx, "POST", path, map[string]any{"query": text, "variables": variables})
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
	kind := map[string]error{"STALE_DATA": ErrMoved, "NOT_FOUND": ErrNotFound, "FORBIDDEN": ErrUnauthorized}[first.Type]
	if first.Type == "RATE_LIMITED" {
		h.account.mu.Lock()
		defer h.account.mu.Unlock()
		return &LimitedError{h.api.Host, h.account.until}
	}
	return &answerError{h.api.Host, first.Type, shown([]byte(first.Message)), cmp.Or(kind, ErrRefused)}
}

// me is the login name of the credential, which an App has with [bot] at its end.
func (h *hub) me(ctx context.Context, client *github.Client) (string, error) {
	h.account.mu.Lock()
	known := h.account.login
	h.account.mu.Unlock()
	if known != "" {
		return known, nil
	}
	var data struct{ Viewer struct{ Login string } }
	if err := h.query(context.WithValue(ctx, asking{}, true), client, "query { viewer { login } }", nil, &data); err != nil {
		return "", fmt.Errorf("looking up the account of the credential: %w", err)
	}
	if data.Viewer.Login == "" {
		return "", fmt.Errorf("%w: %s does not show whose it is", ErrUnauthorized, h.api.Host)
	}
	h.account.mu.Lock()
	defer h.account.mu.Unlock()
	h.account.login = data.Viewer.Login
	return h.account.login, nil
}

// isMe reports whether a user is the account of a login name.
func isMe(u *github.User, login string) bool {
	return strings.EqualFold(u.GetLogin(), login) || u.GetType() == "Bot" && strings.EqualFold(u.GetLogin(), login+"[bot]")
}

// Comment updates the comment in place.
func (h *hub) Comment(ctx context.Context, number int, part, body string) error {
	client, err := h.with(ctx, setPulls)
	if err != nil {
		return err
	}
	login, err := h.me(ctx, client)
	if err != nil {
		return err
	}
	return comments{
		most: 65_000,
		list: func(page int) (found []comment, more bool, err error) {
			all, answer, err := client.Issues.ListComments(ctx, h.owner, h.name, number, &github.IssueListCommentsOptions{ListOptions: github.ListOptions{Page: page, PerPage: 100}})
			if err != nil {
				return nil, false, err
			}
			for _, c := range all {
				found = append(found, comment{id: c.GetID(), mine: isMe(c.User, login), body: c.GetBody()})
			}
			return found, answer.NextPage != 0, nil
		},
		add: func(body string) error {
			_, _, err := client.Issues.CreateComment(ctx, h.owner, h.name, number, &github.IssueComment{Body: &body})
			return err
		},
		edit: func(c comment, body string) error {
			_, _, err := client.Issues.EditComment(ctx, h.owner, h.name, c.id, &github.IssueComment{Body: &body})
			return err
		},
		remove: func(c comment) error {
			_, err := client.Issues.DeleteComment(ctx, h.owner, h.name, c.id)
			return err
		},
	}.put(part, body)
}

func (h *hub) pull(p *github.PullRequest) *PullRequest {
	out := &PullRequest{Number: p.GetNumber(), URL: p.GetHTMLURL(), Title: p.GetTitle(), Body: p.GetBody(), Author: p.GetUser().GetLogin(),
		Head: p.GetHead().GetRef(), Commit: p.GetHead().GetSHA(), Base: p.GetBase().GetRef(), Open: p.GetState() == "open", Merged: p.GetMerged() || p.MergedAt != nil,
		Fork: p.GetHead().GetRepo().GetID() == 0 || p.GetHead().GetRepo().GetID() != p.GetBase().GetRepo().GetID()}
	for _, l := range p.Labels {
		out.Labels = append(out.Labels, l.GetName())
	}
	return out
}

// PullRequest by its number.
func (h *hub) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	client, err := h.with(ctx, seePulls)
	if err != nil {
		return nil, err
	}
	p, _, err := client.PullRequests.Get(ctx, h.owner, h.name, number)
	if err != nil {
		return nil, err
	}
	return h.pull(p), nil
}

// PullRequests from a branch.
func (h *hub) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	client, err := h.with(ctx, seePulls)
	if err != nil {
		return nil, err
	}
	all, _, err := client.PullRequests.List(ctx, h.owner, h.name, &github.PullRequestListOptions{State: "all", Head: h.owner + ":" + head, Sort: "created", Direction: "desc", ListOptions: github.ListOptions{PerPage: 100}})
	for _, p := range all {
		out = append(out, *h.pull(p))
	}
	return out, err
}

// Propose a pull request.
func (h *hub) Propose(ctx context.Context, p Proposal) (*PullRequest, bool, error) {
	client, err := h.with(ctx, setPulls)
	if err != nil {
		return nil, false, err
	}
	return propose(ctx, h, p, func() (*PullRequest, error) {
		made, _, err := client.PullRequests.Create(ctx, h.owner, h.name, &github.NewPullRequest{Title: &p.Title, Body: &p.Body, Head: &p.Head, Base: &p.Base})
		if err != nil {
			return nil, err
		}
		return h.pull(made), nil
	}, func(number int) error {
		_, _, err := client.PullRequests.Edit(ctx, h.owner, h.name, number, &github.PullRequest{Title: &p.Title, Body: &p.Body})
		return err
	})
}

// Commit with createCommitOnBranch, whose commits GitHub signs.
func (h *hub) Commit(ctx context.Context, c Commit) (string, error) {
	client, err := h.with(ctx, setFiles)
	if err != nil {
		return "", err
	}
	was, sha := c.Head, ""
	if c.Base != "" && c.Replaces != "" && c.Replaces != c.Head {
		was = c.Replaces
		sha, err = h.replace(ctx, client, c)
	} else {
		if c.Base != "" && c.Replaces == "" {
			_, _, err := client.Git.CreateRef(ctx, h.owner, h.name, github.CreateRef{Ref: "refs/heads/" + c.Branch, SHA: c.Head})
			if err != nil && !errors.Is(err, ErrRefused) { // one that exists has to be at Head
				return "", fmt.Errorf("making the branch %s: %w", c.Branch, err)
			}
		}
		type file struct {
			Path     string `json:"path"`
			Contents string `json:"contents"`
		}
		var files []file
		for _, name := range slices.Sorted(maps.Keys(c.Files)) {
			files = append(files, file{name, base64.StdEncoding.EncodeToString(c.Files[name])})
		}
		headline, body, _ := strings.Cut(c.Message, "\n")
		var data struct {
			CreateCommitOnBranch struct{ Commit struct{ Oid string } }
		}
		err = h.query(ctx, client, "mutation($input: CreateCommitOnBranchInput!) { createCommitOnBranch(input: $input) { commit { oid } } }", map[string]any{"input": map[string]any{
			"branch":          map[string]any{"repositoryNameWithOwner": h.path, "branchName": c.Branch},
			"expectedHeadOid": c.Head, "fileChanges": map[string]any{"additions": files},
			"message": map[string]any{"headline": headline, "body": strings.TrimSpace(body)},
		}}, &data)
		sha = data.CreateCommitOnBranch.Commit.Oid
	}
	if err != nil {
		return "", moved(err, was, func() (string, error) {
			ref, _, err := client.Git.GetRef(ctx, h.owner, h.name, "heads/"+c.Branch)
			return ref.GetObject().GetSHA(), err
		})
	}
	return sha, nil
}

// replace what a branch is at by a commit on top of another one, in one step, so that a pull
// request of the branch is never without a difference, which would close it.
func (h *hub) replace(ctx context.Context, client *github.Client, c Commit) (string, error) {
	head, _, err := client.Git.GetCommit(ctx, h.owner, h.name, c.Head)
	if err != nil {
		return "", err
	}
	var entries []*github.TreeEntry
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		entries = append(entries, &github.TreeEntry{Path: &name, Mode: github.Ptr("100644"), Type: github.Ptr("blob"), Content: github.Ptr(string(c.Files[name]))})
	}
	tree, _, err := client.Git.CreateTree(ctx, h.owner, h.name, head.GetTree().GetSHA(), entries)
	if err != nil {
		return "", err
	}
	made, _, err := client.Git.CreateCommit(ctx, h.owner, h.name, github.Commit{Message: &c.Message, Tree: tree, Parents: []*github.Commit{{SHA: &c.Head}}}, nil)
	if err != nil {
		return "", err
	}
	var data struct{ Repository struct{ ID string } }
	err = h.query(context.WithValue(ctx, asking{}, true), client, "query($owner: String!, $name: String!) { repository(owner: $owner, name: $name) { id } }", map[string]any{"owner": h.owner, "name": h.name}, &data)
	if err != nil {
		return "", err
	}
	return made.GetSHA(), h.query(ctx, client, "mutation($input: UpdateRefsInput!) { updateRefs(input: $input) { clientMutationId } }", map[string]any{"input": map[string]any{
		"repositoryId": data.Repository.ID,
		"refUpdates":   []map[string]any{{"name": "refs/heads/" + c.Branch, "beforeOid": c.Replaces, "afterOid": made.GetSHA(), "force": true}},
	}}, &struct{}{})
}

// Wrote reports whether the account wrote a commit that GitHub signed.
func (h *hub) Wrote(ctx context.Context, sha string) (bool, error) {
	client, err := h.with(ctx, seeFiles)
	if err != nil {
		return false, err
	}
	login, err := h.me(ctx, client)
	if err != nil {
		return false, err
	}
	c, _, err := client.Repositories.GetCommit(ctx, h.owner, h.name, sha, &github.ListOptions{PerPage: 1})
	if err != nil {
		return false, err
	}
	return isMe(c.Author, login) && c.GetCommit().GetVerification().GetVerified(), nil
}
