package api

// ImageLock is armature.lock: the digests behind the tags of a package. It is
// written by `armature pin` and applied by every render, which therefore needs
// no network. Its annotation config.kubernetes.io/local-config keeps hosts from
// applying it.
type ImageLock struct {
	TypeMeta   `json:",inline"`
	ObjectMeta `json:"metadata"`

	Spec ImageLockSpec `json:"spec"`

	Origin Origin `json:"-"`
}

// ImageLockSpec holds what was resolved.
type ImageLockSpec struct {
	// Images are sorted by image; each occurs once.
	Images []LockedImage `json:"images,omitempty"`
	// Builds are finished AgentBuilds, sorted by namespace and name.
	Builds []LockedBuild `json:"builds,omitempty"`
}

// LockedImage is one image of the package.
type LockedImage struct {
	// Image is as the manifests write it, without a digest: "web:v1".
	Image string `json:"image"`
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
	// Platform is os/arch[/variant] where the digest is that of one platform's
	// image. Omitted, it is the digest behind the tag, for all platforms.
	Platform string `json:"platform,omitempty"`
}

// LockedBuild is what an AgentBuild made.
type LockedBuild struct {
	// Namespace and Name are the AgentBuild's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Image is with its digest: "registry/web:v1@sha256:…".
	Image string `json:"image"`
	// Commit of the source that it was built from, in full. If omitted, it is not known,
	// and any other image may follow this one.
	Commit string `json:"commit,omitempty"`
}
