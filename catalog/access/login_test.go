package access_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/store"
)

// issuer is an OpenID provider that may answer wrongly.
type issuer struct {
	*httptest.Server
	key *rsa.PrivateKey
	// claims changes those of the next ID token; sign signs it otherwise.
	claims func(map[string]any)
	sign   func(claims map[string]any) string
	// token is called before a code is redeemed.
	token func(w http.ResponseWriter, form url.Values) (done bool)

	nonce, challenge string
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	mux := http.NewServeMux()
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	answer := func(path string, value any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value)
		})
	}
	answer("/.well-known/openid-configuration", map[string]any{
		"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/auth",
		"token_endpoint": i.URL + "/token", "response_types_supported": []string{"code"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
	})
	answer("/keys",
		jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "one",
			Algorithm: "RS256", Use: "sig"}}})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		if r.ParseForm() != nil || i.token != nil && i.token(w, r.PostForm) {
			return
		}
		claims := map[string]any{"iss": i.URL, "aud": "armature", "sub": "anna",
			"groups": []string{"team1"}, "nonce": i.nonce, "iat": time.Now().Unix(),
			"exp": time.Now().Add(time.Hour).Unix()}
		if i.claims != nil {
			i.claims(claims)
		}
		sign := i.sign
		if sign == nil {
			sign = func(claims map[string]any) string { return signed(t, key, claims) }
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "access",
			"token_type": "Bearer", "id_token": sign(claims)})
	})
	return i
}

