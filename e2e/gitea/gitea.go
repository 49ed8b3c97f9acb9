// Package gitea starts Gitea for tests, a real forge with users, repositories, pull requests,
// comments, statuses, protected branches and webhooks.
package gitea

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/e2e/programs"
)

// Options configures a server. The zero value serves this machine only.
type Options struct {
	// Address to listen on; empty is a free port of the loopback interface.
	Address string
	// Command that the program is started with, such as nsenter with its arguments.
	Command []string
	// Dial reaches the address; nil is the machine's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TrustedKeys are public SSH keys, as in authorized_keys, whose signatures of commits
	// are verified.
	TrustedKeys []string
}

// Server is a Gitea that ends with its test.
type Server struct {
	// URL, as the server names itself, without a slash at the end.
	URL string
	// Token of the user admin, who may do everything.
	Token string

	t      testing.TB
	client *http.Client
	run    func(arguments ...string) *exec.Cmd
}

// config of a server; the %s are the user, the folder, host and port, the URL, the folder of
// Gitea's module, which has its templates, and the keys.
const config = `RUN_USER = %s
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = %s
[server]
HTTP_ADDR = %s
HTTP_PORT = %s
ROOT_URL = %s/
STATIC_ROOT_PATH = %s
DISABLE_SSH = true
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
PATH = data/forge.db
SQLITE_JOURNAL_MODE = WAL
SQLITE_TIMEOUT = 20000
[security]
INSTALL_LOCK = true
PASSWORD_HASH_ALGO = pbkdf2_v1
[webhook]
ALLOWED_HOST_LIST = *
DELIVER_TIMEOUT = 10
[session]
PROVIDER = memory
[indexer]
ISSUE_INDEXER_TYPE = db
[actions]
ENABLED = false
[packages]
ENABLED = false
[log]
LEVEL = Warn
[repository.signing]
TRUSTED_SSH_KEYS = %s
`

// Start starts a server. If the program is missing, the test is skipped, or fails if peers are
// required.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	program := programs.Peer(t, "forge")
	root, err := programs.Repository()
	must(t, err)
	module := exec.Command("go", "list", "-m", "-mod=mod", "-f", "{{.Dir}}", "code.gitea.io/gitea")
	module.Dir = filepath.Join(root, "e2e", "forge")
	files, err := module.Output()
	must(t, err)
	if o.Address == "" {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		o.Address = free.Addr().String()
		must(t, free.Close())
	}
	host, port, err := net.SplitHostPort(o.Address)
	must(t, err)
	me, err := user.Current()
	must(t, err)
	folder := t.TempDir()
	s := &Server{URL: "http://" + o.Address, t: t,
		client: &http.Client{Transport: &http.Transport{DialContext: o.Dial}, Timeout: time.Minute}}
	ini := filepath.Join(folder, "app.ini")
	must(t, os.WriteFile(ini, fmt.Appendf(nil, config, me.Username, folder, host, port, s.URL,
		strings.TrimSpace(string(files)), strings.Join(o.TrustedKeys, ", ")), 0o600))
	must(t, os.Mkdir(filepath.Join(folder, "data"), 0o700))

	log := &bytes.Buffer{}
	s.run = func(arguments ...string) *exec.Cmd {
		words := append(append([]string{}, o.Command...),
			append([]string{program, "-c", ini}, arguments...)...)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir = folder
		// The server writes Git's configuration, by default that of its own home in folder. A
		// variable that names another file, such as /dev/null, would have it replace that one.
		cmd.Env = slices.DeleteFunc(os.Environ(),
			func(variable string) bool { return strings.HasPrefix(variable, "GIT_") })
		cmd.Env = append(cmd.Env, "HOME="+folder)
		return cmd
	}
	s.do("migrate")
	s.do("admin", "user", "create", "--admin", "--username=admin", "--password=admin-1234",
		"--email=admin@example.test", "--must-change-password=false")
	words := strings.Fields(s.do("admin", "user", "generate-access-token", "--username=admin",
		"--token-name=test", "--scopes=all", "--raw"))
	s.Token = words[len(words)-1]
	web := s.run("web")
	web.Stdout, web.Stderr = log, log
	must(t, web.Start())
	t.Cleanup(func() {
		_ = web.Process.Kill()
		_ = web.Wait() // it was killed
		if t.Failed() {
			t.Logf("Gitea's log:\n%s", log)
		}
	})
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		answer, err := s.client.Get(s.URL + "/api/healthz")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("Gitea does not answer: %v\n%s", err, log)
		}
	}
	return s
}

