package forge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/armature-dev/armature/render/answers"
)

// asTenants makes the test binary a process that asks hostile servers, whose memory a test
// measures. It is the address of one.
const asTenants = "ARMATURE_TEST_HOSTILE_FORGE"

func TestMain(m *testing.M) {
	if address := os.Getenv(asTenants); address != "" {
		askHostile(address)
		return
	}
	os.Exit(m.Run())
}

// hostileAnswers by their path: as large as an answer may be, and what takes most within limits.
func hostileAnswers() map[string]string {
	fill := func(unit string, most int) string {
		return strings.TrimSuffix(strings.Repeat(unit, most/len(unit)), ",")
	}
	within := func(unit string) string {
		return fill(unit, int(maxDecoding*9/10/answers.Cost([]byte(unit)))*len(unit))
	}
	return map[string]string{
		"objects": "[" + fill("{},", maxAnswer-10) + "]",
		"labels":  `[{"labels":[` + fill("{},", maxAnswer-100) + `]}]`,
		"numbers": `[{"labels":[` + fill("0,", maxAnswer-100) + `]}]`,
		"depth":   strings.Repeat("[", 1<<20),
		"lists": "[" +
			strings.TrimSuffix(strings.Repeat(`{"labels":[`+fill("{},", 999*3)+`]},`, 100), ",") +
			"]",
		"text":    `[{"title":"` + within("x") + `","description":"x"}]`,
		"escaped": `[{"title":"` + within(`\u00e9`) + `"}]`,
		"nothing": `[]`,
		"comments": "[" +
			strings.TrimSuffix(strings.Repeat(`{"user":{},"author":{},"assignee":{},"body":"x"},`,
				maxValues-1), ",") + "]",
	}
}

// askHostile asks for everything at once, as two tenants with all workers do, and prints the
// peak of its memory.
func askHostile(address string) {
	clients := new(Clients)
	var all sync.WaitGroup
	for name := range hostileAnswers() {
		for i := range 8 {
			names, _ := Names()
			all.Go(func() {
				f, err := clients.Open(names[i%len(names)], address+"/"+name+"/apps",
					Credential{Token: "hunter2", Namespace: "team" + strconv.Itoa(i/4)})
				if err != nil {
					println("error: " + err.Error())
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				_, err = f.PullRequests(ctx, "")
				if name == "objects" && err == nil {
					println("error: " + name + " is taken")
				}
				if name == "nothing" && err != nil && !errors.Is(err, answers.ErrBusy) {
					println("error: " + name + ": " + err.Error())
				}
			})
		}
	}
	all.Wait()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		println("error: " + err.Error())
	}
	_, _ = os.Stdout.Write(status)
}

// Answers of forges keep the controller below half of its memory limit, whatever they are and
// however many arrive at once.
func TestMemoryOfHostileAnswers(t *testing.T) {
	texts := hostileAnswers()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, text := range texts {
			if strings.Contains(r.URL.EscapedPath(), "/"+name+"/") ||
				strings.Contains(r.URL.EscapedPath(), "/"+name+"%2F") {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, text)
				return
			}
		}
		t.Errorf("%s is not known", r.URL)
	}))
	defer server.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asTenants+"="+server.URL, "GOGC=100")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || strings.Contains(errs.String(), "error:") {
		t.Fatalf("%v: %.2000s", err, errs.String())
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(out)
	if peak == nil {
		t.Fatalf("no peak in %s", out)
	}
	kib, _ := strconv.Atoi(string(peak[1]))
	const half = 512
	t.Logf("peak of memory %d MiB; at most %d are allowed", kib>>10, half)
	if kib>>10 > half {
		t.Errorf("%d MiB", kib>>10)
	}
}
