package trigger

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"crypto/hmac"
	"crypto/sha256"

	"github.com/go-git/go-git/v5/plumbing"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/trigger/webhook"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/process/managers"
)

// objects is a cluster of builds and one Secret, which counts what is read.
type objects struct {
	client.Client
	builds           []api.AgentBuild
	created, deleted []string
	read             []string
}

func (o *objects) List(_ context.Context, list client.ObjectList,
	options ...client.ListOption) error {
	var asked client.ListOptions
	asked.ApplyOptions(options)
	for _, b := range o.builds {
		if hook := (fields.Set{byHook: strings.Join(hookOf(&b), "")}); asked.FieldSelector == nil ||
			asked.FieldSelector.Matches(hook) {
			list.(*api.AgentBuildList).Items = append(list.(*api.AgentBuildList).Items, b)
		}
	}
	return nil
}

func (o *objects) Get(_ context.Context, key client.ObjectKey, into client.Object,
	_ ...client.GetOption) error {
	o.read = append(o.read, key.Name)
	into.(*corev1.Secret).Data = map[string][]byte{"token": []byte("the token of " + key.Name)}
	return nil
}

func (o *objects) Create(_ context.Context, b client.Object, _ ...client.CreateOption) error {
	o.created = append(o.created, b.GetName())
	return nil
}

func (o *objects) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return nil
}

func (o *objects) Delete(_ context.Context, b client.Object, _ ...client.DeleteOption) error {
	o.deleted = append(o.deleted, b.GetName())
	return nil
}

func triggersOf(o *objects) *Triggers {
	return &Triggers{Client: o, Options: Options{Access: git.Access{Live: o}}, events: events.NewFakeRecorder(10_000),
		states:  map[reconcile.Request]*state{},
		retries: managers.NewFairness(1, 1).Options(firstRetry, lastRetry).RateLimiter,
		hooks:   newHooks(o, o),
		skipped: utilcache.NewLRUExpireCache(maxSkipped)}
}

// Builds that come and go with commits that start no run, as those of branches do, leave no more
// than maxSkipped of them in memory.
func TestSkippedCommitsAreBounded(t *testing.T) {
	tr := triggersOf(&objects{})
	tr.events = events.NewFakeRecorder(maxSkipped + 100)
	tip := plumbing.NewHash(strings.Repeat("2", 40))
	r := &remote{refs: map[string]plumbing.Hash{"refs/heads/main": tip},
		changes: map[[2]string]gitremote.Change{{tip.String(), ""}: {Message: "[skip ci]"}}}
	for i := range maxSkipped + 100 {
		b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("weather-", i)}}
		b.Spec.Trigger = &api.SourceTrigger{}
		b.Status.Source = &api.SourceStatus{Git: api.GitStatus{Ref: "refs/heads/main"}}
		if err := tr.compare(t.Context(), r, []*api.AgentBuild{b}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(tr.skipped.Keys()); n != maxSkipped {
		t.Errorf("%d skipped commits are in memory, want %d", n, maxSkipped)
	}
}

// No Secret is read before somebody who has a signature asks for its hook, and then that one.
func TestSecretsOfWebhooksAreReadOnDemand(t *testing.T) {
	o := &objects{}
	for i := range 2000 {
		b := api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1",
			Name: fmt.Sprint("weather-", i)}}
		b.Spec.Source.SourceRepository = fmt.Sprintf("https://git.example/team1/%d", i)
		b.Spec.Trigger = &api.SourceTrigger{
			Webhook: &corev1.LocalObjectReference{Name: fmt.Sprint("hook-", i)},
			Push:    &api.PushTrigger{Branches: []string{"*"}}}
		o.builds = append(o.builds, b)
	}
	tr := triggersOf(o)
	if _, err := tr.Reconcile(t.Context(), requestsOf(t.Context(), &o.builds[0])[0]); err != nil {
		t.Fatal(err)
	}
	if len(o.read) != 0 {
		t.Errorf("a look reads %d Secrets", len(o.read))
	}
	receiver := &webhook.Receiver{Known: tr.hooks.known, Secrets: tr.hooks.secrets,
		Wake: func(types.NamespacedName, string) {}, Counts: webhook.NewCounts()}
	server := receiver.Server("")
	deliver := func(hook, token string) int {
		request := httptest.NewRequest(http.MethodPost, "/hook/team1/"+hook, strings.NewReader("{}"))
		if token != "" {
			mac := hmac.New(sha256.New, []byte(token))
			mac.Write([]byte("{}"))
			request.Header.Set("X-Gitea-Signature", hex.EncodeToString(mac.Sum(nil)))
		}
		answer := httptest.NewRecorder()
		server.Handler.ServeHTTP(answer, request)
		return answer.Code
	}
	for _, c := range []struct {
		hook, token string
		want        int
		read        []string
	}{
		{"hook-7", "", http.StatusUnauthorized, nil},
		{"hook-x", "some token or other", http.StatusUnauthorized, nil},
		{"hook-7", "some token or other", http.StatusUnauthorized, []string{"hook-7"}},
		{"hook-7", "the token of hook-7", http.StatusAccepted, []string{"hook-7"}},
		{"hook-8", "the token of hook-8", http.StatusAccepted, []string{"hook-7", "hook-8"}},
	} {
		if got := deliver(c.hook, c.token); got != c.want || !slices.Equal(o.read, c.read) {
			t.Errorf("%s with %q: %d, want %d; read: %q", c.hook, c.token, got, c.want, o.read)
		}
	}
}

