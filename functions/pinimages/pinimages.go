// Package pinimages writes the digests of a lock behind the images of
// containers.
package pinimages

import (
	"fmt"

	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// Lock is the content of all ImageLocks of a package. The zero Lock is empty.
type Lock struct {
	images map[string]locked // by the image as it is written
	builds map[build]locked
	tools  map[api.ToolServer]locked
	cards  map[string][]a2a.Signature // by the digest of what they sign
}

type build struct{ namespace, name string }

// locked is a digest, or an image with its digest, and where the lock says so.
type locked struct{ value, place string }

var (
	digestForm = text.Pattern(`^sha256:[0-9a-f]{64}$`)
	imageForm  = text.Pattern(`^[A-Za-z0-9][A-Za-z0-9._/:-]*$`)
	base64Form = text.Pattern(`^[A-Za-z0-9_-]+$`)
	builtForm  = text.Pattern(`^[A-Za-z0-9][A-Za-z0-9._/:-]*@sha256:[0-9a-f]{64}$`)
)

// Add takes an ImageLock in. Entries that make no sense, and those that
// contradict what is known, are findings.
func (l *Lock) Add(lock *api.ImageLock) (findings []finding.Finding) {
	report := func(field, message string) {
		f := finding.Finding{Rule: "pin-images/lock", Severity: finding.Error, Message: message,
			Hint:  "run `armature pin` to rewrite the lock",
			Place: finding.Place{File: lock.Origin.File, Line: lock.Origin.LineOf(field), Field: field}}
		findings = append(findings, f)
	}
	if l.images == nil {
		l.images, l.builds, l.tools, l.cards = make(map[string]locked), make(map[build]locked),
			make(map[api.ToolServer]locked), make(map[string][]a2a.Signature)
	}
	place := fmt.Sprintf("%s:%d", lock.Origin.File, lock.Origin.Line)
	for i, image := range lock.Spec.Images {
		field := fmt.Sprintf("spec.images[%d]", i)
		other, known := l.images[image.Image]
		switch {
		case !imageForm().MatchString(image.Image):
			report(field+".image",
				fmt.Sprintf("%q is not an image without a digest", text.Shown(image.Image)))
		case !digestForm().MatchString(image.Digest):
			report(field+".digest",
				fmt.Sprintf("%q is not a digest: it starts with sha256: and has 64 "+
					"hexadecimal digits", text.Shown(image.Digest)))
		case known && other.value != image.Digest:
			report(field, fmt.Sprintf("%s has another digest in %s", image.Image, other.place))
		default:
			l.images[image.Image] = locked{image.Digest, place}
		}
	}
	for i, b := range lock.Spec.Builds {
		field := fmt.Sprintf("spec.builds[%d]", i)
		other, known := l.builds[build{b.Namespace, b.Name}]
		switch {
		case b.Name == "":
			report(field+".name", "a build without a name")
		case !builtForm().MatchString(b.Image):
			report(field+".image",
				fmt.Sprintf("%q is not an image with a digest", text.Shown(b.Image)))
		case known && other.value != b.Image:
			report(field, fmt.Sprintf("the build %s/%s has another image in %s", b.Namespace,
				b.Name, other.place))
		default:
			l.builds[build{b.Namespace, b.Name}] = locked{b.Image, place}
		}
	}
	for i, t := range lock.Spec.Tools {
		field := fmt.Sprintf("spec.tools[%d]", i)
		other, known := l.tools[t.ToolServer]
		switch {
		case t.Name == "" || t.Kind == "":
			report(field, "a tool server without a kind or a name")
		case !digestForm().MatchString(t.Digest):
			report(field+".digest",
				fmt.Sprintf("%q is not a digest: it starts with sha256: and has 64 "+
					"hexadecimal digits", text.Shown(t.Digest)))
		case known && other.value != t.Digest:
			report(field, fmt.Sprintf("%s has other tools in %s", t.ToolServer, other.place))
		default:
			l.tools[t.ToolServer] = locked{t.Digest, place}
		}
	}
	for i, c := range lock.Spec.Cards {
		field := fmt.Sprintf("spec.cards[%d]", i)
		switch {
		case !digestForm().MatchString(c.Payload):
			report(field+".payload",
				fmt.Sprintf("%q is not a digest: it starts with sha256: and has 64 "+
					"hexadecimal digits", text.Shown(c.Payload)))
		case !base64Form().MatchString(c.Protected) || !base64Form().MatchString(c.Signature):
			report(field, "protected and signature are not in base64url")
		default:
			l.cards[c.Payload] = append(l.cards[c.Payload],
				a2a.Signature{Protected: c.Protected, Signature: c.Signature})
		}
	}
	return findings
}

// Empty reports whether the lock knows no image and no tool server.
func (l *Lock) Empty() bool { return len(l.images)+len(l.tools) == 0 }

// Image returns an image with its digest. An image that has one, and an image
// that the lock does not know, come back as they are.
func (l *Lock) Image(image string) string {
	if found, ok := l.images[image]; ok {
		return image + "@" + found.value
	}
	return image
}

// SignCard puts the signatures of the lock into the text of an agent card. known is false
// where the lock has signatures, and none of this card.
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
