package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	action3 "helm.sh/helm/v3/pkg/action"
	loader3 "helm.sh/helm/v3/pkg/chart/loader"
	cli3 "helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/postrender"
	release3 "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/postrenderer"
	release4 "helm.sh/helm/v4/pkg/release/v1"
)

// result is what tests read of a release.
type result struct {
	Manifest string   `json:"manifest"`
	Hooks    []string `json:"hooks"` // in the order that Helm runs them
	Notes    string   `json:"notes"`
}

// target is the release that a command is about.
type target struct {
	upgrade    bool
	kubeconfig string // "" renders only
	namespace  string
	chart      string
}

const releaseName = "armature"

func release(args []string) error {
	verb, version, _ := strings.Cut(args[0], "-")
	t := target{verb == "upgrade", args[1], args[2], args[3]}
	switch {
	case verb != "install" && !t.upgrade:
		return errUsage
	case version == "3":
		return t.helm3(args[4], args[5:]...)
	case version == "4" && len(args) == 6:
		return t.helm4(args[4], args[5])
	}
	return errUsage
}

// helm3 makes a release with a program as its post-renderer.
func (t target) helm3(program string, args ...string) error {
	chart, err := loader3.Load(t.chart)
	if err != nil {
		return fmt.Errorf("loading the chart: %w", err)
	}
	renderer, err := postrender.NewExec(program, args...)
	if err != nil {
		return err
	}
	quiet := func(string, ...any) {}
	cfg := &action3.Configuration{Log: quiet}
	if t.kubeconfig != "" {
		settings := cli3.New()
		settings.KubeConfig = t.kubeconfig
		settings.SetNamespace(t.namespace)
		if err := cfg.Init(settings.RESTClientGetter(), t.namespace, "secret", quiet); err != nil {
			return err
		}
	}
	var made *release3.Release
	if t.upgrade {
		up := action3.NewUpgrade(cfg)
		up.Namespace, up.PostRenderer = t.namespace, renderer
		made, err = up.Run(releaseName, chart, nil)
	} else {
		in := action3.NewInstall(cfg)
		in.ReleaseName, in.Namespace, in.PostRenderer = releaseName, t.namespace, renderer
		in.ClientOnly, in.DryRun, in.CreateNamespace = t.kubeconfig == "", t.kubeconfig == "", t.kubeconfig != ""
		made, err = in.Run(chart, nil)
	}
	if err != nil {
		return err
	}
	r := result{Manifest: made.Manifest, Notes: made.Info.Notes}
	for _, h := range made.Hooks {
		r.Hooks = append(r.Hooks, h.Manifest)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// helm4 makes a release with a plugin as its post-renderer.
func (t target) helm4(plugins, name string) error {
	chart, err := loader.Load(t.chart)
	if err != nil {
		return fmt.Errorf("loading the chart: %w", err)
	}
	settings := cli.New()
	settings.PluginsDirectory, settings.KubeConfig = plugins, t.kubeconfig
	settings.SetNamespace(t.namespace)
	renderer, err := postrenderer.NewPostRendererPlugin(settings, name)
	if err != nil {
		return err
	}
	cfg := action.NewConfiguration()
	if t.kubeconfig != "" {
		if err := cfg.Init(settings.RESTClientGetter(), t.namespace, "secret"); err != nil {
			return err
		}
	}
	var run any
	if t.upgrade {
		up := action.NewUpgrade(cfg)
		up.Namespace, up.PostRenderer, up.WaitStrategy = t.namespace, renderer, kube.HookOnlyStrategy
		run, err = up.Run(releaseName, chart, nil)
	} else {
		in := action.NewInstall(cfg)
		in.ReleaseName, in.Namespace, in.PostRenderer, in.WaitStrategy = releaseName, t.namespace, renderer, kube.HookOnlyStrategy
		if in.CreateNamespace = t.kubeconfig != ""; !in.CreateNamespace {
			in.DryRunStrategy = action.DryRunClient
		}
		run, err = in.Run(chart, nil)
	}
	if err != nil {
		return err
	}
	made, ok := run.(*release4.Release)
	if !ok {
		return fmt.Errorf("the release is a %T", run)
	}
	r := result{Manifest: made.Manifest, Notes: made.Info.Notes}
	for _, h := range made.Hooks {
		r.Hooks = append(r.Hooks, h.Manifest)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
