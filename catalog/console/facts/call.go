package facts

import (
	"cmp"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
)

// Snippet is a command or configuration to copy.
type Snippet struct{ ID, Title, Text string }

// Link returns an address that a browser may go to: what agents say may be anything.
func Link(s string) string {
	if u, err := url.Parse(s); err == nil && (u.Scheme == "http" || u.Scheme == "https") &&
		u.Host != "" && u.User == nil {
		return s
	}
	return ""
}

// Origin returns where the forge shows the file that an object was made from, where kustomize
// noted that.
func Origin(o *unstructured.Unstructured) string {
	var from struct{ Path, Repo, Ref string }
	if yaml.Unmarshal([]byte(o.GetAnnotations()[krm.OriginAnnotation]), &from) != nil || from.Repo == "" {
		return ""
	}
	return ForgeLink(from.Repo, "blob", cmp.Or(from.Ref, "HEAD"), from.Path)
}

// ForgeLink returns where a forge shows a commit, a file (blob) or a folder (tree); "" where the
// repository has no address that a browser may go to.
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

// dockerfile is the place that begins why a build failed: a file, its line, and the instruction
// there.
var dockerfile = text.Pattern(
	`(?:^|\s)((?:[\w.@+-]+/)*[\w.@+-]*(?:Dockerfile|Containerfile)[\w.@+-]*):(\d+): `)

// SourceLine returns where the forge shows the line of a Dockerfile that a message names, in a
// folder of a repository at a commit, and the file with its line; "" where it names none.
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

// AgentSnippets show how to call an agent.
func AgentSnippets(e store.Entry) []Snippet {
	if Link(e.URL) == "" {
		return nil
	}
	at := strings.TrimSuffix(e.URL, "/")
	return []Snippet{
		{"call-send", "Send a message (A2A)",
			"curl -sS " + quote(at+"/") +
				" \\\n  -H 'Content-Type: application/json' \\\n  -d '{\"jsonrpc\": \"2.0\", " +
				"\"id\": 1, \"method\": \"message/send\", \"params\": {\"message\":\n" +
				"    {\"role\": \"user\", \"messageId\": \"1\", \"parts\": [{\"kind\": \"text\", " +
				"\"text\": \"Hello\"}]}}}'"},
		{"call-card", "Read its card", "curl -sS " + quote(at+"/.well-known/agent-card.json")},
		{"call-find", "Find it with the command line",
			"armature catalog get " + quote(e.Namespace+"/"+e.Name)},
	}
}

// ServerSnippets show how to call a tool server.
func ServerSnippets(e store.Entry) []Snippet {
	if Link(e.URL) == "" {
		return nil
	}
	kind := "http"
	if e.Protocol == "mcp+sse" {
		kind = "sse"
	}
	config, err := json.MarshalIndent(
		map[string]any{
			"mcpServers": map[string]any{e.Name: map[string]string{"type": kind, "url": e.URL}}},
		"", "  ")
	if err != nil {
		return nil
	}
	out := []Snippet{{"call-client", "Configure an MCP client", string(config)}}
	if kind == "http" {
		out = append(out,
			Snippet{"call-list", "List its tools (MCP)",
				"curl -sS " + quote(e.URL) +
					" \\\n  -H 'Content-Type: application/json' -H 'Accept: application/json, " +
					"text/event-stream' \\\n  -d '{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": " +
					"\"tools/list\"}'"})
	}
	return append(out, Snippet{"call-find", "Find it with the command line",
		"armature catalog get " + quote(e.Namespace+"/"+e.Name)})
}

// quote quotes a word for a shell, whatever others wrote into it.
func quote(s string) string {
	if strings.Trim(s,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/@%+=") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
