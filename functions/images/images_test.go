package images_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
)

// What runs is found in custom resources and lists, too.
func TestImages(t *testing.T) {
	stream := []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  template:
    spec:
      initContainers: [{name: a, image: init}]
      containers: [{name: a, image: main}, {name: b}]
      volumes:
      - name: plain
        emptyDir: {}
      - name: v
        image: {reference: volume}
---
apiVersion: v1
kind: Pod
metadata: {name: b}
spec:
  containers: [{name: a, image: pod}]
  ephemeralContainers: [{name: a, image: ephemeral}]
---
apiVersion: example.com/v1
kind: Fleet
metadata: {name: c}
spec:
  members:
  - name: a
    workload: {template: {spec: {containers: [{name: a, image: nested}]}}}
  - workload: {template: {spec: {containers: [{name: a, image: unnamed}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: d}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: cron}]}}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: e}
data: {image: text, containers: "- image: text"}
`)
	var found []string
	for d := range krm.Documents(stream) {
		var o krm.Object
		if _, err := o.Read(stream, d, false, krm.Origin{}); err != nil {
			t.Fatal(err)
		}
		value, err := o.Value()
		if err != nil {
			t.Fatal(err)
		}
		var fields []string
		for _, i := range images.Fields(&o) {
			fields = append(fields, i.Path()+" "+i.Text())
			if i.In.Get(i.Key()).Text() != i.Text() || i.Known == (i.Text() == "unnamed") {
				t.Errorf("%s is not in %s", i.Path(), i.In.Path())
			}
		}
		var all []string
		for _, i := range images.In(value) {
			all = append(all, i.Field+" "+i.Ref)
			found = append(found, i.Ref)
		}
		slices.Sort(fields)
		slices.Sort(all)
		if diff := cmp.Diff(all, fields); diff != "" {
			t.Error(diff)
		}
	}
	slices.Sort(found)
	want := []string{"cron", "ephemeral", "init", "main", "nested", "pod", "unnamed", "volume"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
}

// TestImagesOfKinds checks the table and the names of fields on published kinds, as "field: image",
// with ? for a guess and ! for an image that cannot be judged.
func TestImagesOfKinds(t *testing.T) {
	for _, c := range []struct {
		name, object string
		want         []string
	}{
		{"argo workflow",
			`{apiVersion: argoproj.io/v1alpha1, kind: CronWorkflow, spec: {workflowSpec: {templates: [
			{container: {image: a:1}, initContainers: [{image: b:1}], sidecars: [{image: c:1}]}, {script: {image: d:1}},
			{containerSet: {containers: [{image: e:1}]}}, {container: {image: "{{inputs.parameters.image}}"}},
			{resource: {manifest: "kind: Pod"}}, {podSpecPatch: "containers: []"}]}}}`, []string{
				"spec.workflowSpec.templates[0].container.image: a:1",
				"spec.workflowSpec.templates[0].initContainers[0].image: b:1",
				"spec.workflowSpec.templates[0].sidecars[0].image: c:1",
				"spec.workflowSpec.templates[1].script.image: d:1",
				"spec.workflowSpec.templates[2].containerSet.containers[0].image: e:1",
				"spec.workflowSpec.templates[3].container.image: {{inputs.parameters.image}} !",
				"spec.workflowSpec.templates[4].resource.manifest:  !",
				"spec.workflowSpec.templates[5].podSpecPatch:  !"}},
		{"argo events",
			`{apiVersion: argoproj.io/v1alpha1, kind: Sensor, spec: {triggers: [{template: {k8s: {source: {resource: {apiVersion: v1, kind: Pod, spec: {containers: [{image: a}]}}}}}}]}}`,
			[]string{"spec.triggers[0].template.k8s.source.resource.spec.containers[0].image: a"}},
		{"argo cd",
			`{apiVersion: argoproj.io/v1alpha1, kind: Application, spec: {source: {repoURL: "https://x"}}}`,
			[]string{":  !"}},
		{"tekton",
			`{apiVersion: tekton.dev/v1, kind: Task, spec: {stepTemplate: {image: a}, steps: [{image: b}, {image: $(params.image)}], sidecars: [{image: c}]}}`,
			[]string{"spec.sidecars[0].image: c", "spec.stepTemplate.image: a",
				"spec.steps[0].image: b", "spec.steps[1].image: $(params.image) !"}},
		{"tekton remote",
			`{apiVersion: tekton.dev/v1, kind: PipelineRun, spec: {pipelineRef: {resolver: git}}}`,
			[]string{"spec.pipelineRef.resolver:  !"}},
		{"tekton step action",
			`{apiVersion: tekton.dev/v1beta1, kind: StepAction, spec: {image: a}}`,
			[]string{"spec.image: a"}},
		{"prometheus",
			`{apiVersion: monitoring.coreos.com/v1, kind: Prometheus, spec: {image: "quay.io/p:v3", thanos: {image: t}, containers: [{name: config-reloader, image: r}]}}`,
			[]string{"spec.containers[0].image: r", "spec.image: quay.io/p:v3",
				"spec.thanos.image: t"}},
		{"prometheus rule",
			`{apiVersion: monitoring.coreos.com/v1, kind: PrometheusRule, spec: {groups: [{rules: [{labels: {image: "{{ $labels.image }}"}}]}]}}`, nil},
		{"opaque flux",
			`{apiVersion: helm.toolkit.fluxcd.io/v2, kind: HelmRelease, spec: {values: {image: {repository: a}}}}`,
			[]string{":  !", "spec.values.image: a ?!"}},
		{"flux scan",
			`{apiVersion: image.toolkit.fluxcd.io/v1beta2, kind: ImageRepository, spec: {image: ghcr.io/a/b}}`, nil},
		{"kyverno",
			`{apiVersion: kyverno.io/v1, kind: ClusterPolicy, spec: {rules: [{validate: {pattern: {spec: {containers: [{image: "!*:latest"}]}}}}]}}`, nil},
		{"kyverno mutation",
			`{apiVersion: kyverno.io/v1, kind: ClusterPolicy, spec: {rules: [{mutate: {patchStrategicMerge: {spec: {containers: [{(name): "*", image: evil}]}}}}, {generate: {kind: Pod}}]}}`,
			[]string{"spec.rules[0].mutate:  !", "spec.rules[1].generate:  !"}},
		{"kyverno policy of mutations",
			`{apiVersion: policies.kyverno.io/v1alpha1, kind: MutatingPolicy, spec: {mutations: []}}`,
			[]string{":  !"}},
		{"gatekeeper",
			`{apiVersion: mutations.gatekeeper.sh/v1alpha1, kind: AssignImage, spec: {parameters: {assignDomain: evil.example}}}`, []string{":  !"}},
		{"admission policy",
			`{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicy, spec: {mutations: []}}`,
			[]string{":  !"}},
		{"admission webhook",
			`{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, webhooks: []}`,
			[]string{":  !"}},
		{"admission that refuses",
			`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, spec: {}}`, nil},
		{"fleet",
			`{apiVersion: fleet.cattle.io/v1alpha1, kind: GitRepo, spec: {repo: "https://x"}}`,
			[]string{":  !"}},
		{"carvel",
			`{apiVersion: kappctrl.k14s.io/v1alpha1, kind: App, spec: {fetch: [{git: {url: x}}]}}`,
			[]string{":  !"}},
		{"config sync",
			`{apiVersion: configsync.gke.io/v1beta1, kind: RootSync, spec: {git: {repo: x}}}`,
			[]string{":  !"}},
		{"crossplane composition",
			`{apiVersion: apiextensions.crossplane.io/v1, kind: Composition, spec: {mode: Pipeline}}`,
			[]string{":  !"}},
		{"crossplane object",
			`{apiVersion: kubernetes.crossplane.io/v1alpha2, kind: Object, spec: {references: [{patchesFrom: {name: a}}], forProvider: {manifest: {apiVersion: v1, kind: Pod, spec: {containers: [{image: a}]}}}}}`,
			[]string{"spec.forProvider.manifest.spec.containers[0].image: a",
				"spec.references[0].patchesFrom:  !"}},
		{"flink of a group that ends in k8s.io",
			`{apiVersion: flinkoperator.k8s.io/v1beta1, kind: FlinkCluster, spec: {image: {name: a}, runner: {image: b}}}`, []string{"spec.image.name: a", "spec.runner.image: b ?"}},
		{"annotations of injectors",
			`{apiVersion: apps/v1, kind: Deployment, spec: {template: {metadata: {annotations: {dapr.io/sidecar-image: a, config.linkerd.io/init-image: b, config.linkerd.io/debug-image: c}}}}}`,
			[]string{"spec.template.metadata.annotations.config.linkerd.io/debug-image:  !",
				"spec.template.metadata.annotations.config.linkerd.io/init-image:  !",
				"spec.template.metadata.annotations.dapr.io/sidecar-image: a"}},
		{"crd",
			`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {versions: [{schema: {openAPIV3Schema: {properties: {image: {default: a, type: string}}}}}]}}`, nil},
		{"skills of a workload",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {annotations: {skill.armature.dev/pdf: "oci://r/pdf:v1", skill.armature.dev: x, other/pdf: y}},
			spec: {template: {metadata: {annotations: {skill.armature.dev/web: "oci://r/web:v1"}}}}}`,
			[]string{"metadata.annotations.skill.armature.dev/pdf: r/pdf:v1",
				"spec.template.metadata.annotations.skill.armature.dev/web: r/web:v1"}},
		{"skills of an agent",
			`{apiVersion: agent.kagenti.dev/v1alpha1, kind: Agent, spec: {skills: [{name: pdf, ref: "oci://r/pdf:v1"}]}}`, []string{"spec.skills[0].ref: r/pdf:v1"}},
		{"config map", `{apiVersion: v1, kind: ConfigMap, data: {image: a}}`, nil},
		{"certificate",
			`{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {secretName: a, dnsNames: [b]}}`, nil},
		{"gateway",
			`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, spec: {rules: [{backendRefs: [{name: a}]}]}}`,
			nil},
		{"service monitor",
			`{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, spec: {endpoints: [{port: http}]}}`, nil},
		{"istio",
			`{apiVersion: networking.istio.io/v1, kind: ProxyConfig, spec: {image: {imageType: distroless}}}`, nil},
		{"istio annotation",
			`{apiVersion: apps/v1, kind: Deployment, spec: {template: {metadata: {annotations: {sidecar.istio.io/proxyImage: evil}}}}}`,
			[]string{"spec.template.metadata.annotations.sidecar.istio.io/proxyImage: evil"}},
		{"cnpg", `{apiVersion: postgresql.cnpg.io/v1, kind: Cluster, spec: {imageName: a}}`,
			[]string{"spec.imageName: a"}},
		{"crossplane", `{apiVersion: pkg.crossplane.io/v1, kind: Provider, spec: {package: a}}`,
			[]string{"spec.package: a"}},
		{"kagent harness",
			`{apiVersion: api.kagent.dev/v1alpha3, kind: Harness, spec: {kagent: {}, workload: {image: "a@sha256:00", command: [x]}}}`, []string{"spec.workload.image: a@sha256:00"}},
		{"kagent agent",
			`{apiVersion: api.kagent.dev/v1alpha3, kind: Agent, spec: {harness: {workload: {image: a}}, template: {skills: [{name: x, source: {oci: "oci://b:1"}}, {name: y, source: {git: {url: u, commit: c}}}],
			plugins: [{source: {git: {url: u}}}, {source: {bucket: {s3: {bucket: b, key: k, versionId: v}}}}]}}}`, []string{
				"spec.harness.workload.image: a", "spec.template.plugins[0].source.git.commit:  !",
				"spec.template.plugins[1].source.bucket.s3.versionId: v !",
				"spec.template.skills[0].source.oci: b:1",
				"spec.template.skills[1].source.git.commit: c !"}},
		{"kagent 0.x",
			`{apiVersion: kagent.dev/v1alpha2, kind: Agent, spec: {byo: {deployment: {image: a}}, skills: {refs: [b, c], gitRefs: [{url: u, ref: main}, {url: w}], s3Refs: [{uri: "s3://x"}]}}}`, []string{
				"spec.byo.deployment.image: a", "spec.skills.gitRefs[0].ref: main !",
				"spec.skills.gitRefs[1].ref:  !", "spec.skills.refs[0]: b",
				"spec.skills.refs[1]: c", "spec.skills.s3Refs[0].versionId:  !"}},
		{"kagent server",
			`{apiVersion: kagent.dev/v1alpha1, kind: MCPServer, spec: {deployment: {image: a, initContainer: {image: b}}}}`, []string{"spec.deployment.image: a", "spec.deployment.initContainer.image: b"}},
		{"image volume",
			`{apiVersion: example.com/v1, kind: Fleet, spec: {template: {spec: {containers: [{image: a}], volumes: [{name: v, image: {reference: b}}]}}}}`,
			[]string{"spec.template.spec.containers[0].image: a",
				"spec.template.spec.volumes[0].image.reference: b"}},
		{"strimzi",
			`{apiVersion: kafka.strimzi.io/v1beta2, kind: KafkaConnect, spec: {image: a, build: {output: {type: docker, image: b}}}}`, []string{"spec.image: a"}},
		{"opentelemetry",
			`{apiVersion: opentelemetry.io/v1alpha1, kind: Instrumentation, spec: {java: {image: a}, nginx: {image: b}}}`, []string{"spec.java.image: a", "spec.nginx.image: b"}},
		{"spark",
			`{apiVersion: sparkoperator.k8s.io/v1beta2, kind: SparkApplication, spec: {image: a, driver: {image: b}, executor: {image: c}}}`,
			[]string{"spec.driver.image: b", "spec.executor.image: c", "spec.image: a"}},
		{"kserve",
			`{apiVersion: serving.kserve.io/v1beta1, kind: InferenceService, spec: {predictor: {model: {storageUri: "oci://a:1"}}, transformer: {model: {storageUri: "s3://b"}}}}`,
			[]string{"spec.predictor.model.storageUri: a:1"}},
		{"crossplane function",
			`{apiVersion: pkg.crossplane.io/v1, kind: Function, spec: {package: a}}`,
			[]string{"spec.package: a"}},
		{"unknown",
			`{apiVersion: example.com/v1, kind: Fleet, metadata: {labels: {image: x}}, spec: {Image: a, runnerImage: "docker://b:1", imageURI: c, icon: {image: "https://d/e.png"}, image: "two words", images: [d:1], imagePullPolicy: Always, initImage: {repository: r, tag: t}, job: {image: "{{ .x }}"}}}`,
			[]string{"spec.Image: a ?", "spec.imageURI: c ?", "spec.images: d:1 ?",
				"spec.initImage: r ?!", "spec.job.image: {{ .x }} ?!", "spec.runnerImage: b:1 ?"}},
		{"hidden in a known kind",
			`{apiVersion: example.com/v1, kind: Fleet, spec: {apiVersion: armature.dev/v1alpha1, kind: ImageLock, image: a}}`, []string{"spec.image: a ?"}},
		{"hidden in a pod template",
			`{apiVersion: apps/v1, kind: Deployment, spec: {template: {apiVersion: armature.dev/v1alpha1, kind: ImageLock, spec: {containers: [{image: a}]}}}}`,
			[]string{"spec.template.spec.containers[0].image: a"}},
		{"hidden behind validate",
			`{apiVersion: example.com/v1, kind: Fleet, spec: {apiVersion: kyverno.io/v1, kind: ClusterPolicy, validate: {image: a}}}`, []string{"spec.validate.image: a ?"}},
		{"list",
			`{apiVersion: v1, kind: List, items: [{apiVersion: armature.dev/v1alpha1, kind: ImageLock, spec: {images: [{image: a}]}}, {apiVersion: v1, kind: Pod, spec: {containers: [{image: b}]}}]}`,
			[]string{"items[1].spec.containers[0].image: b"}},
		{"list of another group",
			`{apiVersion: example.com/v1, kind: PodList, items: [{apiVersion: armature.dev/v1alpha1, kind: ImageLock, spec: {image: a}}]}`, []string{"items[0].spec.image: a ?"}},
	} {
		var value any
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(c.object, "\t", " ")), &value); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var found []string
		for _, i := range images.In(value) {
			mark := ""
			if i.Guessed {
				mark = "?"
			}
			if i.Problem != "" {
				mark += "!"
			}
			found = append(found, strings.TrimSuffix(i.Field+": "+i.Ref+" "+mark, " "))
		}
		if diff := cmp.Diff(c.want, found); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// TestUnknownKinds: Judged returns kinds that the table does not have, including nested ones, even
