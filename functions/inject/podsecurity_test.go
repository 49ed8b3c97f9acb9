package inject

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

// TestPodSecurity asks Kubernetes' own evaluator. All but proxy-init pass
// "restricted"; proxy-init passes no level but "privileged", because iptables
// need root and NET_ADMIN.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(s *identity.Settings, level psapi.Level) (bool, string) {
		pod := corev1.PodSpec{
			Containers: []corev1.Container{{Name: "agent", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				RunAsNonRoot:             new(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{
					Type: corev1.SeccompProfileTypeRuntimeDefault},
			}}}}
		for _, c := range render(t, s).containers {
			pod.InitContainers = append(pod.InitContainers, c)
		}
		volumes, _ := sidecars.AppendVolumes(nil, s)
		if err := yaml.UnmarshalStrict(volumes, &pod.Volumes); err != nil {
			t.Fatal(err)
		}
		r := policy.AggregateCheckResults(evaluator.EvaluatePod(
			psapi.LevelVersion{Level: level, Version: psapi.LatestVersion()}, &metav1.ObjectMeta{}, &pod))
		return r.Allowed, r.ForbiddenDetail()
	}
	const (
		bridge     = "  profile: authbridge\n"
		noRedirect = "  identity: {outbound: {trafficInterception: {enabled: false}}}\n"

		all      = "  profile: kagenti\n"
		noInit   = "  components: {proxy-init: {enabled: false}}\n"
		hostPath = "  components: {proxy-init: {enabled: false}}\n" +
			"  identity: {spiffe: {SocketVolume: hostPath}}\n"
	)
	for _, test := range []struct {
		spec  string
		level psapi.Level
		want  bool
	}{
		{all, psapi.LevelPrivileged, true},
		{all, psapi.LevelBaseline, false},
		{noInit, psapi.LevelBaseline, true},
		{noInit, psapi.LevelRestricted, true},
		{hostPath, psapi.LevelBaseline, false},
		{bridge, psapi.LevelPrivileged, true},
		{bridge, psapi.LevelBaseline, false},
		{bridge + noRedirect, psapi.LevelRestricted, true},
		{bridge + noRedirect + "  authbridge: {mode: lite}\n", psapi.LevelRestricted, true},
		{bridge + "  authbridge: {mode: envoy-sidecar}\n", psapi.LevelBaseline, false},
	} {
		if got, why := allowed(settings(t, config(t, test.spec), nil),
			test.level); got != test.want {
			t.Errorf("%s is allowed by %s: %v, want %v (%s)", test.spec, test.level, got, test.want, why)
		}
	}
}
