package graph

import (
	_ "embed"
	"fmt"
	"html"
	"strings"
)

//go:embed style.css
var style string

// Sizes in pixels. Fonts differ, so that the width of a letter is a generous guess;
// text that is longer than its box is set closer by textLength.
const (
	margin      = 20
	heading     = 44
	padding     = 12
	nameLetter  = 8
	noteLetter  = 6
	nameLine    = 17
	noteLine    = 14
	longestNote = 26
	wrapName    = 14
)

// svg draws all pipelines below each other, in one picture.
func svg(b *strings.Builder, pipelines []Pipeline) {
	var body strings.Builder
	width, y := 0, margin
	for i := range pipelines {
		w, h := pipelines[i].draw(&body, y, true)
		width, y = max(width, w), y+h+margin
	}
	var names []string
	var words strings.Builder
	for i := range pipelines {
		names = append(names, pipelines[i].Name)
		for n := range pipelines[i].Tasks {
			words.WriteString(pipelines[i].Tasks[n].about() + ".\n")
		}
	}
	fmt.Fprintf(b, `<svg class="pipeline" xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-labelledby="name" aria-describedby="about">`+"\n", width, y, width, y)
	fmt.Fprintf(b, "<title id=\"name\">Pipeline of %s</title>\n<desc id=\"about\">%s</desc>\n", html.EscapeString(strings.Join(names, ", ")), html.EscapeString(words.String()))
	fmt.Fprintf(b, "<style>\n%s</style>\n", style)
	b.WriteString(tip)
	b.WriteString("<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n" + body.String() + "</svg>\n")
}

// tip of an edge.
const tip = `<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>` + "\n"

// draw draws one pipeline from a height on, and gives its size.
func (p *Pipeline) draw(b *strings.Builder, top int, titled bool) (width, height int) {
	l, longest := place(p, size), 0
	if titled {
		longest = len([]rune(p.Name)) * nameLetter
		fmt.Fprintf(b, "<text class=\"title\" x=\"%d\" y=\"%d\">%s</text>\n", margin, top+16, html.EscapeString(p.Name))
	}
	fmt.Fprintf(b, "<g transform=\"translate(%d %d)\">\n", margin, top+heading)
	for _, edge := range l.edges {
		b.WriteString("<path class=\"edge\" marker-end=\"url(#tip)\" d=\"" + l.path(edge) + "\"/>\n")
	}
	if n := len(p.Tasks); n > 0 && p.Tasks[n-1].Finally {
		x := l.width
		for _, i := range l.columns[len(l.columns)-1] {
			x = min(x, l.boxes[i].x)
		}
		if x > 0 {
			fmt.Fprintf(b, "<path class=\"apart\" d=\"M%d -14V%d\"/>\n", x-betweenColumns/2, l.height)
		}
		fmt.Fprintf(b, "<text class=\"note\" x=\"%d\" y=\"-6\">finally</text>\n", x)
	}
	for i := range p.Tasks {
		p.Tasks[i].draw(b, &l.boxes[i])
	}
	y := l.height + 16
	for _, r := range p.Results {
		y += noteLine
		shown := "result " + shorten(r, 4*longestNote)
		longest = max(longest, wide(shown)*noteLetter)
		fmt.Fprintf(b, "<text class=\"note\" y=\"%d\">%s<title>%s</title></text>\n", y, html.EscapeString(shown), html.EscapeString("result "+r))
	}
	b.WriteString("</g>\n")
	return max(l.width, longest) + 2*margin, heading + y
}

// path gives an edge as a curve from box to box, straight across those that it
// passes.
func (l *layout) path(edge []int) string {
	from := &l.boxes[edge[0]]
	x, y := from.x+from.w, from.middle()
	d := fmt.Sprintf("M%d %d", x, y)
	for n, i := range edge[1:] {
		to := &l.boxes[i]
		bend := (x + to.x) / 2
		d += fmt.Sprintf("C%d %d %d %d %d %d", bend, y, bend, to.middle(), to.x, to.middle())
		x, y = to.x+to.w, to.middle()
		if n < len(edge)-2 {
			d += fmt.Sprintf("H%d", x)
		}
	}
	return d
}

