package attest

import (
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/recipe"
)

// checkPlatforms compares what was pushed with spec.platforms: one is the image itself,
// several are an index of other images. That the index has those is for the caller
// to find out.
func (i *inspection) checkPlatforms(reported []string) error {
	want := i.ordered.Platforms
	if len(want) == 0 {
		return nil
	}
	var have []api.PlatformStatus
	if len(reported) == 1 {
		have, _ = api.ReadPlatforms(reported[0])
	}
	ok := slices.EqualFunc(have, want, func(p api.PlatformStatus, platform string) bool { return p.Platform == platform })
	if len(want) == 1 {
		ok = ok && have[0].Digest == i.digest
	} else {
		digests := map[string]bool{i.digest: true}
		for _, p := range have {
			ok = ok && !digests[p.Digest]
			digests[p.Digest] = true
		}
		i.platforms = have
	}
	if !ok {
		return refuse(api.ReasonResultInvalid, wrongStep, "the result %s is not the digest of %s", compose.PlatformDigests, strings.Join(want, ", "))
	}
	return nil
}

// platformOf a task of a run for several platforms: the digest of the image that it looks at
// or makes; "" for a task of none.
func (i *inspection) platformOf(t *task) string {
	for _, p := range t.ordered.Params {
		for _, platform := range i.platforms {
			if p.Name == recipe.Platform && p.Value.StringVal == platform.Platform {
				return platform.Digest
			}
		}
	}
	return ""
}
