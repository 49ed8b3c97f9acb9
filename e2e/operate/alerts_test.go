package operate

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/catalog/postgres"
	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/e2e/programs"
)

// Things break one by one. The alert of the shipped rules fires, and no other; what its remedy
// says repairs it, the alert resolves, and the builds that waited have their image, of one run.
func TestAlerts(t *testing.T) {
	t.Parallel()
	program := programs.Peer(t, "prometheus")
	database := postgres.Own(t)
	address, err := database.Database()
	must(t, err)
	git := repository(t)
	w := newWorld(t,
		"gitAllowNetwork: [127.0.0.0/8]\nmaxRunning: 100\ncatalog: {enabled: true, storeSecret: "+
			"catalog-postgres}\n")
	w.sh("kubectl create secret generic catalog-postgres -n armature-system " +
		"--from-literal=address='" + address + "'")
	w.install()
	w.agent()
	w.listed()
	cloned := func(b *api.AgentBuild) {
		b.Spec.Source = api.SourceSpec{SourceRepository: "http://" + git.address + "/agent.git",
			SourceRevision: "main"}
	}
	w.order("team1", "cloned", cloned)
	w.built("team1", "cloned")
	w.follow("kubectl get secret armature-attest-key")
	a := w.prometheus(program)

	// The queue is full while everything else breaks: nothing waits for long without a reason.
	w.sh("kubectl annotate namespace team2 armature.dev/max-running=1")
	w.order("team2", "hangs")
	w.phase("team2", "hangs", api.PhaseBuilding)
	w.order("team2", "waits")

	w.Log("the key is missing")
	w.followLine("kubectl delete secret armature-attest-key -n armature-system")
	w.order("team1", "unsigned")
	a.fires("ArmatureAttestKeyMissing", "Restore the Secret that `--attest-key` names")
	w.sh("kubectl apply -f attest-key.yaml")
	a.resolves("ArmatureAttestKeyMissing")
	w.built("team1", "unsigned")

	w.Log("PostgreSQL is gone")
	must(t, database.Stop())
	a.fires("ArmatureCatalogStoreDown", "Restore PostgreSQL")
	must(t, database.Start())
	a.resolves("ArmatureCatalogStoreDown")
	w.listed()

	w.Log("Tekton is gone")
	w.sh("kubectl -n tekton-pipelines scale deployment tekton-pipelines-controller --replicas=0")
	w.order("team1", "idle")
	a.fires("ArmatureTektonIdle", "`kubectl -n tekton-pipelines get pods`")
	w.sh("kubectl -n tekton-pipelines scale deployment tekton-pipelines-controller --replicas=1")
	a.resolves("ArmatureTektonIdle")
	w.built("team1", "idle")

	w.Log("the registry is gone")
	w.held.Store(true)
	held := []string{"hold1", "hold2", "hold3"}
	before := w.images()
	for _, name := range held {
		w.order("team1", name)
	}
	w.eventually("the images are pushed", func() string {
		if n := w.images() - before; n < len(held) {
			return fmt.Sprint(n)
		}
		return ""
	})
	a.want["ArmatureBuildsRetry"] = true // it may be the first of the two
	w.registry.stop()
	w.held.Store(false)
	a.fires("ArmatureAttestationsFail", "`armature build describe`")
	if out := w.sh("armature build describe hold1 -n team1"); !strings.Contains(out, w.registry.address) {
		t.Errorf("describe does not name the registry %s:\n%s", w.registry.address, out)
	}
	a.fires("ArmatureBuildsRetry", "`armature build describe`")
	w.registry.start()
	w.built("team1", held...)
	a.resolves("ArmatureAttestationsFail")
	a.resolves("ArmatureBuildsRetry")

	w.Log("the Git server is slow")
	git.delay.Store(int64(12 * time.Second))
	slow := []string{"slow1", "slow2", "slow3", "slow4"} // three are asked at once
	for _, name := range slow {
		w.order("team1", name, cloned)
	}
	a.fires("ArmatureGitSlow", "relieve their server")
	git.delay.Store(0)
	w.built("team1", slow...)
	a.resolves("ArmatureGitSlow")

	a.fires("ArmatureQueueFull", "`armature build list -A`", "Cancel those that hang")
	if out := w.sh("armature build list -A"); !strings.Contains(out, "hangs") {
		t.Errorf("the list lacks the run that hangs:\n%s", out)
	}
	w.sh("armature build cancel hangs -n team2")
	w.built("team2", "waits")
	a.resolves("ArmatureQueueFull")
}

// repository serves a Git repository with one commit.
func repository(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main", "agent.git"},
		{"-C", "agent.git", "-c", "user.name=test", "-c", "user.email=test@example.com", "commit",
			"--quiet", "--allow-empty", "--message=first"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git: %v\n%s", err, out)
		}
	}
	git, err := exec.LookPath("git")
	must(t, err)
	return newServer(t, &cgi.Handler{Path: git, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"}})
}

func (w *world) images() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pushed)
}

// alerts of a Prometheus that scrapes the controllers.
type alerts struct {
	*world
	url  string
	want map[string]bool // those that may fire
	odd  map[string]bool // others that did
}

// durations of a rule: its ranges, its offsets, for how long it has to hold, and a wait in seconds.
var durations = regexp.MustCompile(`\b(\d+)([smhd])\b|(_wait_seconds\{[^}]*\}\) > )(\d+)`)

