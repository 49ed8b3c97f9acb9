package console

import (
	"bytes"
	"embed"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/armature-dev/armature/render/page/design"
)

//go:embed static
var staticFiles embed.FS

// assets are the files that pages load, by their name: each with the files that it is
// made of. vendor/package.json pins where those of others come from.
var assets = map[string][]string{
	"console.css": {"vendor/sizes.min.css", "vendor/fonts.min.css", "console.css"},
	"console.js":  {"vendor/htmx.min.js", "vendor/hx-sse.min.js", "console.js"},
	"inter.woff2": {"vendor/inter.woff2"},
	"icon.svg":    {"icon.svg"},
}

type asset struct {
	hash string
	data []byte
}

// loaded reads them when the first page is asked for. The style sheet names the font by
// its address.
var loaded = sync.OnceValue(func() map[string]asset {
	out := map[string]asset{}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(assets))) { // the font first
		var data []byte
		if name == "console.css" {
			data = []byte(design.Tokens)
		}
		for i, file := range assets[name] {
			text, err := staticFiles.ReadFile("static/" + file)
			if err != nil {
				panic(err) // it is not embedded
			}
			if i > 0 {
				data = append(data, '\n')
			}
			data = append(data, text...)
		}
		if name == "console.css" {
			data = bytes.ReplaceAll(data, []byte("url(inter.woff2)"),
				[]byte("url(../"+out["inter.woff2"].hash+"/inter.woff2)"))
		}
		sum := fnv.New64a()
		_, _ = sum.Write(data) // it takes all
		out[name] = asset{fmt.Sprintf("%016x", sum.Sum64()), data}
	}
	return out
})

// assetPath returns where a file is. The address changes with its content, so that a browser keeps
// what it has.
func assetPath(name string) string { return "/static/" + loaded()[name].hash + "/" + name }

// serveAsset serves a file at its path.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	hash, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/static/"), "/")
	file, ok := loaded()[name]
	if !ok || hash != file.hash {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	if strings.HasSuffix(name, ".woff2") {
		w.Header().Set("Content-Type", "font/woff2")
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(file.data))
}
