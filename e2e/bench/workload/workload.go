// Package workload makes the corpus of the benchmarks: workloads the way people
// write them, about 4.3 KB each and every one opted in. The same number gives
// the same bytes on every machine.
package workload

import (
	"bytes"
	"fmt"
	"io"
	"text/template"
)

// Write writes the workload of a number.
func Write(w io.Writer, i int) error { return text.Execute(w, newAgent(i)) }

// File is the name of a workload's file: a folder for each hundred.
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

// newAgent varies what differs between real workloads.
func newAgent(i int) agent {
	kinds := []string{"weather", "billing", "search", "triage", "forecast", "summary", "planner", "support"}
	a := agent{
		I: i, Kind: "Deployment", Name: fmt.Sprintf("%s-agent-%05d", kinds[i%len(kinds)], i),
		Team: fmt.Sprintf("team-%03d", i/100), Tier: []string{"gold", "silver", "bronze"}[i%3],
		Image:    fmt.Sprintf("ghcr.io/example/%s-agent:v%d.%d.%d", kinds[i%len(kinds)], 1+i%3, i%17, i%29),
		Replicas: 1 + i%4, Stateful: i%5 == 4,
	}
	a.Namespace = a.Team
	if a.Stateful {
		a.Kind = "StatefulSet"
	}
	return a
}

var text = template.Must(template.New("").Parse(`# {{.Name}}: owned by {{.Team}}; changes go through its channel.
apiVersion: apps/v1
kind: {{.Kind}}
metadata:
  name: {{.Name}}
  namespace: {{.Namespace}}
  labels:
    app.kubernetes.io/name: {{.Name}}
    app.kubernetes.io/part-of: {{.Team}}
    app.kubernetes.io/component: agent
    app.kubernetes.io/managed-by: gitops
    example.com/tier: {{.Tier}}
    kagenti.io/inject: enabled
  annotations:
    example.com/owner: "{{.Team}}@example.com"
    example.com/runbook: https://runbooks.example.com/{{.Team}}/{{.Name}}
    example.com/description: >-
      Answers what the teams around it ask, with the tools that it is given;
      keeps no state of its own beyond its conversations.
spec:
{{- if .Stateful}}
  serviceName: {{.Name}}
{{- end}}
  replicas: {{.Replicas}}
  revisionHistoryLimit: 5
  selector:
    matchLabels:
      app.kubernetes.io/name: {{.Name}}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{.Name}}
        app.kubernetes.io/part-of: {{.Team}}
        example.com/tier: {{.Tier}}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "9464"
    spec:
      serviceAccountName: {{.Name}}
      terminationGracePeriodSeconds: 45
      securityContext:
        runAsNonRoot: true
        seccompProfile: {type: RuntimeDefault}
      # one zone going away must not take all replicas along
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: topology.kubernetes.io/zone
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              app.kubernetes.io/name: {{.Name}}
      containers:
        - name: agent
          image: {{.Image}}
          imagePullPolicy: IfNotPresent
          args: ["serve", "--listen=:8081", "--log-format=json"]
          env:
            - name: LLM_MODEL
              value: "gpt-4" # or what the gateway offers
            - name: LLM_ENDPOINT
              value: http://llm-gateway.platform.svc.cluster.local:8080/v1
            - name: MCP_SERVERS
              value: '["http://tools.{{.Team}}.svc:8000/mcp","http://search.platform.svc:8000/mcp"]'
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: LLM_API_KEY
              valueFrom:
                secretKeyRef:
                  name: {{.Name}}-llm
                  key: api-key
          ports:
            - name: http
              containerPort: 8081
              protocol: TCP
            - name: metrics
              containerPort: 9464
          livenessProbe:
            httpGet:
              path: /healthz
              port: http
            initialDelaySeconds: 10
            periodSeconds: 20
          readinessProbe:
            httpGet:
              path: /readyz
              port: http
            periodSeconds: 5
          resources:
            requests:
              cpu: 100m
              memory: 256Mi
            limits:
              memory: 512Mi
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: ["ALL"]
          volumeMounts:
            - name: tmp
              mountPath: /tmp
            - name: prompts
              mountPath: /etc/agent/prompts
              readOnly: true
        - name: cache
          image: docker.io/library/redis:7.4-alpine
          command:
            - sh
            - -c
            - |
              set -eu
              mkdir -p /data/cache
              exec redis-server --dir /data/cache --save "" --maxmemory 64mb
          resources:
            requests: {cpu: 20m, memory: 64Mi}
            limits: {memory: 96Mi}
          volumeMounts:
            - name: cache
              mountPath: /data
      volumes:
        - name: tmp
          emptyDir: {}
        - name: cache
          emptyDir:
            sizeLimit: 128Mi
        - name: prompts
          configMap:
            name: {{.Name}}-prompts
            items:
              - key: system.md
                path: system.md
`))
