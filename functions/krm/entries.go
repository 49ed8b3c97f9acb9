package krm

// Entries are what Insert adds: block-style YAML without indentation, each line
// ended by a line feed, as items ("- name: x") or fields ("key: value").
type Entries struct{ Text []byte }

func (e *Entries) items() bool { return e.Text[0] == '-' }

// appendWrapped writes the entries below keys, at a column.
func (e *Entries) appendWrapped(dst []byte, o *Object, keys []string, col int) []byte {
	for i, key := range keys {
		dst = appendSpaces(dst, col)
		dst = append(dst, key...)
		dst = append(dst, ':')
		dst = append(dst, o.eol...)
		if i == len(keys)-1 && e.items() {
			col += o.listIndent()
		} else {
			col += 2
		}
	}
	return AppendIndented(dst, e.Text, col, o.eol)
}
