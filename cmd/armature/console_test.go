package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// The console shows what its user may list, to the browser that has the address first, under
// this machine's names alone, and leaves nothing in the cluster.
func TestConsole(t *testing.T) {
	a := buildArmature(t)
	plane := controlplane.Start(t)
	c, err := buildtest.Install(plane)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	must(plane.InstallCRDs(filepath.Join("..", "..", "templates", "crds", "catalog")))
	for _, ns := range []string{"mine", "others"} {
		must(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		must(c.Create(t.Context(),
			&api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "weather-of-" + ns},
				Spec: api.AgentBuildSpec{
					Source: api.SourceSpec{SourceRepository: "github.com/org/weather"},
					BuildOutput: &api.BuildOutput{Image: "weather", ImageTag: "v1",
						ImageRegistry: "registry.local"}}}))
	}
	must(c.Create(t.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "reader"},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"agent.kagenti.dev", "kagenti.io"},
				Resources: []string{"agentbuilds", "agentcards"},
				Verbs:     []string{"list", "watch"}}}}))
	must(c.Create(t.Context(),
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "reader"},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "anna"}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"}}))
	anna, err := plane.User("anna")
	must(err)
	before := objectsOf(t, c)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.file, "console", "-n", "mine", "--kubeconfig", anna.Kubeconfig)
	cmd.Env = a.env
	var errs controlplane.Output
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v %s", err, errs.String())
	}
	address := strings.TrimSpace(line)
	at, err := url.Parse(address)
	must(err)
	root := "http://" + at.Host
	if at.Hostname() != "127.0.0.1" || len(at.Query().Get("token")) < 20 {
		t.Errorf("the address is %s", address)
	}
	browser := func() *http.Client {
		jar, err := cookiejar.New(nil)
		must(err)
		return &http.Client{Jar: jar}
	}
	get := func(c *http.Client, address string, edit ...func(*http.Request)) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		must(err)
		for _, e := range edit {
			e(request)
		}
		answer, err := c.Do(request)
		must(err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		must(err)
		return answer.StatusCode, string(text)
	}

	// A page whose name was made to resolve to this machine.
	for _, host := range []string{"evil.example", "evil.example:" + at.Port(), "127.0.0.1",
		"localhost.evil.example:" + at.Port()} {
		if status, _ := get(browser(), address, func(r *http.Request) { r.Host = host }); status !=
			http.StatusMisdirectedRequest {
			t.Errorf("as %s: %d", host, status)
		}
	}
	for _, wrong := range []string{root + "/login/console", root + "/login/console?token=wrong"} {
		if status, _ := get(browser(), wrong); status != http.StatusForbidden {
			t.Errorf("%s: %d", wrong, status)
		}
	}
	if status, text := get(browser(), root+"/builds"); status != http.StatusUnauthorized ||
		strings.Contains(text, "weather-of-") {
		t.Errorf("without the address: %d", status)
	}
	me := browser()
	if status, text := get(me, address); status != http.StatusOK ||
		!strings.Contains(text, "anna") {
		t.Errorf("with the address: %d %s", status, text)
	}
	if status, _ := get(browser(), address); status != http.StatusForbidden {
		t.Errorf("the address a second time: %d", status)
	}
	text := ""
	for deadline := time.Now().Add(time.Minute); !strings.Contains(text, "weather-of-mine") &&
		!time.Now().After(deadline); time.Sleep(50 * time.Millisecond) {
		_, text = get(me, root+"/builds")
	}
	if plain := strings.ReplaceAll(text, "<wbr>", ""); !strings.Contains(plain,
		"weather-of-mine") || strings.Contains(plain, "weather-of-others") {
		t.Errorf("builds: %s\n%s", plain, errs.String())
	}
	if status, _ := get(me, root+"/builds/others/weather-of-others"); status != http.StatusNotFound {
		t.Errorf("a build of another namespace: %d", status)
	}
	// Who may not patch has no button, and a form of another site does nothing.
	if _, text := get(me, root+"/builds/mine/weather-of-mine"); strings.Contains(text,
		"Cancel</button>") {
		t.Error("there is a button without the right")
	}
	for site, want := range map[string]int{"cross-site": http.StatusForbidden,
		"same-origin": http.StatusForbidden} {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost,
			root+"/builds/mine/weather-of-mine/cancel", nil)
		must(err)
		request.Header.Set("Sec-Fetch-Site", site)
		answer, err := me.Do(request)
		must(err)
		must(answer.Body.Close())
		if answer.StatusCode != want {
			t.Errorf("cancel, %s: %d", site, answer.StatusCode)
		}
	}
	must(cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v: %s", err, errs.String())
	}
	if strings.Contains(errs.String(), at.Query().Get("token")) {
		t.Error("the token is logged")
	}
	if after := objectsOf(t, c); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

// objectsOf the kinds that something is installed with, by name and version.
func objectsOf(t *testing.T, c client.Client) (names []string) {
	t.Helper()
	for _, list := range []client.ObjectList{&corev1.ServiceAccountList{}, &corev1.SecretList{},
		&corev1.ConfigMapList{}, &corev1.EventList{}, &rbacv1.RoleList{},
		&rbacv1.ClusterRoleBindingList{}, &api.AgentBuildList{}} {
		if err := c.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		raw, err := metaItems(list)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, raw...)
	}
	slices.Sort(names)
	return names
}

func metaItems(list client.ObjectList) (names []string, err error) {
	err = meta.EachListItem(list, func(o runtime.Object) error {
		about, err := meta.Accessor(o)
		if err == nil {
			names = append(names, fmt.Sprintf("%T %s/%s %s", o, about.GetNamespace(),
				about.GetName(), about.GetResourceVersion()))
		}
		return err
	})
	return names, err
}