// do runs a command of Gitea, and returns its output.
func (s *Server) do(arguments ...string) string {
	s.t.Helper()
	cmd := s.run(arguments...)
	problems := &bytes.Buffer{}
	cmd.Stderr = problems
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("forge %s: %v\n%s%s", strings.Join(arguments, " "), err, out, problems)
	}
	return string(out)
}

// Ask sends a request to the API as the user of a token, and reads the answer into a value, which
// may be nil. It returns the status, and fails the test for a status of 500 or more.
func (s *Server) Ask(token, method, path string, body, into any) (status int) {
	s.t.Helper()
	text, err := json.Marshal(body)
	must(s.t, err)
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+"/api/v1"+path,
		bytes.NewReader(text))
	must(s.t, err)
	request.Header.Set("Authorization", "token "+token)
	request.Header.Set("Content-Type", "application/json")
	answer, err := s.client.Do(request)
	must(s.t, err)
	defer answer.Body.Close()
	text, err = io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	must(s.t, err)
	if answer.StatusCode >= 500 {
		s.t.Fatalf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	if into != nil && answer.StatusCode < 300 {
		must(s.t, json.Unmarshal(text, into))
	}
	return answer.StatusCode
}

// Must sends a request as Ask does, and fails the test if it does not succeed.
func (s *Server) Must(token, method, path string, body, into any) {
	s.t.Helper()
	if status := s.Ask(token, method, path, body, into); status >= 300 {
		s.t.Fatalf("%s %s: %d", method, path, status)
	}
}

// User creates a user, and returns a token of that user.
func (s *Server) User(name string) (token string) {
	s.t.Helper()
	s.Must(s.Token, http.MethodPost, "/admin/users",
		map[string]any{"username": name, "email": name + "@example.test",
			"password": name + "-1234", "must_change_password": false}, nil)
	words := strings.Fields(s.do("admin", "user", "generate-access-token", "--username="+name,
		"--token-name=test", "--scopes=all", "--raw"))
	return words[len(words)-1]
}

// Repository creates a repository of the user of a token, with a first commit on main, and returns
// its path, for instance admin/weather.
func (s *Server) Repository(token, name string) (path string) {
	s.t.Helper()
	var made struct {
		FullName string `json:"full_name"`
	}
	s.Must(token, http.MethodPost, "/user/repos",
		map[string]any{"name": name, "auto_init": true, "default_branch": "main"}, &made)
	return made.FullName
}

// Remote returns the URL of a repository with a login, for git.
func (s *Server) Remote(token, path string) string {
	return strings.Replace(s.URL, "http://", "http://x:"+token+"@", 1) + "/" + path + ".git"
}

// Write writes a file of a branch as a commit, which it returns. It creates branch from base if
// they differ.
func (s *Server) Write(token, path, base, branch, file, text string) (commit string) {
	s.t.Helper()
	var made struct {
		Commit struct {
			SHA string `json:"sha"`
		} `json:"commit"`
	}
	body := map[string]any{"branch": base, "message": "Change " + file, "content": []byte(text)}
	if branch != base {
		body["new_branch"] = branch
	}
	method := http.MethodPost
	var have struct {
		SHA string `json:"sha"`
	}
	if s.Ask(token, http.MethodGet, "/repos/"+path+"/contents/"+file+"?ref="+base, nil, &have) ==
		http.StatusOK {
		method, body["sha"] = http.MethodPut, have.SHA
	}
	s.Must(token, method, "/repos/"+path+"/contents/"+file, body, &made)
	return made.Commit.SHA
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
