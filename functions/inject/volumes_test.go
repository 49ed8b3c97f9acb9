package inject

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

// TestAuthorVolumes: every sidecar that shares credentials mounts the author's
// volumes of the published names, and no other is declared for them.
func TestAuthorVolumes(t *testing.T) {
	for of, svid := range map[string]string{"kagenti": "shared-data",
		"kagenti-published": "svid-output"} {
		s := settings(t, config(t, "  profile: "+of+"\n"),
			func(w *identity.Workload) { w.Volumes = identity.Volumes{Shared: true, SVID: true} })
		mounts := make(map[string]map[string]string)
		for _, x := range s.Profile.Sidecars {
			name := x.Name
			var list []corev1.Container
			if err := yaml.UnmarshalStrict(sidecars.AppendContainer(nil, s, &x), &list); err != nil {
				t.Fatal(err)
			}
			mounts[name] = make(map[string]string)
			for _, m := range list[0].VolumeMounts {
				mounts[name][m.MountPath] = m.Name
			}
		}
		for _, want := range []struct{ container, path, volume string }{
			{sidecars.SpiffeHelper, s.SPIFFE.TokenDir, svid},
			{sidecars.ClientRegistration, "/shared", "shared-data"},
			{sidecars.ClientRegistration, "/opt", svid},
			{sidecars.EnvoyProxy, "/shared", "shared-data"},
		} {
			if got := mounts[want.container][want.path]; got != want.volume {
				t.Errorf("%s: %s has %q at %s, and not %s", of, want.container, got, want.path,
					want.volume)
			}
		}
		_, declared := sidecars.AppendVolumes(nil, s)
		for _, name := range declared {
			if name == "armature-shared" || name == identity.SharedVolume ||
				name == identity.SVIDVolume {
				t.Errorf("%s: %s is declared again", of, name)
			}
		}
	}
}
