package api

import (
	"strings"

	"github.com/armature-dev/armature/functions/krm"
)

// MaxMessage of a condition or a status, in bytes; the API server refuses a
// condition's message above 32 KiB.
const MaxMessage = 4096

// Clip bounds a text to MaxMessage and makes it plain: much of it was written by strangers.
func Clip(text string) string {
	text = krm.Plain(text)
	if len(text) <= MaxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:MaxMessage-3], "") + "…"
}
