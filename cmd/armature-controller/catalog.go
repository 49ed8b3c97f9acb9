package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/console"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/serve"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process"
)

type catalogOptions struct {
	store, storeFile string
	caFile, cardKeys string
	oidc             string
	networks         []string
	period           time.Duration
	concurrency      int
	serve            serve.Options
}

func (c *catalogOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&c.store, "catalog-store", "catalog.db",
		"file of the catalog's SQLite store; a connection string for PostgreSQL belongs into a file")
	f.StringVar(&c.storeFile, "catalog-store-file", "",
		"file that holds the store's address, such as postgres://user:password@host/database "+
			"from a Secret")
	f.StringVar(&c.serve.Address, "catalog-address", ":8443",
		"listen address of the catalog's API, page and MCP server; 0 disables them")
	f.StringVar(&c.serve.CertFile, "catalog-tls-cert", "",
		"certificate of the catalog's server; empty creates a self-signed one")
	f.StringVar(&c.serve.KeyFile, "catalog-tls-key", "", "key of that certificate")
	f.BoolVar(&c.serve.PlainHTTP, "catalog-plain-http", false,
		"serve without TLS, behind a proxy; tokens then cross the network unencrypted")
	f.StringVar(&c.oidc, "catalog-oidc", "",
		"file with the OpenID provider for sign-in to the console")
	f.StringVar(&c.caFile, "catalog-agent-ca", "",
		"PEM file of authorities to trust for agents' certificates, in addition to the system's")
	f.StringVar(&c.cardKeys, "catalog-card-keys", "",
		"folder with the keys that verify agent cards, such as a mounted ConfigMap: NAME.json "+
			"(JWKS), NAME.pub (PEM)")
	f.StringSliceVar(&c.networks, "catalog-allow-network", nil,
		"loopback, link-local and cloud metadata networks to allow, such as 127.0.0.0/8")
	f.DurationVar(&c.period, "catalog-server-period", 2*time.Minute,
		"how often to query MCP servers for their tools")
	f.IntVar(&c.concurrency, "catalog-concurrency", 32,
		"number of agents or servers of a kind to query at once")
}

// check refuses flags with which the catalog would ask no server again, or none at all.
func (c *catalogOptions) check() error {
	switch {
	case c.period <= 0:
		return fmt.Errorf("--catalog-server-period %s: use a positive duration", c.period)
	case c.concurrency < 1:
		return fmt.Errorf("--catalog-concurrency %d: use 1 or more", c.concurrency)
	}
	return nil
}

// run serves and fills the catalog until ctx ends.
func (c *catalogOptions) run(ctx context.Context, cfg *rest.Config, buildNamespace string,
	o controller.Options) (err error) {
	address := c.store
	if c.storeFile != "" {
		text, err := os.ReadFile(c.storeFile)
		if err != nil {
			return fmt.Errorf("reading the store's address: %w", err)
		}
		address = strings.TrimSpace(string(text))
	}
	if o.Roots, err = readRoots(c.caFile); err != nil {
		return err
	}
	networks, err := readNetworks("--catalog-allow-network", c.networks)
	if err != nil {
		return usageError{err}
	}
	o.Dial, o.ServerPeriod, o.Concurrency, o.CardKeys =
		ask.GuardedDial(networks), c.period, c.concurrency, c.cardKeys
	s, err := database.Open(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = multi.Errors(err, s.Close()) }()
	o.Store, o.Shared = s, s.Shared()
	if o.Shard.Key != "" && !o.Shared {
		return usagef(
			"--shard: the shards of the catalog share a PostgreSQL: set --catalog-store-file")
	}
	tasks := []func(context.Context) error{
		func(ctx context.Context) error { return controller.Run(ctx, cfg, o) },
	}
	if c.serve.Address != "0" {
		cfg = rest.CopyConfig(cfg)
		cfg.UserAgent = ask.UserAgent()
		guard, err := serve.Kubernetes(cfg)
		if err != nil {
			return err
		}
		if c.oidc != "" {
			settings, err := access.ReadLogin(c.oidc)
			if err != nil {
				return usageError{err}
			}
			guard.Login = &access.Login{Config: settings, Store: s}
		}
		cluster, err := console.NewCluster(cfg, console.ClusterOptions{Namespaces: o.Namespaces,
			BuildNamespace: isolatedRuns(buildNamespace, o.Namespaces), Log: o.Log})
		if err != nil {
			return err
		}
		pages := &console.Console{Store: s, Access: guard, Cluster: cluster, Log: o.Log}
		server := &serve.Server{Store: s, Access: guard, Pages: pages.Handler(), Log: o.Log}
		tasks = append(tasks, cluster.Run,
			func(ctx context.Context) error { return server.Run(ctx, c.serve) })
	}
	return together(ctx, tasks)
}

// isolatedRuns returns the namespace whose runs the console shows: the given one, or by default the
// namespace that the installation creates if all namespaces are watched.
func isolatedRuns(named string, watched []string) string {
	if named == "" && len(watched) == 0 {
		return "armature-builds"
	}
	return named
}

// together runs tasks until ctx ends or one of them does.
func together(ctx context.Context, tasks []func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() { done <- task(ctx) }()
	}
	var errs []error
	for range tasks {
		errs = append(errs, <-done)
		cancel()
	}
	return multi.Errors(errs...)
}

func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the agents' authorities: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's authorities: %w", err)
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", file)
	}
	return roots, nil
}

func readNetworks(flag string, texts []string) (out []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s %q: write it as 10.0.0.0/8", flag, text)
		}
		out = append(out, p)
	}
	return out, nil
}

// controllers are the names that --controllers accepts.
var controllers = []string{"builds", "catalog", "sources"}

func checkControllers(names []string) error {
	for _, n := range names {
		if !slices.Contains(controllers, n) {
			return fmt.Errorf("--controllers %q: use %v", n, controllers)
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("--controllers is empty: name some of %v", controllers)
	}
	return nil
}

// listenOnce returns o without listeners for metrics and probes if another controller in the
// process may have them already.
func listenOnce(others bool, o process.Options) process.Options {
	if others {
		o.MetricsAddress, o.HealthAddress = "0", "0"
	}
	return o
}
