package browser

import _ "embed"

// measure is an expression that gives JSON for Check.
//
//go:embed measure.js
var measure string
