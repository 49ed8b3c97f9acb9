package resources

import (
	"cmp"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
)

// Link returns an address if a browser may open it, and otherwise "": agents are not trusted.
func Link(s string) string {
	if u, err := url.Parse(s); err == nil && (u.Scheme == "http" || u.Scheme == "https") &&
		u.Host != "" && u.User == nil {
		return s
	}
	return ""
}

// Origin returns where the forge shows the file of an object, if kustomize recorded that.
func Origin(o *unstructured.Unstructured) string {
	var from struct{ Path, Repo, Ref string }
	if yaml.Unmarshal([]byte(o.GetAnnotations()[krm.OriginAnnotation]), &from) != nil || from.Repo == "" {
		return ""
	}
	return ForgeLink(from.Repo, "blob", cmp.Or(from.Ref, "HEAD"), from.Path)
}

// ForgeLink returns where a forge shows a commit, a file (blob) or a folder (tree); "" if the
// repository has no address that a browser may open.
func ForgeLink(repository, kind, ref, file string) string {
	repository = strings.TrimSuffix(strings.TrimSuffix(repository, "/"), ".git")
	if !strings.Contains(repository, "://") {
		repository = "https://" + repository
	}
	if Link(repository) == "" || ref == "" {
		return ""
	}
	between := "/" + kind + "/"
	switch forge.Of(repository) {
	case forge.GitLab:
		between = "/-" + between
	case forge.Gitea:
		switch {
		case kind == "commit":
		case commitID().MatchString(ref):
			between = "/src/commit/"
		default:
			between = "/src/branch/"
		}
	}
	var escaped []string
	for part := range strings.SplitSeq(strings.Trim(ref+"/"+file, "/"), "/") {
		escaped = append(escaped, url.PathEscape(part))
	}
	return repository + between + strings.Join(escaped, "/")
}

var commitID = text.Pattern(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// dockerfile matches the place at the beginning of a build's failure: a file and its line.
var dockerfile = text.Pattern(
	`(?:^|\s)((?:[\w.@+-]+/)*[\w.@+-]*(?:Dockerfile|Containerfile)[\w.@+-]*):(\d+): `)

// SourceLine returns where the forge shows the line of a Dockerfile that a message names, in a
// folder of a repository at a commit, and the file with its line; "" if it names none.
func SourceLine(message, repository, commit, folder string) (link, place string) {
	found := dockerfile().FindStringSubmatch(message)
	if found == nil || slices.Contains(strings.Split(found[1], "/"), "..") {
		return "", ""
	}
	if link = ForgeLink(repository, "blob", commit, path.Join(folder, found[1])); link == "" {
		return "", ""
	}
	return link + "#L" + found[2], found[1] + ":" + found[2]
}

// Pretty prints JSON for people.
func Pretty(document json.RawMessage) string {
	var v any
	if len(document) == 0 || json.Unmarshal(document, &v) != nil {
		return string(document)
	}
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return string(document)
	}
	return string(out)
}
