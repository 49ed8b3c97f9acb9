package trigger

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/armature-dev/armature/render"
)

// covers reports whether any path matches any pattern. * does not match a slash, ** matches
// everything, **/ also matches nothing, and the pattern of a folder matches its content.
func covers(patterns, paths []string) bool {
	expression, err := compile(patterns, "(/|$)")
	// If the patterns cannot be compiled, a run starts.
	return err != nil || slices.ContainsFunc(paths, expression.MatchString)
}

// matches reports whether a branch or a tag matches one of the patterns.
func matches(patterns []string, name string) bool {
	expression, err := compile(patterns, "$")
	return len(patterns) > 0 && err == nil && expression.MatchString(name)
}

// compile returns the regular expression of patterns, followed by end.
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

// ownWrite reports whether a change affects only locks, as that of a write-back. If the lock is in
// the repository of the source, its commit would start the next run. The message is no evidence,
// since its author may write anything.
func ownWrite(paths []string) bool {
	return len(paths) > 0 &&
		!slices.ContainsFunc(paths, func(p string) bool { return path.Base(p) != render.LockFile })
}
