package functions

import (
	"fmt"

	"github.com/armature-dev/armature/functions/krm"
)

// pinning reports whether there is anything to pin with. Nothing is looked up
// in packages without a lock.
func (p *Package) pinning() bool { return p.Pins && !p.lock.Empty() }

// runPinImages writes the digests of the lock behind the images of all
// containers.
func runPinImages(u *Unit) {
	if !u.pinning() || !u.settle() {
		return
	}
	pod, ok := u.PodTemplate()
	if !ok {
		return
	}
	pins, unknown := u.lock.Find(pod)
	for _, pin := range pins {
		u.changes.Set("pin-images", pin.Container, nil, "image", pin.Container.Get("image").Dress(pin.Image))
	}
	for _, image := range unknown {
		u.report(krm.Warning, "pin-images/not-locked", image, fmt.Sprintf("the lock has no digest of %s", image.Text()), "run `armature pin`")
	}
}
