// Package pinimages adds the digests of a lock to the images of containers.
package pinimages

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
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
		New: func(p *contract.Package) contract.Steps {
			s := &state{pkg: p}
			if p.Lock != nil {
				p.Report.Add(s.lock.Add(p.Lock)...)
			}
			return contract.Steps{Collect: s.collect, Run: s.run, Lock: &s.lock}
		},
	}
}

// state holds the locks of a package.
type state struct {
	pkg  *contract.Package
	lock Lock
}

func (s *state) collect(o *krm.Object) {
	lock := api.ImageLock{Origin: contract.OriginOf(o)}
	if findings := o.Decode(function+"/field", &lock); finding.Failed(findings) {
		s.pkg.Report.Add(findings...)
		return
	}
	s.pkg.Report.Add(s.lock.Add(&lock)...)
}

// run adds the digests of the lock to all images that run, and writes the digest of a tool server's
// tools into its annotation. It does nothing in packages without a lock.
func (s *state) run(u *contract.Unit) {
	if len(s.lock.images)+len(s.lock.tools) == 0 || u.Consumed || !u.Settle() {
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
	var unlocked []string // a skill's annotation and volume have the same image
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

// Lock is the content of all ImageLocks of a package. The zero Lock is empty.
type Lock struct {
	images map[string]locked // by the image as it is written
	builds map[build]locked
	tools  map[api.ToolServer]locked
	cards  map[string][]a2a.Signature // by the digest of the payload
}

type build struct{ namespace, name string }

// locked is a digest, or an image with its digest, and the place of the lock.
type locked struct{ value, place string }

var (
	digestForm = text.Pattern(`^sha256:[0-9a-f]{64}$`)
	imageForm  = text.Pattern(`^[A-Za-z0-9][A-Za-z0-9._/:-]*$`)
	base64Form = text.Pattern(`^[A-Za-z0-9_-]+$`)
	builtForm  = text.Pattern(`^[A-Za-z0-9][A-Za-z0-9._/:-]*@sha256:[0-9a-f]{64}$`)
)

// Add adds an ImageLock. Invalid entries, and entries that contradict earlier ones, are findings.
func (l *Lock) Add(lock *api.ImageLock) (findings []finding.Finding) {
	failIf := func(wrong bool, field, format string, values ...any) bool {
		if wrong {
			findings = append(findings, finding.Finding{Rule: "pin-images/lock",
				Severity: finding.Error, Message: fmt.Sprintf(format, values...),
				Hint: "run `armature pin` to rewrite the lock",
				Place: finding.Place{File: lock.Origin.File, Line: lock.Origin.LineOf(field),
					Field: field}})
		}
		return wrong
	}
	noDigest := func(field, value string) bool {
		return failIf(!digestForm().MatchString(value), field,
			"%q is not a digest: it starts with sha256: and has 64 hexadecimal digits",
			text.Shown(value))
	}
	if l.images == nil {
		l.images, l.builds, l.tools, l.cards = make(map[string]locked), make(map[build]locked),
			make(map[api.ToolServer]locked), make(map[string][]a2a.Signature)
	}
	place := fmt.Sprintf("%s:%d", lock.Origin.File, lock.Origin.Line)
	for i, image := range lock.Spec.Images {
		field := fmt.Sprintf("spec.images[%d]", i)
		other, known := l.images[image.Image]
		if !failIf(!imageForm().MatchString(image.Image), field+".image",
			"%q is not an image without a digest", text.Shown(image.Image)) &&
			!noDigest(field+".digest", image.Digest) &&
			!failIf(known && other.value != image.Digest, field, "%s has another digest in %s",
				image.Image, other.place) {
			l.images[image.Image] = locked{image.Digest, place}
		}
	}
	for i, b := range lock.Spec.Builds {
		field := fmt.Sprintf("spec.builds[%d]", i)
		other, known := l.builds[build{b.Namespace, b.Name}]
		if !failIf(b.Name == "", field+".name", "a build without a name") &&
			!failIf(!builtForm().MatchString(b.Image), field+".image",
				"%q is not an image with a digest", text.Shown(b.Image)) &&
			!failIf(known && other.value != b.Image, field,
				"the build %s/%s has another image in %s", b.Namespace, b.Name, other.place) {
			l.builds[build{b.Namespace, b.Name}] = locked{b.Image, place}
		}
	}
	for i, t := range lock.Spec.Tools {
		field := fmt.Sprintf("spec.tools[%d]", i)
		other, known := l.tools[t.ToolServer]
		if !failIf(t.Name == "" || t.Kind == "", field, "a tool server without a kind or a name") &&
			!noDigest(field+".digest", t.Digest) &&
			!failIf(known && other.value != t.Digest, field, "%s has other tools in %s",
				t.ToolServer, other.place) {
			l.tools[t.ToolServer] = locked{t.Digest, place}
		}
	}
	for i, c := range lock.Spec.Cards {
		field := fmt.Sprintf("spec.cards[%d]", i)
		if !noDigest(field+".payload", c.Payload) &&
			!failIf(!base64Form().MatchString(c.Protected) ||
				!base64Form().MatchString(c.Signature), field,
				"protected and signature are not in base64url") {
			l.cards[c.Payload] = append(l.cards[c.Payload],
				a2a.Signature{Protected: c.Protected, Signature: c.Signature})
		}
	}
	return findings
}

// Image returns an image with its digest. It returns an image that has a digest, or that the lock
// does not know, unchanged.
func (l *Lock) Image(image string) string {
	if found, ok := l.images[image]; ok {
		return image + "@" + found.value
	}
	return image
}

// SignCard puts the signatures of the lock into the text of an agent card. known is false if the
// lock has signatures, but none of this card.
func (l *Lock) SignCard(card []byte) (signed []byte, known bool, err error) {
	if len(l.cards) == 0 {
		return card, true, nil
	}
	payload, err := a2a.Payload(card)
	if err != nil {
		return nil, false, err
	}
	signatures, known := l.cards[a2a.Digest(payload)]
	if !known {
		return card, false, nil
	}
	signed, err = a2a.Sign(card, signatures)
	return signed, true, err
}

// Built returns the image of a finished AgentBuild, with its digest.
func (l *Lock) Built(namespace, name string) (image string, found bool) {
	b, found := l.builds[build{namespace, name}]
	return b.value, found
}
