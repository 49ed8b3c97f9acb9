package attest_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/krm"
)

// Whatever admission puts into a pod of an attested run, for a label or an annotation that a
// tenant gave to the run, the run is not vouched for.
func TestInjectedPods(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	first := func(f func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { f(&pod.Spec.Containers[0]) }
	}
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "more", VolumeSource: source})
		}
	}
	initContainer := func(c corev1.Container) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.InitContainers = append(pod.Spec.InitContainers, c) }
	}
	prepare := func(f func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { f(&pod.Spec.InitContainers[0]) }
	}
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"a native sidecar":              {initContainer(corev1.Container{Name: "proxy", Image: "evil", RestartPolicy: &always}), "init container proxy that nothing orders"},
		"an init container":             {initContainer(corev1.Container{Name: "setup", Image: "evil"}), "init container setup that nothing orders"},
		"a sidecar that is not ordered": {initContainer(corev1.Container{Name: "sidecar-proxy", Image: "evil", RestartPolicy: &always}), "than any sidecar that is ordered"},
		"a container": {func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "proxy"})
		}, "which no step or sidecar orders"},
		"scripts of nobody": {initContainer(corev1.Container{Name: "place-scripts", Command: []string{"sh"}, Args: []string{"-c", "evil"}}), "place-scripts"},
		"a folder's maker":  {initContainer(corev1.Container{Name: "working-dir-initializer", Command: []string{"sh", "-c", "evil"}}), "another command"},
		"a debugging container": {func(pod *corev1.Pod) {
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{})
		}, "for debugging"},
		"prepare: command":     {prepare(func(c *corev1.Container) { c.Command = append(c.Command, "step-more") }), "another command"},
		"prepare: environment": {prepare(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/x"}} }), "another env"},
		"prepare: image":       {prepare(func(c *corev1.Container) { c.Image = "evil" }), "another image than in the other pods"},
		"prepare: hook":        {prepare(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), "another lifecycle"},
		"prepare: always":      {prepare(func(c *corev1.Container) { c.RestartPolicy = &always }), "another restartPolicy"},
		"prepare: privileged":  {prepare(func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)} }), "another securityContext"},
		"no prepare":           {func(pod *corev1.Pod) { pod.Spec.InitContainers = pod.Spec.InitContainers[1:] }, "has no init container prepare"},
		"hostPath":             {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), "volume more (hostPath)"},
		"projected":            {volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}), "volume more (projected)"},
		"secret":               {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}), "volume more (secret)"},
		"emptyDir":             {volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), "volume more (emptyDir)"},
		"token": {func(pod *corev1.Pod) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "kube-api-access-abcde", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}})
		}, "(projected)"},
		"hostPath of Tekton's": {func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		}, "(hostPath)"},
		"a workspace's claim":    {swapClaim, "(persistentVolumeClaim)"},
		"command":                {first(func(c *corev1.Container) { c.Command = []string{"/evil"} }), "another command"},
		"arguments":              {first(func(c *corev1.Container) { c.Args[len(c.Args)-1] += " evil" }), "another list of args"},
		"an argument more":       {first(func(c *corev1.Container) { c.Args = append(c.Args, "evil") }), "another list of args"},
		"another entrypoint":     {first(func(c *corev1.Container) { c.Args[slices.Index(c.Args, "-entrypoint")+1] = "/evil" }), "another list of args"},
		"a flag":                 {first(func(c *corev1.Container) { c.Args = append([]string{"-breakpoint_on_failure"}, c.Args...) }), "another list of args"},
		"a failure that is none": {first(func(c *corev1.Container) { c.Args = append([]string{"-on_error", "continue"}, c.Args...) }), "another list of args"},
		"environment":            {first(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: "LD_PRELOAD", Value: "/x"}) }), "another env"},
		"a value":                {otherValue, "another env"},
		"environment of a file": {first(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{}}}
		}), "another envFrom"},
		"a hook":  {first(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}} }), "another lifecycle"},
		"a probe": {first(func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} }), "another livenessProbe"},
		"folder":  {first(func(c *corev1.Container) { c.WorkingDir = "/x" }), "another workingDir"},
		"a mount": {first(func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "tekton-internal-home", MountPath: "/usr/bin"})
		}), "volumeMounts"},
		"a mount less":           {func(pod *corev1.Pod) { dropMount(pod) }, "volumeMounts"},
		"a folder of the volume": {func(pod *corev1.Pod) { mountOf(pod).SubPath = "evil" }, "volumeMounts"},
		"privileged":             {first(func(c *corev1.Container) { c.SecurityContext.Privileged = ptr.To(true) }), "securityContext"},
		"a capability":           {first(func(c *corev1.Container) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_PTRACE"} }), "securityContext"},
		"no security context":    {first(func(c *corev1.Container) { c.SecurityContext = nil }), "securityContext"},
		"root":                   {first(func(c *corev1.Container) { c.SecurityContext.RunAsUser = ptr.To(int64(0)) }), "securityContext"},
		"host network":           {func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }, "another hostNetwork"},
		"host processes":         {func(pod *corev1.Pod) { pod.Spec.HostPID = true }, "another hostPID"},
		"shared processes":       {func(pod *corev1.Pod) { pod.Spec.ShareProcessNamespace = ptr.To(true) }, "another shareProcessNamespace"},
		"ServiceAccount":         {func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "admin" }, "another serviceAccountName"},
		"mounted token":          {func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = ptr.To(true) }, "another automountServiceAccountToken"},
		"runtime":                {func(pod *corev1.Pod) { pod.Spec.RuntimeClassName = ptr.To("evil") }, "another runtimeClassName"},
		"names of hosts": {func(pod *corev1.Pod) {
			pod.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"github.com"}}}
		}, "another hostAliases"},
		"name servers": {func(pod *corev1.Pod) { pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.1"}} }, "another dnsConfig"},
		"devices":      {func(pod *corev1.Pod) { pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x"}} }, "another resourceClaims"},
		"restarts":     {func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }, "another restartPolicy"},
		"sysctls":      {func(pod *corev1.Pod) { pod.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "x"}} }, "another securityContext"},
		"unconfined": {func(pod *corev1.Pod) {
			pod.Spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		}, "another securityContext"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fixture{observe(t, false)}
			_, pod := f.task("tests")
			c.edit(pod)
			_, err := attest.Check(*f.Observed)
			var refusal *krm.Finding
			if !errors.As(err, &refusal) || refusal.Rule != api.ReasonNotAsOrdered || !strings.Contains(refusal.Message, c.want) {
				t.Errorf("%v, want %s with %q", err, api.ReasonNotAsOrdered, c.want)
			}
		})
	}
}

