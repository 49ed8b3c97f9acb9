package inject

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/identity"
)

// TestAuthorVolumes: every sidecar that shares credentials mounts the author's
// volumes of the published names, and no other is declared for them.
func TestAuthorVolumes(t *testing.T) {
	for profile, svid := range map[string]string{"kagenti": "shared-data", "kagenti-published": "svid-output"} {
		s := settings(t, config(t, "  profile: "+profile+"\n"), func(w *identity.Workload) { w.Volumes = identity.Volumes{Shared: true, SVID: true} })
		mounts := make(map[string]map[string]string)
		for _, name := range identity.Components() {
			var list []corev1.Container
			if err := yaml.UnmarshalStrict(AppendContainer(nil, s, name, true), &list); err != nil {
				t.Fatal(err)
			}
			mounts[name] = make(map[string]string)
			for _, m := range list[0].VolumeMounts {
				mounts[name][m.MountPath] = m.Name
			}
		}
		for _, want := range []struct{ container, path, volume string }{
			{identity.SpiffeHelper, s.SPIFFE.TokenDir, svid},
			{identity.ClientRegistration, "/shared", "shared-data"},
			{identity.ClientRegistration, "/opt", svid},
			{identity.EnvoyProxy, "/shared", "shared-data"},
		} {
			if got := mounts[want.container][want.path]; got != want.volume {
				t.Errorf("%s: %s has %q at %s, and not %s", profile, want.container, got, want.path, want.volume)
			}
		}
		for _, name := range VolumeNames(s) {
			if name == sharedVolume || name == publishedSharedVolume || name == publishedSVIDVolume {
				t.Errorf("%s: %s is declared again", profile, name)
			}
		}
	}
}
