package functions

import "embed"

//go:embed */README.md
var pages embed.FS

// Page gives the manual page of a function, in Markdown.
func Page(name string) (string, bool) {
	for _, f := range Table() {
		if f.Name == name {
			page, err := pages.ReadFile(f.folder + "/README.md")
			return string(page), err == nil
		}
	}
	return "", false
}
