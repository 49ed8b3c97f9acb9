// Command helm-template prints what Helm's own engine makes of a chart:
// helm-template CHART NAMESPACE VALUES, with the values as YAML.
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
	if len(args) != 3 {
		return fmt.Errorf("usage: helm-template CHART NAMESPACE VALUES")
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
