// Command helm-template prints what Helm itself makes of a chart.
//
//	helm-template CHART NAMESPACE VALUES
//
// gives its manifests, with the values as YAML, and
//
//	helm-template install-3 KUBECONFIG NAMESPACE CHART PROGRAM...
//	helm-template install-4 KUBECONFIG NAMESPACE CHART PLUGINS NAME
//
// the release of Helm 3 or 4 as JSON, with a program or a plugin of a folder as its
// post-renderer. upgrade-3 and upgrade-4 upgrade it. With "" as the kubeconfig nothing is
// installed, as by `helm install --dry-run=client`.
package main

import (
	"errors"
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

var errUsage = errors.New(`usage: helm-template CHART NAMESPACE VALUES
  helm-template install-3|upgrade-3 KUBECONFIG NAMESPACE CHART PROGRAM...
  helm-template install-4|upgrade-4 KUBECONFIG NAMESPACE CHART PLUGINS NAME`)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 4 {
		return release(args)
	}
	if len(args) != 3 {
		return errUsage
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
	options := common.ReleaseOptions{Name: "armature", Namespace: args[1], Revision: 1, IsInstall: true}
	values, err := util.ToRenderValues(chart, given, options, common.DefaultCapabilities)
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
