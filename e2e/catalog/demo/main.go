// Command demo runs the console for real: a Kubernetes API server, three agents
// made of A2A's server, two tool servers made of MCP's SDK, builds and a package, some of
// which have something wrong, and the controller's own program. It prints the address of
// the page and a token, and cleans up.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/catalog/fleet"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/functions/multi"
)

func main() {
	log.SetFlags(0)
	bin := flag.String("bin", "bin", "folder with armature and armature-controller")
	stay := flag.Bool("stay", true, "keep running until Ctrl-C, to open the page in a browser")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *stay); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, bin string, stay bool) (err error) {
	dir, err := os.MkdirTemp("", "console-demo-")
	if err != nil {
		return err
	}
	defer func() { err = multi.Errors(err, os.RemoveAll(dir)) }()
	log.Println(
		"starting a Kubernetes API server, three agents and two tool servers; the page follows")
	plane, err := controlplane.Run()
	if err != nil {
		return err
	}
	defer func() { err = multi.Errors(err, plane.Stop()) }()
	for _, folder := range fleet.CRDs() {
		if err := plane.InstallCRDs(folder); err != nil {
			return err
		}
	}
	made, err := fleet.Furnish(ctx, plane, time.Now())
	if err := multi.Errors(err, serve()); err != nil {
		return err
	}
	go grow(ctx, made)
	reader, err := plane.ServiceAccount(ctx, "default", "reader")
	if err != nil {
		return err
	}
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(reader.Config.BearerToken), 0o600); err != nil {
		return err
	}
	port, err := ports.Free()
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", port)
	catalog := exec.CommandContext(ctx, filepath.Join(bin, "armature-controller"),
		"--controllers=catalog", "--namespace=default", "--leader-elect=false",
		"--metrics-address=0", "--health-address=0",
		"--catalog-store="+filepath.Join(dir, "catalog.db"), "--catalog-address="+address,
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
	if err := found(ctx, bin, "--server", "http://"+address, "--token-file", token); err != nil {
		return err
	}
	fmt.Printf("\nOpen http://%s and sign in with this token, good for an hour:\n\n%s\n\n", address,
		reader.Config.BearerToken)
	if stay {
		fmt.Println("Ctrl-C ends.")
		<-ctx.Done()
	}
	return nil
}

// found waits until all agents and servers that can answer have answered.
func found(ctx context.Context, bin string, access ...string) error {
	list := append([]string{"catalog", "list", "-A", "--health", "Healthy", "-o", "json"}, access...)
	for started := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		out, err := exec.CommandContext(ctx, filepath.Join(bin, "armature"), list...).Output()
		if err == nil && strings.Count(string(out), `"uid"`) == answering {
			return nil
		}
		if time.Since(started) > time.Minute || ctx.Err() != nil {
			return fmt.Errorf("the catalog has not found all %d within a minute: %w\n%s", answering,
				err, out)
		}
	}
}

// grow adds lines to the log of the running build, as the build would.
func grow(ctx context.Context, f *fleet.Fleet) {
	b := &api.AgentBuild{}
	if f.Client.Get(ctx, types.NamespacedName{Namespace: "travel", Name: "planner"}, b) != nil {
		return
	}
	text := "#7 [3/4] RUN pip install -r requirements.txt\n"
	for i := range 1000 {
		text += fmt.Sprintf("#7 %d.%03d Collecting package-%03d\n", 2*i, i%1000, i)
		f.Log(b, "buildkit-build", "build", text)
		select {
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Second):
		}
	}
}

// answering is how many agents and tool servers of the fleet are healthy.
const answering = 6

// serve serves the agents and tool servers that the fleet names, until the program ends.
func serve() error {
	mail := peer.Server("Mail", 0, peer.Tool{Name: "send_mail", Description: "Send a mail"},
		peer.Tool{Name: "search_mail", Description: "Search the mailbox"})
	booking := peer.Server("Booking", 0, append(peer.Many("booking", 12),
		peer.Tool{Name: "book_table", Description: "Book a table in a restaurant"})...)
	for address, handler := range map[string]http.Handler{
		"127.0.0.2:8081": peer.Agent(peer.Card("Weather Intelligence Agent",
			"Weather forecasts, now and in the past", "1.0.0", "get_forecast", "get_climate_data")),
		"127.0.0.3:8081": peer.Agent(peer.Card("Trip Planner", "Plans a trip and books it",
			"1.0.0", "plan_trip", "book_hotel", "book_flight")),
		"127.0.0.4:8081": peer.Agent(peer.Card("Secretary", "Keeps calendars", "1.0.0",
			"find_slot", "book_room")),
		"127.0.0.10:8080": peer.Streamable(mail),
		"127.0.0.11:8080": peer.SSE(booking),
	} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("the demo needs %s: %w", address, err)
		}
		go func() {
			_ = (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve(listener)
		}()
	}
	return nil
}
