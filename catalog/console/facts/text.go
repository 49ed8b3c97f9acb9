package facts

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/armature-dev/armature/functions/text"
)

// Funcs returns functions for templates, for which it is now. What others wrote passes name or
// text, which show characters that change the direction of text, or that nobody sees, as codes.
func Funcs(now func() time.Time) template.FuncMap {
	return template.FuncMap{
		"name": name, "text": text.Plain, "clip": Clip, "short": short, "icon": icon, "link": Link,
		"plural": Plural, "since": func(at time.Time) template.HTML { return since(at, now()) },
		"took": duration.HumanDuration, "count": Count, "value": valueText, "account": account,
		"prose": prose, "slice": func(all ...string) []string { return all },
	}
}

// name returns a name that may be wrapped after its separators, and nowhere else. Its direction
// does not change what is around it.
func name(s string) template.HTML {
	var out strings.Builder
	out.WriteString("<bdi>")
	for part := range strings.SplitAfterSeq(text.Printable(s), "/") {
		for {
			at := strings.IndexAny(part, "/.-_:@")
			if at < 0 || at == len(part)-1 {
				break
			}
			out.WriteString(template.HTMLEscapeString(part[:at+1]) + "<wbr>")
			part = part[at+1:]
		}
		out.WriteString(template.HTMLEscapeString(part) + "<wbr>")
	}
	return template.HTML(strings.TrimSuffix(out.String(), "<wbr>") +
		"</bdi>") //nolint:gosec // each part is escaped
}

// short returns a digest or commit by its first digits, and an image with such a digest.
func short(s string) string {
	const digits = 12
	before, digest, found := strings.Cut(s, "@")
	if !found {
		before, digest = "", s
	}
	algorithm, hex, named := strings.Cut(digest, ":")
	if !named {
		algorithm, hex = "", digest
	}
	if len(hex) < 40 || strings.Trim(hex, "0123456789abcdef") != "" {
		return s
	}
	out := hex[:digits]
	if named && !found {
		out = algorithm + ":" + out
	}
	if found {
		out = before + "@" + out
	}
	return out
}

// valueText shows words. Digests among them are shortened, and addresses are links.
func valueText(s string) template.HTML {
	var out []string
	for _, word := range strings.Fields(s) {
		switch digits := short(strings.TrimSuffix(word, ",")); {
		case Link(word) != "":
			out = append(out, `<a href="`+template.HTMLEscapeString(word)+`" rel="noreferrer">`+
				string(name(word))+`</a>`)
		case digits != word:
			out = append(out, `<code title="`+template.HTMLEscapeString(text.Printable(word))+`">`+
				string(name(digits))+`</code>`)
		default:
			out = append(out, string(name(word)))
		}
	}
	return template.HTML(strings.Join(out, " ")) //nolint:gosec // each word is escaped
}

// prose returns a text in which commands are between backticks.
func prose(s string) template.HTML {
	var out strings.Builder
	for i, part := range strings.Split(text.Plain(s), "`") {
		if i%2 == 1 {
			part = "<code>" + template.HTMLEscapeString(part) + "</code>"
		} else {
			part = template.HTMLEscapeString(part)
		}
		out.WriteString(part)
	}
	return template.HTML(out.String()) //nolint:gosec // each part is escaped
}

// account returns a user's name as people say it.
func account(user string) string {
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		return text.Printable(strings.Replace(rest, ":", "/", 1))
	}
	return text.Printable(user)
}

// Path joins the segments of an address of this server.
func Path(segments ...string) string {
	var out strings.Builder
	for _, s := range segments {
		out.WriteString("/" + url.PathEscape(s))
	}
	return out.String()
}

// Plural returns a number of things, whose name is in the singular.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if stem, ok := strings.CutSuffix(one, "y"); ok {
		return fmt.Sprintf("%s %sies", Count(n), stem)
	}
	return Count(n) + " " + one + "s"
}

