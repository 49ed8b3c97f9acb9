package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/multi"
)

const skillText = "---\nname: pdf-processing\ndescription: Extract text from PDF files. Use it " +
	"with PDFs.\n---\n\n# Steps\n"

// skilledPackage names one skill in each way.
const skilledPackage = `apiVersion: v1
kind: Pod
metadata:
  name: reader
  namespace: team1
  annotations:
    skill.armature.dev/pdf-processing: oci://REGISTRY/skills/pdf-processing:v1
spec:
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: agent
    image: REGISTRY/agent:v1
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata: {name: research, namespace: team1}
spec:
  imageSource: {image: "REGISTRY/agent:v1"}
  skills: [{ref: "oci://REGISTRY/skills/pdf-processing:v1"}]
  podTemplateSpec: {spec: {containers: [{name: agent}]}}
---
apiVersion: kagent.dev/v1alpha2
kind: Agent
metadata: {name: older, namespace: team1}
spec:
  type: BYO
  byo: {deployment: {image: "REGISTRY/agent:v1"}}
  skills: {refs: ["REGISTRY/skills/pdf-processing:v1"]}
---
apiVersion: api.kagent.dev/v1alpha3
kind: AgentTemplate
metadata: {name: newer, namespace: team1}
spec:
  skills:
  - name: pdf-processing
    source: {oci: "REGISTRY/skills/pdf-processing:v1"}
`

// skills is a package with skills, a registry, and a cluster whose namespace has the Pod Security
// level restricted.
type skills struct {
	*deliveryTest
	*testing.T
	apps string
}

func (s *skills) image(ref string, image v1.Image) name.Digest {
	s.Helper()
	tag, err := name.NewTag(s.registry + "/" + ref)
	if err == nil {
		err = remote.Write(tag, image)
	}
	if err != nil {
		s.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		s.Fatal(err)
	}
	return tag.Context().Digest(digest.String())
}

func (s *skills) replace(file, old, with string) {
	s.Helper()
	text, err := os.ReadFile(file)
	if err == nil && !bytes.Contains(text, []byte(old)) {
		s.Fatalf("%s has no %q", file, old)
	}
	if err := multi.Errors(err,
		os.WriteFile(file, bytes.ReplaceAll(text, []byte(old), []byte(with)), 0o600)); err != nil {
		s.Fatal(err)
	}
}

