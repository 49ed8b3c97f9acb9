package browser

import _ "embed"

// measure is an expression that evaluates to JSON for Check.
//
//go:embed measure.js
var measure string
