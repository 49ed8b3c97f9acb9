package finding_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
)

// TestListKeepsErrors: no number of other findings leaves an error out.
func TestListKeepsErrors(t *testing.T) {
	const many = 60_000
	var l finding.List
	for range many {
		l.Add(finding.Finding{Severity: finding.Info})
	}
	l.Add(finding.Finding{Severity: finding.Error, Message: "lost"})
	all := l.Findings()
	if len(all) >= many || !finding.Failed(all) || l.Errors() != 1 {
		t.Errorf("%d findings, failed %t, %d errors", len(all), finding.Failed(all), l.Errors())
	}
	if last := all[len(all)-1]; !strings.HasPrefix(last.Message, "10000 more") {
		t.Error(last)
	}
}
