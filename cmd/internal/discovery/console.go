package discovery

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/console"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process"
)

func ConsoleCommand() *cobra.Command {
	var k cli.Cluster
	var port uint16
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open a page of the agents, builds and packages of a cluster",
		Long: `Console opens the page of agents, tool servers, builds and packages in a browser, with
the rights of the kubeconfig. It installs nothing in the cluster: it serves the page on this
machine's loopback address until Ctrl-C, for the one browser that opens the printed address
first. Skills and tools come from the status of resources.`,
		Example: `  armature console
  armature console -n team1 --context staging
  armature console -A --port 8080`,
		Args:              cli.Args(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, namespace, err := k.Rest()
			if err != nil {
				return err
			}
			config.QPS = -1 // the API server's own fairness
			return openConsole(cmd, config, namespace, port)
		},
	}
	k.Flags(cmd)
	k.AllFlag(cmd)
	cmd.Flags().Uint16Var(&port, "port", 0,
		"port of the page on this machine; 0 chooses a free one")
	return cmd
}

// openConsole serves the page of a namespace, "" for all, until the command ends.
func openConsole(cmd *cobra.Command, config *rest.Config, namespace string, port uint16) (err error) {
	ctx := cmd.Context()
	log := logr.FromSlogHandler(slog.NewTextHandler(cmd.ErrOrStderr(),
		&slog.HandlerOptions{Level: slog.LevelWarn}))
	ctrllog.SetLogger(log)
	klog.SetLogger(log)
	s := store.NewMemory()
	l := &access.Login{Store: s}
	guard, err := access.Own(config, l)
	if err != nil {
		return err
	}
	options := console.ClusterOptions{Log: log}
	if namespace != "" {
		options.Namespaces = []string{namespace}
	}
	cluster, err := console.NewCluster(config, options)
	if err != nil {
		return err
	}
	who, err := access.Whoami(ctx, config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the cluster: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("serving the console: %w\n  hint: choose another --port, or omit it", err)
	}
	pages := (&console.Console{Store: s, Access: guard, Cluster: cluster, Log: log}).Handler()
	secret, signIn := l.Once(store.Session{Name: who, Expires: time.Now().Add(24 * time.Hour)})
	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.HandleFunc("GET /login/console", signIn)
	server := &http.Server{Handler: onlyHere(listener.Addr(), mux),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	if err := fillCatalog(ctx, s, objects, namespace); err != nil {
		return multi.Errors(err, listener.Close())
	}

	address := "http://" + listener.Addr().String() + "/login/console?token=" + secret
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n", address)
	if cli.IsTerminal(cmd.OutOrStdout()) {
		fmt.Fprintln(cmd.ErrOrStderr(),
			"the page is served until Ctrl-C, to the browser that opens this address first")
		done, problem := browse(ctx, address)
		if problem != nil {
			log.Info("no browser was started: open the address yourself", "reason", problem.Error())
		}
		defer func() { err = multi.Errors(err, done()) }()
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cluster.Run(ctx) })
	group.Go(func() error { return keepFilled(ctx, s, objects, namespace, log) })
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error {
		if err := server.Serve(process.Bounded(listener, 256)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving the console: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// onlyHere answers only requests that name this address, so that a page of another site whose name
// resolves to it gets nothing.
func onlyHere(at net.Addr, next http.Handler) http.Handler {
	_, port, _ := net.SplitHostPort(at.String())
	names := []string{"127.0.0.1:" + port, "localhost:" + port}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(names, r.Host) {
			http.Error(w, "this console is at "+names[0], http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// browse opens an address through a file that redirects to it: all users of a machine can read the
// arguments of processes, but only the owner can read this file. done removes the file. If no
// browser starts, the user opens the address.
func browse(ctx context.Context, address string) (done func() error, err error) {
	folder, err := os.MkdirTemp("", "armature-console-")
	if err != nil {
		return func() error { return nil }, err
	}
	done = func() error { return os.RemoveAll(folder) }
	file := filepath.Join(folder, "console.html")
	link := html.EscapeString(address)
	page := `<!doctype html><title>Armature</title><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url=` + link + `"><a href="` + link + `">Open the console</a>`
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return done, err
	}
	program := map[string][]string{"darwin": {"open"},
		"windows": {"rundll32", "url.dll,FileProtocolHandler"}}[goruntime.GOOS]
	if program == nil {
		program = []string{"xdg-open"}
	}
	return done, exec.CommandContext(ctx, program[0], append(program[1:], file)...).Start()
}

// refill is how often the catalog is read again.
const refill = 15 * time.Second

func keepFilled(ctx context.Context, s store.Store, objects dynamic.Interface, namespace string,
	log logr.Logger) error {
	_ = wait.PollUntilContextCancel(ctx, refill, false, func(ctx context.Context) (bool, error) {
		if err := fillCatalog(ctx, s, objects, namespace); err != nil && ctx.Err() == nil {
			log.Error(err, "reading the catalog again")
		}
		return false, nil
	})
	return nil
}

// fillCatalog fills the store from the resources of the catalog. A kind that the cluster lacks, or
// that may not be listed, has no entries.
func fillCatalog(ctx context.Context, s store.Store, objects dynamic.Interface, namespace string) error {
	for _, kind := range kinds.All() {
		_, err := s.Sweep(ctx, kind.Resource,
			func() (map[string]bool, error) { return fillKind(ctx, s, objects, namespace, kind) })
		if err != nil {
			return err
		}
	}
	return nil
}

// fillKind stores the objects of a kind, and returns their UIDs.
func fillKind(ctx context.Context, s store.Store, objects dynamic.Interface, namespace string,
	kind kinds.Kind) (map[string]bool, error) {
	stored := map[string]bool{}
	page := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return objects.Resource(kind.GVR()).Namespace(namespace).List(ctx, o)
	}
	err := pager.New(page).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		e, ok, err := kinds.OfLive(o.(*unstructured.Unstructured))
		if err != nil || !ok {
			return err
		}
		stored[e.UID] = true
		_, err = s.Put(ctx, e, true)
		return err
	})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return stored, nil
	case err != nil:
		return nil, fmt.Errorf("listing %s: %w", kind.Resource, err)
	}
	return stored, nil
}
