//go:build linux

package cluster

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/armature-dev/armature/builds/local/tcpproxy"
)

// published are the servers that can also be reached from the machine's own network, each by a
// listener that Up opened there and that is inherited as file 4, 5, …
var published = []string{
	nodeIP + ":6443", // the Kubernetes API
	nodeIP + ":5000", // the registry that is open to all
	nodeIP + ":5001", // the registry that asks for a login
	nodeIP + ":3000", // Git over HTTP
	nodeIP + ":8000", // grype's database
}

// publish serves all except the Kubernetes API, which gets a relay, and returns the address of the
// relay.
func publish(info *Info) (hostAPI string, err error) {
	info.GitSSH = "ssh://git@" + nodeIP + repositories
	info.RegistryUser, info.RegistryPassword, info.GitToken = "robot", rand.Text(), rand.Text()
	blobs := registry.NewDiskBlobHandler(state + "/blobs")
	silent := registry.Logger(log.New(io.Discard, "", 0))
	login := func(user, password string) bool {
		return user == info.RegistryUser && same(password, info.RegistryPassword)
	}
	token := func(_, password string) bool { return same(password, info.GitToken) }
	handlers := []http.Handler{
		nil, // a relay needs none
		registry.New(registry.WithBlobHandler(blobs), registry.WithReferrersSupport(true), silent),
		withLogin("registry", login, registry.New(registry.WithBlobHandler(blobs),
			registry.WithReferrersSupport(true), silent)),
		git(token),
		http.FileServer(http.Dir(state + grypeDatabase)),
	}
	for i, address := range published {
		outside, err := net.FileListener(os.NewFile(uintptr(4+i), address))
		if err != nil {
			return "", fmt.Errorf("the listener for %s on the machine's network: %w", address, err)
		}
		hostAddress := outside.Addr().String()
		switch i {
		case 0:
			hostAPI = hostAddress
			go func() {
				log.Print(tcpproxy.Serve(outside,
					func() (net.Conn, error) { return net.Dial("tcp", address) }))
			}()
			continue
		case 1:
			info.Registry, info.HostRegistry = address, hostAddress
		case 2:
			info.PrivateRegistry, info.HostPrivateRegistry = address, hostAddress
		case 3:
			info.GitHTTP, info.HostGitHTTP = "http://"+address, "http://"+hostAddress
		case 4:
			info.VulnerabilityDatabase = "http://" + address + "/latest.json"
		}
		inside, err := net.Listen("tcp", address)
		if err != nil {
			return "", err
		}
		go func() { log.Print(http.Serve(outside, handlers[i])) }()
		go func() { log.Print(http.Serve(inside, handlers[i])) }()
	}
	return hostAPI, serveMetadata(info)
}

// serveMetadata serves the metadata service of a cloud: it returns the node's credentials to every
// client.
func serveMetadata(info *Info) error {
	info.Metadata, info.MetadataToken = "http://"+metadataIP+"/", rand.Text()
	inside, err := net.Listen("tcp", metadataIP+":80")
	if err != nil {
		return err
	}
	go func() {
		log.Print(http.Serve(inside, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, info.MetadataToken)
		})))
	}()
	return nil
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func withLogin(realm string, allowed func(user, password string) bool,
	next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); ok && allowed(user, password) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Basic realm=%q", realm))
		http.Error(w, "wrong or no credentials", http.StatusUnauthorized)
	})
}

const repositories = "/srv/git"

// git returns Git's own server program behind HTTP. Reading below /public/ needs no token;
// everything else does. A push creates the repository if it does not exist.
func git(token func(user, password string) bool) http.Handler {
	server := &cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend",
		Env: []string{
			"GIT_PROJECT_ROOT=" + repositories, "GIT_HTTP_EXPORT_ALL=1",
			// The handler has authorized pushes before.
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true",
		},
	}
	guarded := withLogin("git", token,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if pushing(r) {
				if err := makeRepository(r.URL.Path); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
			}
			server.ServeHTTP(w, r)
		}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/public/") && !pushing(r) {
			server.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

func pushing(r *http.Request) bool {
	return r.URL.Query().Get("service") == "git-receive-pack" ||
		strings.HasSuffix(r.URL.Path, "/git-receive-pack")
}

func makeRepository(url string) error {
	name, _, found := strings.Cut(url, ".git/")
	if !found || !filepath.IsLocal(name[1:]) {
		return fmt.Errorf("%s is not the address of a repository: it lacks .git", url)
	}
	dir := filepath.Join(repositories, name) + ".git"
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	out, err := exec.Command("git", "init", "--quiet", "--bare", "--initial-branch=main",
		dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("making repository %s: %w: %s", name, err, out)
	}
	return nil
}
