// Command helm-template prints what Helm itself makes of a chart.
//
//	helm-template CHART NAMESPACE VALUES        the manifests, with the values as YAML
//	helm-template install-3 CHART PROGRAM...    the release of Helm 3, as JSON, with the
//	                                            program as its post-renderer
//	helm-template install-4 CHART PLUGINS NAME  the release of Helm 4, with a plugin of
//	                                            that folder
//
// Nothing is installed: it is `helm install --dry-run=client`.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 2 && args[0] == "install-3":
		return install3(args[1], args[2], args[3:])
	case len(args) == 4 && args[0] == "install-4":
		return install4(args[1], args[2], args[3])
	case len(args) != 3:
		return fmt.Errorf("usage: helm-template CHART NAMESPACE VALUES, or install-3 CHART PROGRAM..., or install-4 CHART PLUGINS NAME")
	}
	chart, err := loader.Load(args[0])
	if err != nil {
		return fmt.Errorf("loading the chart: %w", err)
	}
	if err := chart.Validate(); err != nil {
		return fmt.Errorf("validating the chart: %w", err)
	}
	given, err := common.ReadValues([]byte(args[2]))
	if err != nil {
		return fmt.Errorf("reading the values: %w", err)
	}
	release := common.ReleaseOptions{Name: "armature", Namespace: args[1], Revision: 1, IsInstall: true}
	values, err := util.ToRenderValues(chart, given, release, common.DefaultCapabilities)
	if err != nil {
		return fmt.Errorf("checking the values: %w", err)
	}
	rendered, err := engine.Engine{Strict: true}.Render(chart, values)
	if err != nil {
		return fmt.Errorf("rendering the chart: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Printf("---\n%s\n", rendered[name])
		}
	}
	return nil
}
