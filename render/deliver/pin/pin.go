// Package pin makes the lock of a package: the digests of the images that run.
package pin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/hashicorp/go-multierror"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/pinimages"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Found are the images of a package.
type Found struct {
	// Open have no digest, and Digested have one.
	Open, Digested []string
	// Skills are the skills that workloads mount, by their images.
	Skills map[string]string
}

// Images returns the images that run of what a render makes, and those of build steps on request.
func Images(src render.Source, opt render.Options, builds []api.LockedBuild,
	steps bool) (all Found, findings []finding.Finding, err error) {
	opt.Lock = &api.ImageLock{Spec: api.ImageLockSpec{Builds: builds}}
	opt.Functions = slices.DeleteFunc(functions.Names(),
		func(name string) bool { return name == pinimages.Function().Name })
	opt.ObjectsOnly = true
	result, err := render.Run(src, opt)
	if err != nil || finding.Failed(result.Findings) {
		return Found{}, result.Findings, err
	}
	found := make(map[string]bool)
	all.Skills = make(map[string]string)
	rows, _ := images.Rows(opt.Config) // the render has reported what is wrong with them
	for _, f := range result.Files {
		render.Objects(f, func(o *krm.Object) {
			for _, image := range images.Fields(o, rows...) {
				found[image.Ref] = true
				name, skill := strings.CutPrefix(image.Key(), keys.SkillPrefix)
				if _, pods := o.PodTemplate(); skill && pods {
					all.Skills[image.Ref] = name
				}
			}
			findings = append(findings, unknown(o, rows)...)
			if task := o.Get("data", "task-spec.yaml"); steps && o.Kind == "ConfigMap" && task.Exists() {
				err = multi.Errors(err, stepImages(task.Text(), found))
			}
		})
	}
	delete(found, "")
	for _, image := range slices.Sorted(maps.Keys(found)) {
		if strings.Contains(image, "@") {
			all.Digested = append(all.Digested, image)
		} else {
			all.Open = append(all.Open, image)
		}
	}
	return all, findings, err
}

// unknown reports fields that look like images of kinds that nobody knows: no digest is
// written into them.
func unknown(o *krm.Object, rows []images.Row) (findings []finding.Finding) {
	value, err := o.Value()
	if err != nil {
		return nil // the render has written it
	}
	for _, i := range images.In(value, rows...) {
		if i.Guessed && !i.Pinned() {
			findings = append(findings,
				o.Finding(finding.Warning, "pin-images/unknown-image", i.At(o),
					fmt.Sprintf("%q may be an image, and no digest is written into this field",
						text.Shown(i.Ref)),
					fmt.Sprintf(
						"if it is one, add {group: %q, kind: %s, path: %s} to spec.images of "+
							"the RenderConfig", i.Group, i.Kind, i.Path())))
		}
	}
	return findings
}

// stepImages reads a Tekton TaskSpec. Images that are parameters are left out.
func stepImages(text string, found map[string]bool) error {
	type container struct {
		Image string `json:"image"`
	}
	var task struct {
		Steps, Sidecars []container
		StepTemplate    container
	}
	if err := yaml.Unmarshal([]byte(text), &task); err != nil {
		return fmt.Errorf("reading a task-spec.yaml: %w", err)
	}
	for _, c := range append(append(task.Steps, task.Sidecars...), task.StepTemplate) {
		if !strings.Contains(c.Image, "$") {
			found[c.Image] = true
		}
	}
	return nil
}

