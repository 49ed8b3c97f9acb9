package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	builds "github.com/armature-dev/armature/builds/controller"
	"github.com/armature-dev/armature/sources/controller"
)

// sourcesOptions are the flags of RenderedSources.
type sourcesOptions struct {
	dir, address, advertised string
	hosts                    []string
	ownNamespaceOnly         bool
}

func (s *sourcesOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&s.dir, "artifact-dir", "", "folder for the archives that RenderedSources publish; required for sources")
	f.StringVar(&s.address, "artifact-address", ":9090", "where these archives are served")
	f.StringVar(&s.advertised, "artifact-advertised-address", "", "host and port at which Flux reaches --artifact-address; empty is the address itself")
	f.StringSliceVar(&s.hosts, "source-hosts", []string{"source-controller.flux-system.svc.cluster.local", "source-watcher.flux-system.svc.cluster.local"}, "hosts, with or without a port, that archives of Flux's sources are fetched from")
	f.BoolVar(&s.ownNamespaceOnly, "no-cross-namespace-refs", true, "refuse RenderedSources that refer to sources of other namespaces; false lets their authors read all sources")
}

// options takes from the process what all controllers share. Where others run
// beside it, they serve metrics and probes.
func (s *sourcesOptions) options(o builds.Options, beside bool) controller.Options {
	out := controller.Options{
		Namespace: o.Namespace, Namespaces: o.Namespaces, LeaderElection: o.LeaderElection, QPS: o.QPS,
		MetricsAddress: o.MetricsAddress, HealthAddress: o.HealthAddress,
		Dir: s.dir, Address: s.address, AdvertisedAddress: s.advertised, Hosts: s.hosts, CrossNamespace: !s.ownNamespaceOnly, Dial: o.Dial, Log: o.Log,
	}
	if beside {
		out.MetricsAddress, out.HealthAddress = "0", "0"
	}
	return out
}

// check the flags that would publish nothing that Flux can fetch.
func (s *sourcesOptions) check() error {
	if s.dir == "" {
		return errors.New("--controllers=sources requires --artifact-dir")
	}
	host, _, err := net.SplitHostPort(s.address)
	if err != nil {
		return fmt.Errorf("--artifact-address %q: write it as :9090", s.address)
	}
	if s.advertised == "" && (host == "" || host == "0.0.0.0" || host == "::") {
		return fmt.Errorf("--artifact-advertised-address is missing: Flux cannot reach %q by that name", s.address)
	}
	if strings.ContainsAny(s.advertised, "/@?#") {
		return fmt.Errorf("--artifact-advertised-address %q: write it as armature-sources.armature-system.svc.cluster.local", s.advertised)
	}
	if len(s.hosts) == 0 || slices.Contains(s.hosts, "") {
		return errors.New("--source-hosts is empty: name the host of Flux's source-controller")
	}
	return nil
}
