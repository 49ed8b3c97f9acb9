package stories

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// asTenant is the story as an admin of its namespace sees it, who has every right there and none
// elsewhere.
func (s *story) asTenant(t *testing.T) *story {
	t.Helper()
	user := "admin-of-" + s.namespace
	s.apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: `+user+`}]
`)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("E2E_KUBECONFIG"))
	must(t, err)
	config.Impersonate.UserName, config.QPS, config.Burst = user, 100, 200
	tenant := *s
	tenant.Client, err = client.New(config,
		client.Options{Scheme: s.Scheme(), Mapper: s.RESTMapper()})
	must(t, err)
	tenant.logs, err = kubernetes.NewForConfig(config)
	must(t, err)
	eventually(t, time.Minute, "the tenant's rights count", func(ctx context.Context) error {
		return tenant.List(ctx, &api.AgentBuildList{}, client.InNamespace(s.namespace))
	})
	return &tenant
}

// unsigned fails if anything in a repository is signed or attested: by a tag of cosign's,
// or by a bundle that refers to one of the digests.
func (s *story) unsigned(t *testing.T, repository string, digests ...string) {
	t.Helper()
	tags, err := remote.List(reference(t, repository+":v1").Context())
	if answer := (*transport.Error)(nil); errors.As(err, &answer) &&
		answer.StatusCode == http.StatusNotFound {
		return // nothing was ever pushed
	}
	must(t, err)
	for _, tag := range tags {
		if strings.HasSuffix(tag, ".sig") || strings.HasSuffix(tag, ".att") {
			t.Errorf("something is signed: %s has the tag %s", repository, tag)
		}
		if !strings.HasPrefix(tag, "sha256-") || strings.Contains(tag, ".") {
			continue
		}
		// What refers to an image, for those who do not ask the registry for it.
		index, err := remote.Index(reference(t, repository+":"+tag))
		must(t, err)
		if n := bundlesIn(t, repository, index); n != 0 {
			t.Errorf("something is signed: %d bundles are in %s:%s", n, repository, tag)
		}
	}
	for _, digest := range digests {
		if n := s.bundles(t, repository, digest); n != 0 {
			t.Errorf("something is signed: %d bundles refer to %s@%s", n, repository, digest)
		}
	}
}

// bundles of Sigstore that refer to a digest.
func (s *story) bundles(t *testing.T, repository, digest string) int {
	t.Helper()
	index, err := remote.Referrers(reference(t, repository+"@"+digest).(name.Digest))
	must(t, err)
	return bundlesIn(t, repository, index)
}

func bundlesIn(t *testing.T, repository string, index v1.ImageIndex) (n int) {
	t.Helper()
	manifest, err := index.IndexManifest()
	must(t, err)
	for _, referrer := range manifest.Manifests {
		artifact, err := remote.Get(reference(t, repository+"@"+referrer.Digest.String()))
		must(t, err)
		if strings.Contains(string(artifact.Manifest), "application/vnd.dev.sigstore.bundle") {
			n++
		}
	}
	return n
}

// digestOf what a tag names.
func digestOf(t *testing.T, image string) string {
	t.Helper()
	found, err := remote.Head(reference(t, image))
	must(t, err)
	return found.Digest.String()
}
