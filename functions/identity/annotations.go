package identity

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/text"
)

func (c *Checker) annotations(s *Settings, all []Annotation) {
	origin, rows, profile := *c.origin, s.Profile.all.table, s.Profile
	var needless []string
	var first *api.Origin // of needless
	defer func() {
		c.origin = first
		c.needless(s, needless)
		c.origin = &origin
	}()
	for _, a := range all {
		name, ours := strings.CutPrefix(a.Key, s.Prefix+"/")
		if !ours {
			continue
		}
		field := cmp.Or(a.Field, "metadata.annotations") + "[" + strconv.Quote(a.Key) + "]"
		c.origin = &api.Origin{File: origin.File, Line: cmp.Or(a.Line, origin.Line)}
		i := slices.IndexFunc(rows, func(x setting) bool { return x.annotation == name })
		if i < 0 {
			c.unknown(s, name, field)
			continue
		}
		switch x := &rows[i]; {
		case !profile.Has(x.path) && strings.HasSuffix(x.path, ".enabled") &&
			(a.Value == "disabled" || a.Value == "false"):
			needless, first = append(needless, field), cmp.Or(first, c.origin)
		case !profile.Has(x.path) && strings.HasPrefix(x.path, components):
			c.OtherProfile(s, field, name)
		case !profile.Has(x.path):
			c.unknown(s, name, field)
		case profile.Rules.Unread != nil && profile.Rules.Unread(s, x.path):
			needless, first = append(needless, field), cmp.Or(first, c.origin)
		default:
			x.annotate(c, s, field, a.Value)
			if profile.Rules.Merged != nil {
				profile.Rules.Merged(c, s, map[string]any{x.path: nil}, field)
			}
		}
	}
}

// annotate applies the value of an annotation. The items of a list are added to the previous ones.
func (x *setting) annotate(c *Checker, s *Settings, field, content string) {
	var items []string
	for item := range strings.SplitSeq(content, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	bad := func(value, is, hint string) {
		c.Error("identity/bad-annotation", field, fmt.Sprintf("%q is %s", text.Shown(value), is), hint)
	}
	switch at := x.at(s).(type) {
	case *bool:
		switch content {
		case "disabled", "false":
			*at = false
		case "enabled", "true":
			*at = true
		default:
			bad(content, "neither enabled nor disabled", "use enabled or disabled")
		}
	case *int:
		if n, err := strconv.Atoi(strings.TrimSpace(content)); err != nil {
			bad(content, "not a number", "write a number in quotes")
		} else {
			x.put(c, s, field, n)
		}
	case *[]int:
		*at = slices.Clone(*at)
		for _, item := range items {
			if n, err := strconv.Atoi(item); err != nil {
				bad(item, "not a port", "separate port numbers with commas")
			} else if x.check(c, field, n); !slices.Contains(*at, n) {
				*at = append(*at, n)
			}
		}
	case *[]string:
		for _, item := range items {
			x.check(c, field, item)
		}
		*at = append(slices.Clone(*at), items...)
	default:
		x.put(c, s, field, content)
	}
}

// unknown warns of an annotation that is close to a known one. Other annotations under the shared
// prefix belong to other programs.
func (c *Checker) unknown(s *Settings, name, field string) {
	best := text.Nearest(name, s.Profile.all.AnnotationNames())
	hint := "did you mean " + best + "?"
	if best == "" {
		if !slices.ContainsFunc(s.Profile.all.sidecars,
			func(x string) bool { return strings.HasPrefix(name, x+"-") }) {
			return
		}
		hint = "see docs/configuration.md, Annotations, for those that are"
	}
	c.Warning("identity/unknown-annotation", field,
		"this annotation is not known and has no effect", hint)
}