func signed(t *testing.T, key any, claims map[string]any) string {
	t.Helper()
	algorithm := jose.RS256
	if _, ok := key.([]byte); ok {
		algorithm = jose.HS256
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm,
		Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// site has a Login and a page that shows who has a session.
type site struct {
	*httptest.Server
	login *access.Login
	store store.Store
	now   time.Time
	why   string // of the last failure
	err   error
}

// newSite for an issuer; more are further lines of the settings.
func newSite(t *testing.T, issuer string, more ...string) *site {
	t.Helper()
	s := &site{}
	mux := http.NewServeMux()
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	s.login = &access.Login{Now: func() time.Time { return time.Now().Add(s.now.Sub(time.Time{})) },
		Failed: func(w http.ResponseWriter, _ *http.Request, why string, err error) {
			s.why, s.err = why, err
			http.Error(w, why, http.StatusForbidden)
		}}
	var err error
	if s.login.Config, err = access.ReadLogin(settings(t,
		append([]string{"issuer: " + issuer, "clientID: armature", "url: " + s.URL,
			"groupsClaim: groups"}, more...)...)); err != nil {
		t.Fatal(err)
	}
	s.store = store.NewMemory()
	s.login.Store = s.store
	mux.HandleFunc("GET "+access.LoginPath, s.login.Begin)
	mux.HandleFunc("GET "+access.LoginCallback, s.login.End)
	mux.HandleFunc("POST /logout", func(_ http.ResponseWriter, r *http.Request) {
		if err := s.login.Logout(httptest.NewRecorder(), r); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		who, err := s.login.Who(r)
		if errors.Is(err, store.ErrNotFound) {
			fmt.Fprintf(w, "nobody at %s", r.URL.Path)
			return
		}
		fmt.Fprintf(w, "%s %v at %s", who.Name, who.Groups, r.URL.Path)
	})
	return s
}

func settings(t *testing.T, lines ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "oidc.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// person has a browser that stops at the provider.
type person struct {
	*http.Client
	t *testing.T
	s *site
}

func newPerson(t *testing.T, s *site) *person {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &person{&http.Client{Jar: jar,
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if "http://"+r.URL.Host != s.URL {
				return http.ErrUseLastResponse
			}
			return nil
		}}, t, s}
}

func (p *person) get(path string) string {
	p.t.Helper()
	answer, err := p.Get(p.s.URL + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusFound {
		return answer.Header.Get("Location")
	}
	var text strings.Builder
	if _, err := fmt.Fprint(&text, readAll(p.t, answer)); err != nil {
		p.t.Fatal(err)
	}
	return text.String()
}

// begin a login, and give what the provider is asked.
func (p *person) begin(i *issuer, next string) url.Values {
	p.t.Helper()
	at, err := url.Parse(p.get(access.LoginPath + "?next=" + url.QueryEscape(next)))
	if err != nil {
		p.t.Fatal(err)
	}
	q := at.Query()
	i.nonce, i.challenge = q.Get("nonce"), q.Get("code_challenge")
	return q
}

// end it, as the provider sends the browser back.
func (p *person) end(q url.Values) string {
	p.t.Helper()
	return p.get(access.LoginCallback + "?" +
		url.Values{"code": {"code"}, "state": {q.Get("state")}}.Encode())
}

func (p *person) cookie(name string) string {
	at, _ := url.Parse(p.s.URL)
	for _, c := range p.Jar.Cookies(at) {
		if c.Name == name {
			return c.Value
		}
	}
	return ""
}

func readAll(t *testing.T, answer *http.Response) string {
	t.Helper()
	var text strings.Builder
	if _, err := copyAll(&text, answer); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func TestLogin(t *testing.T) {
	i := newIssuer(t)
	s := newSite(t, i.URL)
	p := newPerson(t, s)
	q := p.begin(i, "/agents?q=x")
	if q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" ||
		q.Get("nonce") == "" || len(q.Get("state")) < 20 || q.Get("response_type") != "code" ||
		q.Get("redirect_uri") != s.URL+access.LoginCallback ||
		!strings.Contains(q.Get("scope"), "openid") {
		t.Errorf("the provider is asked %v", q)
	}
	i.token = func(_ http.ResponseWriter, form url.Values) bool {
		if len(form.Get("code_verifier")) < 43 || form.Get("code") != "code" {
			t.Errorf("the code is redeemed with %v", form)
		}
		return false
	}
	if got, want := p.end(q), i.URL+"#anna [team1] at /agents"; got != want {
		t.Errorf("%q, want %q: %v", got, want, s.err)
	}
	if p.cookie("armature-login") != "" {
		t.Error("the login that ended is still pending")
	}
	// The same answer again is not a second login.
	if got := newPerson(t, s).end(q); !strings.Contains(got, "not begun in this browser") {
		t.Errorf("another browser: %q", got)
	}
	if got := p.end(q); !strings.Contains(got, "not begun in this browser") {
		t.Errorf("a second time: %q", got)
	}
	// It ends with the ID token, and on request.
	s.now = time.Time{}.Add(59 * time.Minute)
	if got := p.get("/"); !strings.HasPrefix(got, i.URL+"#anna") {
		t.Errorf("after 59 minutes: %q", got)
	}
	secret := p.cookie("armature-session")
	answer, err := p.Post(s.URL+"/logout", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if _, err := s.store.FindSession(t.Context(), secret, time.Now()); !errors.Is(err,
		store.ErrNotFound) {
		t.Errorf("the session after the logout: %v", err)
	}
	p.end(p.begin(i, "/"))
	s.now = time.Time{}.Add(2 * time.Hour)
	if got := p.get("/"); !strings.HasPrefix(got, "nobody") {
		t.Errorf("after 2 hours: %q", got)
	}
}

// Cookies are out of scripts' reach, and of other sites' posts; over TLS, other hosts cannot
// set them.
func TestCookies(t *testing.T) {
	i := newIssuer(t)
	s := newSite(t, i.URL)
	s.login.Config.URL = "https://console.example"
	answer := httptest.NewRecorder()
	s.login.Begin(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		access.LoginPath, nil))
	granted := httptest.NewRecorder()
	if err := s.login.Grant(granted, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		"/", nil), store.Session{Name: "anna", Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	cookies := append(answer.Result().Cookies(), granted.Result().Cookies()...)
	if len(cookies) != 2 {
		t.Fatalf("%d cookies", len(cookies))
	}
	for _, c := range cookies {
		if !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteLaxMode || c.Path != "/" ||
			c.Domain != "" || !strings.HasPrefix(c.Name, "__Host-armature-") || c.MaxAge <= 0 {
			t.Errorf("%s", c)
		}
	}
}

// A session that somebody planted in a browser does not become the person's: the secret is
// new at each login, and the planted one ends.
func TestSessionFixation(t *testing.T) {
	i := newIssuer(t)
	s := newSite(t, i.URL)
	attacker := newPerson(t, s)
	attacker.end(attacker.begin(i, "/"))
	planted := attacker.cookie("armature-session")
	p := newPerson(t, s)
	at, _ := url.Parse(s.URL)
	p.Jar.SetCookies(at, []*http.Cookie{{Name: "armature-session", Value: planted, Path: "/"}})
	i.claims = func(c map[string]any) { c["sub"] = "victim" }
	p.end(p.begin(i, "/"))
	if mine := p.cookie("armature-session"); mine == planted || mine == "" {
		t.Errorf("the session has the secret %q", mine)
	}
	if got := attacker.get("/"); !strings.HasPrefix(got, "nobody") {
		t.Errorf("the attacker is %q", got)
	}
	for _, invented := range []string{"invented", strings.Repeat("x", 5000), "' OR 1=1 --", ""} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: "armature-session", Value: invented})
		if _, err := s.login.Who(r); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%.20q: %v", invented, err)
		}
	}
}

// Nobody can make a browser end a login that somebody else began.
func TestLoginIsBoundToTheBrowser(t *testing.T) {
	i := newIssuer(t)
	s := newSite(t, i.URL)
	for what, change := range map[string]func(q url.Values){
		"no state":       func(q url.Values) { q.Del("state") },
		"another state":  func(q url.Values) { q.Set("state", rand.Text()) },
		"another issuer": func(q url.Values) { q.Set("iss", "https://evil.example") },
		"a refusal":      func(q url.Values) { q.Set("error", "access_denied") },
		"markup":         func(q url.Values) { q.Set("error", "<script>alert(1)</script>") },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPerson(t, s)
			q := url.Values{"code": {"code"}, "state": {p.begin(i, "/").Get("state")}}
			change(q)
			got := p.get(access.LoginCallback + "?" + q.Encode())
			if p.cookie("armature-session") != "" || strings.Contains(got, "<script") {
				t.Errorf("%q", got)
			}
			if what == "a refusal" && !strings.Contains(got, "access_denied") {
				t.Errorf("no reason in %q", got)
			}
		})
	}
}

