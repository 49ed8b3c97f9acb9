// Command gen writes packages of realistic workloads for benchmarks, the same
// for the same number. Every workload opts in and takes about 4.3 KB.
//
//	go run ./e2e/bench/gen -n 1000 -out DIR
//
// writes one file for each workload into DIR/app, with a kustomization, and
// four kustomizations over it that differ in one thing:
//
//	DIR/plain   nothing more
//	DIR/exec    armature-fn as an exec function
//	DIR/cat     /bin/cat in the same place
//	DIR/patch   a patch that adds what armature-fn injects, but no ConfigMap:
//	            the cheapest way to come near it with kustomize alone
//
// With -stream DIR is a file, "-" for standard output, that gets all workloads
// as one YAML stream.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	n := flag.Int("n", 10, "how many workloads")
	out := flag.String("out", "", "the folder to write to, or with -stream the file")
	stream := flag.Bool("stream", false, "write one YAML stream")
	fn := flag.String("fn", "bin/armature-fn", "the function that DIR/exec runs")
	flag.Parse()
	if *out == "" || *n < 1 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	write := func() error { return writePackage(*out, *n, *fn) }
	if *stream {
		write = func() error { return writeStream(*out, *n) }
	}
	if err := write(); err != nil {
		fmt.Fprintf(os.Stderr, "gen: %v\n", err)
		os.Exit(1)
	}
}

func writeStream(path string, n int) (err error) {
	w := os.Stdout
	if path != "-" {
		if w, err = os.Create(path); err != nil {
			return err
		}
		defer func() {
			if e := w.Close(); err == nil {
				err = e
			}
		}()
	}
	b := bufio.NewWriter(w)
	for i := range n {
		if i > 0 {
			io.WriteString(b, "---\n")
		}
		b.WriteString(workload(i))
	}
	return b.Flush()
}

