// Package design has the colours that all pages share: those of -o html, and the console.
package design

import _ "embed"

// Tokens is a style sheet that names the colours.
//
//go:embed tokens.css
var Tokens string