// Count formats a number as 12,345.
func Count(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// since returns a time as an age, with the time itself for who points at it.
func since(at, now time.Time) template.HTML {
	if at.IsZero() {
		return "never"
	}
	age := "just now"
	if d := now.Sub(at); d >= time.Minute { // seconds would change with each look
		age = rough(d) + " ago"
	}
	at = at.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`,
		at.Format(time.RFC3339), at.Format("2 January 2006, 15:04:05 UTC"),
		age)) //nolint:gosec // no text of others
}

// rough returns a duration in its largest unit.
func rough(d time.Duration) string {
	switch {
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// icons are drawn on 16 by 16, in lines of the colour of the text.
var icons = map[string]template.HTML{
	"healthy":   `<circle cx="8" cy="8" r="6.25"/><path d="m5.25 8.25 1.9 1.9 3.6-4.1"/>`,
	"degraded":  `<path d="M8 2.25 14.25 13.25H1.75zM8 6.5v3M8 11.4v.1"/>`,
	"failing":   `<circle cx="8" cy="8" r="6.25"/><path d="m5.9 5.9 4.2 4.2M10.1 5.9l-4.2 4.2"/>`,
	"unknown":   `<circle cx="8" cy="8" r="6.25" stroke-dasharray="2.4 2"/><path d="M6.4 6.4a1.7 1.7 0 1 1 2.3 1.6c-.5.2-.7.5-.7 1M8 11.2v.1"/>`,
	"building":  `<path d="M8 1.75a6.25 6.25 0 1 1-6.25 6.25"/><path d="M8 4.9V8l2.1 1.4"/>`,
	"queued":    `<circle cx="8" cy="8" r="6.25"/><path d="M5 8h.1M8 8h.1M11 8h.1"/>`,
	"drifted":   `<path d="M2.5 5.25h9.25M9.5 2.75l2.5 2.5-2.5 2.5M13.5 10.75H4.25M6.5 8.25 4 10.75l2.5 2.5"/>`,
	"cancelled": `<circle cx="8" cy="8" r="6.25"/><path d="M5.25 8h5.5"/>`,
	"home":      `<path d="M2.25 7.25 8 2.25l5.75 5v6.5h-4v-4h-3.5v4h-4z"/>`,
	"agent":     `<rect x="2.75" y="5.25" width="10.5" height="8" rx="2"/><path d="M8 5.25v-2.5M6 9h.1M10 9h.1M8 2.75h.1"/>`,
	"tool":      `<path d="M10.2 2.4a3.6 3.6 0 0 0-3.4 4.9L2.4 11.7a1.3 1.3 0 0 0 1.9 1.9l4.4-4.4a3.6 3.6 0 0 0 4.9-3.4l-2.1 1.4-1.9-.5-.5-1.9z"/>`,
	"build":     `<path d="M2.25 5 8 2.25 13.75 5 8 7.75zM2.25 8 8 10.75 13.75 8M2.25 11 8 13.75 13.75 11"/>`,
	"package":   `<path d="M2.5 5.1 8 2.25l5.5 2.85v5.8L8 13.75l-5.5-2.85zM2.5 5.1 8 8l5.5-2.9M8 8v5.75"/>`,
	"search":    `<circle cx="7" cy="7" r="4.25"/><path d="m10.25 10.25 3.5 3.5"/>`,
	"out":       `<path d="M9.25 2.75h4v4M13 3 7.5 8.5M11.5 9.5v3.75H2.75V4.5H6.5"/>`,
	"copy":      `<rect x="5.75" y="5.75" width="7.5" height="7.5" rx="1.5"/><path d="M10.25 5.5V4.25a1.5 1.5 0 0 0-1.5-1.5h-4.5a1.5 1.5 0 0 0-1.5 1.5v4.5a1.5 1.5 0 0 0 1.5 1.5H5.5"/>`,
	"edit":      `<path d="m10.75 2.75 2.5 2.5-7.5 7.5-3.25.75.75-3.25z"/>`,
	"next":      `<path d="m6 3.5 4.5 4.5L6 12.5"/>`,
	"commit":    `<circle cx="8" cy="8" r="2.75"/><path d="M1.5 8h3.75M10.75 8h3.75"/>`,
}

// icon returns a drawing beside a word, which screen readers pass over.
func icon(name string) template.HTML {
	return `<svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">` +
		icons[name] + `</svg>`
}

// Clip returns the beginning of a text that others wrote, in one line.
func Clip(length int, s string) string {
	s = strings.Join(strings.Fields(text.Plain(s)), " ")
	if utf8.RuneCountInString(s) <= length {
		return s
	}
	return strings.TrimRight(string([]rune(s)[:length]), " ,.;:") + "…"
}

// Shown returns a value in a line.
func Shown(v any) string {
	if s, ok := v.(string); ok {
		return Clip(200, s)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return Clip(200, string(out))
}
