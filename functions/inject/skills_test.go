package inject

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/krm"
)

const skilled = `apiVersion: v1
kind: Pod
metadata:
  name: a
  annotations:
    skill.armature.dev/pdf-processing: oci://registry.example/skills/pdf-processing:v1
    skill.armature.dev/notes: oci://registry.example/skills/notes:v1
spec:
  imagePullSecrets: [{name: login}]
  containers:
  - name: agent
    image: agent:v1
    securityContext:
      allowPrivilegeEscalation: false
      runAsNonRoot: true
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
`

// TestSkillsPodSecurity asks Kubernetes' own evaluator: neither way to mount skills takes a pod out
// of the level restricted, and uninject restores the author's bytes.
func TestSkillsPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*skillMounts{"image": {path: "/skills"},
		"init": {path: "/skills", init: "registry.example/skills-init:v1"}} {
		t.Run(name, func(t *testing.T) {
			o := readObject(t, skilled)
			mounted, findings := m.of(o, func(image string) string { return image + "@sha256:1" })
			if mounted == nil || len(findings) > 0 {
				t.Fatal(findings)
			}
			in := &Injector{Version: "v0", skills: mounted}
			if err := in.Inject(o, nil); err != nil {
				t.Fatal(err)
			}
			text := o.Append(nil)
			var pod corev1.Pod
			if err := yaml.UnmarshalStrict(text, &pod); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			evaluate := func() policy.AggregateCheckResult {
				return policy.AggregateCheckResults(
					evaluator.EvaluatePod(psapi.LevelVersion{Level: psapi.LevelRestricted,
						Version: psapi.LatestVersion()}, &metav1.ObjectMeta{}, &pod.Spec))
			}
			if r := evaluate(); !r.Allowed {
				t.Errorf("restricted refuses it: %s\n%s", r.ForbiddenDetail(), text)
			}
			images := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
				return v.Image != nil &&
					v.Image.Reference == "registry.example/skills/notes:v1@sha256:1"
			})
			if inits := len(pod.Spec.InitContainers); images == (name == "init") ||
				inits != map[string]int{"image": 0, "init": 1}[name] {
				t.Errorf("image volumes: %v, init containers: %d", images, inits)
			}
			for _, mount := range pod.Spec.Containers[0].VolumeMounts {
				if !mount.ReadOnly {
					t.Errorf("%s is writable", mount.MountPath)
				}
			}
			again := readObject(t, string(text))
			if was, _, _, err := Uninject(again); !was || err != nil {
				t.Fatal(was, err)
			}
			if got := string(again.Append(nil)); got != skilled {
				t.Errorf("uninjected it is\n%s", got)
			}
			// The evaluator does refuse, for one field.
			for i := range pod.Spec.InitContainers {
				pod.Spec.InitContainers[i].SecurityContext.RunAsNonRoot = new(false)
				if evaluate().Allowed {
					t.Error("restricted allows root")
				}
			}
		})
	}
}

func readObject(t *testing.T, text string) *krm.Object {
	t.Helper()
	var o krm.Object
	if ok, err := o.Read([]byte(text), krm.Document{End: len(text)}, false, krm.Origin{}); !ok ||
		err != nil {
		t.Fatal(ok, err)
	}
	return &o
}