func writePackage(dir string, n int, fn string) error {
	fn, err := filepath.Abs(fn)
	if err != nil {
		return err
	}
	patch, err := equivalentPatch()
	if err != nil {
		return err
	}
	var resources strings.Builder
	files := make(map[string]string)
	for i := range n {
		name := fileName(i)
		fmt.Fprintf(&resources, "- %s\n", name)
		files["app/"+name] = workload(i)
	}
	const head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
	files["app/kustomization.yaml"] = head + resources.String()
	files["plain/kustomization.yaml"] = head + "- ../app\n"
	for dir, path := range map[string]string{"exec": fn, "cat": "/bin/cat"} {
		files[dir+"/kustomization.yaml"] = head + "- ../app\ntransformers:\n- armature.yaml\n"
		files[dir+"/armature.yaml"] = functionConfig(path)
	}
	files["patch/kustomization.yaml"] = head + "- ../app\npatches:\n- path: patch.yaml\n  target:\n    labelSelector: kagenti.io/inject=enabled\n"
	files["patch/patch.yaml"] = patch
	for name, text := range files {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func functionConfig(path string) string {
	return `apiVersion: armature.dev/v1alpha1
kind: RenderConfig
metadata:
  name: armature
  annotations:
    config.kubernetes.io/function: |
      exec:
        path: ` + path + "\nspec: {}\n"
}

func fileName(i int) string { return fmt.Sprintf("%s-%05d.yaml", subjects[i%len(subjects)], i) }

var (
	subjects = []string{"weather", "billing", "search", "triage", "review", "research", "support", "planner"}
	models   = []string{"gpt-4", "claude-sonnet-4", "granite-3.3-8b", "llama-3.3-70b", "mistral-large"}
	teams    = []string{"atlas", "borealis", "cygnus", "draco"}
	tools    = []string{"calendar", "crm", "documents", "geocoder", "ledger", "mailbox", "tickets", "warehouse", "web-search", "wiki"}
)

// workload writes one agent: three of four are Deployments, the others
// StatefulSets and DaemonSets.
func workload(i int) string {
	r := rand.New(rand.NewPCG(uint64(i), 1))
	subject, team := subjects[i%len(subjects)], teams[i%len(teams)]
	name := fmt.Sprintf("%s-agent-%05d", subject, i)
	version := fmt.Sprintf("%d.%d.%d", 1+r.IntN(4), r.IntN(20), r.IntN(10))
	kind := "Deployment"
	switch i % 8 {
	case 5:
		kind = "StatefulSet"
	case 7:
		kind = "DaemonSet"
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# The %s agent of team %s. It answers over A2A on port 8081 and calls its", subject, team)
	p("# tools through MCP. Ask in #team-%s before you change the limits.", team)
	p("apiVersion: apps/v1\nkind: %s\nmetadata:", kind)
	p("  name: %s\n  namespace: team-%s\n  labels:", name, team)
	p("    app.kubernetes.io/name: %s-agent\n    app.kubernetes.io/instance: %s", subject, name)
	p("    app.kubernetes.io/version: \"%s\"\n    app.kubernetes.io/part-of: agents", version)
	p("    kagenti.io/inject: enabled")
	p("  annotations:\n    example.com/owner: team-%s@example.com\n    example.com/runbook: https://runbooks.example.com/agents/%s", team, subject)
	p("spec:")
	switch kind {
	case "Deployment":
		p("  replicas: %d # the autoscaler takes over from here\n  strategy:\n    rollingUpdate:\n      maxSurge: 1\n      maxUnavailable: 0", 1+r.IntN(5))
	case "StatefulSet":
		p("  serviceName: %s\n  replicas: %d\n  podManagementPolicy: Parallel", name, 1+r.IntN(3))
	case "DaemonSet":
		p("  updateStrategy:\n    rollingUpdate:\n      maxUnavailable: 10%%")
	}
	p("  selector:\n    matchLabels:\n      app.kubernetes.io/instance: %s", name)
	p("  template:\n    metadata:\n      labels:\n        app.kubernetes.io/name: %s-agent\n        app.kubernetes.io/instance: %s", subject, name)
	p("      annotations:\n        prometheus.io/scrape: \"true\"\n        prometheus.io/port: \"9464\"")
	p("    spec:\n      serviceAccountName: %s\n      terminationGracePeriodSeconds: 60\n      securityContext:\n        runAsNonRoot: true\n        fsGroup: 2000\n        seccompProfile:\n          type: RuntimeDefault", name)
	p("      containers:\n      - name: agent\n        image: registry.example.com/agents/%s-agent:v%s\n        imagePullPolicy: IfNotPresent", subject, version)
	p("        args:\n        - --listen=0.0.0.0:8081\n        - --card=/.well-known/agent.json\n        - --log-format=json")
	p("        env:\n        - name: LLM_MODEL\n          value: \"%s\" # or what your gateway offers", models[r.IntN(len(models))])
	p("        - name: LLM_BASE_URL\n          value: http://llm-gateway.models.svc.cluster.local:8000/v1")
	p("        - name: LLM_API_KEY\n          valueFrom:\n            secretKeyRef:\n              name: %s-llm\n              key: api-key", name)
	p("        - name: POD_NAME\n          valueFrom:\n            fieldRef:\n              fieldPath: metadata.name")
	p("        # The tools that it may call. Each checks the token that it is called with.")
	for _, k := range r.Perm(len(tools))[:6] {
		p("        - name: MCP_%s_URL\n          value: http://%s.tools.svc.cluster.local:8080/mcp", strings.ToUpper(strings.ReplaceAll(tools[k], "-", "_")), tools[k])
	}
	p("        - name: MAX_STEPS\n          value: \"%d\"\n        - name: TEMPERATURE\n          value: '0.%d'", 4+r.IntN(30), r.IntN(10))
	p("        - name: SYSTEM_PROMPT\n          value: |\n            You are the %s agent of team %s. Answer in short sentences, name your\n            sources, and say so when a tool did not answer. Never pass on credentials.", subject, team)
	p("        ports:\n        - name: a2a\n          containerPort: 8081\n          protocol: TCP\n        - name: metrics\n          containerPort: 9464")
	for _, probe := range []string{"livenessProbe", "readinessProbe"} {
		p("        %s:\n          httpGet:\n            path: /healthz\n            port: a2a\n          initialDelaySeconds: %d\n          periodSeconds: 10\n          failureThreshold: 3", probe, 5+r.IntN(20))
	}
	p("        resources:\n          requests:\n            cpu: %dm\n            memory: %dMi\n          limits:\n            memory: %dMi # embeddings are kept in memory", 50+50*r.IntN(10), 128+64*r.IntN(8), 1024)
	p("        securityContext:\n          allowPrivilegeEscalation: false\n          readOnlyRootFilesystem: true\n          capabilities:\n            drop: [\"ALL\"]")
	p("        volumeMounts:\n        - name: cache\n          mountPath: /var/cache/agent\n        - name: tmp\n          mountPath: /tmp")
	p("      volumes:\n      - name: cache\n        emptyDir:\n          sizeLimit: 1Gi\n      - name: tmp\n        emptyDir: {}")
	p("      topologySpreadConstraints:\n      - maxSkew: 1\n        topologyKey: topology.kubernetes.io/zone\n        whenUnsatisfiable: ScheduleAnyway\n        labelSelector:\n          matchLabels:\n            app.kubernetes.io/instance: %s", name)
	return b.String()
}
