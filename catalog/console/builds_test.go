package console_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/catalog/store"
)

// yard is a console of builds that run, in a namespace of their own.
type yard struct {
	*world
	client client.Client
	ns     string
}

var yards atomic.Int32

func newYard(t testing.TB) *yard {
	t.Helper()
	y := &yard{world: newWorld(t), client: furnished.Client,
		ns: fmt.Sprintf("yard%d", yards.Add(1))}
	y.namespace(y.ns)
	return y
}

// build makes a build whose run has reached a task, which is in a state.
func (y *yard) build(name, task, state string) *api.AgentBuild {
	y.Helper()
	text, err := os.ReadFile("../../examples/builds/weather.yaml")
	y.must(err)
	found, err := manifest.Builds("weather.yaml", text, api.DefaultGroup)
	y.must(err)
	b := found[0].AgentBuild
	b.Namespace, b.Name = y.ns, name
	y.must(y.client.Create(y.Context(), b))
	// The fleet, which other tests look at, is as it was. The context of a test ends before this.
	y.TB.Cleanup(func() { y.must(y.client.Delete(context.Background(), b)) })
	b.Status.Phase, b.Status.RunNumber, b.Status.LastBuildTime =
		api.PhaseBuilding, 1, new(metav1.NewTime(now.Add(-time.Minute)))
	if state == "Failed" {
		b.Status.Phase = api.PhaseFailed
	}
	y.must(furnished.Run(y.Context(), b, task, state))
	return b
}

func (y *yard) status(b *api.AgentBuild, edit func(*api.AgentBuildStatus)) {
	y.Helper()
	edit(&b.Status)
	y.must(y.client.Status().Update(y.Context(), b))
}