// Resolve asks the registries for eight images at once, and calls resolved after each. All
// failures are reported. Images with a digest are looked up only if they have to be signed. A
// skill is checked before a new digest of it gets into the lock.
// platform applies to all images; "" keeps the platform of each image in before, or means all.
func Resolve(ctx context.Context, found Found, before []api.LockedImage, platform string,
	opt oci.Options, resolved func()) ([]api.LockedImage, error) {
	images := found.Open
	was := make(map[string]api.LockedImage)
	for _, image := range before {
		was[image.Image] = image
	}
	locked := make([]api.LockedImage, len(images))
	total := len(images) + len(found.Digested)
	failed := multi.Each(total, func(i int) error {
		if i >= len(images) && opt.Verify == nil {
			return nil
		} else if i >= len(images) {
			_, err := oci.Resolve(ctx, found.Digested[i-len(images)], "", opt)
			return err
		}
		image := images[i]
		platform := cmp.Or(platform, was[image].Platform)
		digest, err := oci.Resolve(ctx, image, platform, opt)
		if named, ok := found.Skills[image]; ok && err == nil && digest != was[image].Digest {
			var ref name.Reference
			if ref, err = name.ParseReference(image, opt.Names()...); err == nil {
				_, err = sign.CheckSkill(ctx, ref.Context().Digest(digest), named,
					sign.Policy{Access: opt.Access})
			}
		}
		locked[i] = api.LockedImage{Image: image, Digest: digest, Platform: platform}
		resolved()
		return err
	})
	if n := len(failed); n > 1 {
		failed = append(failed,
			fmt.Errorf("%d of %s cannot be resolved: the lock stays as it was\n"+
				"  hint: see whether this machine reaches the registry and is logged in to it", n,
				text.Count(total, "image")))
	}
	return locked, multierror.Append(nil, failed...).ErrorOrNil()
}

// Change is one line of the difference between two locks.
type Change struct {
	// Image is as written; Build is namespace/name. One of the two is set.
	Image string `json:"image,omitempty"`
	Build string `json:"build,omitempty"`
	// Was and Is are digests, or images of builds; "" is not in the lock.
	Was string `json:"was,omitempty"`
	Is  string `json:"is,omitempty"`
}

// Changes between two locks.
func Changes(before, after api.ImageLockSpec) (changes []Change) {
	was, is := entries(before), entries(after)
	both := maps.Clone(was)
	maps.Copy(both, is)
	for _, key := range slices.SortedFunc(maps.Keys(both),
		func(a, b Change) int { return strings.Compare(a.Image+a.Build, b.Image+b.Build) }) {
		if was[key] != is[key] {
			changes = append(changes, Change{key.Image, key.Build, was[key], is[key]})
		}
	}
	return changes
}

// entries returns the values of a lock by what they pin.
func entries(spec api.ImageLockSpec) map[Change]string {
	all := make(map[Change]string)
	for _, image := range spec.Images {
		all[Change{Image: image.Image}] = strings.TrimSpace(image.Digest + " " + image.Platform)
	}
	for _, b := range spec.Builds {
		all[Change{Build: b.Namespace + "/" + b.Name}] = b.Image
	}
	return all
}

// Title of a lock that names none.
const Title = "images"

// Format is the text of a lock, as Write writes it. title is its metadata.name.
func Format(title string, spec api.ImageLockSpec) ([]byte, error) {
	text, err := yaml.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `# Written by armature pin, applied by every render. Keep it in Git.
apiVersion: %s
kind: ImageLock
metadata:
  name: %s
  annotations:
    config.kubernetes.io/local-config: "true"
spec:
%s`, api.RenderV1alpha1, title, krm.AppendIndented(nil, text, 2, "\n")), nil
}

// Write replaces the file of a lock at once.
func Write(file string, before *api.ImageLock, spec api.ImageLockSpec) error {
	title := Title
	if before != nil && before.Name != "" {
		title = before.Name
	}
	text, err := Format(title, spec)
	if err != nil {
		return err
	}
	return replace(file, text)
}

// WriteTools replaces the file of the definitions of tools at once. Without a server there
// is none.
func WriteTools(file string, servers []tools.Server) error {
	if len(servers) == 0 {
		if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := tools.Format(servers)
	if err != nil {
		return err
	}
	if len(text) > tools.MaxFile {
		return fmt.Errorf("the definitions have more than %d MiB", tools.MaxFile>>20)
	}
	return replace(file, text)
}

func replace(file string, text []byte) error {
	next, err := os.CreateTemp(filepath.Dir(file), ".armature.lock-")
	if err != nil {
		return err
	}
	_, err = next.Write(text)
	err = multi.Errors(err, next.Chmod(0o644), next.Close())
	if err == nil {
		err = os.Rename(next.Name(), file)
	}
	if err != nil {
		return multi.Errors(err, os.Remove(next.Name()))
	}
	return nil
}
