package compose

// maxCacheTag leaves room for a platform in the 128 characters of a tag.
const maxCacheTag = 108

// takesCache reports whether builds of a template may use a cache: whoever writes to one
// decides what is built, so that a template that attests has to say so.
func (t *Template) takesCache() bool {
	if t.Cache == nil {
		return !t.Attest
	}
	return *t.Cache
}

// cacheImage is the image in a registry that holds the layers of a build, empty for none.
// A build that names none has a tag of its own beside its image, with its namespace and
// its name: it shares that one with no other. A build that says nothing of a cache has it only
// where the image is pushed without a login, since the task that builds has none.
func cacheImage(in Input) string {
	spec := in.Build.Spec
	switch c := spec.Cache; {
	case c != nil && c.Registry != "":
		return c.Registry
	case c != nil && c.Mode == "off", spec.BuildOutput == nil, !in.Template.takesCache():
		return ""
	case c == nil && spec.BuildOutput.ImageRepoCredentials != nil:
		return ""
	}
	tag := firstOf(in.Build.Namespace, "default") + "." + in.Build.Name // a namespace has no dot
	if len(tag) > maxCacheTag {
		tag = fingerprint(tag)
	}
	return imageRepository(in.Build) + ":" + tag + "-cache"
}
