// Package page writes the results of explain and compare as pages for a browser. A page is one file
// that loads nothing and runs nothing, so that it can be mailed, attached or printed. Content of
// manifests appears only as text.
package page

import (
	"bufio"
	"embed"
	"fmt"
	"html/template"
	"io"
	"sync"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/page/design"
)

//go:embed templates
var files embed.FS

// templates are parsed when the first page is written, so that other commands do not pay for it.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(
		template.New("").Funcs(template.FuncMap{"plain": text.Plain, "count": count, "by": by,
			"tokens": func() template.CSS { return template.CSS(design.Tokens) }}).ParseFS(files,
			"templates/*"))
})

// write writes a page. An error comes from w, because the types of the data match the templates.
func write(w io.Writer, name string, data any) error {
	out := bufio.NewWriterSize(w, 64<<10)
	if err := templates().ExecuteTemplate(out, name, data); err != nil {
		return err
	}
	return out.Flush()
}

// open is the number of lines up to which a page shows its objects open. Above it they are closed,
// so that a browser does not lay out hidden lines.
const open = 2000

// count returns "1 line", "2,345 lines".
func count(n int, one string) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if n != 1 {
		one += "s"
	}
	return digits + " " + one
}
