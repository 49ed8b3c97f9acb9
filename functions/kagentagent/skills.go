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

// skillsSuffix is that of the ConfigMap with the configuration of skills-init.
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
	if len(s.Refs) == 0 && len(s.GitRefs) == 0 && len(s.S3Refs) == 0 {
		e.error("skills", at, "no skills", "set refs or gitRefs, or remove it")
		return
	}
	e.isolated = true
	seen := make(map[string]bool)
	folder := func(name, field string) string {
		if !skillName().MatchString(name) || name == "." || name == ".." || seen[name] {
			e.error("skills", field, fmt.Sprintf("%q is not a folder of its own", text.Shown(name)),
				"name the skill with letters, digits, . _ and -")
		}
		seen[name] = true
		return "/skills/" + name
	}
	var git, buckets, hosts []ordered
	var sources []fetch.Source
	e.skills = make(map[string]string)
	for i, ref := range s.GitRefs {
		field := fmt.Sprintf("%s.gitRefs[%d]", at, i)
		sub := strings.TrimSuffix(ref.Path, "/")
		if ref.URL == "" {
			e.error("skills", field, "no url", "set it to the URL of the repository")
		}
		if sub != "" && !filepath.IsLocal(sub) {
			e.error("skills", field+".path",
				fmt.Sprintf("%q leaves the repository", text.Shown(ref.Path)),
				"write it relative to the repository, without ..")
		}
		revision := cmp.Or(ref.Ref, "main")
		entry := ordered{{"url", ref.URL}, {"ref", revision}, {"dest", folder(ref.folder(), field)}}
		entry.set("full", commitID().MatchString(revision))
		entry.set("subPath", sub)
		git = append(git, entry)
		if host := sshHost(ref.URL); s.GitAuthSecretRef != nil && host != nil &&
			!slices.ContainsFunc(hosts,
				func(h ordered) bool { return fmt.Sprint(h) == fmt.Sprint(host) }) {
			hosts = append(hosts, host)
		}
	}
	for i, image := range s.Refs {
		field := fmt.Sprintf("%s.refs[%d]", at, i)
		e.CheckImage(function, field, image)
		name := fetch.Folder(image)
		image = e.Pinned(image)
		sources = append(sources, fetch.Source{Image: image, Dest: folder(name, field)})
		if !annotationName().MatchString(name) {
			name = fmt.Sprint(i)
		}
		e.skills[keys.SkillPrefix+name] = images.Scheme + image
	}
	for i, ref := range s.S3Refs {
		field := fmt.Sprintf("%s.s3Refs[%d]", at, i)
		if !strings.HasPrefix(ref.URI, "s3://") {
			e.error("skills", field+".uri", fmt.Sprintf("%q is not in S3", text.Shown(ref.URI)),
				"write it as s3://bucket/key")
		}
		entry := ordered{{"uri", ref.URI}, {"dest", folder(ref.folder(), field)}}
		entry.set("region", ref.Region)
		buckets = append(buckets, entry)
	}
	slices.SortFunc(hosts, func(a, b ordered) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	config := ordered{}
	if s.GitAuthSecretRef != nil {
		config.add("authMountPath", "/git-auth")
	}
	config.set("gitRefs", git)
	config.set("ociRefs", sources)
	config.set("s3Refs", buckets)
	config.set("insecureOci", s.InsecureSkipVerify)
	config.set("sshHosts", hosts)
	var pull []string
	for _, secret := range s.ImagePullSecrets {
		pull = append(pull, secret.Name)
	}
	config.set("imagePullSecrets", pull)
	e.skillsConfig = e.json(config)
}

// folder is the last part of the path in the repository, or of its address.
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

// folder is the last part of the key, without the ending of an archive.
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

// sshHost returns the host whose key has to be known before a clone by SSH, nil
// for other addresses.
func sshHost(address string) ordered {
	host, port := "", ""
	if u, err := url.Parse(address); err == nil && strings.Contains(address, "://") {
		if u.Scheme != "ssh" && u.Scheme != "git+ssh" {
			return nil
		}
		host, port = u.Hostname(), u.Port()
	} else if match := scpLike().FindStringSubmatch(address); match != nil &&
		!strings.Contains(address, "://") {
		host = match[1]
	}
	if !hostName().MatchString(host) {
		return nil
	}
	entry := ordered{{"host", host}}
	if port != "22" {
		entry.set("port", port)
	}
	return entry
}

// skillsContainer returns the init container that fetches skills, with the volumes
// that it shares with the agent.
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
