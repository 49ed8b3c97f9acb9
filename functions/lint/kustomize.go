package lint

import "strings"

// Kustomization is what a kustomization of the package makes of names.
// Patches and other transformers are not followed.
type Kustomization struct {
	// File is its path in the package.
	File string
	// NamePrefix, NameSuffix and Namespace are set on everything it builds.
	NamePrefix, NameSuffix, Namespace string
	// Images are its replacements of images, in order.
	Images []KustomizeImage
	// Generated are its ConfigMaps and Secrets, by the names that are referred to.
	Generated []Generated
	// Manifests are the files, and Bases the kustomizations, that it builds.
	Manifests []string
	Bases     []*Kustomization
}

// KustomizeImage is an entry of images: what is empty stays.
type KustomizeImage struct{ Name, NewName, NewTag, Digest string }

// Generated is a ConfigMap or Secret of a generator.
type Generated struct{ Kind, Namespace, Name string }

// Kustomize makes the kustomizations of a package known. It comes before Collect.
func (p *Package) Kustomize(all []*Kustomization) { p.kustomizations = all }

// layer is what the kustomizations on the way to a file set, the innermost first.
type layer []*Kustomization

// name is what a build makes of a name.
func (l layer) name(name string) string {
	for _, k := range l {
		name = k.NamePrefix + name + k.NameSuffix
	}
	return name
}

// namespace is what a build makes of a namespace: the outermost one decides.
func (l layer) namespace(namespace string) string {
	for _, k := range l {
		if k.Namespace != "" {
			namespace = k.Namespace
		}
	}
	return namespace
}

func (l layer) image(image string) string {
	for _, k := range l {
		for _, r := range k.Images {
			if repository(image) != r.Name {
				continue
			}
			rest := image[len(r.Name):]
			switch {
			case r.Digest != "":
				rest = "@" + r.Digest
			case r.NewTag != "":
				rest = ":" + r.NewTag
			}
			if r.NewName != "" {
				image = r.NewName
			} else {
				image = r.Name
			}
			image += rest
			break
		}
	}
	return image
}

// build is the outcome of one kustomization.
type build struct {
	file      string           // of the kustomization
	manifests map[string]layer // by file
	objects   map[id]bool      // under their names before and after the build
	generated map[id]bool
}

// Limits of what is followed: beyond them findings stay.
const (
	maxDepth = 32      // of kustomizations on top of each other
	maxBuilt = 200_000 // files of all kustomizations together
)

// located is an object of a file that a kustomization may build.
type located struct {
	file string
	id   id
}

// link finds what each kustomization builds, once all objects are known.
func (p *Package) link() {
	p.builds = make(map[string][]*build)
	objects := make(map[string][]id)
	defer func() { p.located = nil }()
	for _, l := range p.located {
		objects[l.file] = append(objects[l.file], l.id)
	}
	room := maxBuilt
	for _, k := range p.kustomizations {
		b := &build{k.File, make(map[string]layer), make(map[id]bool), make(map[id]bool)}
		b.include(k, nil, make(map[*Kustomization]bool))
		if room -= len(b.manifests); room < 0 {
			return
		}
		for file, l := range b.manifests {
			p.builds[file] = append(p.builds[file], b)
			for _, o := range objects[file] {
				b.add(b.objects, l, o)
			}
		}
	}
}

// include follows a kustomization once, be it a base of two others or of itself.
func (b *build) include(k *Kustomization, outer layer, seen map[*Kustomization]bool) {
	if seen[k] || len(outer) == maxDepth {
		return
	}
	seen[k] = true
	l := append(layer{k}, outer...)
	for _, file := range k.Manifests {
		if _, known := b.manifests[file]; !known {
			b.manifests[file] = l
		}
	}
	for _, g := range k.Generated {
		b.add(b.objects, l, id{g.Kind, g.Namespace, g.Name})
		b.add(b.generated, l, id{g.Kind, g.Namespace, g.Name})
	}
	for _, base := range k.Bases {
		b.include(base, l, seen)
	}
}

func (b *build) add(to map[id]bool, l layer, o id) {
	namespace := l.namespace(o.namespace)
	if clusterWide[o.kind] {
		namespace = ""
	}
	to[key(o.kind, namespace, o.name)] = true
	to[key(o.kind, namespace, l.name(o.name))] = true
}

// built reports whether a kustomization that builds the object at hand builds
// one of a kind and name too, in the namespace that is asked for or the one that
// the build puts everything into.
func (c *checker) built(kind, namespace, name string) bool {
	for _, b := range c.builds[c.Origin.File] {
		after := b.manifests[c.Origin.File].namespace(namespace)
		if b.objects[key(kind, namespace, name)] || b.objects[key(kind, after, name)] {
			return true
		}
	}
	return false
}

// generated reports whether such a kustomization generates, or adds to, an object.
func (c *checker) generated(kind, name string) bool {
	for _, b := range c.builds[c.Origin.File] {
		if b.generated[key(kind, b.manifests[c.Origin.File].namespace(c.Namespace), name)] {
			return true
		}
	}
	return false
}

// builtPods reports whether such a kustomization puts pods that a selector
// selects into the namespace of the object at hand.
func (c *checker) builtPods(want map[string]string) bool {
	for _, b := range c.builds[c.Origin.File] {
		namespace := home(b.manifests[c.Origin.File].namespace(c.Namespace))
		for _, pod := range c.pods {
			if l, ok := b.manifests[pod.file]; ok && pod.matches(want) && home(l.namespace(pod.ref.Namespace)) == namespace {
				return true
			}
		}
	}
	return false
}

// image is what the kustomizations of a file make of an image. Where two
// disagree, one that names a version is enough.
func (p *Package) image(file, image string) string {
	result := image
	for _, b := range p.builds[file] {
		if now := b.manifests[file].image(image); now != image {
			if result = now; !floating(now) {
				break
			}
		}
	}
	return result
}

// Unread notes the text of a file that cannot be read as manifests: objects that
// others ask for may be in it, and its own finding comes first.
func (p *Package) Unread(text []byte) { p.unread = append(p.unread, string(text)) }

// mayHold reports whether text that could not be read has lines with each of the fields.
func (p *Package) mayHold(fields map[string]string) bool {
	for _, text := range p.unread {
		left := len(fields)
		for key, value := range fields {
			for line := range strings.Lines(text) {
				k, v, _ := strings.Cut(strings.TrimLeft(strings.TrimSpace(line), "- {"), ":")
				if unquoted(k) == key && unquoted(v) == value {
					left--
					break
				}
			}
		}
		if left == 0 {
			return true
		}
	}
	return false
}

func unquoted(s string) string {
	s, _, _ = strings.Cut(s, " #")
	return strings.Trim(strings.TrimRight(strings.TrimSpace(s), ",}"), `"'`)
}