// log of the step that builds.
func (y *yard) log(b *api.AgentBuild, text string) {
	furnished.Log(b, "buildkit-build", "build", text)
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// The rights that the pages of builds ask for.
var (
	lists   = rule("agent.kagenti.dev", "agentbuilds", "list")
	patches = rule("agent.kagenti.dev", "agentbuilds", "patch")
	runs    = []rbacv1.PolicyRule{rule("tekton.dev", "pipelineruns", "get"),
		rule("tekton.dev", "taskruns", "get")}
	logs = rule("", "pods/log", "get")
)

// shows waits for a page that has a text.
func (y *yard) shows(token, at string, texts ...string) string {
	y.Helper()
	body := ""
	y.eventually(at+" shows "+strings.Join(texts, ", "), func() bool {
		_, _, body = y.get(token, at)
		return !slices.ContainsFunc(texts,
			func(text string) bool { return !strings.Contains(body, text) })
	})
	return body
}

// hides checks that a page has none of the texts.
func (y *yard) hides(token, at string, texts ...string) {
	y.Helper()
	_, _, body := y.get(token, at)
	for _, text := range texts {
		if strings.Contains(body, text) {
			y.Errorf("%s shows %q", at, text)
		}
	}
}

func TestBuildPages(t *testing.T) {
	y := newYard(t)
	b := y.build("weather", "buildkit-build", "Running")
	y.log(b,
		"first line\n\x1b[31mred\x1b[0m and \x1b]0;title\x07plain\n50%\r100%\n"+
			"<script>alert(1)</script>\n")
	at := "/builds/" + y.ns + "/weather"
	all := y.tokenFor(append([]rbacv1.PolicyRule{lists, patches, logs}, runs...), y.ns)
	body := y.shows(all, at, "<ol class=\"pipeline\"", "Running", "first line", "Cancel")
	for _, want := range []string{"red and plain", "\n100%\n", "&lt;script&gt;alert(1)",
		`href="` + at + `?task=buildkit-build#log"`, "spec.source.sourceRepository",
		"the step&#39;s default", "another task", "Runs that are kept"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	for _, not := range []string{"\x1b", "<script>alert", "\n50%", "style=", "Retry</button>"} {
		if at := strings.Index(body, not); at >= 0 {
			t.Errorf("the page has %q: %s", not, body[max(0, at-200):min(len(body), at+200)])
		}
	}
	y.shows(all, "/builds?q=weath+building", b.Name, y.ns)
	y.hides(all, "/builds?q=nothing", at)
	y.hides(all, "/builds?phase=Failed", at)

	// Each right is asked for by itself.
	listing := y.tokenFor([]rbacv1.PolicyRule{lists}, y.ns)
	y.shows(listing, at, "You may not read its run", "You may not read the logs")
	y.hides(listing, at, "first line", "Cancel</button>", "spec.source.sourceRepository",
		"Runs that are kept")

	// Whoever may not list builds here sees no name, and cannot find out what there is.
	y.namespace(y.ns + "-other")
	stranger := y.tokenFor(append([]rbacv1.PolicyRule{lists, patches, logs}, runs...), y.ns+"-other")
	for _, path := range []string{"/", "/builds", "/builds?q=weather", "/builds?namespace=" + y.ns,
		"/builds?page=2"} {
		y.hides(stranger, path, y.ns+"/", y.ns+"<", `>`+y.ns, "1 build<")
	}
	nothing, _, none := y.get(stranger, "/builds/"+y.ns+"/not-there")
	for _, path := range []string{at, at + "?task=buildkit-build",
		at + "/log/buildkit-build/build"} {
		if status, _, body := y.get(stranger, path); status != http.StatusNotFound ||
			status != nothing || body != none {
			t.Errorf("%s: %d, and it differs from what is not there: %t", path, status, body != none)
		}
	}
	if stream := y.stream(stranger, at); strings.Contains(stream, "weather") {
		t.Errorf("the stream: %s", stream)
	}
	for _, path := range []string{at, at + "/log/buildkit-build/build", "/builds"} {
		if status, _, body := y.get("", path); status != http.StatusUnauthorized ||
			strings.Contains(body, "first line") {
			t.Errorf("%s without a token: %d", path, status)
		}
	}
}

// stream reads the stream of a page for a moment.
func (y *yard) stream(token, page string) string {
	y.Helper()
	ctx, cancel := context.WithTimeout(y.Context(), 1500*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		y.url+"/events?"+url.Values{"page": {page}, "seen": {"1,2,3,4,5,6"}}.Encode(), nil)
	y.must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	y.must(err)
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body) // until the time is up
	return string(text)
}

// The log of an open page grows by its stream, for as long as the caller may read it.
func TestLogFollows(t *testing.T) {
	y := newYard(t)
	b := y.build("weather", "buildkit-build", "Running")
	y.log(b, "one\n")
	at := "/builds/" + y.ns + "/weather"
	token := y.tokenFor(append([]rbacv1.PolicyRule{lists, logs}, runs...), y.ns)
	y.shows(token, at, "one</pre>")
	time.AfterFunc(300*time.Millisecond, func() { y.log(b, "one\ntwo\n") })
	seen := make(chan bool, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		y.url+"/events?"+url.Values{"page": {at}, "seen": {"1,2,3,4,5,6"}}.Encode(), nil)
	y.must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	y.must(err)
	defer answer.Body.Close()
	go func() {
		var text strings.Builder
		buffer := make([]byte, 4096)
		for {
			n, err := answer.Body.Read(buffer)
			text.Write(buffer[:n])
			if strings.Contains(text.String(), "one\ndata: two") || err != nil {
				seen <- err == nil
				return
			}
		}
	}()
	if !<-seen {
		t.Error("the second line does not arrive")
	}
}

// A log is cut to its last lines, each line to 8 KiB, and nothing in it steers what shows it.
func TestLogLimits(t *testing.T) {
	y := newYard(t)
	b := y.build("weather", "buildkit-build", "Failed")
	var long strings.Builder
	for i := range 7000 {
		fmt.Fprintf(&long, "line %d %s\n", i, strings.Repeat("x", i%50))
	}
	long.WriteString(strings.Repeat("y", 3<<20) + "\n\u202e\u200bspoof\nlast\n")
	y.log(b, long.String())
	at := "/builds/" + y.ns + "/weather"
	token := y.tokenFor(append([]rbacv1.PolicyRule{lists, logs}, runs...), y.ns)
	body := y.shows(token, at, "last</pre>")
	if len(body) > 400<<10 || strings.Contains(body, "\u202e") ||
		!strings.Contains(body, "the last 500 lines") ||
		!strings.Contains(body, "the rest of this line is not shown") {
		t.Errorf("%d bytes", len(body))
	}
	status, header, file := y.get(token, at+"/log/buildkit-build/build")
	if status != http.StatusOK || header.Get("Content-Type") != "text/plain; charset=utf-8" ||
		header.Get("X-Content-Type-Options") != "nosniff" ||
		!strings.HasPrefix(header.Get("Content-Disposition"), "attachment") {
		t.Errorf("%d %v", status, header)
	}
	if lines := strings.Count(file, "\n"); len(file) > 600<<10 || lines > 5002 || lines < 4000 ||
		!strings.HasSuffix(file, "last\n") {
		t.Errorf("%d bytes, %d lines", len(file), strings.Count(file, "\n"))
	}
	for line := range strings.Lines(file) {
		if len(line) > 9<<10 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	for _, path := range []string{at + "/log/buildkit-build/other", at + "/log/other/main",
		at + "/log/..%2f..%2f/main"} {
		if status, _, _ := y.get(token, path); status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
	mayNot := y.tokenFor([]rbacv1.PolicyRule{lists}, y.ns)
	y.eventually("the account may list",
		func() bool { status, _, _ := y.get(mayNot, at); return status == http.StatusOK })
	if status, _, body := y.get(mayNot,
		at+"/log/buildkit-build/build"); status != http.StatusForbidden ||
		strings.Contains(body, "line 6999") {
		t.Errorf("without the right: %d", status)
	}
}

// post sends a form as a browser does.
func (y *yard) post(path string, edit func(*http.Request)) int {
	y.Helper()
	request, err := http.NewRequestWithContext(y.Context(), http.MethodPost, y.url+path, nil)
	y.must(err)
	edit(request)
	answer, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}).Do(request)
	y.must(err)
	y.must(answer.Body.Close())
	return answer.StatusCode
}

// events returns the reasons and notes of the console's events about a build, in order.
func (y *yard) events(b *api.AgentBuild) (notes []string) {
	y.Helper()
	list, err := y.kube.EventsV1().Events(y.ns).List(y.Context(), metav1.ListOptions{})
	y.must(err)
	for _, e := range list.Items {
		if e.Regarding.Name == b.Name && e.Regarding.UID == b.UID &&
			e.ReportingController == "armature-console" {
			notes = append(notes, e.Reason+": "+e.Note)
		}
	}
	slices.Sort(notes)
	return notes
}

// Retry and cancel are for those who may change the build, from this site alone, and leave an
// event that says who asked.
func TestRetryAndCancel(t *testing.T) {
	y := newYard(t)
	b := y.build("weather", "buildkit-build", "Running")
	at := "/builds/" + y.ns + "/weather"
	may := y.tokenFor([]rbacv1.PolicyRule{lists, patches}, y.ns)
	mayNot := y.tokenFor(append([]rbacv1.PolicyRule{lists, logs}, runs...), y.ns)
	y.shows(may, at, "Cancel</button>")
	current := func() *api.AgentBuild {
		t.Helper()
		now := &api.AgentBuild{}
		y.must(y.client.Get(t.Context(), client.ObjectKeyFromObject(b), now))
		return now
	}
	for what, c := range map[string]struct {
		edit func(*http.Request)
		want int
	}{
		"nobody":            {func(*http.Request) {}, http.StatusUnauthorized},
		"without the right": {bearer(mayNot), http.StatusForbidden},
		"from another site": {cookie(may, "Sec-Fetch-Site", "cross-site", "Origin",
			"https://evil.example"), http.StatusForbidden},
		"from another site, an old browser": {cookie(may, "Origin", "https://evil.example"),
			http.StatusForbidden},
		"from a sibling site": {cookie(may, "Sec-Fetch-Site", "same-site"),
			http.StatusForbidden},
		"with a session that does not exist": {func(r *http.Request) {
			r.AddCookie(&http.Cookie{Name: "armature-session", Value: "x"})
		}, http.StatusUnauthorized},
	} {
		for _, verb := range []string{"cancel", "retry"} {
			if got := y.post(at+"/"+verb, c.edit); got != c.want {
				t.Errorf("%s %s: %d, want %d", verb, what, got, c.want)
			}
		}
	}
	if status, _, _ := y.get(may, at+"/cancel"); status == http.StatusOK || current().Spec.Cancel {
		t.Errorf("a GET cancels: %d", status)
	}
	if now := current(); now.Spec.Cancel ||
		now.Annotations[api.RerunAnnotation(api.DefaultGroup)] != "" || len(y.events(b)) > 0 {
		t.Fatalf("something was done: %v %v", now.Annotations, y.events(b))
	}
	if got := y.post(at+"/cancel", cookie(may, "Sec-Fetch-Site",
		"same-origin")); got != http.StatusSeeOther || !current().Spec.Cancel {
		t.Fatalf("cancel: %d %s", got, y.logged.text())
	}
	// The very next page shows the change, because a browser without scripts does not look again.
	y.hides(may, at, "Cancel</button>")
	y.shows(may, at, "Retry</button>")
	if got := y.post(at+"/retry", bearer(may)); got != http.StatusSeeOther {
		t.Fatalf("retry: %d", got)
	}
	y.hides(may, at, "Retry</button>")
	if now := current(); now.Spec.Cancel ||
		now.Annotations[api.RerunAnnotation(api.DefaultGroup)] == "" {
		t.Errorf("retry does nothing: %v", now.Annotations)
	}
	notes := y.events(b)
	if len(notes) != 2 ||
		!strings.HasPrefix(notes[0], "CancelRequested: system:serviceaccount:default:anna-") ||
		!strings.HasSuffix(notes[0], " asked the console to cancel this build") ||
		!strings.HasPrefix(notes[1], "RetryRequested: ") {
		t.Errorf("events: %v", notes)
	}
	if y.post("/builds/"+y.ns+"/not-there/cancel", bearer(may)) != http.StatusNotFound {
		t.Error("a build that does not exist is cancelled")
	}

	// A Cancel that changes nothing waits for nothing: no page takes longer than 5 seconds.
	for range 2 {
		began := time.Now()
		if got := y.post(at+"/cancel", bearer(may)); got != http.StatusSeeOther ||
			time.Since(began) > 4*time.Second {
			t.Errorf("cancel: %d after %s", got, time.Since(began))
		}
	}
}

// A person with a session of OpenID Connect sees what RBAC lets the name and the groups of the
// session see, and nothing once it ends.
func TestSessionRights(t *testing.T) {
	y := newYard(t)
	y.build("weather", "buildkit-build", "Running")
	for name, subject := range map[string]rbacv1.Subject{
		"by-group": {Kind: "Group", APIGroup: rbacv1.GroupName, Name: "oidc:team-" + y.ns},
		"by-name":  {Kind: "User", APIGroup: rbacv1.GroupName, Name: "berta@" + y.ns},
	} {
		_, err := y.kube.RbacV1().Roles(y.ns).Create(t.Context(),
			&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name},
				Rules: []rbacv1.PolicyRule{lists}}, metav1.CreateOptions{})
		y.must(err)
		_, err = y.kube.RbacV1().RoleBindings(y.ns).Create(t.Context(),
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
				Subjects: []rbacv1.Subject{subject},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}},
			metav1.CreateOptions{})
		y.must(err)
	}
	person := func(session store.Session) *http.Client {
		t.Helper()
		session.Expires = time.Now().Add(time.Hour)
		answer := httptest.NewRecorder()
		y.must(y.login.Grant(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
			"/", nil), session))
		jar, err := cookiejar.New(nil)
		y.must(err)
		at, err := url.Parse(y.url)
		y.must(err)
		jar.SetCookies(at, answer.Result().Cookies())
		return &http.Client{Jar: jar}
	}
	see := func(c *http.Client) (int, string) {
		t.Helper()
		answer, err := c.Get(y.url + "/builds")
		y.must(err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		y.must(err)
		return answer.StatusCode, string(text)
	}
	at := "/builds/" + y.ns + "/weather"
	for what, c := range map[string]struct {
		session store.Session
		sees    bool
	}{
		"by the group": {store.Session{Name: "anna", Groups: []string{"oidc:team-" + y.ns}}, true},
		"by the name":  {store.Session{Name: "berta@" + y.ns}, true},
		"by neither": {store.Session{Name: "carl", Groups: []string{"team-" + y.ns, "oidc:team"}},
			false},
	} {
		p := person(c.session)
		if c.sees {
			y.eventually(what, func() bool { _, body := see(p); return strings.Contains(body, at) })
		}
		status, body := see(p)
		if status != http.StatusOK || strings.Contains(body, at) != c.sees ||
			!strings.Contains(body, c.session.Name[:4]) {
			t.Errorf("%s: %d", what, status)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, y.url+"/logout", nil)
		y.must(err)
		answer, err := p.Do(request)
		y.must(err)
		y.must(answer.Body.Close())
		if status, body := see(p); status != http.StatusUnauthorized || strings.Contains(body, at) {
			t.Errorf("%s after the logout: %d", what, status)
		}
	}
}

