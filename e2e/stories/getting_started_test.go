package stories

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/page"
)

// TestGettingStarted follows docs/tutorials/build.md and docs/tutorials/run.md, word for word.
// It replaces what makes and ends a cluster, the image of the controller, which is built
// from the tree, and the addresses of Git, registry and base image, which are the
// reader's own on the pages as well. It runs alone, because the pages wait for their build.
func TestGettingStarted(t *testing.T) {
	s := newStory(t, nil)
	if len(s.info.SPIREServer) == 0 {
		t.Skip("it needs SPIRE in the cluster, and E2E_INFO names no command for its server")
	}
	s.installed(t)
	var text string
	for _, name := range []string{"build.md", "run.md"} {
		page, err := os.ReadFile("../../docs/tutorials/" + name)
		must(t, err)
		text += string(page)
	}
	s.localBuildKit(t)
	script, err := page.Script(text, map[string]string{
		"local build": "armature build run build.yaml --local --source . " +
			strings.Join(s.stepImages(t), " "),
		"cluster":         "kubectl get nodes",
		"wait for tekton": page.AsWritten,
		"controller": "armature " +
			strings.Join(s.installArguments(t, "armature-system"), " ") +
			" | kubectl apply --server-side --force-conflicts -f -",
		"wait for the controller": page.AsWritten,
		"places": fmt.Sprintf(
			"export REPOSITORY=%s/public/%s.git REGISTRY=%s/%s BASE=%s/armature/busybox:latest",
			s.info.GitHTTP, s.namespace, s.info.Registry, s.namespace, s.info.Registry),
		"push": page.AsWritten, "build": page.AsWritten, "identity": page.AsWritten,
		"change": page.AsWritten, "restart": page.AsWritten, "clean": page.AsWritten,
		"spire": s.spireEntry("agents", "hello"),
		"run": "sed -i 's|profile: authbridge|&\\n  components: {authbridge-proxy: {image: \"" +
			s.info.Images["sidecar-authbridge-proxy"] + "\"}}|' apps/armature.yaml\n" +
			page.AsWritten,
		"end": "if kubectl get namespace agents; then exit 1; fi",
	})
	must(t, err)
	t.Cleanup(func() {
		id, found := strings.CutPrefix(
			strings.TrimSpace(string(run(t, nil, "sh", "-c",
				s.spireCommand("entry", "show", "-spiffeID",
					"spiffe://example.com/ns/agents/sa/hello")+" | grep 'Entry ID'"))), "Entry ID")
		if found {
			s.spire(t, "entry", "delete", "-entryID", strings.TrimSpace(strings.TrimLeft(id, " :")))
		}
	})
	agents := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "agents"}} // the page's
	// What a run before this one left.
	must(t, client.IgnoreNotFound(s.Delete(t.Context(), agents)))
	eventually(t, 5*time.Minute, "the namespace agents is gone", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(agents),
			&corev1.Namespace{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(s.Delete(context.Background(), agents)); err != nil {
			t.Error(err)
		}
	})

	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.Getenv("E2E_KUBECONFIG"), "HOME="+t.TempDir(),
		"GIT_AUTHOR_NAME=story", "GIT_AUTHOR_EMAIL=story@example.com", "GIT_COMMITTER_NAME=story",
		"GIT_COMMITTER_EMAIL=story@example.com",
		// The repository has another address outside of the cluster, and a login.
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url."+
			strings.Replace(s.info.HostGitHTTP, "http://", "http://story:"+s.info.GitToken+"@", 1)+
			"/.insteadOf", "GIT_CONFIG_VALUE_0="+s.info.GitHTTP+"/",
	)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("docs/tutorials: %v\n%s", err, out)
	}
	// The reader's registry is the cluster's.
	missing, err := page.Missing(strings.ReplaceAll(text, "ttl.sh/…",
		s.info.Registry+"/"+s.namespace), string(out))
	must(t, err)
	for _, line := range missing {
		t.Errorf("docs/tutorials, not printed: %s", line)
	}
	if t.Failed() || testing.Verbose() {
		t.Logf("%s", out)
	}
}

// spireCommand is one of the SPIRE server, for a shell.
func (s *story) spireCommand(args ...string) string {
	var words []string
	for _, word := range append(slices.Clone(s.info.SPIREServer), args...) {
		words = append(words, "'"+word+"'")
	}
	return strings.Join(words, " ")
}

// spireEntry is the command that creates the identity of a ServiceAccount unless it has one, as
// SPIRE's controller does in the cluster of a reader.
func (s *story) spireEntry(namespace, account string) string {
	id := "spiffe://example.com/ns/" + namespace + "/sa/" + account
	return s.spireCommand("entry", "show", "-spiffeID", id) + " | grep -q 'Entry ID' || " +
		s.spireCommand("entry", "create", "-parentID", s.info.SPIREAgent, "-spiffeID", id,
			"-selector", "k8s:ns:"+namespace, "-selector", "k8s:sa:"+account)
}
