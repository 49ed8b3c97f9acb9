// Command demo runs the catalog for real: a Kubernetes API server, three agents
// made of A2A's server, two tool servers made of MCP's SDK, and the controller's
// own program. It shows list, search and the page, and cleans up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	kagent2 "github.com/armature-dev/armature/catalog/api/kagent/v1alpha2"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
)

func main() {
	log.SetFlags(0)
	bin := flag.String("bin", "bin", "folder with armature and armature-controller")
	stay := flag.Bool("stay", false, "keep running until Ctrl-C, to open the page in a browser")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *stay); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, bin string, stay bool) (err error) {
	dir, err := os.MkdirTemp("", "catalog-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	log.Println("starting a Kubernetes API server, three agents and two tool servers")
	plane, err := controlplane.Run()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	if err := plane.InstallCRDs(filepath.Join("templates", "crds", "catalog")); err != nil {
		return err
	}
	if err := furnish(ctx, plane); err != nil {
		return err
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	token := filepath.Join(dir, "token")
	if err := reader(ctx, plane, token); err != nil {
		return err
	}
	catalog := exec.CommandContext(ctx, filepath.Join(bin, "armature-controller"), "--controllers=catalog", "--namespace=default", "--leader-elect=false",
		"--metrics-address=0", "--health-address=0", "--catalog-store="+filepath.Join(dir, "catalog.db"), "--catalog-address="+address,
		"--catalog-plain-http", "--catalog-allow-network=127.0.0.0/8", "--log-level=error")
	catalog.Env, catalog.Stderr = append(os.Environ(), "KUBECONFIG="+plane.Admin.Kubeconfig), os.Stderr
	catalog.Cancel = func() error { return catalog.Process.Signal(syscall.SIGTERM) }
	if err := catalog.Start(); err != nil {
		return fmt.Errorf("starting the catalog: %w", err)
	}
	defer func() {
		_ = catalog.Process.Signal(syscall.SIGTERM)
		_ = catalog.Wait() // it was stopped
	}()
	server := "http://" + address
	if err := show(ctx, bin, server, token); err != nil {
		return err
	}
	if stay {
		text, err := os.ReadFile(token)
		if err != nil {
			return err
		}
		fmt.Printf("\nOpen %s and sign in with this token, good for an hour; Ctrl-C ends.\n%s\n", server, text)
		<-ctx.Done()
	}
	return nil
}

// show list, search, one entry and the page, once everybody has answered.
func show(ctx context.Context, bin, server, token string) error {
	armature := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "armature"), append(append([]string{"catalog"}, args...), "--server", server, "--token-file", token)...)
		cmd.Stderr = os.Stderr
		return cmd
	}
	for started := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		quiet := armature("list", "--health", "Healthy", "-o", "json")
		quiet.Stderr = nil
		out, err := quiet.Output()
		if err == nil && strings.Count(string(out), `"uid"`) == 5 {
			break
		}
		if time.Since(started) > time.Minute || ctx.Err() != nil {
			return fmt.Errorf("the catalog has not found all five within a minute: %w\n%s", err, out)
		}
	}
	for _, args := range [][]string{{"list"}, {"search", "book"}, {"get", "travel/planner"}} {
		fmt.Printf("\n$ armature catalog %s\n", strings.Join(args, " "))
		cmd := armature(args...)
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("armature catalog %s: %w", strings.Join(args, " "), err)
		}
	}
	fmt.Printf("\nThe page at %s, as text:\n", server)
	return page(server, token)
}

// page signs in as a person would and prints what they read.
func page(server, token string) error {
	text, err := os.ReadFile(token)
	if err != nil {
		return err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Jar: jar}).PostForm(server+"/login", url.Values{"token": {string(text)}})
	if err != nil {
		return fmt.Errorf("opening the page: %w", err)
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), "<table>") {
		return fmt.Errorf("the page answers %s:\n%s", response.Status, body)
	}
	row := regexp.MustCompile(`(?s)<tr>(.*?)</tr>`)
	tag := regexp.MustCompile(`<[^>]*>`)
	for _, r := range row.FindAllStringSubmatch(string(body), -1) {
		fmt.Println("  " + strings.Join(strings.Fields(tag.ReplaceAllString(strings.ReplaceAll(r[1], "</t", " |</t"), "")), " "))
	}
	return nil
}

// furnish the cluster: namespaces, agents and what makes them known.
func furnish(ctx context.Context, plane *controlplane.ControlPlane) error {
	scheme, err := controller.Scheme()
	if err != nil {
		return err
	}
	c, err := client.New(plane.Admin.Config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for _, ns := range []string{"travel", "office"} {
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return err
		}
	}
	for i, a := range []struct {
		namespace, name, title, description string
		skills                              []string
	}{
		{"travel", "weather", "Weather Intelligence Agent", "Weather forecasts, now and in the past", []string{"get_forecast", "get_climate_data"}},
		{"travel", "planner", "Trip Planner", "Plans a trip and books it", []string{"plan_trip", "book_hotel", "book_flight"}},
		{"office", "secretary", "Secretary", "Keeps calendars", []string{"find_slot", "book_room"}},
	} {
		ip := fmt.Sprintf("127.0.0.%d", 2+i) // each agent has an address, as pods do
		if err := serve(ip+":8081", peer.Agent(peer.Card(a.title, a.description, "1.0.0", a.skills...))); err != nil {
			return err
		}
		if err := agent(ctx, c, a.namespace, a.name, ip); err != nil {
			return err
		}
	}
	mail := peer.Server("Mail", 0, peer.Tool{Name: "send_mail", Description: "Send a mail"}, peer.Tool{Name: "search_mail", Description: "Search the mailbox"})
	booking := peer.Server("Booking", 0, peer.Many("booking", 12)...)
	peer.Add(booking, peer.Tool{Name: "book_table", Description: "Book a table in a restaurant"})
	for i, s := range []struct {
		name     string
		protocol kagent2.Protocol
		handler  http.Handler
	}{{"mail", kagent2.StreamableHTTP, peer.Streamable(mail)}, {"booking", kagent2.SSE, peer.SSE(booking)}} {
		address := fmt.Sprintf("127.0.0.%d:8080", 10+i)
		if err := serve(address, s.handler); err != nil {
			return err
		}
		o := &kagent2.RemoteMCPServer{ObjectMeta: metav1.ObjectMeta{Namespace: "office", Name: s.name}}
		o.Spec.URL, o.Spec.Protocol = "http://"+address+"/mcp", s.protocol
		if err := c.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// agent makes a pod that is ready, as a kubelet would, and an AgentCard for it.
func agent(ctx context.Context, c client.Client, namespace, name, ip string) error {
	labels := map[string]string{"app": name}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-0", Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: name}}}}
	if err := c.Create(ctx, pod); err != nil {
		return err
	}
	pod.Status.PodIP, pod.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(ctx, pod); err != nil {
		return err
	}
	card := &api.AgentCard{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	card.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	return c.Create(ctx, card)
}

// serve until the program ends.
func serve(address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("the demo needs %s: %w", address, err)
	}
	go func() { _ = (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve(listener) }()
	return nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// reader writes the token of an account that may list what the catalog shows.
func reader(ctx context.Context, plane *controlplane.ControlPlane, file string) error {
	access, err := plane.ServiceAccount(ctx, "default", "reader")
	if err != nil {
		return err
	}
	if err := allowReader(ctx, plane); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(access.Config.BearerToken), 0o600)
}