// The page of rights says what the console may do, which is another account's than the caller's.
func TestRightsPage(t *testing.T) {
	y := newYard(t)
	token := y.tokenFor([]rbacv1.PolicyRule{lists}, y.ns)
	_, _, body := y.get(token, "/rights")
	if strings.Count(body, "Yes") < 10 || strings.Contains(body, ">No<") ||
		!strings.Contains(body, "Retry and Cancel") {
		t.Errorf("the administrator's console: %s", body)
	}
	if status, _, _ := y.get("", "/rights"); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
}

// Names and texts of a build that mean something to a browser are shown as they are.
func TestHostileBuild(t *testing.T) {
	y := newYard(t)
	b := y.build("weather", "buildkit-build", "Failed")
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>` + "\u202e"
	y.status(b, func(s *api.AgentBuildStatus) {
		s.Message = evil + "\n  hint: " + evil
		s.FailureDetails = &api.FailureDetails{Reason: "R" + evil, Task: "buildkit-build",
			Step: evil, LogTail: []string{evil}}
		s.Source = &api.SourceStatus{Git: api.GitStatus{CommitSHA: evil}}
		s.BuiltImage = evil
		s.Tasks = []api.TaskStatus{{Name: "buildkit-build", State: "Failed", Reason: evil,
			Message: evil}, {Name: evil, State: evil}}
		s.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Reason: "Failed",
			Message: evil, LastTransitionTime: metav1.Now()},
			{Type: "Attested", Status: "False", Reason: "Refused", Message: evil,
				LastTransitionTime: metav1.Now()}}
	})
	y.log(b, evil+"\n")
	token := y.tokenFor(append([]rbacv1.PolicyRule{lists, logs}, runs...), y.ns)
	listing := y.tokenFor([]rbacv1.PolicyRule{lists, logs}, y.ns)
	y.shows(token, "/builds?q=weather", "&lt;script&gt;")
	for _, token := range []string{token, listing} {
		for _, path := range []string{"/builds", "/builds/" + y.ns + "/weather",
			"/builds?q=" + url.QueryEscape(evil),
			"/builds/" + y.ns + "/weather?task=" + url.QueryEscape(evil)} {
			_, header, body := y.get(token, path)
			// a question is shown as it was asked
			if strings.Contains(body, "<script>alert") || strings.Contains(body, "<img src=x") ||
				strings.Contains(body, "\u202e") && !strings.Contains(path, "?q=") {
				t.Errorf("%s: %s", path, body)
			}
			if !strings.Contains(header.Get("Content-Security-Policy"), "script-src 'self'") {
				t.Errorf("%s: %v", path, header)
			}
		}
	}
}
