package gitrepo_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/gitrepo"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"https://github.com/acme/weather":                 "https://github.com/acme/weather",
		"https://github.com/acme/weather.git":             "https://github.com/acme/weather.git",
		"https://github.com/acme/weather/":                "https://github.com/acme/weather",
		"HTTPS://GitHub.com:443/Acme/Weather":             "https://github.com/Acme/Weather",
		"github.com/org/repo.git":                         "https://github.com/org/repo.git",
		"git.example:8443/org/repo":                       "https://git.example:8443/org/repo",
		"http://10.88.0.1:3000/public/x.git":              "http://10.88.0.1:3000/public/x.git",
		"http://gitea/x":                                  "http://gitea/x",
		"https://[FD00::0:1]:8443/x":                      "https://[fd00::1]:8443/x",
		"git@github.com:acme/weather.git":                 "git@github.com:acme/weather.git",
		"git@GitHub.com:acme/weather":                     "git@github.com:acme/weather",
		"git@host:/srv/git/weather":                       "ssh://git@host/srv/git/weather",
		"ssh://git@host:22/srv/weather":                   "ssh://git@host/srv/weather",
		"ssh://git@host:2222/~acme/weather":               "ssh://git@host:2222/~acme/weather",
		"ssh://host/weather/.git":                         "ssh://host/weather/.git",
		"https://dev.azure.com/acme/My%20Agents/_git/a+b": "https://dev.azure.com/acme/My%20Agents/_git/a+b",
		"https://host/%c3%bc/...":                         "https://host/%C3%BC/...",
	} {
		got, err := gitrepo.Parse(text)
		if err != nil || got.String() != want {
			t.Errorf("%s became %q, %v, want %s", text, got, err, want)
			continue
		}
		if again, err := gitrepo.Parse(got.String()); err != nil || again != got {
			t.Errorf("%s became %q, %v", got, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", "/", ".", "..", "https://", "https:///x", "https://host", "https://host/", "host",
		"https://github.com/acme/weather@refs/../../evil/weather",
		"https://github.com/acme/weather/../evil", "https://host/a/./b", "https://host/..",
		"https://host/a/..", "https://host/a@b", "https://host/a/@refs/heads/main", "git@host:a@b",
		"ssh://git@host/a@b", "https://host/%2e%2e/x", "https://host/%2E./x", "https://host/a%2fb",
		"https://host/a%2Fb", "https://host/a%5cb", "https://host/a%252fb", "https://host/a%40b",
		"https://host/%61", "https://host/a%00", "https://host/a%0a", "https://host/a%7f",
		"https://host/a%", "https://host/a%2", "https://host/a%zz", "https://host/a%23",
		"https://host/a%3f", "https://host//x", "https://host/a//b", "https://host/a//",
		"git@host://x", "git@host:a//b", "git@host:", "https://host/a\nb", "https://host/a\tb",
		"https://host/a b", "https://host/a\x00", "https://host/a\x7f", "https://host/\u202ea",
		`https://host/a\b`, `https://host/a"b`, "https://me@host/x", "https://me:secret@host/x",
		"ssh://git:secret@host/x", "git:secret@host:x", "https://@host/x", "ssh://@host/x",
		"@host:x", "ssh://a b@host/x", "ssh://-o@host/x", "https://host/x?a", "https://host/x#a",
		"https://host?/x", "https://host#/x", "https://host/x?", "file:///etc", "ext::sh -c id",
		"git://host/x", "javascript://host/x", "git+https://host/x", "://host/x", "-host/x",
		"--upload-pack=x", "git@-oProxyCommand=x:y", "git@host:-x/y", "https://host:0/x",
		"https://host:65536/x", "https://host:/x", "https://host:+1/x", "https://host:0443/x",
		"https://host:git/x", "host:x/y", "git@host:22/x/y", "git@host:22", "https://ho st/x",
		"https://.host/x", "https://host./x", "https://a..b/x", "https://höst/x", "https://[::1/x",
		"https://[::1]a/x", "https://[::1%25eth0]/x", "https://[127.0.0.1]/x", "https://a\\@b/x",
		"https://host/" + strings.Repeat("a", 2048),
	} {
		if got, err := gitrepo.Parse(text); err == nil || got != (gitrepo.Repository{}) {
			t.Errorf("%q became %q, %v", text, got, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error repeats the password: %v", text, err)
		}
	}
}

func TestSame(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"https://host/a.git", "https://HOST:443/a", true},
		{"https://host/a", "https://host/a/", true},
		{"https://host/a", "https://host/A", false},
		{"https://host/a", "http://host/a", false},
		{"https://host/a", "https://host:8443/a", false},
		{"https://host/a", "https://host/a.git.git", false},
		{"https://host/a/.git", "https://host/a", false},
		{"git@host:a/b", "ssh://git@host/a/b", false}, // relative to a folder of the user's
		{"git@host:a/b.git", "git@host:a/b", true},
	} {
		a, err := gitrepo.Parse(c.a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := gitrepo.Parse(c.b)
		if err != nil {
			t.Fatal(err)
		}
		if a.Same(b) != c.want || b.Same(a) != c.want {
			t.Errorf("%s and %s: the same is %v, want %v", a, b, !c.want, c.want)
		}
	}
}

// FuzzParse: what is taken is read again as the same, and its path leads nowhere else.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"https://github.com/acme/weather@refs/../../evil",
		"git@host:a/b.git", "host:1/a%20b/", "ssh://git@[::1]:2/~/a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := gitrepo.Parse(text)
		if err != nil {
			return
		}
		again, err := gitrepo.Parse(r.String())
		if err != nil || again != r {
			t.Errorf("%q became %q, and that %q, %v", text, r, again, err)
		}
		for _, part := range strings.FieldsFunc(r.String(),
			func(c rune) bool { return c == '/' || c == ':' }) {
			if part == ".." || part == "." {
				t.Errorf("%q became %q", text, r)
			}
		}
	})
}