// TestSkills: a skill is published, signed and attested; a package that names it in each way is
// pinned and verified; the API server takes what is rendered, in a namespace of level restricted;
// an image with a link out of it gets neither into the lock nor past the gate.
func TestSkills(t *testing.T) {
	s := &skills{deliver(t), t, ""}
	pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) {
		return []byte("a password"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "COSIGN_PASSWORD=a password", "HOME="+s.dir, "DOCKER_CONFIG="+s.dir)
	key, public := s.write(t, "ours.key", string(pair.PrivateBytes)), s.write(t, "ours.pub",
		string(pair.PublicBytes))
	policy := s.write(t, "policy.yaml",
		"apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nmetadata: {name: a}\n"+
			"spec: {keys: [ours.pub], insecureIgnoreTlog: true}\n")
	s.write(t, "skills/pdf-processing/SKILL.md", skillText)

	ref := "oci://" + s.registry + "/skills/pdf-processing:v1"
	out, _ := s.run(t, 0, "skill", "push", filepath.Join(s.dir, "skills/pdf-processing"), ref,
		"--sign", "--key", key, "--tlog-upload=false")
	pushed := strings.TrimSpace(out)
	root := s.write(t, "root.json",
		`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)
	for program, flags := range map[string][]string{"cosign": {"--new-bundle-format",
		"--trusted-root", root}, "cosign3": nil} {
		for _, command := range [][]string{{"verify"},
			{"verify-attestation", "--type", "slsaprovenance1"}} {
			args := slices.Concat(command, flags,
				[]string{"--insecure-ignore-tlog=true", "--key", public, pushed})
			out, err := exec.CommandContext(t.Context(), programs.Peer(t, program),
				args...).CombinedOutput()
			if err != nil {
				t.Errorf("%s %v: %v: %s", program, args, err, out)
			}
		}
	}
	out, shown := s.run(t, 0, "skill", "verify", ref, "--verify-policy", policy)
	if strings.TrimSpace(out) != pushed ||
		!strings.Contains(shown, "verified the skill pdf-processing: Extract text") {
		t.Errorf("%s%s", out, shown)
	}
	out, _ = s.run(t, 0, "artifact", "verify", ref, "--key", public, "--insecure-ignore-tlog",
		"--provenance", "-o", "yaml")
	if !strings.Contains(out, "https://armature.dev/skill/v1") ||
		!strings.Contains(out, "name: SKILL.md") {
		t.Errorf("the provenance is %s", out)
	}
	for _, name := range []string{"agent:v1", "kagent-dev/kagent/skills-init:0.10.0-rc3"} {
		made, err := random.Image(16, 1)
		if err == nil {
			err = attestBuild(s.image(name, made), key, "a password", "")
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	s.apps = filepath.Join(s.dir, "apps")
	config := s.write(t, "apps/armature.yaml",
		"apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nspec:\n  skills: {mount: image}\n"+
			"  kagent: {imageRegistry: "+s.registry+"}\n")
	s.write(t, "apps/agents.yaml", strings.ReplaceAll(skilledPackage, "REGISTRY", s.registry))
	if found, _ := s.run(t, 0, "lint",
		s.apps); strings.Count(found, `skills/pdf-processing:v1" has no digest`) != 2 {
		t.Errorf("lint finds %s", found)
	}
	s.run(t, 0, "pin", s.apps)
	lock := filepath.Join(s.apps, "armature.lock")
	if found, _ := s.run(t, 0, "lint", s.apps); strings.Contains(found, "has no digest") {
		t.Errorf("with the lock, lint finds %s", found)
	}

	c := s.deliveryTest.Client
	namespace := &corev1.Namespace{}
	err = c.Get(t.Context(), client.ObjectKey{Name: "team1"}, namespace)
	namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	if err := multi.Errors(err, c.Update(t.Context(), namespace),
		c.Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team1",
				Name: "default"}})); err != nil {
		t.Fatal(err)
	}
	for _, mount := range []string{"image", "init"} {
		if mount == "init" {
			s.replace(config, "mount: image", "mount: init")
			s.run(t, 0, "pin", s.apps) // the image of the init container is new
		}
		rendered := filepath.Join(s.dir, mount)
		s.run(t, 0, "render", s.apps, "-d", rendered, "--verify-images", policy)
		s.accepted(filepath.Join(rendered, "agents.yaml"), mount,
			pushed[strings.Index(pushed, "@"):])
	}

	// The tag moves to a signed image whose file leads out of it.
	hostile := s.image("skills/pdf-processing:v1", linked(t))
	if err := attestBuild(hostile, key, "a password", ""); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	const refused, remedy = `"notes" is a link: put the file itself there`,
		"hint: publish its folder with `armature skill push`"
	_, shown = s.run(t, 1, "pin", s.apps)
	after, err := os.ReadFile(lock)
	if !strings.Contains(shown, refused) || !strings.Contains(shown, remedy) || err != nil ||
		!bytes.Equal(before, after) {
		t.Errorf("pin says %s, and writes %s (%v)", shown, after, err)
	}
	s.replace(lock, pushed[strings.Index(pushed, "@")+1:], hostile.DigestStr())
	_, shown = s.run(t, 1, "render", s.apps, "-d", filepath.Join(s.dir, "never"), "--verify-images",
		policy)
	if _, err := os.Stat(filepath.Join(s.dir, "never")); !os.IsNotExist(err) ||
		!strings.Contains(shown, "agents.yaml:1") || !strings.Contains(shown, refused) ||
		!strings.Contains(shown, remedy) {
		t.Errorf("render says %s (%v)", shown, err)
	}
	s.run(t, 0, "render", s.apps, "-d", filepath.Join(s.dir, "unverified"))
	_, shown = s.run(t, 1, "skill", "verify", ref, "--verify-policy", policy)
	if !strings.Contains(shown, refused) {
		t.Errorf("skill verify says %s", shown)
	}
	other, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "other.pub", string(other.PublicBytes))
	theirs := s.write(t, "theirs.yaml",
		"apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nmetadata: {name: a}\n"+
			"spec: {keys: [other.pub], insecureIgnoreTlog: true}\n")
	_, shown = s.run(t, 1, "skill", "verify", "oci://"+pushed, "--verify-policy", theirs)
	if !strings.Contains(shown, "is not trusted") {
		t.Errorf("with another key, skill verify says %s", shown)
	}
}

