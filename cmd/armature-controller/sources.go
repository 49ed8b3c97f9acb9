package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/render/deliver/flux/controller"
	"github.com/armature-dev/armature/render/process"
)

type sourcesOptions struct {
	dir, address, advertised string
	hosts                    []string
	ownNamespaceOnly         bool
}

func (s *sourcesOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&s.dir, "artifact-dir", "",
		"folder for the archives that RenderedSources publish; required for sources")
	f.StringVar(&s.address, "artifact-address", ":9090", "listen address for these archives")
	f.StringVar(&s.advertised, "artifact-advertised-address", "",
		"host and port at which Flux reaches --artifact-address; empty is the address itself")
	f.StringSliceVar(&s.hosts, "source-hosts",
		[]string{"source-controller.flux-system.svc.cluster.local",
			"source-watcher.flux-system.svc.cluster.local"},
		"hosts, with or without a port, from which archives of Flux's sources may be fetched")
	f.BoolVar(&s.ownNamespaceOnly, "no-cross-namespace-refs", true,
		"refuse RenderedSources that refer to sources of other namespaces; false lets their "+
			"authors read all sources")
}

// options returns the options of the RenderedSource controller, with those of the process.
func (s *sourcesOptions) options(o process.Options, dial gitremote.Dial) controller.Options {
	return controller.Options{
		Options: o, Dir: s.dir, Address: s.address, AdvertisedAddress: s.advertised, Hosts: s.hosts,
		CrossNamespace: !s.ownNamespaceOnly, Dial: dial,
	}
}

// check refuses flags with which Flux could fetch nothing that is published.
func (s *sourcesOptions) check() error {
	if s.dir == "" {
		return errors.New("--controllers=sources requires --artifact-dir")
	}
	host, _, err := net.SplitHostPort(s.address)
	if err != nil {
		return fmt.Errorf("--artifact-address %q: write it as :9090", s.address)
	}
	if s.advertised == "" && (host == "" || host == "0.0.0.0" || host == "::") {
		return fmt.Errorf(
			"--artifact-advertised-address is missing: Flux cannot reach %q by that name", s.address)
	}
	if strings.ContainsAny(s.advertised, "/@?#") {
		return fmt.Errorf("--artifact-advertised-address %q: write it as "+
			"armature-sources.armature-system.svc.cluster.local", s.advertised)
	}
	if len(s.hosts) == 0 || slices.Contains(s.hosts, "") {
		return errors.New("--source-hosts is empty: name the host of Flux's source-controller")
	}
	return nil
}