// flood is a forge with pull requests.
type flood struct {
	forge.Forge
	open []forge.PullRequest
}

func (f *flood) PullRequests(context.Context, string) ([]forge.PullRequest, error) {
	return f.open[:min(len(f.open), 100)], nil
}

func (f *flood) PullRequest(_ context.Context, number int) (*forge.PullRequest, error) {
	for _, p := range f.open {
		if p.Number == number {
			return &p, nil
		}
	}
	return nil, forge.ErrNotFound
}

func (f *flood) SetStatus(context.Context, forge.Status) error          { return nil }
func (f *flood) Comment(context.Context, int, string, string) error     { return nil }
func (f *flood) MayPush(context.Context, string) (bool, error)          { return true, nil }
func (f *flood) Comments(context.Context, int) ([]forge.Comment, error) { return nil, nil }

// Pull requests of other repositories have places of their own: however many there are, those of
// the team are built, and their builds stay.
func TestStrangersTakeNoPlace(t *testing.T) {
	commit := func(number int) string { return fmt.Sprintf("%040x", number) }
	const base = "ffffffffffffffffffffffffffffffffffffffff"
	own := func(number int) forge.PullRequest {
		return forge.PullRequest{Number: number, Head: fmt.Sprint("own-", number), Base: "main",
			Commit: commit(number), Open: true, Author: "ada"}
	}
	fork := func(number int) forge.PullRequest {
		p := own(number)
		p.Fork, p.Author = true, "eve"
		return p
	}
	for name, c := range map[string]struct {
		forks          bool
		strangers, own int // open besides the team's running one, newer than it
		created        int
	}{
		"not built":                   {false, 60, 0, 0},
		"not built, beyond the list":  {false, 150, 0, 0},
		"built":                       {true, 60, 0, maxForks},
		"built, beyond the list":      {true, 150, 0, maxForks},
		"beside many of the team":     {true, 50, maxDerived - 1, maxForks + maxDerived - 1},
		"beside too many of the team": {false, 10, maxDerived + 5, maxDerived},
	} {
		t.Run(name, func(t *testing.T) {
			o := &objects{}
			tr := triggersOf(o)
			b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather",
				UID: "1"}}
			b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision =
				"https://git.example/team1/weather", "main"
			b.Spec.BuildOutput = &api.BuildOutput{Image: "weather", ImageTag: "v1",
				ImageRegistry: "registry.example"}
			b.Spec.Trigger = &api.SourceTrigger{PullRequest: &api.PullRequestTrigger{}}
			if c.forks {
				b.Spec.Trigger.PullRequest.Forks = &api.ForkTrigger{
					Repository: "registry.example/throwaway/weather"}
			}
			running := pullOf("", b, own(1))
			f := &flood{open: []forge.PullRequest{own(1)}}
			for i := range c.own {
				f.open = append([]forge.PullRequest{own(10 + i)}, f.open...)
			}
			for i := range c.strangers {
				f.open = append([]forge.PullRequest{fork(1000 + i)}, f.open...)
			}
			r := &remote{refs: map[string]plumbing.Hash{"refs/heads/main": plumbing.NewHash(base)},
				changes: map[[2]string]gitremote.Change{}}
			for _, p := range f.open {
				r.refs[fmt.Sprintf("refs/pull/%d/head", p.Number)] = plumbing.NewHash(p.Commit)
				r.changes[[2]string{p.Commit, base}] = gitremote.Change{Known: true,
					Paths: []string{"main.go"}}
			}
			have := map[int]*api.AgentBuild{1: running}
			for range 2 { // the second look finds what the first one made
				if err := tr.pullsOf(t.Context(), f, r, b, maps.Clone(have)); err != nil {
					t.Fatal(err)
				}
				for _, p := range f.open {
					if made := pullOf("", b, p); slices.Contains(o.created, made.Name) {
						have[p.Number] = made
					}
				}
			}
			if displaced := c.own >= maxDerived; slices.Contains(o.deleted, running.Name) !=
				displaced || !displaced && len(o.deleted) > 0 {
				t.Errorf("deleted: %q", o.deleted)
			}
			if len(o.created) != c.created {
				t.Errorf("%d builds are made, want %d: %q", len(o.created), c.created, o.created)
			}
		})
	}
}
