package pinimages

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/tools"
)

//go:embed README.md
var page string

const function = "pin-images"

// Function pins images.
func Function() contract.Function {
	return contract.Function{
		Name:    function,
		Summary: "pin images, and the tools of tool servers, to the digests of the lock",
		Page:    page,
		Kinds: []contract.Kind{{
			Name: "ImageLock", Groups: []contract.Group{{Name: keys.Group, Open: true}},
			Versions: []string{"v1alpha1"}, Use: contract.Stays, Shared: true,
		}},
		Reasons: contract.Lock,
		New:     begin,
	}
}

// state is what is known of a package.
type state struct {
	pkg  *contract.Package
	lock Lock
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p}
	if p.Lock != nil {
		p.Report.Add(s.lock.Add(p.Lock)...)
	}
	return contract.Steps{Collect: s.collect, Run: s.run, BuiltImage: s.lock.Built,
		Pinned: s.lock.Image, SignCard: s.lock.SignCard}
}

func (s *state) collect(o *krm.Object) {
	lock := api.ImageLock{Origin: contract.OriginOf(o)}
	if findings := o.Decode(function+"/field", &lock); finding.Failed(findings) {
		s.pkg.Report.Add(findings...)
		return
	}
	s.pkg.Report.Add(s.lock.Add(&lock)...)
}

// run writes the digests of the lock behind all images that run, and those of the tools of
// a tool server into its annotation. Nothing is looked up in packages without a lock.
func (s *state) run(u *contract.Unit) {
	if s.lock.Empty() || u.Consumed || !u.Settle() {
		return
	}
	if server, ok := tools.ServerOf(u.Object); ok && len(s.lock.tools) > 0 {
		if locked, known := s.lock.tools[server]; known {
			u.Changes.Set(function, u.Object.Root(), []string{"metadata", "annotations"},
				keys.ToolsDigest, locked.value)
		} else {
			u.Report(finding.Warning, function+"/not-locked", u.Object.Get("metadata", "name"),
				"the lock has no tools of "+server.String(), "run `armature tools pin`")
		}
	}
	var unlocked []string // skills: an annotation and a volume have the same image
	for _, at := range images.Fields(u.Object, s.pkg.Images...) {
		image := at.Ref
		if image == "" || strings.Contains(image, "@") {
			continue
		}
		switch pinned := s.lock.Image(image); {
		case slices.Contains(unlocked, image):
		case pinned == image:
			if strings.HasPrefix(at.Key(), keys.SkillPrefix) {
				unlocked = append(unlocked, image)
			}
			u.Report(finding.Warning, function+"/not-locked", at.Node,
				fmt.Sprintf("the lock has no digest of %s", image), "run `armature pin`")
		case !at.Known:
			u.Report(finding.Warning, function+"/not-locked", at.Node,
				fmt.Sprintf(
					"%s is in an item of a list without a name, so its digest is not written",
					image),
				"give the item a name, or write "+pinned)
		default:
			u.Changes.Set(function, at.In, nil, at.Key(),
				at.Dress(strings.TrimSuffix(at.Text(), image)+pinned))
		}
	}
}
