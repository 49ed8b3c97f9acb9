package api

import "github.com/armature-dev/armature/functions/text"

// MaxMessage is the limit of a condition's or a status's message in bytes; the API server refuses a
// condition's message above 32 KiB.
const MaxMessage = 4096

// Clip limits a text to MaxMessage and escapes unprintable characters. Much of it is not trusted.
func Clip(content string) string {
	return text.Cut(text.Plain(content), MaxMessage)
}
