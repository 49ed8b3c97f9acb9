package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Write writes a report as one table per kind. namespaces adds a column with the namespaces; wide
// adds the wide columns of 004 and messages.
func (r *Report) Write(w io.Writer, namespaces, wide bool) error {
	t := tables{namespaces: namespaces}
	t.begin("ACTOR", columns(wide)...)
	for _, a := range r.Actors {
		t.row(a.Name, a.cells(wide)...)
		t.say("actor", a.Name, a.Message)
	}
	t.begin("AGENT", "DEPLOYMENTAVAILABLE", "PODSSCHEDULED", "READY", "PODS")
	for _, a := range r.Agents {
		row := []string{"-", "-", "-", fmt.Sprintf("%d/%d", a.Ready, a.Desired)}
		for i, kind := range []string{"DeploymentAvailable", "PodsScheduled", "Ready"} {
			for _, c := range a.Conditions {
				if c.Type == kind {
					row[i] = c.Status
				}
				if c.Type == kind && kind == "Ready" {
					t.say("agent", a.Name, c.Message)
				}
			}
		}
		t.row(a.Name, row...)
	}
	t.begin("WORKLOAD", "KIND", "STATUS", "PODS")
	for _, x := range r.Workloads {
		t.row(x.Name, x.Kind, x.Status, fmt.Sprintf("%d/%d", x.Ready, x.Pods))
		t.say(strings.ToLower(x.Kind), x.Name, x.Message)
	}
	t.begin("TOKENEXCHANGE", "TARGET", "PHASE", "CONFIGMAP", "PODS", "SPIFFE", "REGISTERED",
		"INBOUND", "OUTBOUND")
	for _, x := range r.TokenExchanges {
		s := x.IdentityStatus
		t.row(x.Name, x.Target, x.Phase, x.ConfigMapName, fmt.Sprint(x.ConfiguredPods),
			yes(s.SPIFFEEnabled), yes(s.IDPRegistered), yes(s.InboundProxyReady),
			yes(s.OutboundProxyReady))
		if x.Phase != Active {
			t.say("token exchange", x.Name, x.Message)
		}
	}
	t.begin("AGENTTRACE", "TARGET", "PHASE", "CONFIGMAP", "PODS")
	for _, x := range r.AgentTraces {
		if wide {
			t.row(x.Name, x.Target, x.Phase, x.AgentTraceStatus.ConfigMapName,
				fmt.Sprint(x.ConfiguredPods))
		}
		if x.Phase == Failed {
			t.say("trace", x.Name, x.Message)
		}
	}
	t.begin("AGENTCARD", "PHASE", "CONFIGMAP", "PODS")
	for _, x := range r.AgentCards {
		t.row(x.Name, x.Phase, x.ConfigMapName, fmt.Sprint(x.Pods))
		t.say("card", x.Name, x.Message)
	}
	t.end()
	if t.messages.Len() > 0 {
		t.out.WriteString("\n" + t.messages.String())
	}
	_, err := io.WriteString(w, t.out.String())
	return err
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// tables collects the tables of a report, and below them its messages.
type tables struct {
	namespaces    bool
	rows          [][]string // of the current table, with its head
	out, messages strings.Builder
}

func (t *tables) begin(name string, columns ...string) {
	t.end()
	t.row(Name{"NAMESPACE", name}, columns...)
}

func (t *tables) row(n Name, values ...string) {
	cells := append([]string{n.Name}, values...)
	if t.namespaces {
		cells = append([]string{n.Namespace}, cells...)
	}
	t.rows = append(t.rows, cells)
}

// end writes the current table if it has more than a head.
func (t *tables) end() {
	if len(t.rows) > 1 {
		if t.out.Len() > 0 {
			t.out.WriteString("\n")
		}
		table := tabwriter.NewWriter(&t.out, 0, 0, 3, ' ', 0)
		for _, cells := range t.rows {
			fmt.Fprintln(table, strings.Join(cells, "\t"))
		}
		_ = table.Flush() // a strings.Builder never fails
	}
	t.rows = nil
}

func (t *tables) say(what string, n Name, message string) {
	if message != "" {
		fmt.Fprintf(&t.messages, "%s %s/%s: %s\n", what, n.Namespace, n.Name, message)
	}
}
