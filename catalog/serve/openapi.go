package serve

import (
	_ "embed"
	"encoding/json"
)

//go:embed openapi.json
var openAPIText []byte

// openAPI describes the HTTP API; a test holds it to what the handlers do.
func openAPI() json.RawMessage { return openAPIText }
