package api

import (
	"strings"

	"github.com/armature-dev/armature/functions/text"
)

// MaxMessage of a condition or a status, in bytes; the API server refuses a
// condition's message above 32 KiB.
const MaxMessage = 4096

// Clip bounds a text to MaxMessage and makes it plain: much of it was written by strangers.
func Clip(content string) string {
	content = text.Plain(content)
	if len(content) <= MaxMessage {
		return content
	}
	return strings.ToValidUTF8(content[:MaxMessage-3], "") + "…"
}
