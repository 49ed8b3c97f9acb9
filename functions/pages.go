package functions

// Page returns the manual page of a function, in Markdown.
func Page(name string) (string, bool) {
	f, ok := Lookup(name)
	return f.Page, ok
}
