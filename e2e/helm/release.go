package main

import (
	"encoding/json"
	"fmt"
	"os"

	action3 "helm.sh/helm/v3/pkg/action"
	loader3 "helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/postrender"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/postrenderer"
	release "helm.sh/helm/v4/pkg/release/v1"
)

// result is what tests read of a release.
type result struct {
	Manifest string   `json:"manifest"`
	Hooks    []string `json:"hooks"` // in the order that Helm runs them
	Notes    string   `json:"notes"`
}

const (
	releaseName = "armature"
	namespace   = "default"
)

func install3(chartFolder, program string, args []string) error {
	chart, err := loader3.Load(chartFolder)
	if err != nil {
		return fmt.Errorf("loading the chart: %w", err)
	}
	in := action3.NewInstall(&action3.Configuration{Log: func(string, ...any) {}})
	in.ClientOnly, in.DryRun, in.ReleaseName, in.Namespace = true, true, releaseName, namespace
	if in.PostRenderer, err = postrender.NewExec(program, args...); err != nil {
		return err
	}
	made, err := in.Run(chart, nil)
	if err != nil {
		return err
	}
	r := result{Manifest: made.Manifest, Notes: made.Info.Notes}
	for _, h := range made.Hooks {
		r.Hooks = append(r.Hooks, h.Manifest)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func install4(chartFolder, plugins, name string) error {
	chart, err := loader.Load(chartFolder)
	if err != nil {
		return fmt.Errorf("loading the chart: %w", err)
	}
	in := action.NewInstall(action.NewConfiguration())
	in.DryRunStrategy, in.ReleaseName, in.Namespace = action.DryRunClient, releaseName, namespace
	settings := cli.New()
	settings.PluginsDirectory = plugins
	if in.PostRenderer, err = postrenderer.NewPostRendererPlugin(settings, name); err != nil {
		return err
	}
	run, err := in.Run(chart, nil)
	if err != nil {
		return err
	}
	made, ok := run.(*release.Release)
	if !ok {
		return fmt.Errorf("the release is a %T", run)
	}
	r := result{Manifest: made.Manifest, Notes: made.Info.Notes}
	for _, h := range made.Hooks {
		r.Hooks = append(r.Hooks, h.Manifest)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