// accepted creates what was rendered in the cluster, and looks at the skills of the Pod.
func (s *skills) accepted(file, mount, digest string) {
	s.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	ref := s.registry + "/skills/pdf-processing:v1"
	for line := range strings.Lines(string(text)) {
		authors := strings.HasPrefix(line, "#|") || strings.Contains(line, "armature.dev/source") ||
			strings.Contains(line, "armature.dev/changed")
		if !authors && strings.Count(line, ref) != strings.Count(line, ref+digest) {
			s.Errorf("a skill has no digest: %s", line)
		}
	}
	if !bytes.Contains(text, []byte(`{oci: "`+ref+digest+`"}`)) {
		s.Errorf("kagent 1.0 has no skill in\n%s", text)
	}
	created, ofKagent := 0, ""
	for _, document := range strings.Split(string(text), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			s.Fatal(err)
		}
		if o.GetKind() == "" || strings.HasSuffix(o.GroupVersionKind().Group, "kagent.dev") {
			continue // a comment, and a kind that this cluster does not have
		}
		if o.GetKind() == "Pod" {
			s.refusesRoot(o.DeepCopy())
		}
		if err := s.Create(s.Context(), o,
			&client.CreateOptions{Raw: &metav1.CreateOptions{FieldValidation: "Strict"}}); err != nil {
			s.Errorf("%s with %s: %v\n%s", o.GetKind(), mount, err, document)
			continue
		}
		created++
		if o.GetName() == "older-skills-init" {
			ofKagent, _, _ = unstructured.NestedString(o.Object, "data", "config.json")
		}
		if o.GetKind() == "Pod" {
			s.mounted(o, mount, digest)
		}
		if err := s.Delete(s.Context(), o, client.GracePeriodSeconds(0)); err != nil {
			s.Error(err)
		}
	}
	if want := `{"ociRefs":[{"image":"` + ref + digest +
		`","dest":"/skills/pdf-processing"}]}`; created < 6 || ofKagent != want {
		s.Errorf("%d objects were created; kagent 0.x fetches %s", created, ofKagent)
	}
}

// refusesRoot: the API server does hold pods to the level.
func (s *skills) refusesRoot(o *unstructured.Unstructured) {
	if err := unstructured.SetNestedField(o.Object, false, "spec", "securityContext",
		"runAsNonRoot"); err != nil {
		s.Fatal(err)
	}
	if err := s.Create(s.Context(), o); !apierrors.IsForbidden(err) {
		s.Errorf("the API server takes a pod as root: %v", err)
	}
}

// mounted looks at what the API server has of the Pod.
func (s *skills) mounted(o *unstructured.Unstructured, mount, digest string) {
	pod := &corev1.Pod{}
	if err := s.Get(s.Context(), client.ObjectKeyFromObject(o), pod); err != nil {
		s.Fatal(err)
	}
	found := ""
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			found += v.Image.Reference + " " + string(v.Image.PullPolicy)
		}
	}
	ref, path := s.registry+"/skills/pdf-processing:v1"+digest, ""
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		if m.ReadOnly && strings.HasPrefix(m.MountPath, "/skills") {
			path += m.MountPath
		}
	}
	switch {
	case mount == "image" && (found != ref+" IfNotPresent" || path != "/skills/pdf-processing"):
		s.Errorf("the image volumes are %q, mounted at %q", found, path)
	case mount == "init" &&
		(found != "" || path != "/skills" || len(pod.Spec.InitContainers) != 1 ||
			pod.Annotations["armature.dev/skills-init"] != `{"ociRefs":[{"image":"`+ref+
				`","dest":"/skills/pdf-processing"}]}`):
		s.Errorf("the annotations are %q, mounted at %q", pod.Annotations, path)
	}
}

// linked is the image of a skill with a link out of it.
func linked(t *testing.T) v1.Image {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "SKILL.md", Mode: 0o644,
		Size: int64(len(skillText))})
	if err == nil {
		_, err = w.Write([]byte(skillText))
	}
	err = multi.Errors(err,
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "notes",
			Linkname: "/var/run/secrets"}), w.Close(), zip.Close())
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		static.NewLayer(b.Bytes(), types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	return image
}