// otherValue changes a variable of a step.
func otherValue(pod *corev1.Pod) {
	for _, c := range pod.Spec.Containers {
		if len(c.Env) > 0 {
			c.Env[0].Value += "x"
			return
		}
	}
	panic("the pod has no variables")
}

// mountOf is a mount of a volume that the pod's task orders.
func mountOf(pod *corev1.Pod) *corev1.VolumeMount {
	c := &pod.Spec.Containers[0]
	for i := range c.VolumeMounts {
		if !strings.HasPrefix(c.VolumeMounts[i].Name, "tekton-") {
			return &c.VolumeMounts[i]
		}
	}
	panic("the pod has no volume of its own")
}

func dropMount(pod *corev1.Pod) {
	c, name := &pod.Spec.Containers[0], mountOf(pod).Name
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
}

func swapClaim(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].PersistentVolumeClaim != nil {
			pod.Spec.Volumes[i].PersistentVolumeClaim.ClaimName = "evil"
			return
		}
	}
	panic("the pod has no claim")
}

// What decides where and when a pod runs, what only takes rights away and what the API server
// puts in, is not an injection.
func TestAdmittedPods(t *testing.T) {
	f := fixture{observe(t, false)}
	for _, pod := range f.Pods {
		s := &pod.Spec
		s.NodeName, s.SchedulerName, s.PriorityClassName, s.DNSPolicy, s.EnableServiceLinks = "node", "default-scheduler", "usual", corev1.DNSClusterFirst, ptr.To(true)
		s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: "node.kubernetes.io/not-ready"})
		s.ImagePullSecrets, s.DeprecatedServiceAccount = []corev1.LocalObjectReference{{Name: "pull"}}, s.ServiceAccountName
		s.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0"}
		for i := range s.Volumes {
			if v := &s.Volumes[i]; v.Secret != nil {
				v.Secret.DefaultMode = ptr.To(int32(420))
			}
		}
		for i := range s.InitContainers {
			s.InitContainers[i].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), RunAsNonRoot: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
		}
		for i := range s.Containers {
			s.Containers[i].ImagePullPolicy, s.Containers[i].TerminationMessagePolicy = corev1.PullAlways, corev1.TerminationMessageReadFile
			s.Containers[i].Args = append([]string{"-docker-config=login"}, s.Containers[i].Args...)
			if strings.HasPrefix(s.Containers[i].Name, "sidecar-") {
				s.Containers[i].Args = s.Containers[i].Args[1:]
			}
		}
		renameWorkspaces(pod)
	}
	if _, err := attest.Check(*f.Observed); err != nil {
		t.Error(err)
	}
}