// Every answer of a provider that is not exactly that of this login is refused.
func TestHostileAnswers(t *testing.T) {
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for what, wrong := range map[string]func(t *testing.T, i *issuer){
		"another nonce": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["nonce"] = "other" }
		},
		"no nonce": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { delete(c, "nonce") }
		},
		"another audience": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["aud"] = "other" }
		},
		"another issuer": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["iss"] = "https://evil.example" }
		},
		"expired": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["exp"] = time.Now().Add(-time.Minute).Unix() }
		},
		"another key": func(t *testing.T, i *issuer) {
			i.sign = func(c map[string]any) string { return signed(t, other, c) }
		},
		"unsigned": func(_ *testing.T, i *issuer) {
			i.sign = func(c map[string]any) string {
				text, _ := json.Marshal(c)
				return b64([]byte(`{"alg":"none"}`)) + "." + b64(text) + "."
			}
		},
		"signed with the public key": func(t *testing.T, i *issuer) {
			i.sign = func(c map[string]any) string { return signed(t, i.key.N.Bytes(), c) }
		},
		"not a token": func(_ *testing.T, i *issuer) {
			i.sign = func(map[string]any) string { return "x.y.z" }
		},
		"an error": func(_ *testing.T, i *issuer) {
			i.token = func(w http.ResponseWriter, _ url.Values) bool {
				http.Error(w, "secret-of-the-provider", http.StatusInternalServerError)
				return true
			}
		},
		"an endless answer": func(_ *testing.T, i *issuer) {
			i.token = func(w http.ResponseWriter, _ url.Values) bool {
				for range 64 {
					if _, err := w.Write([]byte(strings.Repeat(" ", 1<<16))); err != nil {
						return true
					}
				}
				_, _ = w.Write([]byte(`{"access_token":"x"}`))
				return true
			}
		},
		"no ID token": func(_ *testing.T, i *issuer) {
			i.token = func(w http.ResponseWriter, _ url.Values) bool {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"access_token":"x","token_type":"Bearer"}`))
				return true
			}
		},
		"no name": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["sub"] = "" }
		},
		"a group of Kubernetes": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["groups"] = []string{"system:masters"} }
		},
		"groups of another shape": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["groups"] = map[string]any{"a": 1} }
		},
		"a group that is a number": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["groups"] = []any{"a", 1} }
		},
		"more groups than possible": func(_ *testing.T, i *issuer) {
			i.claims = func(c map[string]any) { c["groups"] = slices.Repeat([]string{"g"}, 1001) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			i := newIssuer(t)
			s := newSite(t, i.URL)
			p := newPerson(t, s)
			q := p.begin(i, "/")
			wrong(t, i)
			got := p.end(q)
			if p.cookie("armature-session") != "" || s.why == "" {
				t.Errorf("it is let in: %q", got)
			}
			if strings.Contains(got+fmt.Sprint(s.err), "secret-of-the-provider") {
				t.Errorf("the provider's text is in %q %v", got, s.err)
			}
			if p.cookie("armature-login") != "" {
				t.Error("the login is still pending")
			}
		})
	}
	t.Run("a name of Kubernetes", func(t *testing.T) {
		i := newIssuer(t)
		s := newSite(t, i.URL, `usernamePrefix: "-"`)
		p := newPerson(t, s)
		q := p.begin(i, "/")
		i.claims = func(c map[string]any) { c["sub"] = "system:admin" }
		if p.end(q); p.cookie("armature-session") != "" {
			t.Error("it is let in")
		}
	})
	t.Run("an address that was not verified", func(t *testing.T) {
		i := newIssuer(t)
		s := newSite(t, i.URL, "usernameClaim: email")
		p := newPerson(t, s)
		q := p.begin(i, "/")
		i.claims = func(c map[string]any) { c["email"], c["email_verified"] = "anna@example.com", false }
		if got := p.end(q); p.cookie("armature-session") != "" ||
			!strings.Contains(got, "verified") {
			t.Errorf("it is let in: %s", got)
		}
	})
	t.Run("a provider that is down", func(t *testing.T) {
		i := newIssuer(t)
		s := newSite(t, i.URL)
		i.Close()
		if got := newPerson(t, s).get(access.LoginPath); !strings.Contains(got, "does not answer") {
			t.Errorf("%q", got)
		}
	})
}

// What the claims name is what the API server's own flags make of them.
func TestNames(t *testing.T) {
	i := newIssuer(t)
	for _, c := range []struct {
		settings []string
		claims   map[string]any
		want     store.Session
	}{
		{nil, nil, store.Session{Name: i.URL + "#anna", Groups: []string{"team1"}}},
		{[]string{"usernameClaim: email", "groupsPrefix: 'oidc:'"},
			map[string]any{"email": "anna@example.com"},
			store.Session{Name: "anna@example.com", Groups: []string{"oidc:team1"}}},
		{[]string{"usernameClaim: name", "usernamePrefix: '-'"}, map[string]any{"name": "Anna",
			"groups": "one"}, store.Session{Name: "Anna", Groups: []string{"one"}}},
		{[]string{"usernamePrefix: 'oidc:'"}, map[string]any{"sub": "system:admin", "groups": nil},
			store.Session{Name: "oidc:system:admin"}},
	} {
		s := newSite(t, i.URL, c.settings...)
		p := newPerson(t, s)
		i.claims = func(claims map[string]any) {
			for name, value := range c.claims {
				claims[name] = value
			}
		}
		p.end(p.begin(i, "/"))
		got, err := s.store.FindSession(t.Context(), p.cookie("armature-session"), time.Now())
		got.Expires = time.Time{}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%v: %v %v %s", c.settings, err, s.err, diff)
		}
	}
}

// A login goes on to a path of this server, and nowhere else.
func TestLocal(t *testing.T) {
	for next, want := range map[string]string{
		"/agents?q=a%2Fb#x": "/agents?q=a%2Fb#x", "/": "/", "": "/", "agents": "/",
		"//evil.example": "/", "/\\evil.example": "/", "/\t/evil.example": "/",
		"/\n/evil.example": "/", "https://evil.example/": "/", "javascript:alert(1)": "/",
		"http:/evil.example": "/", "\\\\evil.example": "/",
		"/%2F/evil.example": "/%2F/evil.example", "/a\x00": "/", "///evil.example": "/",
		"/a\\..\\b": "/",
	} {
		if got := access.LocalPath(next); got != want {
			t.Errorf("%q leads to %q, want %q", next, got, want)
		}
	}
	i := newIssuer(t)
	s := newSite(t, i.URL)
	p := newPerson(t, s)
	if got := p.end(p.begin(i, "//evil.example/")); !strings.HasSuffix(got, " at /") {
		t.Errorf("%q", got)
	}
}

func TestSettings(t *testing.T) {
	good := []string{"issuer: https://login.example", "clientID: armature",
		"url: https://console.example/"}
	if c, err := access.ReadLogin(settings(t, good...)); err != nil ||
		c.URL != "https://console.example" {
		t.Errorf("%v %v", c.URL, err)
	}
	for problem, lines := range map[string][]string{
		"issuer is missing":    good[1:],
		"clientID is missing":  {good[0], good[2]},
		"url is missing":       good[:2],
		`unknown field "color`: append(slices.Clone(good), "color: red"),
		"issuer: ":             {"issuer: http://login.example", good[1], good[2]},
		"url: ":                {good[0], good[1], "url: ftp://console.example"},
		"has a path":           {good[0], good[1], "url: https://console.example/a"},
		"clientSecretFile: ":   append(slices.Clone(good), "clientSecretFile: none"),
		"caFile: ":             append(slices.Clone(good), "caFile: oidc.yaml"),
	} {
		if _, err := access.ReadLogin(settings(t, lines...)); err == nil ||
			!strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", problem, err)
		}
	}
}
