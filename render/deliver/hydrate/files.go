package hydrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/mail"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
)

// command begins the command in the hydrator.metadata of a package that Write wrote.
const command = "armature hydrate"

// gitAttributes makes forges hide the files that describe the manifests. Argo CD ends it without a
// line feed.
const gitAttributes = "**/README.md linguist-generated=true\n" +
	"**/hydrator.metadata linguist-generated=true"

// Manifest returns the content of manifest.yaml for rendered files: the objects in their order, as
// Argo CD's hydrator encodes them, with sorted keys and without comments. It omits objects that
// stay in their package (host.Local), and is empty if none remains.
func Manifest(files []render.File) (_ []byte, failed error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	objects := 0
	for _, f := range files {
		render.Objects(f, func(o *krm.Object) {
			if host.Local(o) || failed != nil {
				return
			}
			data, err := o.JSON()
			var object map[string]any
			if err == nil {
				err = utiljson.Unmarshal(data, &object)
			}
			if err == nil {
				err = enc.Encode(object)
			}
			if err != nil {
				failed = fmt.Errorf("%s: encoding %s: %w", f.Path, o.Kind, err)
			}
			objects++
		})
	}
	if failed != nil || objects == 0 {
		return nil, failed
	}
	failed = enc.Close()
	return out.Bytes(), failed
}

// hydratorMetadata is a hydrator.metadata. That of the root has no commands, and that of a package
// has only the hash of the commit. The keys are those of Argo CD 3.5, util/hydrator.
type hydratorMetadata struct {
	RepoURL    string      `json:"repoURL,omitempty"`
	DrySHA     string      `json:"drySha,omitempty"`
	Commands   []string    `json:"commands,omitempty"`
	Author     string      `json:"author,omitempty"`
	Date       string      `json:"date,omitempty"` // RFC 3339
	Subject    string      `json:"subject,omitempty"`
	Body       string      `json:"body,omitempty"` // without the trailers of References
	References []reference `json:"references,omitempty"`

	author mail.Address // only at the root
}

// reference is RevisionReference of argoproj.io/v1alpha1, with its repoUrl.
type reference struct {
	Commit referenced `json:"commit"`
}

// referenced is the commit that a reference names.
type referenced struct {
	Author  string `json:"author,omitempty"` // RFC 5322
	Date    string `json:"date,omitempty"`   // RFC 3339
	Subject string `json:"subject,omitempty"`
	Body    string `json:"body,omitempty"`
	SHA     string `json:"sha,omitempty"`
	RepoURL string `json:"repoUrl,omitempty"`
}

func (m hydratorMetadata) encode() []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil {
		panic(err) // strings can always be encoded
	}
	return out.Bytes()
}

// own reports whether Write wrote the folder of a package.
func (m hydratorMetadata) own() bool {
	return len(m.Commands) == 1 && strings.HasPrefix(m.Commands[0], command+" ")
}

