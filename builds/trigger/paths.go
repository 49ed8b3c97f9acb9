package trigger

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/armature-dev/armature/render"
)

// covers reports whether one of the paths matches one of the patterns: * does not match a
// slash, ** matches everything, **/ also nothing, and a pattern that is a folder covers what is
// in it.
func covers(patterns, paths []string) bool {
	expression, err := compile(patterns, "(/|$)")
	// in doubt, a run starts
	return err != nil || slices.ContainsFunc(paths, expression.MatchString)
}

// matches reports whether a branch or a tag matches one of the patterns.
func matches(patterns []string, name string) bool {
	expression, err := compile(patterns, "$")
	return len(patterns) > 0 && err == nil && expression.MatchString(name)
}

// compile patterns and what follows a match.
func compile(patterns []string, end string) (*regexp.Regexp, error) {
	var all strings.Builder
	for i, pattern := range patterns {
		if i > 0 {
			all.WriteByte('|')
		}
		text := regexp.QuoteMeta(strings.TrimPrefix(strings.TrimSuffix(pattern, "/"), "/"))
		all.WriteString(strings.NewReplacer(`\*\*/`, `(.*/)?`, `\*\*`, `.*`, `\*`, `[^/]*`).Replace(text))
	}
	return regexp.Compile(`^(?s:` + all.String() + `)` + end)
}

// ownWrite reports whether a change is that of locks alone, as a write-back makes it. If the
// lock is in the repository of the source, its commit would start the next run. Paths decide
// it: a message is what its author likes.
func ownWrite(paths []string) bool {
	return len(paths) > 0 &&
		!slices.ContainsFunc(paths, func(p string) bool { return path.Base(p) != render.LockFile })
}
