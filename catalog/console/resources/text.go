package resources

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/armature-dev/armature/functions/text"
)

// Funcs returns functions for templates, whose time is now. Untrusted text passes through name or
// text, which show invisible characters, and those that change the direction of text, as codes.
func Funcs(now func() time.Time) template.FuncMap {
	return template.FuncMap{
		"name": name, "text": text.Plain, "clip": Clip, "short": short, "icon": icon, "link": Link,
		"plural": Plural, "since": func(at time.Time) template.HTML { return since(at, now()) },
		"took": duration.HumanDuration, "count": Count, "value": valueText, "account": account,
		"prose": prose, "slice": func(all ...string) []string { return all },
		"shell": text.Quote, "json": marshal,
	}
}

// name returns a name that may be wrapped after its separators, and nowhere else. Its direction
// does not change the text around it.
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

// valueText returns words as HTML, with short digests, and with links for addresses.
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

// prose returns a text as HTML. Commands in it are between backticks.
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

// account returns a user's name in a short form.
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

// since returns a time as an age, with the time itself as a tooltip.
func since(at, now time.Time) template.HTML {
	if at.IsZero() {
		return "never"
	}
	age := "just now"
	if d := now.Sub(at); d >= time.Minute { // seconds would change with each update
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

//go:embed icons.json
var iconFile []byte

// icons are drawn on 16 by 16, in lines of the colour of the text.
var icons = sync.OnceValue(func() (all map[string]template.HTML) {
	if err := json.Unmarshal(iconFile, &all); err != nil {
		panic(err) // it is embedded
	}
	return all
})

// icon returns a drawing for a place next to a word, which screen readers skip.
func icon(name string) template.HTML {
	return `<svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">` +
		icons()[name] + `</svg>`
}

// Clip returns the beginning of an untrusted text, in one line.
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
	return Clip(200, marshal(v))
}

// marshal returns a value in JSON; "" for one that JSON does not have.
func marshal(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(out)
}
