package room

import (
	"syscall"
	"unsafe"
)

const hugePage = 2 << 20 // on amd64, and on arm64 with pages of 4 KiB

// inHugePages asks the kernel to back new memory with huge pages where it spans whole ones.
// A kernel without huge pages ignores it.
func inHugePages(b []byte) {
	start := unsafe.Pointer(unsafe.SliceData(b))
	before := int(-uintptr(start) & (hugePage - 1))
	if whole := (cap(b) - before) &^ (hugePage - 1); whole > 0 {
		_ = syscall.Madvise(unsafe.Slice((*byte)(unsafe.Add(start, before)), whole), syscall.MADV_HUGEPAGE)
	}
}
