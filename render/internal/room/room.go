// Package room makes room for large texts.
package room

// Grow makes room for n more bytes, in huge pages where the room is large: the
// kernel clears memory as it hands it out, and in pages of 4 KiB that takes
// longer than to fill it.
func Grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	grown := make([]byte, 0, len(b)+n)
	inHugePages(grown)
	return append(grown, b...)
}
