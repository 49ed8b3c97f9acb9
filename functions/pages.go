package functions

// Page gives the manual page of a function, in Markdown.
func Page(name string) (string, bool) {
	f, ok := Lookup(name)
	return f.Page, ok
}
