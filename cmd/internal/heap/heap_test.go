package heap

import (
	"os"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

// The first collection comes late, and all that follow as in any program.
func TestFirstCollection(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC is set")
	}
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	if got := percent(); got != 400 {
		t.Errorf("it begins with GOGC=%d", got)
	}
	runtime.GC()
	for range 500 {
		if percent() == 100 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("it goes on with GOGC=%d", percent())
}
