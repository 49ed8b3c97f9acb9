package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/catalog/store"
)

// everyPage of the fleet, and lists that search.
func everyPage() (paths []string) {
	for _, path := range pagesByName() {
		paths = append(paths, path)
	}
	return append(paths, "/agents?q=weather", "/tools?q=book", "/agents?tag=travel",
		"/agents?skill=forecast")
}

// What agents, servers and tools say of themselves is shown as text: no markup, no script, no
// address but http and https, nothing that changes the direction of what is around it.
func TestHostileTexts(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	const evil = "\"><script>alert(1)</script><img src=x onerror=alert(2)>' {{.}} " +
		"</template><hx-partial hx-get=/x>\u202egnp.exe\u2066\u200b\r\ndata: x"
	schema, err := json.Marshal(map[string]any{"name": evil,
		"inputSchema": map[string]any{"type": evil, "required": []string{evil},
			"properties": map[string]any{
				evil: map[string]any{"type": evil, "description": evil, "default": evil,
					"enum": []string{evil}, "format": evil,
					"items": map[string]any{"type": evil}}}}})
	w.must(err)
	for _, e := range []store.Entry{
		{Key: store.Key{Resource: cards, Namespace: "travel", Name: "evil"}, UID: "evil-agent",
			Type: store.Agent, URL: "javascript:alert(3)"},
		{Key: store.Key{Resource: remotes, Namespace: "travel", Name: "evil"}, UID: "evil-server",
			Type: store.Server, URL: "http://evil.example/'; rm -rf ~; '"},
	} {
		e.Kind, e.Title, e.Description, e.Version, e.Provider, e.Protocol, e.Message, e.Tags,
			e.Health, e.Document = "AgentCard", evil, evil, evil, evil, evil, evil, []string{evil},
			store.Failing, schema
		e.Changed, e.Fetched = now, now
		e.Items = []store.Item{{Kind: store.Skill, Name: evil, Description: evil,
			Tags: []string{evil}, Document: schema},
			{Kind: store.Tool, Name: evil, Description: evil, Document: schema}}
		e.Instances = []store.Instance{{Pod: evil, URL: evil, Status: evil, Version: evil}}
		e.Builds = []store.Build{{Name: evil, Commit: evil, Repository: "javascript:alert(4)"}}
		w.put(e)
	}
	for _, path := range append(everyPage(), "/entries/"+cards+"/travel/evil",
		"/entries/"+remotes+"/travel/evil", "/agents?q="+url.QueryEscape(evil),
		"/agents?namespace="+url.QueryEscape(evil), "/login?next="+url.QueryEscape(evil)) {
		status, _, body := w.get(token, path)
		if status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
		lower := strings.ToLower(body)
		for _, bad := range []string{"<script>", "<img src=x", "onerror=alert(2)>",
			`href="javascript:`, "<hx-partial", "\u202e", "\u2066", "\u200b"} {
			if strings.Contains(lower, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
	}
	_, _, body := w.get(token, "/entries/"+remotes+"/travel/evil")
	if !strings.Contains(body,
		`&#39;http://evil.example/&#39;\&#39;&#39;; rm -rf ~; &#39;\&#39;&#39;&#39;`) {
		t.Errorf("the command to copy does not quote the address:\n%s", body)
	}
	// A stream carries it as one event.
	lines := w.stream(t.Context(), token, "/agents", "x,y")
	text := until(t, lines, "<hx-partial")
	text += until(t, lines, "")
	for _, bad := range []string{"<script>", "\u202e", "\rdata", "\ndata: x"} {
		if strings.Contains(text, bad) {
			t.Errorf("the stream has %q", bad)
		}
	}
}

// streamOf is the address of the stream of a page that was just loaded.
func (w *world) streamOf(token, page string) string {
	w.Helper()
	_, _, body := w.get(token, page)
	at := regexp.MustCompile(`hx-sse:connect="([^"]*)"`).FindStringSubmatch(body)
	if at == nil {
		w.Fatalf("%s has no stream: %s", page, body)
	}
	return html.UnescapeString(at[1])
}

// open opens the stream and returns its lines.
func (w *world) open(ctx context.Context, token, page string) <-chan string {
	w.Helper()
	address, err := url.Parse(w.streamOf(token, page))
	w.must(err)
	return w.stream(ctx, token, address.Query().Get("page"), address.Query().Get("seen"))
}

// stream returns the lines of the stream of a page.
func (w *world) stream(ctx context.Context, token, page, seen string) <-chan string {
	w.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		w.url+"/events?"+url.Values{"page": {page}, "seen": {seen}}.Encode(), nil)
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	if response.StatusCode != http.StatusOK ||
		response.Header.Get("Content-Type") != "text/event-stream" ||
		response.Header.Get("X-Accel-Buffering") != "no" ||
		response.Header.Get("Cache-Control") != "no-store" {
		w.Fatalf("the stream answers %s %v", response.Status, response.Header)
	}
	lines := make(chan string, 10000)
	go func() {
		defer close(lines)
		defer response.Body.Close()
		scanner := bufio.NewScanner(response.Body)
		scanner.Buffer(nil, 4<<20)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	return lines
}

// until a line begins so, or with "" until one is empty.
func until(t *testing.T, lines <-chan string, begin string) (text string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the stream ended before %q: %s", begin, text)
			}
			text += line + "\n"
			if begin == "" && line == "" || begin != "" && strings.Contains(line, begin) {
				return text
			}
		case <-late:
			t.Fatalf("no %q within a minute: %s", begin, text)
		}
	}
}

