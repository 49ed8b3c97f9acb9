// Package workload makes the corpus of the benchmarks: workloads the way people write them, about
// 4.3 KB each and every one opted in. Equal numbers yield equal bytes on every machine.
package workload

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"text/template"
)

// Write writes the workload of a number.
func Write(w io.Writer, i int) error { return text.Execute(w, newAgent(i)) }

// File returns the name of a workload's file: a folder for each hundred.
func File(i int) string { return fmt.Sprintf("team-%03d/agent-%05d.yaml", i/100, i) }

// Each visits the first n workloads with the names of their files.
func Each(n int, visit func(file string, data []byte)) error {
	for i := range n {
		var text bytes.Buffer
		if err := Write(&text, i); err != nil {
			return err
		}
		visit(File(i), text.Bytes())
	}
	return nil
}

type agent struct {
	I                      int
	Kind, Name, Team, Tier string
	Namespace, Image       string
	Replicas               int
	Stateful               bool
}

// newAgent returns the values of a workload, which vary as those of real workloads do.
func newAgent(i int) agent {
	kinds := []string{"weather", "billing", "search", "triage", "forecast", "summary", "planner",
		"support"}
	a := agent{
		I: i, Kind: "Deployment", Name: fmt.Sprintf("%s-agent-%05d", kinds[i%len(kinds)], i),
		Team: fmt.Sprintf("team-%03d", i/100), Tier: []string{"gold", "silver", "bronze"}[i%3],
		Image: fmt.Sprintf("ghcr.io/example/%s-agent:v%d.%d.%d", kinds[i%len(kinds)], 1+i%3,
			i%17, i%29),
		Replicas: 1 + i%4, Stateful: i%5 == 4,
	}
	a.Namespace = a.Team
	if a.Stateful {
		a.Kind = "StatefulSet"
	}
	return a
}

//go:embed workload.yaml.tmpl
var source string

var text = template.Must(template.New("").Parse(source))
