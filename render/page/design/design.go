// Package design contains the colors of all pages: those of -o html and the console.
package design

import _ "embed"

// Tokens is a style sheet that names the colours.
//
//go:embed tokens.css
var Tokens string
