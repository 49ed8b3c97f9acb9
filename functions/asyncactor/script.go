package asyncactor

import _ "embed" // the script

// defaultScript is asya_runtime.py where the configuration gives no other.
//
//go:embed asya_runtime.py
var defaultScript string
