// Package heap has a program start without a collection of garbage: what packages make as they
// are initialized stays, so that the first collection is at 16 MiB instead of 4. Import it for
// that alone; GOGC of the environment counts.
package heap

import (
	"os"
	"runtime"
	"runtime/debug"
)

func init() {
	if os.Getenv("GOGC") != "" {
		return
	}
	usual := debug.SetGCPercent(400)
	runtime.AddCleanup(new([64]byte), func(percent int) { debug.SetGCPercent(percent) }, usual) // by the first collection
}
