package stories

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The controller that `armature install --image` installs is the image that was built
// from the tree: by digest, in the registry and in each of its pods.
func TestControllerImage(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	reference := s.info.Images["armature-controller"]
	_, digest, ok := strings.Cut(reference, "@")
	if !ok {
		t.Fatalf("the image %q has no digest", reference)
	}
	eventually(t, 2*time.Minute, "every pod of the controller runs "+digest,
		func(ctx context.Context) error {
			var pods corev1.PodList
			if err := s.List(ctx, &pods, client.InNamespace("armature-system"),
				client.MatchingLabels{"app.kubernetes.io/name": "armature-controller"}); err != nil {
				return err
			}
			if len(pods.Items) < 2 {
				return fmt.Errorf("it has %d pods, not two", len(pods.Items))
			}
			for _, pod := range pods.Items {
				if statuses := pod.Status.ContainerStatuses; len(statuses) != 1 ||
					statuses[0].State.Running == nil ||
					!strings.HasSuffix(statuses[0].ImageID, "@"+digest) {
					return fmt.Errorf("pod %s: %+v", pod.Name, statuses)
				}
			}
			return nil
		})

	ref, err := name.NewDigest(strings.Replace(reference, s.info.Registry, s.info.HostRegistry, 1))
	must(t, err)
	img, err := remote.Image(ref, remote.WithContext(t.Context()))
	must(t, err)
	files := mutate.Extract(img)
	defer files.Close()
	for entries := tar.NewReader(files); ; {
		entry, err := entries.Next()
		if err != nil {
			t.Fatalf("looking for the program in the image: %v", err)
		}
		if entry.Name != "ko-app/armature-controller" {
			continue
		}
		program, err := io.ReadAll(entries)
		must(t, err)
		info, err := buildinfo.Read(bytes.NewReader(program))
		must(t, err)
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if info.Path != "github.com/armature-dev/armature/cmd/armature-controller" ||
			settings["CGO_ENABLED"] != "0" || settings["GOARCH"] != "amd64" {
			t.Errorf("the image runs %s, built with %v", info.Path, settings)
		}
		return
	}
}
