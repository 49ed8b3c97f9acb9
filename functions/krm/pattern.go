package krm

import (
	"regexp"
	"sync"
)

// Pattern returns a regular expression that is compiled when it is first used. Most
// renders use few of them, and armature-fn starts for each package.
func Pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