// sooner makes each duration of a rule a sixtieth, so that a minute is a second. It changes nothing
// else.
func sooner(text string) string {
	return durations.ReplaceAllStringFunc(text, func(s string) string {
		m := durations.FindStringSubmatch(s)
		if m[3] != "" {
			n, _ := strconv.Atoi(m[4])
			return m[3] + strconv.Itoa(n/60)
		}
		n, _ := strconv.Atoi(m[1])
		return fmt.Sprintf("%dms",
			time.Duration(n)*
				map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour,
					"d": 24 * time.Hour}[m[2]]/60/time.Millisecond)
	})
}

// prometheus scrapes the controllers each second, with the shipped rules. No alert fires at first.
func (w *world) prometheus(program string) *alerts {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(root, "templates", "install", "monitoring", "rules.yaml"))
	must(w.T, err)
	var shipped struct {
		Spec struct {
			Groups []struct {
				Name  string           `json:"name"`
				Rules []map[string]any `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	must(w.T, yaml.Unmarshal(text, &shipped))
	rules := 0
	for _, group := range shipped.Spec.Groups {
		for _, rule := range group.Rules {
			rules++
			for _, field := range []string{"expr", "for"} {
				if text, ok := rule[field].(string); ok {
					rule[field] = sooner(text)
				}
			}
		}
	}
	if rules < 10 {
		w.Fatalf("%d rules are shipped", rules)
	}
	text, err = yaml.Marshal(shipped.Spec)
	must(w.T, err)
	must(w.T, os.WriteFile(filepath.Join(w.dir, "rules.yaml"), text, 0o600))
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\n" +
		"scrape_configs:\n"
	for _, name := range slices.Sorted(maps.Keys(w.programs)) {
		config += fmt.Sprintf("- {job_name: %[1]s, honor_labels: true, static_configs: "+
			"[{targets: [%[2]q], labels: {namespace: %[3]s, pod: %[1]s-0}}]}\n", name,
			w.addresses[name], system)
	}
	must(w.T, os.WriteFile(filepath.Join(w.dir, "prometheus.yaml"), []byte(config), 0o600))
	port, err := ports.Free()
	must(w.T, err)
	cmd := exec.Command(program, "--config.file=prometheus.yaml", "--storage.tsdb.path=data",
		"--web.listen-address=127.0.0.1:"+port, "--log.level=warn")
	cmd.Dir, cmd.Stderr = w.dir, os.Stderr
	must(w.T, cmd.Start())
	w.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	a := &alerts{world: w, url: "http://127.0.0.1:" + port + "/api/v1/",
		want: map[string]bool{"ArmatureQueueFull": true, "ArmatureDown": true}, odd: map[string]bool{}}
	a.eventually("Prometheus scrapes the controllers", func() string {
		var targets struct{ ActiveTargets []struct{ Health string } }
		if err := a.get("targets", &targets); err != nil {
			return err.Error()
		}
		for _, target := range targets.ActiveTargets {
			if target.Health != "up" {
				return target.Health
			}
		}
		return map[bool]string{false: "no targets"}[len(targets.ActiveTargets) == 2]
	})
	// Prometheus reads its targets every 5 seconds, for which this rule waits here as well.
	a.resolves("ArmatureDown")
	return a
}

func (a *alerts) get(path string, into any) error {
	response, err := http.Get(a.url + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(&struct{ Data any }{into})
}

// firing are the remedies of the alerts that fire. Each has to be wanted.
func (a *alerts) firing() (map[string]string, error) {
	a.Helper()
	var list struct {
		Alerts []struct {
			Labels, Annotations map[string]string
			State               string
		}
	}
	if err := a.get("alerts", &list); err != nil {
		return nil, err
	}
	now := make(map[string]string)
	for _, alert := range list.Alerts {
		name := alert.Labels["alertname"]
		if alert.State != "firing" {
			continue
		}
		if now[name] = alert.Annotations["description"]; !a.want[name] && !a.odd[name] {
			a.odd[name] = true
			a.Errorf("%s fires as well: %v %v", name, alert.Labels, alert.Annotations)
		}
	}
	return now, nil
}

// fires waits for an alert, whose remedy has some words, as the page has them.
func (a *alerts) fires(name string, words ...string) {
	a.Helper()
	a.want[name] = true
	begin := time.Now()
	a.eventually(name+" fires", func() string {
		now, err := a.firing()
		if err != nil {
			return err.Error()
		}
		remedy, ok := now[name]
		if !ok {
			return "it does not"
		}
		for _, text := range words {
			if !strings.Contains(remedy, text) {
				a.Errorf("the remedy of %s lacks %q: %s", name, text, remedy)
			}
		}
		if !strings.Contains(a.page, "| `"+name+"` (") {
			a.Errorf("docs/operate.md lacks %s", name)
		}
		return ""
	})
	a.Logf("%s fires after %s", name, time.Since(begin).Round(time.Second))
}

// resolves waits until an alert does not fire.
func (a *alerts) resolves(name string) {
	a.Helper()
	a.eventually(name+" resolves", func() string {
		now, err := a.firing()
		if err != nil {
			return err.Error()
		}
		if _, ok := now[name]; ok {
			return "it fires"
		}
		return ""
	})
	a.want[name] = false
}
