package kagentagent

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/images"
	fetch "github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
)

// skillsSuffix is the suffix of the ConfigMap with the configuration of skills-init.
const skillsSuffix = "-skills-init"

var (
	commitID  = text.Pattern(`^[0-9a-fA-F]{40}$`)
	skillName = text.Pattern(`^[A-Za-z0-9._-]+$`)
	hostName  = text.Pattern(`^[A-Za-z0-9.-]+$`)
	scpLike   = text.Pattern(`^(?:[^@/]+@)?([^:/]+):.+$`)

	annotationName = text.Pattern(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

// writeSkills writes the configuration of the init container that fetches skills.
func writeSkills(e *expander, s *skills) {
	const at = "spec.skills"
	if e.FailIf(len(s.Refs) == 0 && len(s.GitRefs) == 0 && len(s.S3Refs) == 0, "skills", at,
		"set refs or gitRefs, or remove it", "no skills") {
		return
	}
	e.isolated = true
	seen := make(map[string]bool)
	folder := func(name, field string) string {
		e.FailIf(!skillName().MatchString(name) || name == "." || name == ".." || seen[name],
			"skills", field, "name the skill with letters, digits, . _ and -",
			"%q is not a folder of its own", name)
		seen[name] = true
		return "/skills/" + name
	}
	login := ""
	if s.GitAuthSecretRef != nil {
		login = "/git-auth"
	}
	var git, s3 []ordered
	var oci []fetch.Source
	var hosts []sshHost
	var secrets []string
	e.skills = make(map[string]string)
	for i, ref := range s.GitRefs {
		field := fmt.Sprintf("%s.gitRefs[%d]", at, i)
		sub, revision := strings.TrimSuffix(ref.Path, "/"), cmp.Or(ref.Ref, "main")
		e.FailIf(ref.URL == "", "skills", field, "set it to the URL of the repository", "no url")
		e.FailIf(sub != "" && !filepath.IsLocal(sub), "skills", field+".path",
			"write it relative to the repository, without ..", "%q leaves the repository", ref.Path)
		git = append(git, some("url", ref.URL, "ref", revision, "dest", folder(ref.folder(), field),
			"full", commitID().MatchString(revision), "subPath", sub))
		if host, known := sshHostOf(ref.URL); known && s.GitAuthSecretRef != nil {
			hosts = append(hosts, host)
		}
	}
	slices.SortFunc(hosts, func(a, b sshHost) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	for i, image := range s.Refs {
		field := fmt.Sprintf("%s.refs[%d]", at, i)
		e.CheckImage(field, image)
		name := fetch.Folder(image)
		image = e.Image(image)
		oci = append(oci, fetch.Source{Image: image, Dest: folder(name, field)})
		if !annotationName().MatchString(name) {
			name = fmt.Sprint(i)
		}
		e.skills[keys.SkillPrefix+name] = images.Scheme + image
	}
	for i, ref := range s.S3Refs {
		field := fmt.Sprintf("%s.s3Refs[%d]", at, i)
		e.FailIf(!strings.HasPrefix(ref.URI, "s3://"), "skills", field+".uri",
			"write it as s3://bucket/key", "%q is not in S3", ref.URI)
		s3 = append(s3, some("uri", ref.URI, "dest", folder(ref.folder(), field),
			"region", ref.Region))
	}
	for _, secret := range s.ImagePullSecrets {
		secrets = append(secrets, secret.Name)
	}
	e.skillsConfig = e.json(some("authMountPath", login, "gitRefs", git, "ociRefs", oci,
		"s3Refs", s3, "insecureOci", s.InsecureSkipVerify, "sshHosts", slices.Compact(hosts),
		"imagePullSecrets", secrets))
}

// sshHost is a host whose key has to be known before a clone by SSH.
type sshHost struct {
	Host string `json:"host"`
	Port string `json:"port,omitempty"`
}

// folder returns the name of the skill, or else the last part of the path in the repository or of
// its address.
func (r *gitRef) folder() string {
	if name := strings.TrimSpace(r.Name); name != "" {
		return name
	}
	if in := strings.Trim(strings.TrimSpace(r.Path), "/"); in != "" {
		return path.Base(in)
	}
	address := r.URL
	if u, err := url.Parse(address); err == nil && u.Path != "" {
		address = u.Path
	}
	return path.Base(strings.TrimSuffix(address, ".git"))
}

// folder returns the name of the skill, or else the last part of the key, without the suffix of an
// archive.
func (r *s3Ref) folder() string {
	if name := strings.TrimSpace(r.Name); name != "" {
		return name
	}
	base := path.Base(strings.TrimSuffix(strings.TrimSpace(r.URI), "/"))
	for _, ending := range []string{".tar.gz", ".tgz", ".zip"} {
		if strings.HasSuffix(strings.ToLower(base), ending) {
			return base[:len(base)-len(ending)]
		}
	}
	return base
}

// sshHostOf returns the host of a repository's address, if it is cloned by SSH.
func sshHostOf(address string) (h sshHost, known bool) {
	if strings.Contains(address, "://") {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "ssh" && u.Scheme != "git+ssh" {
			return h, false
		}
		if h.Host = u.Hostname(); u.Port() != "22" {
			h.Port = u.Port()
		}
	} else if match := scpLike().FindStringSubmatch(address); match != nil {
		h.Host = match[1]
	}
	return h, hostName().MatchString(h.Host)
}

// skillsContainer returns the init container that fetches skills, with the volumes that it shares
// with the agent.
func skillsContainer(e *expander) (container object, volumes []any) {
	s := e.agent.Spec.Skills
	init := fetch.Begin("kagent-skills", "/skills",
		object{"configMap": object{"name": e.Name + skillsSuffix}})
	if s.GitAuthSecretRef != nil {
		init.Mount("git-auth", "/git-auth",
			object{"secret": object{"secretName": s.GitAuthSecretRef.Name}})
	}
	for _, secret := range s.ImagePullSecrets {
		init.PullSecret(secret.Name, object{})
	}
	container = init.Container(e.settings.image("", fetch.Container), defaultResources())
	set(container, object{"securityContext": e.spec.SecurityContext})
	if c := s.InitContainer; c != nil {
		set(container, object{"resources": c.Resources, "env": c.Env})
	}
	return container, init.Volumes
}