// if a RenderConfig has rows for them; references do not count.
func TestUnknownKinds(t *testing.T) {
	own, _ := images.Rows(
		&api.RenderConfig{
			Spec: api.RenderConfigSpec{
				Images: []api.ImageFieldSpec{{Group: "example.com", Kind: "Fleet", Path: "spec.image"}}}})
	for object, want := range map[string]string{
		`{apiVersion: v1, kind: Pod, metadata: {ownerReferences: [{apiVersion: example.com/v1, kind: Fleet, name: a}]}}`:                            "",
		`{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: a}}`:                                                                              "",
		`{apiVersion: example.com/v1, kind: Fleet, metadata: {name: a}, spec: {image: a}}`:                                                          "Fleet ",
		`{apiVersion: example.com/v1, kind: Fleet}`:                                                                                                 "Fleet ",
		`{apiVersion: jobset.k8s.io/v1, kind: Hidden, metadata: {name: a}}`:                                                                         "Hidden ",
		`{apiVersion: argoproj.io/v1alpha1, kind: Sensor, spec: {resource: {apiVersion: example.com/v1, kind: Fleet, metadata: {name: a}}}}`:        "Fleet spec.resource",
		`{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {}}, {apiVersion: example.com/v1, kind: Fleet, metadata: {}}]}`: "Fleet items[1]",
	} {
		var value any
		if err := yaml.Unmarshal([]byte(object), &value); err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, i := range images.Judged(value, own...) {
			if i.Unknown {
				found = append(found, i.Kind+" "+i.Field)
			}
		}
		if got := strings.Join(found, ", "); got != want {
			t.Errorf("%s: %q, not %q", object, got, want)
		}
		if slices.ContainsFunc(images.In(value, own...),
			func(i images.Image) bool { return i.Unknown }) {
			t.Errorf("%s: In has an unknown kind", object)
		}
	}
}

// TestTable: every row of table.yaml has a group and a type, and an opaque one a reason.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("table.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows []images.Row
	if err := yaml.UnmarshalStrict(text, &rows); err != nil {
		t.Fatal(err)
	}
	types := append(images.Types(), "", "skill", "opaque", "nothing")
	for i, r := range rows {
		source := r.Is == images.IsCommit || r.Is == images.IsVersion
		if r.Group == "" || !slices.Contains(types, string(r.Is)) ||
			(r.Is == "opaque") != (r.Why != "") || source && !strings.Contains(r.Path, ".") {
			t.Errorf("row %d: %+v", i, r)
		}
	}
	if len(rows) < 100 {
		t.Errorf("%d rows", len(rows))
	}
}