var hash = text.Pattern(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

func isHash(s string) bool { return hash().MatchString(s) }

// readCommit returns the hydrator.metadata of the branch's root, which describes the commit that
// was rendered.
func (b *Branch) readCommit(ctx context.Context) (m hydratorMetadata, err error) {
	if !isHash(b.Commit) {
		return m, fmt.Errorf("%q is not the hash of a commit", b.Commit)
	}
	out, err := git{folder: b.Folder}.run(ctx, "", "log", "-1", "--no-color", "--no-show-signature",
		"--no-notes", "--encoding=UTF-8", "--format=%an%x00%ae%x00%aI%x00%B", b.Commit)
	if err != nil {
		return m, err
	}
	parts := strings.SplitN(strings.ToValidUTF8(string(out), "\uFFFD"), "\x00", 4)
	if len(parts) != 4 {
		return m, fmt.Errorf("git log answers %d fields about %s, not 4", len(parts), b.Commit)
	}
	at, err := time.Parse(time.RFC3339, parts[2])
	if err != nil {
		return m, fmt.Errorf("the date of %s: %w", b.Commit, err)
	}
	subject, body, _ := strings.Cut(strings.TrimRight(parts[3], "\n"), "\n\n")
	m = hydratorMetadata{
		RepoURL: b.URL, DrySHA: b.Commit, Date: at.UTC().Format(time.RFC3339),
		Author: parts[0] + " <" + parts[1] + ">", Subject: strings.ReplaceAll(subject, "\n", " "),
		author: mail.Address{Name: parts[0], Address: parts[1]},
	}
	m.References, m.Body = readTrailers(body)
	return m, nil
}

// trailer begins the trailers with which CI names the commit that a commit of manifests is for.
const trailer = "Argocd-reference-commit-"

var shortHash = text.Pattern(`^[0-9a-f]{5,40}$`)

// readTrailers returns the commit that the trailers of a message name, and the message without
// them. Invalid trailers stay in the message. The last of two counts.
func readTrailers(body string) ([]reference, string) {
	var rest strings.Builder
	var c referenced
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if !c.parse(line) {
			rest.WriteString(line + "\n")
		}
	}
	if c == (referenced{}) {
		return nil, rest.String()
	}
	return []reference{{c}}, rest.String()
}

// parse parses a line and reports whether it is a valid trailer.
func (c *referenced) parse(line string) bool {
	key, value, ok := strings.Cut(line, ": ")
	name, is := strings.CutPrefix(key, trailer)
	if !ok || !is {
		return false
	}
	var err error
	var address *mail.Address
	var at time.Time
	switch name {
	case "repourl":
		if _, err = url.Parse(value); err == nil {
			c.RepoURL = value
		}
	case "author":
		if address, err = mail.ParseAddress(value); err == nil {
			c.Author = address.String()
		}
	case "date":
		if at, err = time.Parse(time.RFC3339, value); err == nil {
			c.Date = at.Format(time.RFC3339)
		}
	case "subject":
		c.Subject = value
	case "body":
		err = json.Unmarshal([]byte(value), &c.Body)
	case "sha":
		if ok = shortHash().MatchString(value); ok {
			c.SHA = value
		}
	default:
		return false
	}
	return ok && err == nil
}

// message returns the message of the commit on the branch. Its trailers name the commit that was
// rendered, so that Argo CD shows it with the revision.
func (m hydratorMetadata) message() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%.7s: %s\n\n", m.DrySHA, m.Subject)
	if body := strings.TrimSpace(m.Body); body != "" {
		fmt.Fprintf(&out, "%s\n\n", body)
	}
	for _, r := range m.References {
		if r.Commit.Author != "" {
			fmt.Fprintf(&out, "Co-authored-by: %s\n", r.Commit.Author)
		}
	}
	fmt.Fprintf(&out, "Co-authored-by: %s\n", m.Author)
	put := func(name, value string) { fmt.Fprintf(&out, "%s%s: %s\n", trailer, name, value) }
	if _, err := mail.ParseAddress(m.author.String()); err == nil {
		put("author", m.author.String())
	}
	if shortHash().MatchString(m.DrySHA) {
		put("sha", m.DrySHA)
	}
	put("subject", m.Subject)
	if m.Body != "" {
		text, err := json.Marshal(m.Body)
		if err != nil {
			panic(err) // a string can always be encoded
		}
		put("body", string(text))
	}
	put("repourl", m.RepoURL)
	put("date", m.Date)
	return out.String()
}

// readme returns the README.md of a package, which describes how to render its manifest.yaml.
func (m hydratorMetadata) readme() []byte {
	return fmt.Appendf(nil, "# Rendered manifests\n\n"+
		"`manifest.yaml` is rendered: change its source, not this branch. These commands render "+
		"it again:\n\n"+
		"```shell\ngit clone %s source\ncd source\ngit checkout %s\n%s\n```\n",
		quote(m.RepoURL), m.DrySHA, m.Commands[0])
}

// quote quotes a word for a shell. It puts ./ before a path that begins like a flag.
func quote(word string) string {
	if strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") {
		word = "./" + word
	}
	return text.Quote(word)
}
