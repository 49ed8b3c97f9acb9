package krm

// Reference names a ConfigMap or Secret of a pod.
type Reference struct {
	Kind     string // ConfigMap or Secret
	Name     Node
	Keys     []Node // the keys that it takes; none if it takes all
	Optional bool
}

// References returns the references of a pod template, in the order of its containers, its volumes,
// and its image pull secrets.
func (p PodTemplate) References() (found []Reference) {
	for _, c := range p.Containers() {
		found = append(found, EnvironmentReferences(c)...)
	}
	for v := range p.Spec().Get("volumes").Items() {
		found = append(found, VolumeReferences(v)...)
	}
	for s := range p.Spec().Get("imagePullSecrets").Items() {
		found = append(found, Reference{Kind: "Secret", Name: s.Get("name")})
	}
	return found
}

// EnvironmentReferences returns the references of a container's environment.
func EnvironmentReferences(container Node) (found []Reference) {
	for e := range container.Get("env").Items() {
		found = appendReference(found, "ConfigMap", "name", e.Get("valueFrom", "configMapKeyRef"))
		found = appendReference(found, "Secret", "name", e.Get("valueFrom", "secretKeyRef"))
	}
	for e := range container.Get("envFrom").Items() {
		found = appendReference(found, "ConfigMap", "name", e.Get("configMapRef"))
		found = appendReference(found, "Secret", "name", e.Get("secretRef"))
	}
	return found
}

// VolumeReferences returns the references of a volume.
func VolumeReferences(volume Node) (found []Reference) {
	found = appendReference(found, "ConfigMap", "name", volume.Get("configMap"))
	found = appendReference(found, "Secret", "secretName", volume.Get("secret"))
	for s := range volume.Get("projected", "sources").Items() {
		found = appendReference(found, "ConfigMap", "name", s.Get("configMap"))
		found = appendReference(found, "Secret", "name", s.Get("secret"))
	}
	return found
}

func appendReference(found []Reference, kind, nameField string, source Node) []Reference {
	if !source.IsMap() {
		return found
	}
	r := Reference{Kind: kind, Name: source.Get(nameField),
		Optional: source.Get("optional").Is("true")}
	if key := source.Get("key"); key.Exists() {
		r.Keys = append(r.Keys, key)
	}
	for item := range source.Get("items").Items() {
		r.Keys = append(r.Keys, item.Get("key"))
	}
	return append(found, r)
}
