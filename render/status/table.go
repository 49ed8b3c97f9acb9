package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/armature-dev/armature/render/status/internal/actor"
)

// Write writes a report as tables, one for each kind of thing that there is.
// namespaces adds a column with them; wide adds 004's wide columns and messages.
func (r *Report) Write(w io.Writer, namespaces, wide bool) error {
	t := tables{w: w, namespaces: namespaces}
	if len(r.Actors) > 0 {
		t.begin("ACTOR", actor.Columns(wide)...)
		for _, a := range r.Actors {
			t.row(a.Name, a.Row(wide)...)
		}
		t.end()
	}
	if len(r.Agents) > 0 {
		t.begin("AGENT", "DEPLOYMENTAVAILABLE", "PODSSCHEDULED", "READY", "PODS")
		for _, a := range r.Agents {
			row := []string{"-", "-", "-", fmt.Sprintf("%d/%d", a.Ready, a.Desired)}
			for i, kind := range []string{"DeploymentAvailable", "PodsScheduled", "Ready"} {
				for _, c := range a.Conditions {
					if c.Type == kind {
						row[i] = c.Status
					}
				}
			}
			t.row(a.Name, row...)
		}
		t.end()
	}
	if len(r.Workloads) > 0 {
		t.begin("WORKLOAD", "KIND", "STATUS", "PODS")
		for _, x := range r.Workloads {
			t.row(x.Name, x.Kind, x.Status, fmt.Sprintf("%d/%d", x.Ready, x.Pods))
		}
		t.end()
	}
	r.pillars(&t, wide)
	if t.failed != nil {
		return t.failed
	}
	return r.messages(w)
}

func (r *Report) pillars(t *tables, wide bool) {
	if len(r.TokenExchanges) > 0 {
		t.begin("TOKENEXCHANGE", "TARGET", "PHASE", "CONFIGMAP", "PODS", "SPIFFE", "REGISTERED", "INBOUND", "OUTBOUND")
		for _, x := range r.TokenExchanges {
			s := x.IdentityStatus
			t.row(x.Name, x.Target, x.Phase, x.ConfigMapName, fmt.Sprint(x.ConfiguredPods),
				yes(s.SPIFFEEnabled), yes(s.IDPRegistered), yes(s.InboundProxyReady), yes(s.OutboundProxyReady))
		}
		t.end()
	}
	if len(r.AgentTraces) > 0 && wide {
		t.begin("AGENTTRACE", "TARGET", "PHASE", "CONFIGMAP", "PODS")
		for _, x := range r.AgentTraces {
			t.row(x.Name, x.Target, x.Phase, x.AgentTraceStatus.ConfigMapName, fmt.Sprint(x.ConfiguredPods))
		}
		t.end()
	}
	if len(r.AgentCards) > 0 {
		t.begin("AGENTCARD", "PHASE", "CONFIGMAP", "PODS")
		for _, x := range r.AgentCards {
			t.row(x.Name, x.Phase, x.ConfigMapName, fmt.Sprint(x.Pods))
		}
		t.end()
	}
}

// messages says below the tables what is wrong, one line each.
func (r *Report) messages(w io.Writer) error {
	var lines []string
	say := func(what string, n Name, message string) {
		if message != "" {
			lines = append(lines, fmt.Sprintf("%s %s/%s: %s", what, n.Namespace, n.Name, message))
		}
	}
	for _, a := range r.Actors {
		say("actor", a.Name, a.Message)
	}
	for _, a := range r.Agents {
		for _, c := range a.Conditions {
			if c.Type == "Ready" {
				say("agent", a.Name, c.Message)
			}
		}
	}
	for _, x := range r.Workloads {
		say(strings.ToLower(x.Kind), x.Name, x.Message)
	}
	for _, x := range r.TokenExchanges {
		if x.Phase != Active {
			say("token exchange", x.Name, x.Message)
		}
	}
	for _, x := range r.AgentTraces {
		if x.Phase == Failed {
			say("trace", x.Name, x.Message)
		}
	}
	for _, x := range r.AgentCards {
		say("card", x.Name, x.Message)
	}
	if len(lines) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(lines, "\n"))
	return err
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// tables writes one table below the other.
type tables struct {
	w          io.Writer
	namespaces bool
	current    *tabwriter.Writer
	failed     error
}

func (t *tables) begin(name string, columns ...string) {
	if t.current != nil {
		t.print("\n")
	}
	t.current = tabwriter.NewWriter(t.w, 0, 0, 3, ' ', 0)
	t.line("NAMESPACE", name, columns)
}

func (t *tables) row(n Name, values ...string) { t.line(n.Namespace, n.Name, values) }

func (t *tables) line(namespace, name string, values []string) {
	cells := append([]string{name}, values...)
	if t.namespaces {
		cells = append([]string{namespace}, cells...)
	}
	if _, err := fmt.Fprintln(t.current, strings.Join(cells, "\t")); err != nil && t.failed == nil {
		t.failed = err
	}
}

func (t *tables) print(text string) {
	if _, err := io.WriteString(t.w, text); err != nil && t.failed == nil {
		t.failed = err
	}
}

func (t *tables) end() {
	if err := t.current.Flush(); err != nil && t.failed == nil {
		t.failed = err
	}
}
