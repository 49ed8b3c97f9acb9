// Package pin writes the lock of a package: the digests of the images that run.
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
	// Open are the images without a digest, and Digested those with one.
	Open, Digested []string
	// Skills are the names of the skills that workloads mount, by image.
	Skills map[string]string
}

// Images returns the images that run in the rendered objects and, if steps is set, those of build
// steps.
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
	rows, _ := images.Rows(opt.Config) // the render has reported errors in them
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

// unknown returns a finding for each field of an unknown kind that looks like an image, since no
// digest is written into it.
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

// stepImages adds the images of a Tekton TaskSpec to found. It omits images that are parameters.
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

// Resolve resolves images, eight in parallel, and calls resolved after each. It returns all errors.
// Images with a digest are read only if they have to be signed. A new digest of a skill is locked
// only after its content was checked. platform applies to all images; "" keeps the platform of each
// image in before, or means all platforms.
func Resolve(ctx context.Context, found Found, before []api.LockedImage, platform string,
	opt oci.Options, resolved func()) ([]api.LockedImage, error) {
	images := found.Open
	previous := make(map[string]api.LockedImage)
	for _, image := range before {
		previous[image.Image] = image
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
		platform := cmp.Or(platform, previous[image].Platform)
		digest, err := oci.Resolve(ctx, image, platform, opt)
		if named, ok := found.Skills[image]; ok && err == nil && digest != previous[image].Digest {
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

// Change is one difference between two locks.
type Change struct {
	// Image is as written; Build is namespace/name. One of the two is set.
	Image string `json:"image,omitempty"`
	Build string `json:"build,omitempty"`
	// Was and Is are digests, or images of builds; "" if the lock does not contain it.
	Was string `json:"was,omitempty"`
	Is  string `json:"is,omitempty"`
}

// Changes returns the differences between two locks.
func Changes(before, after api.ImageLockSpec) (changes []Change) {
	old, current := entries(before), entries(after)
	both := maps.Clone(old)
	maps.Copy(both, current)
	for _, key := range slices.SortedFunc(maps.Keys(both),
		func(a, b Change) int { return strings.Compare(a.Image+a.Build, b.Image+b.Build) }) {
		if old[key] != current[key] {
			changes = append(changes, Change{key.Image, key.Build, old[key], current[key]})
		}
	}
	return changes
}

// entries returns the pinned values of a lock by image or build.
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

// Title is the metadata.name of a new lock.
const Title = "images"

// Format returns the text of a lock. title is its metadata.name.
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

// Write replaces the file of a lock atomically.
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

// WriteTools replaces the file with the definitions of tools atomically. Without a server it
// removes the file.
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
