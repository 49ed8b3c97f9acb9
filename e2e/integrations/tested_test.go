package integrations

import (
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/page"
	"github.com/armature-dev/armature/e2e/programs"
)

// docs/reference/tested.md has the versions that the tests run with: what the API server
// says, what is compiled into programs, and what the modules require of which programs are
// built for the stories alone. UPDATE=1 writes it.
func TestTested(t *testing.T) {
	plane := controlplane.Start(t)
	client, err := kubernetes.NewForConfig(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	out.WriteString("# What the tests run with\n\n" +
		"Each change is tested with the first version. The oldest ones run each night (`make " +
		"e2e-matrix`): Kubernetes under the\n" +
		"tests that need an API server, Tekton under the stories on a cluster. A test writes " +
		"this page.\n\n" +
		"| project | version | oldest |\n|---|---|---|\n")
	row := func(name, version, oldest string) {
		if version == "" || oldest == "" {
			t.Errorf("%s has the versions %q and %q", name, version, oldest)
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", name, strings.TrimPrefix(version, "v"),
			strings.TrimPrefix(oldest, "v"))
	}
	required := func(folder, module string) string { return requirements(t, folder)[module] }
	row("Kubernetes", server.GitVersion, required("e2e/oldest-kube", "k8s.io/kubernetes"))
	row("Tekton Pipelines", required("e2e/tekton", "github.com/tektoncd/pipeline"),
		required("e2e/oldest-tekton", "github.com/tektoncd/pipeline"))
	for _, p := range []struct{ name, program, module string }{
		{"kustomize", "kustomize", "sigs.k8s.io/kustomize/kustomize/v5"},
		{"Argo CD", "argocd", "github.com/argoproj/argo-cd/v3"},
		{"Flux's source-controller", "source-controller", "github.com/fluxcd/source-controller"},
		{"Flux's kustomize-controller", "kustomize-controller",
			"github.com/fluxcd/kustomize-controller"},
		{"Helm 4", "helm4", "helm.sh/helm/v4"},
		{"Helm 3", "helm3", "helm.sh/helm/v3"},
		{"kubectl", "kubectl", "k8s.io/kubernetes"},
		{"cosign 3", "cosign3", "github.com/sigstore/cosign/v3"},
		{"cosign 2", "cosign", "github.com/sigstore/cosign/v2"},
		{"Fulcio", "fulcio", "github.com/sigstore/fulcio"},
		{"Kueue", "kueue", "sigs.k8s.io/kueue"},
		{"Prometheus", "prometheus", "github.com/prometheus/prometheus"},
		{"Gitea", "forge", "code.gitea.io/gitea"},
		{"BuildKit", "buildkitd", "github.com/moby/buildkit"},
	} {
		info, err := buildinfo.ReadFile(programs.Peer(t, p.program))
		if err != nil {
			t.Fatal(err)
		}
		version := ""
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == p.module {
				version = m.Version
			}
		}
		row(p.name, version, "–")
	}
	for _, m := range []struct{ name, folder, module string }{
		{"kaniko", "e2e/kaniko", "github.com/chainguard-dev/kaniko"},
		{"Cloud Native Buildpacks' lifecycle", "e2e/lifecycle", "github.com/buildpacks/lifecycle"},
		{"syft", "e2e/anchore", "github.com/anchore/syft"},
		{"grype", "e2e/anchore", "github.com/anchore/grype"},
		{"oras", "e2e/oras", "oras.land/oras"},
		{"SPIRE", "e2e/spire", "github.com/spiffe/spire"},
		{"Envoy's configuration", "functions/internal/readers",
			"github.com/envoyproxy/go-control-plane/envoy"},
		{"A2A's SDK", ".", "github.com/a2aproject/a2a-go"},
		{"MCP's SDK", ".", "github.com/modelcontextprotocol/go-sdk"},
	} {
		row(m.name, required(m.folder, m.module), "–")
	}
	out.WriteString("\nkpt and kagent cannot be built from Go modules. The tests of kpt run " +
		"where it is on the `PATH`; those of kagent read and\n" +
		"write its resources.\n")
	page.Generated(t, filepath.Join(root, "docs", "reference", "tested.md"), out.String())
}
