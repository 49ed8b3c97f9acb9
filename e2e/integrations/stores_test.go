package integrations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// stateHandlers do what handlers do with files.
const stateHandlers = `
import os, pathlib, shutil

def use(payload):
    base = payload["base"]
    with open(base + "/notes/a.txt", "w") as f:
        f.write("one\n")
    seen = {"read": open(base + "/notes/a.txt").read()}
    path = pathlib.Path(base) / "b.bin"
    path.write_bytes(b"x" * 100000)
    seen["size"] = os.path.getsize(path)
    seen["exists"] = [path.exists(), os.path.exists(base + "/none"), os.path.isdir(base)]
    seen["names"] = sorted(os.listdir(base))
    os.makedirs(base + "/deep/er", exist_ok=True)
    path.unlink()
    seen["gone"] = not path.exists()
    os.setxattr(base + "/notes/a.txt", "user.asya.owner", b"me")
    seen["attribute"] = os.getxattr(base + "/notes/a.txt", "user.asya.owner").decode()
    for name, act in {
        "missing": lambda: open(base + "/none"),
        "taken": lambda: open(base + "/notes/a.txt", "x"),
        "directory": lambda: open(base + "/"),
        "name": lambda: open(base + "/a?b", "w"),
        "down": lambda: open(base + "/down"),
    }.items():
        try:
            act()
        except Exception as error:
            seen[name] = type(error).__name__
    return seen

def append(payload):
    base = payload["base"]
    open(base + "/log", "w").write("a")
    with open(base + "/log", "a") as f:
        f.write("b")
    with open(base + "/log", "r+") as f:
        f.seek(1)
        f.write("c")
    shutil.copy(base + "/log", base + "/copy")
    return open(base + "/copy").read()
`

// connector takes the place of a connector of Asya: keys and values over HTTP.
type connector struct {
	mu         sync.Mutex
	keys       map[string]string
	attributes map[string]string
	chunked    int // uploads without a length
}

func (c *connector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/keys/"), "/meta/")
	value, found := c.keys[key]
	fail := func(status int) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error": "failed", "message": "status %d"}`, status)
	}
	switch attribute := r.URL.Query().Get("attr"); {
	case key == "down":
		fail(http.StatusServiceUnavailable)
	case attribute != "" && r.Method == http.MethodPut:
		var body struct{ Value string }
		if json.NewDecoder(r.Body).Decode(&body) != nil {
			fail(http.StatusBadRequest)
			return
		}
		c.attributes[key+"?"+attribute] = body.Value
		w.WriteHeader(http.StatusNoContent)
	case attribute != "":
		json.NewEncoder(w).Encode(map[string]string{"attr": attribute,
			"value": c.attributes[key+"?"+attribute]})
	case r.Method == http.MethodPut:
		if r.ContentLength < 0 {
			c.chunked++
		}
		data, err := io.ReadAll(r.Body)
		if err != nil || found && r.Header.Get("If-None-Match") == "*" {
			fail(http.StatusConflict)
			return
		}
		c.keys[key] = string(data)
		w.WriteHeader(http.StatusNoContent)
	case key == "": // a listing
		prefix := r.URL.Query().Get("prefix")
		var names []string
		for name := range c.keys {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				if dir, _, deeper := strings.Cut(rest, "/"); deeper {
					rest = dir + "/"
				}
				names = append(names, prefix+rest)
			}
		}
		slices.Sort(names)
		json.NewEncoder(w).Encode(map[string]any{"keys": slices.Compact(names), "prefixes": []string{}})
	case !found:
		fail(http.StatusNotFound)
	case r.Method == http.MethodHead:
		w.Header().Set("Content-Length", fmt.Sprint(len(value)))
		w.Header().Set("X-Is-File", "true")
	case r.Method == http.MethodDelete:
		delete(c.keys, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		io.WriteString(w, value)
	}
}

// TestRuntimeStores has handlers use the files of stores, whose connectors get them.
func TestRuntimeStores(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not on the PATH")
	}
	script := runtimeScript(t)
	used := map[string]any{
		"read": "one\n", "size": 100000.0, "exists": []any{true, false, true},
		"names": []any{"b.bin", "notes"}, "gone": true, "attribute": "me",
		"missing": "FileNotFoundError", "taken": "FileExistsError",
		"directory": "IsADirectoryError", "name": "OSError", "down": "ConnectionError",
	}
	for _, c := range []struct {
		handler, store string
		want           any
		keys           map[string]string
	}{
		{"use", "buffered", used, map[string]string{"notes/a.txt": "one\n"}},
		{"use", "passthrough", used, map[string]string{"notes/a.txt": "one\n"}},
		{"append", "buffered", "ac", map[string]string{"log": "ac", "copy": "ac"}},
	} {
		t.Run(c.handler+"-"+c.store, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "a") // a socket's path has to be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
				t.Fatal(err)
			}
			stores := map[string]*connector{"buffered": nil, "passthrough": nil}
			for name := range stores {
				stores[name] = &connector{keys: map[string]string{},
					attributes: map[string]string{}}
				listener, err := net.Listen("unix", filepath.Join(dir, "state", name+".sock"))
				if err != nil {
					t.Fatal(err)
				}
				server := &http.Server{Handler: stores[name]}
				go server.Serve(listener)
				t.Cleanup(func() { server.Close() })
			}
			write(t, dir, "handlers.py", stateHandlers)
			actor := exec.Command("python3", script)
			actor.Env = append(os.Environ(), "PYTHONPATH="+dir, "ASYA_SOCKET_DIR="+dir,
				"ASYA_HANDLER=handlers."+c.handler,
				"ASYA_STATE_PROXY_MOUNTS=buffered:/state/buffered:write=buffered;passthrough:/"+
					"state/passthrough:write=passthrough")
			var log bytes.Buffer
			actor.Stderr = &log
			if err := actor.Start(); err != nil {
				t.Fatal(err)
			}
			stop := func() {
				actor.Process.Kill()
				actor.Wait()
			}
			for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(
				20 * time.Millisecond) {
				if _, err := os.Stat(filepath.Join(dir, "runtime-ready")); err == nil {
					break
				}
			}
			answer := post(dir+"/asya-runtime.sock",
				fmt.Sprintf(`{"route": {}, "payload": {"base": "/state/%s"}}`, c.store))
			stop()
			var have struct{ Frames []struct{ Payload any } }
			if err := json.NewDecoder(strings.NewReader(answer)).Decode(&have); err != nil ||
				len(have.Frames) != 1 {
				t.Fatalf("%s\n%s", answer, log.String())
			}
			if diff := cmp.Diff(c.want, have.Frames[0].Payload); diff != "" {
				t.Errorf("the handler sees (-want +got):\n%s\n%s", diff, log.String())
			}
			if diff := cmp.Diff(c.keys, stores[c.store].keys); diff != "" {
				t.Errorf("the store holds (-want +got):\n%s", diff)
			}
			if streamed := stores[c.store].chunked > 0; streamed != (c.store == "passthrough") {
				t.Errorf("uploads are streamed: %v", streamed)
			}
			delete(stores, c.store)
			for other := range maps.Values(stores) {
				if len(other.keys) > 0 {
					t.Errorf("the other store holds %v", other.keys)
				}
			}
		})
	}
}