// Nobody sees a name, a count or a change from a namespace that they may not list, on any
// page and in any stream.
func TestEachSeesTheirOwn(t *testing.T) {
	w := newWorld(t)
	office, travel, nobody := w.token("office"), w.token("travel"), w.token()
	for name, c := range map[string]struct {
		token  string
		sees   []string
		hidden []string
	}{
		"office": {office, []string{"Secretary", "Booking"},
			[]string{"travel", "Weather", "Concierge", "concierge", "Timetables", "planner"}},
		"travel": {travel, []string{"Weather", "Timetables"},
			[]string{"office", "Secretary", "Booking", "assistant"}},
		"nobody": {nobody, nil, []string{"travel", "office", "Weather", "Secretary", "concierge"}},
	} {
		all := ""
		for _, path := range everyPage() {
			status, _, body := w.get(c.token, path)
			if status != http.StatusOK && status != http.StatusNotFound {
				t.Errorf("%s: %s answers %d", name, path, status)
			}
			text := words(body)
			for _, hidden := range c.hidden {
				if strings.Contains(text, hidden) && !strings.Contains(path, hidden) {
					t.Errorf("%s at %s sees %q: %s", name, path, hidden, text)
				}
			}
			all += text
		}
		for _, sees := range c.sees {
			if !strings.Contains(all, sees) {
				t.Errorf("%s does not see %q", name, sees)
			}
		}
	}
	if _, _, body := w.get(nobody, "/"); !strings.Contains(words(body),
		"There is nothing here yet that you may see.") {
		t.Errorf("nobody sees %s", words(body))
	}
	// A change elsewhere reaches no stream.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	lines := w.open(ctx, office, "/")
	until(t, lines, "retry: ")
	e := catalog()[0]
	e.Title, e.Health, e.Message = "Hidden title", store.Failing, "hidden message"
	w.put(e)
	for line := range lines {
		if strings.Contains(line, "Hidden") || strings.Contains(line, "hidden message") {
			t.Errorf("the stream of office has %s", line)
		}
	}
	// Whoever may list agents sees no build, package or pod.
	cardsAlone := w.tokenFor([]rbacv1.PolicyRule{{APIGroups: []string{"kagenti.io"},
		Resources: []string{"agentcards"}, Verbs: []string{"list"}}}, "travel")
	_, _, body := w.get(cardsAlone, "/entries/"+cards+"/travel/concierge")
	for _, hidden := range []string{"go.sum", "ImagePullBackOff", "Deployment/", "NetworkPolic"} {
		if strings.Contains(words(body), hidden) {
			t.Errorf("the page of an agent shows %q to whoever may list agents only", hidden)
		}
	}
	if status, _, _ := w.get(cardsAlone, "/packages/travel/travel"); status != http.StatusNotFound {
		t.Errorf("the package answers %d to whoever may not list ConfigMaps", status)
	}
}

// A right that is taken away ends what a stream shows.
func TestStreamEndsWithRights(t *testing.T) {
	if testing.Short() {
		t.Skip("Kubernetes' answers are remembered for half a minute")
	}
	t.Parallel()
	w := newWorld(t)
	token := w.token("travel")
	lines := w.open(t.Context(), token, "/entries/"+cards+"/travel/weather")
	until(t, lines, "event: beat")
	bindings, err := w.kube.RbacV1().RoleBindings("travel").List(t.Context(), metav1.ListOptions{})
	w.must(err)
	for _, b := range bindings.Items {
		w.must(w.kube.RbacV1().RoleBindings("travel").Delete(t.Context(), b.Name, metav1.DeleteOptions{}))
	}
	until(t, lines, "event: reload")
}

