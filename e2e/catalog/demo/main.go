// Command demo runs the catalog for real: a Kubernetes API server, three agents
// made of A2A's server, two tool servers made of MCP's SDK, and the controller's
// own program. It shows list, search and an entry, and cleans up.
package main

import (
	"bytes"
	"context"
	_ "embed"
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

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/functions/multi"
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
	defer func() { err = multi.Errors(err, os.RemoveAll(dir)) }()
	log.Println("starting a Kubernetes API server, three agents and two tool servers")
	plane, err := controlplane.Run()
	if err != nil {
		return err
	}
	defer func() { err = multi.Errors(err, plane.Stop()) }()
	if err := plane.InstallCRDs(filepath.Join("templates", "crds", "catalog")); err != nil {
		return err
	}
	if err := multi.Errors(furnish(ctx, plane), serve()); err != nil {
		return err
	}
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
	if err := show(ctx, bin, "--server", "http://"+address, "--token-file", token); err != nil {
		return err
	}
	if stay {
		fmt.Printf("\nOpen http://%s and sign in with this token, good for an hour; Ctrl-C ends.\n%s\n", address, reader.Config.BearerToken)
		<-ctx.Done()
	}
	return nil
}

// show list, search and one entry, once everybody has answered.
func show(ctx context.Context, bin string, access ...string) error {
	armature := func(args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, filepath.Join(bin, "armature"), append(append([]string{"catalog"}, args...), access...)...)
	}
	for started := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		out, err := armature("list", "-A", "--health", "Healthy", "-o", "json").Output()
		if err == nil && strings.Count(string(out), `"uid"`) == 5 {
			break
		}
		if time.Since(started) > time.Minute || ctx.Err() != nil {
			return fmt.Errorf("the catalog has not found all five within a minute: %w\n%s", err, out)
		}
	}
	for _, args := range [][]string{{"list", "-A"}, {"search", "book", "-A"}, {"get", "travel/planner"}} {
		fmt.Printf("\n$ armature catalog %s\n", strings.Join(args, " "))
		cmd := armature(args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("armature catalog %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}

//go:embed demo.yaml
var manifests []byte

// furnish the cluster with demo.yaml, status included.
func furnish(ctx context.Context, plane *controlplane.ControlPlane) error {
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		return err
	}
	objects, err := ssautil.ReadObjects(bytes.NewReader(manifests))
	if err != nil {
		return err
	}
	for _, o := range objects {
		status := o.Object["status"]
		if err := c.Create(ctx, o); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if status == nil {
			continue
		}
		o.Object["status"] = status
		if err := c.Status().Update(ctx, o); err != nil {
			return fmt.Errorf("the status of %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// serve the agents and tool servers that demo.yaml names, until the program ends.
func serve() error {
	mail := peer.Server("Mail", 0, peer.Tool{Name: "send_mail", Description: "Send a mail"}, peer.Tool{Name: "search_mail", Description: "Search the mailbox"})
	booking := peer.Server("Booking", 0, append(peer.Many("booking", 12), peer.Tool{Name: "book_table", Description: "Book a table in a restaurant"})...)
	for address, handler := range map[string]http.Handler{
		"127.0.0.2:8081":  peer.Agent(peer.Card("Weather Intelligence Agent", "Weather forecasts, now and in the past", "1.0.0", "get_forecast", "get_climate_data")),
		"127.0.0.3:8081":  peer.Agent(peer.Card("Trip Planner", "Plans a trip and books it", "1.0.0", "plan_trip", "book_hotel", "book_flight")),
		"127.0.0.4:8081":  peer.Agent(peer.Card("Secretary", "Keeps calendars", "1.0.0", "find_slot", "book_room")),
		"127.0.0.10:8080": peer.Streamable(mail),
		"127.0.0.11:8080": peer.SSE(booking),
	} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("the demo needs %s: %w", address, err)
		}
		go func() { _ = (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve(listener) }()
	}
	return nil
}
