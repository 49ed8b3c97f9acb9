// Package skills reads the skills of a workload (agentskills.io), and builds kagent's init
// container that fetches skills.
package skills

import (
	"fmt"
	"path"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Skill is a skill that a workload names.
type Skill struct {
	// Name is the name of its folder.
	Name string
	// Ref is the image, without a scheme.
	Ref string
	// At is the annotation of the skill.
	At krm.Node
}

var nameForm = text.Pattern(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// ValidName reports whether a name is valid for a skill.
func ValidName(name string) bool { return len(name) <= 64 && nameForm().MatchString(name) }

// maxName is the maximum length of an annotation's name, without its prefix.
const maxName = 63

// Check returns the problem of a skill, or "", and the remedy.
func Check(name, ref string) (problem, hint string) {
	image, scheme := strings.CutPrefix(ref, images.Scheme)
	switch {
	case !ValidName(name) || len(name) > maxName:
		return fmt.Sprintf("%q is not the name of a skill", text.Shown(name)),
			fmt.Sprintf(
				"name it as its SKILL.md does: at most %d lower-case letters, digits and single "+
					"hyphens between them", maxName)
	case !scheme || !identity.IsImage(image) || strings.Contains(image, "$"):
		return fmt.Sprintf("%q is not the reference of a skill", text.Shown(ref)),
			"write it as oci://registry/repository:tag"
	}
	return "", ""
}

// Folder returns the name of a skill that names none: the last part of its repository.
func Folder(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name := path.Base(image)
	name, _, _ = strings.Cut(name, ":")
	return name
}

// Of returns the skills in the annotations of a workload and of its pods, in the order in which
// they are written.
func Of(o *krm.Object, pod krm.PodTemplate) (all []Skill, findings []finding.Finding) {
	seen := make(map[string]Skill)
	report := func(at krm.Node, problem, hint string) {
		findings = append(findings, o.Finding(finding.Error, "inject/skill", at, problem, hint))
	}
	for _, annotations := range pod.Metadata(o, "annotations") {
		for at := range annotations.Prefixed(keys.SkillPrefix) {
			s := Skill{Name: strings.TrimPrefix(at.Key(), keys.SkillPrefix),
				Ref: strings.TrimPrefix(at.Text(), images.Scheme), At: at}
			first, twice := seen[s.Name]
			if problem, hint := Check(s.Name, at.Text()); problem != "" {
				report(at, problem, hint)
			} else if twice && first.Ref != s.Ref {
				report(at, fmt.Sprintf("the skill %s is %s here, and %s in line %d", s.Name, s.Ref,
					first.Ref, first.At.Line()), "keep one of the two")
			} else if !twice {
				seen[s.Name] = s
				all = append(all, s)
			}
		}
	}
	return all, findings
}

// Registry returns the URL of the registry of an image.
func Registry(image string) string {
	host, _, path := strings.Cut(image, "/")
	if !path || !strings.ContainsAny(host, ".:") {
		host = "registry-1.docker.io"
	}
	return "https://" + host
}