// renameWorkspaces gives the volumes of workspaces names as earlier releases of Tekton do.
func renameWorkspaces(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		old := pod.Spec.Volumes[i].Name
		if !strings.HasPrefix(old, "ws-") {
			continue
		}
		pod.Spec.Volumes[i].Name = old + "x"
		for j := range pod.Spec.Containers {
			for k := range pod.Spec.Containers[j].VolumeMounts {
				if m := &pod.Spec.Containers[j].VolumeMounts[k]; m.Name == old {
					m.Name += "x"
				}
			}
		}
	}
}

// A sidecar of Kubernetes counts as the one that is ordered.
func TestNativeSidecars(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		edit func(*corev1.Container)
		want string
	}{
		"as ordered":      {func(*corev1.Container) {}, ""},
		"another image":   {func(c *corev1.Container) { c.Image = "evil" }, "another image"},
		"another command": {func(c *corev1.Container) { c.Command = []string{"evil"} }, "another command"},
		"not restarted":   {func(c *corev1.Container) { c.RestartPolicy = nil }, "another restartPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fixture{observe(t, false)}
			moved := 0
			for _, pod := range f.Pods {
				pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, func(side corev1.Container) bool {
					if !strings.HasPrefix(side.Name, "sidecar-") {
						return false
					}
					side.RestartPolicy = &always
					c.edit(&side)
					pod.Spec.InitContainers, moved = append(pod.Spec.InitContainers, side), moved+1
					return true
				})
			}
			if moved == 0 {
				t.Fatal("no task has a sidecar")
			}
			_, err := attest.Check(*f.Observed)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Labels and annotations of a build reach the pods of an attested mode where its template opens
// them by name, and nowhere else.
func TestOpenLabels(t *testing.T) {
	label := func(b *api.AgentBuild) { b.Spec.Labels = map[string]string{"sidecar.example/inject": "true"} }
	annotation := func(b *api.AgentBuild) {
		b.Spec.Annotations = map[string]string{"sidecar.example/image": "evil"}
	}
	for _, c := range []struct {
		open, want string
		edit       func(*api.AgentBuild)
	}{
		{"", "spec.labels[sidecar.example/inject]: mode prod locks", label},
		{"", "spec.annotations[sidecar.example/image]: mode prod locks", annotation},
		{"  labels: [sidecar.example/inject]\n", "", label},
		{"  annotations: [sidecar.example/image]\n", "", annotation},
		{"  annotations: [sidecar.example/inject]\n", "spec.labels[sidecar.example/inject]: mode prod locks", label},
		{"  labels: [sidecar.example/*]\n", "spec.labels[sidecar.example/inject]: mode prod locks", label},
		{"  annotations: [chains.tekton.dev/signed]\n", "open.annotations[0]: chains.tekton.dev/signed steers Tekton", annotation},
	} {
		_, err := composed(t, func(template string) string { return strings.Replace(template, "open:\n", "open:\n"+c.open, 1) }, compose.Settings{}, c.edit)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("open %q: %v, want %q", c.open, err, c.want)
		}
	}
}

// A repository without a canonical form is not built in any mode that attests, wherever it is
// named.
func TestRepositoryForm(t *testing.T) {
	for _, repository := range []string{
		"https://github.com/acme/weather@refs/../../evil/weather", "https://github.com/acme/../evil/weather", "https://github.com/acme/%2e%2e/evil", "github.com/acme//weather",
		"https://github.com/acme%2fweather", "git@github.com:acme/../evil/weather", "ssh://git@github.com/acme/./weather", "https://github.com/acme/weather?x", "https://me@github.com/acme/weather",
	} {
		for at, edit := range map[string]func(*api.AgentBuild){
			"spec": func(b *api.AgentBuild) { b.Spec.Source.SourceRepository = repository },
			"parameter": func(b *api.AgentBuild) {
				b.Spec.Source.SourceRepository, b.Spec.Pipeline = repository, &api.PipelineSpec{Parameters: []api.Parameter{{Name: "SOURCE_REPO_URL", Value: &repository}}}
			},
		} {
			if _, err := composed(t, nil, compose.Settings{}, edit); err == nil || !strings.Contains(err.Error(), "spec.source.sourceRepository: has ") && !strings.Contains(err.Error(), "spec.source.sourceRepository: names ") {
				t.Errorf("%s by %s: %v", repository, at, err)
			}
		}
	}
}

// The name of an image has one reading, too.
func TestImageForm(t *testing.T) {
	for _, image := range []string{"team1/../team2/weather", "../weather", "team1/./weather", "team1//weather", "team1/weather/..", "team1/-weather"} {
		_, err := composed(t, nil, compose.Settings{}, func(b *api.AgentBuild) { b.Spec.BuildOutput.Image = image })
		if err == nil || !strings.Contains(err.Error(), "spec.buildOutput: ") {
			t.Errorf("%s: %v", image, err)
		}
	}
}