// Another site can neither frame the pages, nor post to them, nor be sent to.
func TestOtherSites(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	_, h, _ := w.get(token, "/")
	for name, want := range map[string]string{"Content-Security-Policy": "frame-ancestors 'none'",
		"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
		"Cross-Origin-Opener-Policy": "same-origin", "Referrer-Policy": "no-referrer",
		"Cache-Control": "no-store"} {
		if !strings.Contains(h.Get(name), want) {
			t.Errorf("%s: %q", name, h.Get(name))
		}
	}
	for _, weak := range []string{"unsafe", "*", "https:", "http:"} {
		if strings.Contains(h.Get("Content-Security-Policy"), weak) {
			t.Errorf("the policy has %s: %s", weak, h.Get("Content-Security-Policy"))
		}
	}
	post := func(path string, header, form map[string]string) *http.Response {
		values := url.Values{}
		for key, value := range form {
			values.Set(key, value)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path,
			strings.NewReader(values.Encode()))
		w.must(err)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for key, value := range header {
			request.Header.Set(key, value)
		}
		response, err := http.DefaultTransport.RoundTrip(request) // no redirect is followed
		w.must(err)
		w.must(response.Body.Close())
		return response
	}
	for _, path := range []string{"/login", "/logout"} {
		for _, header := range []map[string]string{{"Sec-Fetch-Site": "cross-site"},
			{"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}} {
			if r := post(path, header,
				map[string]string{"token": token}); r.StatusCode != http.StatusForbidden ||
				len(r.Cookies()) > 0 {
				t.Errorf("%s from elsewhere %v: %s %v", path, header, r.Status, r.Cookies())
			}
		}
	}
	for next, want := range map[string]string{
		"/agents?q=x": "/agents?q=x", "": "/", "//evil.example": "/", `/\evil.example`: "/",
		`\\evil.example`: "/", "https://evil.example": "/", "javascript:alert(1)": "/",
		"/\t/evil.example": "/", "/a\r\nSet-Cookie: x=y": "/", "agents": "/",
	} {
		r := post("/login", map[string]string{"Sec-Fetch-Site": "same-origin"},
			map[string]string{"token": token, "next": next})
		if r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != want {
			t.Errorf("after signing in, %q leads to %q: %s", next, r.Header.Get("Location"), r.Status)
		}
		for _, c := range r.Cookies() {
			// the session that there was ends
			if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode && c.MaxAge >= 0 {
				t.Errorf("the cookie is %s", c)
			}
		}
	}
	// A cookie alone changes nothing, and a stream leads nowhere else.
	for _, page := range []string{"https://evil.example/", "//evil.example", "/login", "/events",
		"/nowhere", "/static/x"} {
		lines := w.stream(t.Context(), token, page, "x")
		text := until(t, lines, "event: ")
		if strings.Contains(text, "evil") {
			t.Errorf("the stream of %s: %s", page, text)
		}
	}
}

// Whom Kubernetes does not know learns nothing, and what they sent is not repeated.
func TestUnknownCallers(t *testing.T) {
	w := newWorld(t)
	for _, token := range []string{"", "s3cret-but-wrong", "eyJhbGciOiJub25lIn0.e30."} {
		for _, path := range append(everyPage(), "/events?page=/") {
			status, _, body := w.get(token, path)
			if status != http.StatusUnauthorized || token != "" && strings.Contains(body, token) {
				t.Errorf("%q at %s: %d %s", token, path, status, body)
			}
			for _, name := range []string{"Weather", "Concierge", "Booking", "office"} {
				if strings.Contains(words(body), name) && !strings.Contains(path, name) {
					t.Errorf("%q at %s sees %s", token, path, name)
				}
			}
		}
	}
	if strings.Contains(w.logged.text(), "s3cret") {
		t.Errorf("logged: %s", w.logged.text())
	}
}

// A wrong request gets a reason, and no other method writes anything.
func TestBadRequests(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	for path, want := range map[string]int{
		"/agents?qq=x": 400, "/agents?after=x": 400, "/?x=1": 400, "/packages?x=1": 400,
		"/entries/" + cards + "/travel/weather?x=1": 400, "/entries/a/b/c": 404,
		"/packages/a/b": 404, "/nowhere": 404, "/static/x/console.css": 404,
		"/static/../console.go": 404, "/agents?namespace=%00&q=%ff": 200, "/agents?health=x": 200,
		"/agents?q=%22*%27%3B--": 200, "/agents?tag=%22)%20OR%201%3D1": 200,
	} {
		if status, _, body := w.get(token, path); status != want {
			t.Errorf("%s answers %d, want %d: %s", path, status, want, words(body))
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete,
		http.MethodPatch} {
		request, err := http.NewRequestWithContext(t.Context(), method, w.url+"/agents",
			strings.NewReader("{}"))
		w.must(err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		w.must(err)
		w.must(response.Body.Close())
		if response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s answers %d", method, response.StatusCode)
		}
	}
}

// Without its store, a page says when to come back, and an open page waits for it.
func TestStoreIsAway(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	w.get(token, "/")
	w.must(w.store.Close())
	for _, path := range []string{"/", "/agents", "/agents?q=weather",
		"/entries/" + cards + "/travel/weather"} {
		status, h, body := w.get(token, path)
		if status != http.StatusServiceUnavailable || h.Get("Retry-After") != "5" ||
			!strings.Contains(words(body), "The catalog cannot answer now.") ||
			strings.Contains(body, "sql") {
			t.Errorf("%s answers %d %v %s", path, status, h, words(body))
		}
	}
	lines := w.stream(t.Context(), token, "/agents", "x,y")
	if text := until(t, lines, "event: "); !strings.Contains(text, "event: beat") {
		t.Errorf("an open page gets %s", text)
	}
}
