package compose

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
)

// checkLogin refuses to send the build's Git login where everybody on the way can
// read it: to the repository that the controller asks, and to any that a step is
// given.
func (c *composition) checkLogin() {
	if c.in.Build.Spec.Source.SourceCredentials == nil {
		return
	}
	refused := func(address, field string) {
		u, err := url.Parse(address)
		if err != nil || !strings.EqualFold(u.Scheme, "http") || slices.Contains(c.in.Settings.PlainHTTPHosts, u.Host) || slices.Contains(c.in.Settings.PlainHTTPHosts, u.Hostname()) {
			return
		}
		c.bad(api.ReasonInsecureSource, field, fmt.Sprintf("a login is not sent to %s over plain http", u.Host),
			"use https or ssh, or let the operator name the host in --plain-http-hosts of the controller")
	}
	refused(CloneURL(Repository(c.in.Build, c.in.Template)), "spec.source.sourceRepository")
	for _, s := range c.steps {
		for _, name := range sortedKeys(s.known) {
			if real := canonical(name); real == "repo-url" || real == "repo-clone-url" {
				refused(CloneURL(s.known[name].StringVal), fmt.Sprintf("spec.pipeline.steps[%s].parameters[%s]", s.row.Name, name))
			}
		}
	}
}
