package access

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/armature-dev/armature/catalog/store"
)

// Login signs people in by OpenID Connect, with the code flow, PKCE, state and nonce. A person who
// signed in has a session on the server, and a cookie with its secret. Its handlers are mounted at
// LoginPath and LoginCallback.
type Login struct {
	Config LoginConfig
	Store  store.Store
	// Now is the time; nil is time.Now.
	Now func() time.Time
	// Failed logs err, and shows a person that they are not signed in, and why.
	Failed func(w http.ResponseWriter, r *http.Request, why string, err error)

	provider atomic.Pointer[oidc.Provider] // nil until it answered
}

// LoginPath begins a login; its parameter next is the path to go on to. The provider returns to
// LoginCallback.
const (
	LoginPath     = "/login/oidc"
	LoginCallback = "/login/callback"
)

// maxSession is how long a session lasts at most. It ends with the ID token.
const maxSession = 8 * time.Hour

// patience is how long the provider may take for an answer.
const patience = 10 * time.Second

// pending is a login that began. It is in a cookie of the browser, so that logins that never
// end take no memory of the server, and only the browser that began one can end it.
type pending struct {
	State, Nonce, Verifier, Next string
}

// pendingFor is how long a person may take at the provider.
const pendingFor = 10 * time.Minute

func (l *Login) now() time.Time {
	if l.Now == nil {
		return time.Now()
	}
	return l.Now()
}

// LocalPath returns a path of this server to go on to; anything else is the home page. Browsers
// skip tabs and line ends in addresses, and take a backslash for a slash.
func LocalPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(next, "/") ||
		strings.HasPrefix(next, "//") || strings.Contains(next, `\`) ||
		strings.ContainsFunc(next, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "/"
	}
	return next
}

// oauth returns the provider, which is queried on first use, and the client's configuration.
func (l *Login) oauth(ctx context.Context) (*oidc.Provider, *oauth2.Config, error) {
	provider := l.provider.Load()
	if provider == nil {
		var err error
		if provider, err = oidc.NewProvider(ctx, l.Config.Issuer); err != nil {
			return nil, nil, fmt.Errorf("asking the OpenID provider: %w", err)
		}
		l.provider.Store(provider)
	}
	return provider, &oauth2.Config{ClientID: l.Config.ClientID, ClientSecret: l.Config.secret,
		Endpoint: provider.Endpoint(), RedirectURL: l.Config.URL + LoginCallback,
		Scopes: l.Config.scopes()}, nil
}

// Begin sends a browser to the provider.
func (l *Login) Begin(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := l.asking(r.Context())
	defer cancel()
	_, config, err := l.oauth(ctx)
	if err != nil {
		l.Failed(w, r, "The OpenID provider does not answer.", err)
		return
	}
	p := pending{rand.Text(), rand.Text(), oauth2.GenerateVerifier(),
		LocalPath(r.URL.Query().Get("next"))}
	text, err := json.Marshal(p)
	if err != nil {
		l.Failed(w, r, "The console cannot answer now.", err)
		return
	}
	l.set(w, pendingCookie, base64.RawURLEncoding.EncodeToString(text), pendingFor)
	http.Redirect(w, r, config.AuthCodeURL(p.State, oidc.Nonce(p.Nonce),
		oauth2.S256ChallengeOption(p.Verifier)), http.StatusFound)
}

// End handles the provider's answer, and begins a session.
func (l *Login) End(w http.ResponseWriter, r *http.Request) {
	p, ok := l.pending(r)
	l.set(w, pendingCookie, "", -1)
	ctx, cancel := l.asking(r.Context())
	defer cancel()
	var err error
	q := r.URL.Query()
	switch why := q.Get("error"); {
	case !ok || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(p.State)) != 1:
		err = refused("This login was not begun in this browser, or it took too long. " +
			"Sign in again.")
	case q.Get("iss") != "" && q.Get("iss") != l.Config.Issuer: // RFC 9207
		err = refused("Another provider answered.")
	case why != "" && !errorCode().MatchString(why):
		err = refused("The OpenID provider refused: with an error.")
	case why != "":
		err = refused("The OpenID provider refused: " + why + ".")
	default:
		var session store.Session
		if session, err = l.redeem(ctx, q.Get("code"), p); err == nil {
			err = l.Grant(w, r, session)
		}
	}
	var refusal refused
	switch {
	case err == nil:
		http.Redirect(w, r, LocalPath(p.Next), http.StatusSeeOther)
	case errors.As(err, &refusal):
		l.Failed(w, r, string(refusal), err)
	default:
		l.Failed(w, r, "The OpenID provider's answer cannot be used. Sign in again.", err)
	}
}

var errorCode = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z_]{1,64}$`)
})

