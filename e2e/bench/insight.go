package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// insight is target 9: what people wait for at their desks and in a pull
// request. A finding or a difference is part of the work.
func (o *options) insight(bin *binaries, r *report) error {
	const n = 1000
	c, err := newCorpus(bin, o.work, n)
	if err != nil {
		return err
	}
	defer os.RemoveAll(c.folder)
	in := c.path("in")
	files, err := filepath.Glob(filepath.Join(in, "*", "*.yaml"))
	if err != nil {
		return err
	}
	leaving, err := platform(c, n)
	if err != nil {
		return err
	}
	subjects := []*subject{
		{name: "armature lint", args: []string{bin.armature, "lint", "-q", in}, stdout: c.path("lint.out")},
		{name: "armature explain, one file", args: []string{bin.armature, "explain", "--package", in, files[n/2]}, stdout: c.path("explain.out")},
	}
	crowded, err := overcommitted(c)
	if err != nil {
		return err
	}
	subjects = append(subjects,
		&subject{name: "armature lint, each overcommitted", args: []string{bin.armature, "lint", "-q", crowded}, stdout: c.path("crowded.out")},
		&subject{name: "armature migrate, Agents and injected workloads", args: []string{bin.armature, "migrate", "-q", leaving}, stdout: c.path("migrate.out")})
	const promise = " in a package of 1,000 workloads: under a second of CPU"
	if _, err := exec.LookPath("git"); err != nil {
		r.unknown(9, "armature diff --against"+promise, "no git at hand")
	} else {
		if err := commitThenChange(in, files, n/100); err != nil {
			return err
		}
		subjects = append(subjects, &subject{name: "armature diff --against", args: []string{bin.armature, "diff", in, "--against", "HEAD"}, stdout: c.path("diff.out")})
	}
	costs, err := measure(5, subjects...)
	if err != nil {
		return err
	}
	for i, s := range subjects {
		r.add(9, costs[i].CPU < time.Second, s.name+promise, "%s CPU, %s wall, %s", show(costs[i].CPU), show(costs[i].Wall), mebibytes(costs[i].Peak))
	}
	return nil
}

// commitThenChange makes a repository of a folder, and then gives some of its
// files another image.
func commitThenChange(folder string, files []string, some int) error {
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "-A"},
		{"-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "-qm", "all"},
	} {
		if err := command(append([]string{"git", "-C", folder}, args...)...); err != nil {
			return err
		}
	}
	for _, file := range files[:some] {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, bytes.Replace(data, []byte("image: "), []byte("image: mirror.example/"), 1), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// overcommitted is the package with an OvercommitClass that takes in every
// workload, so that two functions set the requests of each sidecar.
func overcommitted(c *corpus) (folder string, err error) {
	folder = c.path("overcommitted")
	if err := os.CopyFS(folder, os.DirFS(c.path("in"))); err != nil {
		return "", err
	}
	const class = "apiVersion: overcommit.inditex.dev/v1alpha1\nkind: Overcommit\nmetadata: {name: cluster}\nspec: {overcommitLabel: example.com/class}\n---\n" +
		"apiVersion: overcommit.inditex.dev/v1alpha1\nkind: OvercommitClass\nmetadata: {name: all}\nspec: {cpuOvercommit: 0.5, memoryOvercommit: 0.5, isDefault: true, excludedNamespaces: \"\"}\n"
	return folder, os.WriteFile(filepath.Join(folder, "overcommit.yaml"), []byte(class), 0o644)
}

// platform is a package to migrate: as many Agents as workloads that a webhook
// injected, n in all.
func platform(c *corpus, n int) (folder string, err error) {
	folder = c.path("platform")
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", err
	}
	for i := range n {
		form := agentForm
		if i%2 == 1 {
			form = injectedForm
		}
		text := strings.ReplaceAll(form, "NAME", fmt.Sprintf("agent-%05d", i))
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("agent-%05d.yaml", i)), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return folder, nil
}

const agentForm = `apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata:
  name: NAME
  namespace: team1
  labels:
    app.kubernetes.io/part-of: team1
spec:
  description: Answers what the teams around it ask.
  replicas: 1
  imageSource:
    image: ghcr.io/example/NAME:v1.0.0
  servicePorts:
  - name: http
    port: 8080
    targetPort: 8000
    protocol: TCP
  podTemplateSpec:
    spec:
      containers:
      - name: agent
        env:
        - name: PORT
          value: "8000"
        - name: LLM_API_KEY
          valueFrom:
            secretKeyRef:
              name: NAME-llm
              key: api-key
        resources:
          limits:
            cpu: 500m
            memory: 1Gi
`

const injectedForm = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: NAME
  namespace: team1
spec:
  selector:
    matchLabels:
      app: NAME
  template:
    metadata:
      labels:
        app: NAME
    spec:
      initContainers:
      - name: proxy-init
        image: ghcr.io/kagenti/kagenti-extensions/proxy-init:latest
        securityContext:
          runAsUser: 0
          capabilities:
            add: [NET_ADMIN, NET_RAW]
      containers:
      - name: agent
        image: ghcr.io/example/NAME:v1.0.0
        ports:
        - containerPort: 8000
        volumeMounts:
        - name: cache
          mountPath: /app/.cache
      - name: spiffe-helper
        image: ghcr.io/spiffe/spiffe-helper:nightly
        command: ["/spiffe-helper", "-config=/etc/spiffe-helper/helper.conf", "run"]
        volumeMounts:
        - name: spire-agent-socket
          mountPath: /spiffe-workload-api
        - name: svid-output
          mountPath: /opt
      - name: kagenti-client-registration
        image: ghcr.io/kagenti/kagenti/client-registration:latest
        volumeMounts:
        - name: shared-data
          mountPath: /shared
      - name: envoy-proxy
        image: ghcr.io/kagenti/kagenti-extensions/envoy-with-processor:latest
        ports:
        - containerPort: 15123
        volumeMounts:
        - name: shared-data
          mountPath: /shared
      volumes:
      - name: cache
        emptyDir: {}
      - name: shared-data
        emptyDir: {}
      - name: svid-output
        emptyDir: {}
      - name: spire-agent-socket
        csi:
          driver: csi.spiffe.io
          readOnly: true
`
