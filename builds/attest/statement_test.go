package attest_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// stated is the provenance of a run as the registry has it, which is changed.
func stated(t *testing.T, digest string, change func(p *sign.Provenance),
	edit ...func(*api.AgentBuild)) sign.Stated {
	t.Helper()
	built, err := attest.Check(*observe(t, false, edit...))
	if err != nil {
		t.Fatal(err)
	}
	out := sign.Stated{Digest: digest}
	if err := json.Unmarshal([]byte(marshal(t, built.Provenance)), &out.Provenance); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&out.Provenance)
	}
	return out
}

// A statement counts for the build that it is about, whatever else is attached to the image.
func TestFind(t *testing.T) {
	of := func(edit func(*api.AgentBuild)) sign.Stated { return stated(t, "other", nil, edit) }
	late := func(p *sign.Provenance) {
		at := p.RunDetails.Metadata.FinishedOn.Add(time.Hour)
		p.RunDetails.Metadata.FinishedOn = &at
	}
	name := of(func(b *api.AgentBuild) { b.Name = "traffic" })
	namespace := of(func(b *api.AgentBuild) { b.Namespace = "team2" })
	uid := of(func(b *api.AgentBuild) { b.UID = "recreated" })
	none := of(func(b *api.AgentBuild) { b.UID = "" })
	spec := stated(t, "spec", late, func(b *api.AgentBuild) {
		b.Spec.Source.SourceSubfolder = "elsewhere"
	})
	right, later := stated(t, "right", nil), stated(t, "later", late)
	render := stated(t, "render", func(p *sign.Provenance) {
		p.BuildDefinition.BuildType = "https://armature.dev/render/v1"
	})
	for what, c := range map[string]struct {
		all     []sign.Stated
		want    string
		current bool
		why     string
	}{
		"its own":            {[]sign.Stated{name, right, uid}, "right", true, ""},
		"the newest":         {[]sign.Stated{right, later, right}, "later", true, ""},
		"of another spec":    {[]sign.Stated{spec}, "spec", false, ""},
		"of the spec first":  {[]sign.Stated{spec, right, spec}, "right", true, ""},
		"another name":       {[]sign.Stated{name}, "", false, "AgentBuild team1/traffic"},
		"another namespace":  {[]sign.Stated{namespace}, "", false, "AgentBuild team2/weather"},
		"a recreated build":  {[]sign.Stated{uid}, "", false, "with the UID recreated"},
		"a build of no UID":  {[]sign.Stated{none}, "", false, "another AgentBuild of this name"},
		"another build type": {[]sign.Stated{render}, "", false, "not an AgentBuild"},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := attest.Find(ordered(func(b *api.AgentBuild) {
				b.Spec.Priority, b.Spec.Cancel = 7, true
			}), c.all)
			if (err == nil) != (c.why == "") ||
				err != nil &&
					(!strings.Contains(err.Error(), c.why) ||
						!strings.Contains(err.Error(), "hint: ")) {
				t.Fatal(err)
			}
			if got.Digest != c.want || got.Current != c.current ||
				err == nil &&
					(got.Commit != sha || got.Repository != "https://github.com/org/weather.git") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// An image of another repository than the ordered one, or without a digest, is refused.
func TestImageOf(t *testing.T) {
	for text, why := range map[string]string{
		image + "@" + digest: "", strings.TrimSuffix(image, ":v1") + "@" + digest: "",
		image: "with a digest", image + "@sha256:1": "with a digest",
		image + "@" + digest + "\nx":                     "with a digest",
		"registry.local:5000/team2/weather:v1@" + digest: "spec.buildOutput names " + image,
		"registry.evil:5000/team1/weather:v1@" + digest:  "spec.buildOutput names " + image,
	} {
		if _, err := attest.ImageOf(ordered(), text); (err == nil) != (why == "") ||
			err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