// redeem exchanges the code of a login for a session.
func (l *Login) redeem(ctx context.Context, code string, p pending) (store.Session, error) {
	provider, config, err := l.oauth(ctx)
	if err != nil {
		return store.Session{}, err
	}
	token, err := config.Exchange(ctx, code, oauth2.VerifierOption(p.Verifier))
	if err != nil {
		var answer *oauth2.RetrieveError
		if errors.As(err, &answer) { // its text has the whole answer
			err = fmt.Errorf("the provider answered %d %s", answer.Response.StatusCode, answer.ErrorCode)
		}
		return store.Session{}, fmt.Errorf("redeeming a login: %w", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return store.Session{}, errors.New("redeeming a login: the answer has no ID token")
	}
	id, err := provider.VerifierContext(ctx, &oidc.Config{ClientID: l.Config.ClientID, Now: l.now}).
		Verify(ctx, raw)
	if err != nil {
		return store.Session{}, fmt.Errorf("redeeming a login: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(p.Nonce)) != 1 {
		return store.Session{}, errors.New("redeeming a login: the ID token is of another login")
	}
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return store.Session{}, fmt.Errorf("redeeming a login: %w", err)
	}
	session, err := l.Config.person(claims)
	session.Expires = l.now().Add(maxSession)
	if id.Expiry.Before(session.Expires) {
		session.Expires = id.Expiry
	}
	return session, err
}

// Grant begins a session of a person, and ends the one that the browser had. Its secret is new,
// because an attacker may have set the previous one in the browser.
func (l *Login) Grant(w http.ResponseWriter, r *http.Request, session store.Session) error {
	if err := l.end(r); err != nil {
		return err
	}
	secret, now := rand.Text(), l.now()
	if err := l.Store.BeginSession(r.Context(), secret, session, now); err != nil {
		return err
	}
	l.set(w, sessionCookie, secret, session.Expires.Sub(now))
	return nil
}

// Provider reports whether there is an OpenID provider.
func (l *Login) Provider() bool { return l.Config.Issuer != "" }

// Once returns a secret for an address, and a handler for this address that begins a session for
// the first caller with the secret only.
func (l *Login) Once(session store.Session) (secret string, handler http.HandlerFunc) {
	secret = rand.Text()
	var taken atomic.Bool
	return secret, func(w http.ResponseWriter, r *http.Request) {
		right := subtle.ConstantTimeCompare([]byte(r.URL.Query().Get("token")), []byte(secret)) == 1
		if !right || taken.Swap(true) {
			l.Failed(w, r,
				"This address was already used, or belongs to another console. Run armature "+
					"console again.", errors.New("login: the token is not valid"))
			return
		}
		if err := l.Grant(w, r, session); err != nil {
			l.Failed(w, r, "The console cannot answer now.", err)
			return
		}
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

// Who returns the session of a request. The error is store.ErrNotFound if it has none.
func (l *Login) Who(r *http.Request) (store.Session, error) {
	c, err := r.Cookie(l.name(sessionCookie))
	if err != nil || len(c.Value) > 64 {
		return store.Session{}, store.ErrNotFound
	}
	return l.Store.FindSession(r.Context(), c.Value, l.now())
}

// Began reports whether a browser has the cookie of a session, which may be over.
func (l *Login) Began(r *http.Request) bool {
	_, err := r.Cookie(l.name(sessionCookie))
	return err == nil
}

// Logout ends the session of a request.
func (l *Login) Logout(w http.ResponseWriter, r *http.Request) error {
	l.set(w, sessionCookie, "", -1)
	return l.end(r)
}

func (l *Login) end(r *http.Request) error {
	c, err := r.Cookie(l.name(sessionCookie))
	if err != nil || len(c.Value) > 64 {
		return nil
	}
	return l.Store.EndSession(r.Context(), c.Value)
}

// pending returns the login that this browser began.
func (l *Login) pending(r *http.Request) (p pending, ok bool) {
	c, err := r.Cookie(l.name(pendingCookie))
	if err != nil {
		return p, false
	}
	text, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || json.Unmarshal(text, &p) != nil {
		return p, false
	}
	return p, p.State != "" && p.Nonce != "" && p.Verifier != ""
}

const (
	sessionCookie = "armature-session"
	pendingCookie = "armature-login"
)

// name returns the name of a cookie. Browsers accept a name with the prefix only from this host,
// over TLS.
func (l *Login) name(cookie string) string {
	if l.Config.secure() {
		return "__Host-" + cookie
	}
	return cookie
}

// set sets a cookie for a duration; a negative one deletes it. The provider's redirect carries it
// only if it is Lax.
func (l *Login) set(w http.ResponseWriter, cookie, value string, lasts time.Duration) {
	age := max(int(lasts.Seconds()), 1)
	if lasts < 0 {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{Name: l.name(cookie), Value: value, Path: "/", MaxAge: age,
		HttpOnly: true, Secure: l.Config.secure(), SameSite: http.SameSiteLaxMode})
}
