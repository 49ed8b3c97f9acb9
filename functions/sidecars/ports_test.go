package sidecars_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

// TestPorts: the container of a sidecar declares the ports of its table that have a name, and
// no others, and each of them is taken for what else listens in the pod.
func TestPorts(t *testing.T) {
	for _, name := range sidecars.All().Names() {
		for _, mode := range []string{identity.ModeProxySidecar, identity.ModeEnvoySidecar} {
			config := &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: &name}}
			base, _ := sidecars.All().Base(config)
			base.AuthBridge.Mode = mode
			s, _ := identity.Resolve(&base, identity.Workload{
				APIVersion: "apps/v1", Kind: "Deployment", Namespace: "team1", Name: "web",
				SPIFFE: true}, nil, nil, nil)

			declared := 0
			for i, x := range s.Profile.Sidecars {
				if !s.Components[i].Enabled {
					continue
				}
				text := string(sidecars.AppendContainer(nil, &s, &x))
				wanted := 0
				if x.Ports != nil {
					for _, p := range x.Ports(nil, &s) {
						if p.ContainerPort == "" || p.Number == 0 {
							continue
						}
						wanted++
						if line := fmt.Sprintf("  - name: %s\n    containerPort: %d\n",
							p.ContainerPort, p.Number); !strings.Contains(text, line) {
							t.Errorf("%s, %s: %s has no port %s:\n%s", name, mode, x.Name,
								p.ContainerPort, text)
						}
						if free := s.FreePort(p.Number, nil); free == p.Number {
							t.Errorf("%s, %s: port %d of %s is free", name, mode, p.Number, x.Name)
						}
					}
				}
				if got := strings.Count(text, "containerPort:"); got != wanted {
					t.Errorf("%s, %s: %s declares %d ports, want %d", name, mode, x.Name, got, wanted)
				}
				declared += wanted
			}
			if declared < 2 {
				t.Errorf("%s, %s: only %d ports", name, mode, declared)
			}
		}
	}
}