// lines of a box: the name, in two where it is long, and notes in small letters.
func (t *Task) lines() (name, notes []string) {
	name = []string{shorten(t.Name, 2*wrapName)}
	if runes := []rune(name[0]); len(runes) > wrapName {
		for i := range len(runes) / 2 { // at the hyphen next to the middle
			for _, cut := range [...]int{len(runes)/2 - i, len(runes)/2 + i} {
				if len(name) == 1 && cut > 0 && runes[cut-1] == '-' {
					name = []string{string(runes[:cut]), string(runes[cut:])}
				}
			}
		}
	}
	if steps := strings.Join(t.Steps, ", "); steps != "" && steps != t.Name {
		notes = append(notes, shorten(steps, longestNote))
	}
	for _, w := range t.When {
		notes = append(notes, shorten("if "+condition(w), longestNote))
	}
	if state := t.state(); state != "" {
		notes = append(notes, shorten(state, longestNote))
	}
	return name, notes
}

// condition is one without the task that a result is of: scan in yes.
func condition(when string) string {
	if rest, ok := strings.CutPrefix(when, "$("); ok {
		if reference, rest, ok := strings.Cut(rest, ")"); ok {
			return reference[strings.LastIndexByte(reference, '.')+1:] + rest
		}
	}
	return when
}

// wide is how many letters wide a text is: those of the East count twice.
func wide(text string) (n int) {
	for _, r := range text {
		n++
		if r >= 0x1100 {
			n++
		}
	}
	return n
}

func shorten(text string, letters int) string {
	if wide(text) <= letters {
		return text
	}
	var b strings.Builder
	n := 1
	for _, r := range text {
		if n += wide(string(r)); n > letters {
			break
		}
		b.WriteRune(r)
	}
	return b.String() + "…"
}

func size(t *Task) (w, h int) {
	name, notes := t.lines()
	for _, line := range name {
		w = max(w, wide(line)*nameLetter)
	}
	for _, line := range notes {
		w = max(w, wide(line)*noteLetter)
	}
	return w + 2*padding, 2*padding + len(name)*nameLine + len(notes)*noteLine - 6
}

// draw draws a task into its box, with its details as a tooltip.
func (t *Task) draw(b *strings.Builder, at *box) {
	class := "task"
	switch {
	case t.Finally:
		class = "task last"
	case len(t.When) > 0:
		class = "task maybe"
	}
	if t.State != "" {
		class += " " + strings.ToLower(t.State)
	}
	if t.Link != "" {
		fmt.Fprintf(b, "<a href=\"%s\">", html.EscapeString(t.Link))
	}
	fmt.Fprintf(b, "<g class=\"%s\" transform=\"translate(%d %d)\"><title>%s</title>\n", html.EscapeString(class), at.x, at.y, html.EscapeString(t.about()))
	fmt.Fprintf(b, "<rect width=\"%d\" height=\"%d\" rx=\"6\"/>\n", at.w, at.h)
	name, notes := t.lines()
	y := padding - 4
	line := func(class, text string, letter, height int) {
		y += height
		fit := ""
		if wide(text)*letter > at.w-2*padding {
			fit = fmt.Sprintf(" textLength=\"%d\" lengthAdjust=\"spacingAndGlyphs\"", at.w-2*padding)
		}
		fmt.Fprintf(b, "<text class=\"%s\" x=\"%d\" y=\"%d\"%s>%s</text>\n", class, padding, y, fit, html.EscapeString(text))
	}
	for _, text := range name {
		line("name", text, nameLetter, nameLine)
	}
	for _, text := range notes {
		line("note", text, noteLetter, noteLine)
	}
	b.WriteString("</g>")
	if t.Link != "" {
		b.WriteString("</a>")
	}
	b.WriteString("\n")
}
